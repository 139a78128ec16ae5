"""What coding agents ask for: rewriting what was read, second turns, many conversations, and short
questions beside long prompts.

Every figure is a ratio within one run on one engine in this process: with drafts and without in
turns, warm and cold, and so on. `python -m benchmarks.agents --help`.
"""

import argparse
import json
import queue
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from statistics import median

import numpy as np

from benchmarks.edits import PROMPTS, PROSE, REPLIES
from tensorfold.checkpoints.hub import home, open_checkpoint, resolve
from tensorfold.checkpoints.interface import Tokenizer
from tensorfold.engine.interface import Engine, Event, Finished, NewTokens, Request, Sampling
from tensorfold.engine.start import open_step_function, start_engine
from tensorfold.runtime.compilation import keep_compiled_programs

_names = count()


@dataclass(frozen=True)
class Answer:
    """A whole reply: its tokens, its end, and the seconds at which tokens came."""

    tokens: tuple[int, ...]
    end: Finished
    times: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Decoded tokens a second after the first."""
        return (len(self.tokens) - 1) / max(self.end.stats.decode_seconds, 1e-9)


class Asked:
    """A request under way."""

    def __init__(self, engine: Engine, request: Request):
        self._events: queue.Queue[tuple[float, Event]] = queue.Queue()
        self._started = time.perf_counter()
        engine.submit(
            replace(request, id=f"benchmark {next(_names)}"),
            lambda event: self._events.put((time.perf_counter() - self._started, event)),
        )

    def wait(self) -> Answer:
        """The reply, whole."""
        tokens: list[int] = []
        times: list[float] = []
        while True:
            seconds, event = self._events.get()
            if isinstance(event, Finished):
                if event.error:
                    raise RuntimeError(event.error)
                return Answer(tuple(tokens), event, tuple(times))
            if isinstance(event, NewTokens):
                tokens += event.ids
                times.append(seconds)


def ask(engine: Engine, request: Request) -> Answer:
    """A reply by itself."""
    return Asked(engine, request).wait()


def drafts(
    engine: Engine, tokenizer: Tokenizer, prompts: dict[str, tuple[str, int]], sampling: Sampling
) -> dict[str, dict[str, float]]:
    """For each prompt and its reply's length: tokens a second with drafts and without, in turns."""
    found = {}
    for name, (text, tokens) in prompts.items():
        prompt = tuple(tokenizer.encode(text, add_special_tokens=True))
        request = Request("", prompt, sampling, tokens)
        ask(engine, replace(request, max_tokens=1))  # so that neither reads the prompt
        rates: dict[bool, list[float]] = {True: [], False: []}
        stats = None
        for _ in range(3):
            replies = {}
            for draft in (True, False):
                replies[draft] = ask(engine, replace(request, draft=draft))
                rates[draft].append(replies[draft].rate)
            if replies[True].tokens != replies[False].tokens:
                raise RuntimeError(f"{name}: the drafted reply is another one")
            stats = replies[True].end.stats
        assert stats is not None
        drafted, plain = median(rates[True]), median(rates[False])
        found[name] = {
            "ratio": drafted / plain,
            "drafted": drafted,
            "plain": plain,
            "accepted": stats.accepted / max(stats.drafted, 1),
        }
    return found


def second_turn(engine: Engine, rng: np.random.Generator, vocabulary: int) -> dict[str, float]:
    """The first token's wait in a conversation of 1,500 tokens, read cold, and in its next turn."""
    cold, warm = [], []
    for _ in range(3):
        prompt = tuple(rng.integers(0, vocabulary, 1500).tolist())
        first = ask(engine, Request("", prompt, Sampling(), 40))
        more = tuple(rng.integers(0, vocabulary, 12).tolist())
        turn = ask(engine, Request("", prompt + first.tokens + more, Sampling(), 4))
        cold.append(first.end.stats.time_to_first_token)
        warm.append(turn.end.stats.time_to_first_token)
    return {"cold": median(cold), "warm": median(warm), "ratio": median(warm) / median(cold)}


