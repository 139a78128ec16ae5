"""The command line: serve, pull, convert, chat, verify, bench and info."""

import argparse
import json
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from tensorfold import __version__
from tensorfold.checkpoints.interface import Checkpoint, CheckpointError
from tensorfold.console import console, say, show_progress, show_status
from tensorfold.interrupts import INTERRUPTED, interrupts_exit, interrupts_raise
from tensorfold.options import (
    MODEL,
    above_zero,
    activations_option,
    engine_options,
    model_argument,
    positive,
    positives,
    refuse_engine_options,
    scheduling_options,
    server_defaults,
    server_options,
    whole_at_least_zero,
)

# Everything that imports JAX is imported where it is used: --help must not take seconds.
if TYPE_CHECKING:
    from tensorfold.engine.drafts.steps import DraftSteps
    from tensorfold.engine.stress import Stress
    from tensorfold.engine.thread import ThreadEngine
    from tensorfold.runtime.load import Activations
    from tensorfold.runtime.step import StepFunction
    from tensorfold.serving.app import App


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status."""
    with interrupts_exit():
        options = _parser().parse_args(arguments)
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        run: Callable[[argparse.Namespace], int] = options.run
        try:
            return run(options)
        except (CheckpointError, ValueError, OSError, RuntimeError) as error:
            text = str(error)
            if isinstance(error, OSError) and error.strerror and error.filename is None:
                text = error.strerror  # without its number
            console.print(
                f"tensorfold: {text}", style="red", markup=False, highlight=False, soft_wrap=True
            )
            return 1
        except KeyboardInterrupt:
            return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tensorfold",
        description="A server for language models whose speculative decoding is exact: a reply "
        "is the same, token for token, however it was batched, drafted or cached.",
    )
    parser.add_argument("--version", action="version", version=f"tensorfold {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(
        name: str, run: Callable[[argparse.Namespace], int], about: str
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=about, description=about)
        sub.set_defaults(run=run)
        return sub

    serve = command("serve", _serve, "serve a model to OpenAI clients")
    model_argument(serve)
    engine_options(serve)
    scheduling_options(serve)
    server_options(serve)
    pull = command("pull", _pull, "fetch a model and print where it lies")
    model_argument(pull)
    convert = command(
        "convert", _convert, "write a model as a folder in Orbax's format that every command opens"
    )
    convert.add_argument("model", metavar="MODEL", help=MODEL.partition(";")[0])
    convert.add_argument("out", type=Path, metavar="OUT", help="the new folder")
    convert.add_argument(
        "--quantize",
        choices=("q4", "q8"),
        help="turn matrices into codes of 4 or 8 bits (default: every tensor as it is)",
    )
    convert.add_argument(
        "--group",
        type=int,
        choices=(8, 16, 32, 64, 128, 256),
        metavar="N",
        help="with --quantize, columns that share a scale: 8, 16, 32, 64, 128 or 256 (default 32)",
    )
    chat = command("chat", _chat, "talk with a model, or with the server at a URL")
    chat.add_argument("model", nargs="?", metavar="MODEL_OR_URL", help=f"a URL, {MODEL}")
    chat.add_argument("--system", metavar="TEXT", help="the system prompt")
    chat.add_argument("--api-key", metavar="KEY", help="for a server that asks for one")
    engine_options(chat)
    scheduling_options(chat)
    # Without a URL it starts a server of its own.
    chat.set_defaults(**vars(server_defaults()))
    verify = command(
        "verify",
        _verify,
        "check on this machine that a model's replies do not depend on how they are computed; "
        "exits 1 at a difference",
    )
    model_argument(verify)
    activations_option(verify)
    verify.add_argument("--json", action="store_true", help="one JSON object a comparison")
    verify.add_argument(
        "--draft-model", metavar="MODEL", help="also compare replies that this model drafts"
    )
    verify.add_argument(
        "--tokens", type=positive, default=12, metavar="N", help="tokens a reply (default 12)"
    )
    verify.add_argument(
        "--stress",
        type=above_zero,
        metavar="SECONDS",
        help="instead, compare the replies of random traffic for this long: drafted, cached, "
        "cancelled, preempted and mixed; the first difference is shrunk and printed",
    )
    verify.add_argument(
        "--seed",
        type=whole_at_least_zero,
        default=0,
        metavar="N",
        help="of the random traffic (default 0)",
    )
    bench = command("bench", _bench, "measure how fast a model runs on this machine")
    model_argument(bench)
    activations_option(bench)
    bench.add_argument("--json", action="store_true", help="one JSON object")
    bench.add_argument(
        "--prompt", type=positive, default=512, metavar="N", help="prompt tokens (default 512)"
    )
    bench.add_argument(
        "--tokens", type=positive, default=128, metavar="N", help="reply tokens (default 128)"
    )
    bench.add_argument(
        "--streams",
        type=positives,
        default=(1, 8),
        metavar="N,N",
        help="replies at once, each measured (default 1,8)",
    )
    info = command("info", _info, "describe a checkpoint without loading its weights")
    model_argument(info)
    return parser


def _serve(options: argparse.Namespace) -> int:
    from tensorfold.serving.listener import check_address

    started = time.perf_counter()
    check_address(options.host, options.port)  # Better now than after loading a model.
    engine, app = _start(_open(options.model), options)

    from tensorfold.serving.server import serve
    from tensorfold.serving.watchdog import watching

    drain = options.drain_seconds

    def ready(url: str) -> None:
        say(f"{url}/v1 is ready after {time.perf_counter() - started:.1f} s; Ctrl-C stops")

    def stopping() -> None:
        replies = engine.stats().running + engine.stats().waiting
        if replies:
            say(
                f"stopping: replies still running: {replies}, "
                f"with {drain:g} s to finish; Ctrl-C again ends them"
            )

    if options.host not in ("127.0.0.1", "::1", "localhost"):
        say(f"warning: anyone who reaches {options.host} can use this server")
    try:
        with watching(engine):
            serve(
                app,
                options.host,
                options.port,
                grace_seconds=drain,
                ready=ready,
                stopping=stopping,
            )
    finally:
        engine.close()
    return 0


def _pull(options: argparse.Namespace) -> int:
    from tensorfold.checkpoints.hub import pull

    with interrupts_raise(), show_progress() as progress:
        path = pull(options.model, progress)
    print(path)
    return 0


def _convert(options: argparse.Namespace) -> int:
    from tensorfold.checkpoints.convert import convert

    if options.group and not options.quantize:
        raise ValueError("--group says how --quantize makes codes: give --quantize q4 or q8 too")
    checkpoint = _open(options.model)
    if options.quantize:
        from tensorfold.runtime.load import turned_tensors

        bits, turned = int(options.quantize[1:]), turned_tensors(checkpoint)
    else:
        bits, turned = None, frozenset()
    group = options.group or 32
    with interrupts_raise(), show_progress() as progress:
        convert(checkpoint, options.out, bits=bits, group=group, turned=turned, progress=progress)
    print(options.out)
    return 0


def _chat(options: argparse.Namespace) -> int:
    from tensorfold.serving.server import serve_in_background
    from tensorfold.serving.terminal import chat

    if options.model and re.match(r"https?://|[\w.-]+:\d+$", options.model):
        url = options.model if "://" in options.model else f"http://{options.model}"
        refuse_engine_options(options, url)
        with interrupts_raise():
            return chat(url, system=options.system, api_key=options.api_key)
    engine, app = _start(_open(options.model), options)
    try:
        with interrupts_raise(), serve_in_background(app) as server:
            return chat(server.url, system=options.system)
    finally:
        engine.close()


def _verify(options: argparse.Namespace) -> int:
    from tensorfold.engine.stress import Stress
    from tensorfold.engine.verify import LANES, make_cases, verify
    from tensorfold.verify_prompts import make_prompts

    checkpoint = _open(options.model)
    prompts = make_prompts(checkpoint.tokenizer)
    context = max(map(len, prompts)) + options.tokens
    _check_context(checkpoint, context, f"--tokens {options.tokens}")
    draft = _open(options.draft_model) if options.draft_model else None
    step, draft_steps = _step_functions(
        checkpoint, draft, lanes=LANES, context=context, activations=options.activations
    )
    if options.stress:
        return _stress(Stress(step, prompts, options.tokens, draft_steps), options)
    compared = differences = 0
    for comparison in verify(step, make_cases(prompts, options.tokens), draft_steps):
        compared += 1
        differences += bool(comparison.difference)
        if options.json:
            print(json.dumps(comparison.__dict__), flush=True)
        else:
            verdict = f"DIFFERS: {comparison.difference}" if comparison.difference else "same"
            print(f"{verdict:6} {comparison.name} ({comparison.compared})", flush=True)
    console.print(f"{compared} comparisons, {differences} differences")
    return int(differences > 0)


def _stress(stress: "Stress", options: argparse.Namespace) -> int:
    """Run random traffic, and print the smallest of it that comes out otherwise."""
    from collections import Counter

    totals: Counter[str] = Counter(rounds=0)
    difference, interrupted = "", False
    try:
        with interrupts_raise(), show_status("comparing") as status:
            for case, outcome in stress.run(options.stress, options.seed):
                found = outcome.__dict__.copy()
                difference = found.pop("difference")
                totals.update(found, rounds=1)
                status(_counts(totals))
                if difference:
                    print(f"DIFFERS: {difference}")
                    print("\n".join(case.lines()))
    except KeyboardInterrupt:
        interrupted = True
    if options.json:
        print(json.dumps(totals | {"difference": difference}))
    else:
        print(f"{_counts(totals)}: {'a difference' if difference else 'no difference'}")
    return 1 if difference else INTERRUPTED if interrupted else 0


def _counts(totals: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in totals.items())


def _bench(options: argparse.Namespace) -> int:
    from tensorfold.benchmark import Load, measure

    started = time.perf_counter()
    checkpoint = _open(options.model)
    loads = [Load(streams, options.prompt, options.tokens) for streams in options.streams]
    context = max(load.context for load in loads)
    lanes = max(options.streams)
    _check_context(
        checkpoint,
        context,
        f"--prompt {options.prompt} with --tokens {options.tokens} and {lanes} --streams",
    )
    step, _ = _step_functions(
        checkpoint,
        None,
        lanes=lanes,
        context=context,
        activations=options.activations,
        prompt_cache_gib=0.0,  # Prompts are new; and so the state is always as large.
        drafts=False,
    )
    seconds = time.perf_counter() - started
    with show_status("measuring") as status:
        report = measure(step, loads, name=checkpoint.name, ready_seconds=seconds, progress=status)
    print(json.dumps(report.as_json()) if options.json else "\n".join(report.lines()))
    return 0


def _info(options: argparse.Namespace) -> int:
    from tensorfold.info import info_rows

    for key, value in info_rows(_open(options.model)).items():
        print(f"{key:14} {value}")
    return 0


def _open(name: str | None) -> Checkpoint:
    from tensorfold.checkpoints.hub import open_checkpoint, resolve

    with interrupts_raise(), show_progress() as progress:
        path = resolve(name, progress)
    return open_checkpoint(path)


def _check_context(checkpoint: Checkpoint, needed: int, asked: str) -> None:
    """Raise ValueError where the model has less context than what the options `asked` for needs."""
    from tensorfold.runtime.load import describe

    most = describe(checkpoint).context
    if needed > most:
        raise ValueError(
            f"{asked} needs a context of {needed}, and the model's is {most}: ask for less"
        )


def _step_functions(
    checkpoint: Checkpoint,
    draft: Checkpoint | None,
    *,
    lanes: int,
    context: int | None,
    activations: "Activations",
    prompt_cache_gib: float | None = None,
    drafts: bool = True,
) -> "tuple[StepFunction, DraftSteps]":
    """Of the model, and of what drafts for it if `drafts` are wanted."""
    from tensorfold.checkpoints.hub import home
    from tensorfold.engine.drafts.steps import DraftSteps, load_draft_model, open_draft_steps
    from tensorfold.engine.start import open_step_function
    from tensorfold.runtime.compilation import keep_compiled_programs
    from tensorfold.runtime.kept import KeptFiles

    keep_compiled_programs(home() / "compiled")
    kept = KeptFiles(home() / "kept")
    with show_progress() as progress:
        draft_model = (
            load_draft_model(draft, checkpoint, progress, kept) if draft and drafts else None
        )
        step = open_step_function(
            checkpoint,
            lanes=lanes,
            context=context,
            prompt_cache_gib=prompt_cache_gib,
            activations=activations,
            draft_model=draft_model,
            progress=progress,
            kept=kept,
        )
        if not drafts:
            return step, DraftSteps()
        return step, open_draft_steps(step, draft_model, progress, kept)


def _start(checkpoint: Checkpoint, options: argparse.Namespace) -> "tuple[ThreadEngine, App]":
    import jax

    from tensorfold.chat.prompt import ChatEncoder
    from tensorfold.chat.template import ChatTemplate, read_template_file
    from tensorfold.chat.tools.registry import choose_format
    from tensorfold.engine.seeds import salt_from_environment
    from tensorfold.engine.start import start_engine
    from tensorfold.ops.implementation import describe

    # The template and the format first: what is wrong with them must not cost a load.
    source = checkpoint.chat_template
    if options.chat_template:
        source = read_template_file(options.chat_template)
    template = ChatTemplate(source, checkpoint.special_tokens) if source else None
    tokenizer = checkpoint.tokenizer
    controls = {tokenizer.token_text(token) for token in tokenizer.control_ids}
    tool_format = choose_format(options.tool_format, source or "", controls)
    draft = _open(options.draft_model) if options.draft_model else None
    drafts = not options.no_drafts
    with ThreadPoolExecutor(1) as aside:
        opening = aside.submit(
            _step_functions,
            checkpoint,
            draft,
            lanes=options.parallel,
            context=options.context,
            prompt_cache_gib=options.prompt_cache_gib,
            activations=options.activations,
            drafts=drafts,
        )
        # Meanwhile, as it takes a while: a warm start is made of imports and of reading files.
        import tensorfold.serving.server  # noqa: F401
        from tensorfold.serving.app import create_app
        from tensorfold.serving.service import ReplyDefaults, Service

        step, draft_steps = opening.result()
    engine = start_engine(
        step,
        drafts=drafts,
        draft_steps=draft_steps,
        decode_share=options.decode_share,
        queue=options.max_queue,
    )
    device = jax.devices()[0]
    service = Service(
        engine=engine,
        tokenizer=checkpoint.tokenizer,
        chat=ChatEncoder(template, checkpoint.tokenizer) if template else None,
        name=options.name or checkpoint.name,
        created=int(time.time()),
        aliases=tuple(options.alias),
        end_ids=checkpoint.end_ids,
        tool_format=tool_format,
        defaults=ReplyDefaults.of(
            checkpoint.generation,
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            thinking_budget=options.thinking_budget,
            loop_guard=options.loop_guard,
        ),
        backend=device.platform,
        device=device.device_kind,
        reasoning_effort=options.reasoning_effort,
        model_context=step.model.spec.context if options.context else 0,
        drafts=drafts,
        seed_salt=salt_from_environment(),
        request_timeout=options.request_timeout,
    )
    limits = engine.limits
    drafting = f", {draft.name} drafts where that pays" if draft and drafts else ""
    kernels = describe(options.activations)
    say(
        f"{service.name} on {device.platform}, {kernels}: {limits.lanes} replies at once, "
        f"{limits.context:,} tokens each, {step.shape.pages} pages of 64 tokens{drafting}"
    )
    return engine, create_app(service)


if __name__ == "__main__":
    sys.exit(main())
