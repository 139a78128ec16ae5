"""Decoding under a grammar beside decoding freely: tokens a second of the default model.

Each round decodes the same number of tokens freely and under every grammar, one token at a time
and drafted, so that a machine's changes of pace meet all of them. `python -m benchmarks.grammar`
runs it.
"""

import argparse
import threading
import time
from collections.abc import Callable
from statistics import median

from tensorfold.chat.grammar.compiler import GrammarCompiler
from tensorfold.chat.grammar.structure import Structure
from tensorfold.checkpoints.hub import home, open_checkpoint, resolve
from tensorfold.engine.interface import Constraint, Event, Finished, ReplyStats, Request, Sampling
from tensorfold.engine.start import open_step_function, start_engine
from tensorfold.engine.thread import ThreadEngine
from tensorfold.runtime.compilation import keep_compiled_programs

_PROMPT = "Write a long JSON list of people with their names, ages and what they like to do.\n"
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 4},
    },
    "required": ["name", "age", "likes"],
}
_GRAMMARS = {
    "a list of people": Structure.of_schema(
        {"type": "array", "items": _PERSON, "minItems": 1000, "maxItems": 1000}
    ),
    "any JSON list": Structure.of_schema({"type": "array", "minItems": 1000}),
    "small letters": Structure("grammar", "root ::= [a-z ] root"),
}
Make = Callable[[], Constraint]


def main() -> None:
    options = _options()
    keep_compiled_programs(home() / "compiled")
    checkpoint = open_checkpoint(resolve(options.model))
    engine = start_engine(open_step_function(checkpoint, lanes=1, context=1024))
    tokenizer = checkpoint.tokenizer
    compiler = GrammarCompiler(tokenizer, engine.limits.vocab_size, checkpoint.end_ids)
    kinds: dict[str, Make | None] = {"free": None}
    for name, structure in _GRAMMARS.items():
        started = time.perf_counter()
        kinds[name] = compiler.compile(structure.grammar, structure.source)
        print(f"{name}: compiled in {time.perf_counter() - started:.2f} s")
    prompt = tuple(tokenizer.encode(_PROMPT))
    rates: dict[tuple[str, bool], list[float]] = {}
    for round_ in range(options.rounds + 1):
        for name, make in kinds.items():
            for draft in (False, True):
                stats = _decode(engine, prompt, options.tokens, make, draft)
                # The first round warms up.
                if round_:
                    rate = (stats.completion_tokens - 1) / stats.decode_seconds
                    rates.setdefault((name, draft), []).append(rate)
    engine.close()
    for draft in (False, True):
        free = median(rates["free", draft])
        for name in kinds:
            rate = median(rates[name, draft])
            how = "drafted" if draft else "serial"
            print(f"{how:8} {name:18} {rate:7.1f} tokens/s  {rate / free:.3f} of free")


def _decode(
    engine: ThreadEngine, prompt: tuple[int, ...], tokens: int, make: Make | None, draft: bool
) -> ReplyStats:
    done = threading.Event()
    found: list[Finished] = []

    def deliver(event: Event) -> None:
        if isinstance(event, Finished):
            found.append(event)
            done.set()

    request = Request("1", prompt, Sampling(), tokens, draft=draft, constraint=make)
    engine.submit(request, deliver)
    done.wait()
    (end,) = found
    if end.error or end.stats.completion_tokens < tokens:
        raise RuntimeError(end.error or "a reply ended early")
    return end.stats


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="default: the default model")
    parser.add_argument("--tokens", type=int, default=96, metavar="N", help="tokens a reply")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds that count")
    return parser.parse_args()


if __name__ == "__main__":
    main()