def shared_prompt(engine: Engine, rng: np.random.Generator, vocabulary: int) -> dict[str, float]:
    """Pages that ten conversations with one system prompt of 640 tokens take."""
    system = tuple(rng.integers(0, vocabulary, 640).tolist())

    def pages() -> int:
        stats = engine.stats()
        return stats.pages_used + stats.pages_cached

    before = pages()
    asked = [
        Asked(
            engine, Request("", (*system, *rng.integers(0, vocabulary, 50).tolist()), Sampling(), 4)
        )
        for _ in range(10)
    ]
    for each in asked:
        each.wait()
    return {"pages": pages() - before, "pages if each had its own": 10 * 11}


def short_beside_long(
    engine: Engine, rng: np.random.Generator, vocabulary: int
) -> dict[str, float]:
    """A question of 30 tokens that comes when a prompt of 1,500 has begun to be read, against the
    wait for that whole prompt; and the longest pause of a reply that was running."""

    def prompt(tokens: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, vocabulary, tokens).tolist())

    waits, wholes, pauses, chunks = [], [], [], []
    for _ in range(3):
        long = Asked(engine, Request("", prompt(1500), Sampling(), 1))
        time.sleep(0.05)
        short = ask(engine, Request("", prompt(30), Sampling(), 1))
        waits.append(short.end.stats.time_to_first_token)
        wholes.append(long.wait().end.stats.time_to_first_token)
        running = Asked(engine, Request("", prompt(30), Sampling(), 400, draft=False))
        time.sleep(0.5)
        read = ask(engine, Request("", prompt(1500), Sampling(), 1))
        times = running.wait().times
        pauses.append(max(b - a for a, b in pairwise(times)))
        chunks.append(read.end.stats.prefill_seconds / (1500 / 63))
    return {
        "first token": median(waits),
        "whole prompt": median(wholes),
        "ratio": median(waits) / median(wholes),
        "longest pause": median(pauses),
        "a chunk, with the decoding after it": median(chunks),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.agents", description=__doc__.split("\n\n")[0])
    parser.add_argument("model", nargs="?", help="as for `tensorfold serve`")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(arguments)
    keep_compiled_programs(home() / "compiled")
    checkpoint = open_checkpoint(resolve(options.model))
    step = open_step_function(checkpoint, lanes=10, context=2048)
    engine = start_engine(step)
    tokenizer, vocabulary = checkpoint.tokenizer, step.model.spec.vocab_size
    rng = np.random.default_rng()
    length = {
        name: len(tokenizer.encode(text, add_special_tokens=False))
        for name, text in REPLIES.items()
    }
    edits = {name: (text, length[name]) for name, text in PROMPTS.items()}
    prose = {text: (text, 128) for text in PROSE}
    seeded = Sampling(temperature=0.8, top_p=0.95, seed=11)
    sections = {
        "rewriting, greedy": drafts(engine, tokenizer, edits, Sampling()),
        "rewriting, seeded": drafts(engine, tokenizer, edits, seeded),
        "prose, seeded": drafts(engine, tokenizer, prose, seeded),
        "second turn": second_turn(engine, rng, vocabulary),
        "ten conversations": shared_prompt(engine, rng, vocabulary),
        "short beside long": short_beside_long(engine, rng, vocabulary),
    }
    engine.close()
    if options.json:
        print(json.dumps(sections))
        return 0
    for title, figures in sections.items():
        print(title)
        if all(isinstance(value, dict) for value in figures.values()):
            ratios = [value["ratio"] for value in figures.values()]
            for name, value in figures.items():
                print(f"  {name[:30]:30}", *(f"{k} {v:.2f}" for k, v in value.items()))
            print(f"  {'median ratio':30} {median(ratios):.2f}, least {min(ratios):.2f}")
        else:
            print("  " + ", ".join(f"{name} {value:.3g}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
