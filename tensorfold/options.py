"""The options that commands share, and the kinds of their values.

A kind reads an option's text; argparse reports the ArgumentTypeError that it raises.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

MOST_LANES = 255
"""Replies at once: a step of the most rows has one more, so that a prompt gets on beside them."""

MODEL = (
    "a Hugging Face Hub id (ORG/REPO, ORG/REPO:Q4_K_M), a folder, or a .gguf file; "
    "SmolLM2-135M-Instruct when left out"
)


def model_argument(parser: argparse.ArgumentParser) -> None:
    """The model to run."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL)


def engine_options(parser: argparse.ArgumentParser) -> None:
    """How large the engine's state is."""
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--context",
        type=at_least_two,
        metavar="N",
        help="tokens of prompt and reply together, at least 2 (default: the model's, fitted to "
        "memory)",
    )
    group.add_argument(
        "--parallel",
        type=lanes,
        default=8,
        metavar="N",
        help=f"replies that run at once, at most {MOST_LANES} (default 8)",
    )
    group.add_argument(
        "--prompt-cache-gib",
        type=at_least_zero,
        metavar="GIB",
        help="memory for prefixes of earlier prompts and replies "
        "(default: a quarter of what is left; 0: off)",
    )
    activations_option(group)


def activations_option(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """The arithmetic of products with quantised weights."""
    parser.add_argument(
        "--activations",
        choices=("float32", "int8"),
        default="float32",
        help="int8: round what quantised weights are multiplied by, as other CPU engines do; "
        "faster, other replies, as exact among themselves (default float32)",
    )


def scheduling_options(parser: argparse.ArgumentParser) -> None:
    """What shares a step, and what waits."""
    group = parser.add_argument_group("scheduling")
    group.add_argument(
        "--draft-model",
        metavar="MODEL",
        help="a smaller model of the same tokenizer that drafts; the replies are the same",
    )
    group.add_argument(
        "--no-drafts",
        action="store_true",
        help="decode one token at a time; the replies are the same",
    )
    group.add_argument(
        "--decode-share",
        type=at_least_zero,
        default=0.25,
        metavar="SHARE",
        help="time that running replies get after each chunk of a prompt, as a share of the "
        "chunk's (default 0.25)",
    )
    group.add_argument(
        "--max-queue",
        type=positive,
        metavar="N",
        help="replies that may wait for a place, those of the background not counted against "
        "others; more get 503 (default: any number)",
    )


def server_options(parser: argparse.ArgumentParser) -> None:
    """Where and how the server answers, and what requests ask for that do not say."""
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="address (default 127.0.0.1)")
    group.add_argument("--port", type=port, default=8080, help="port (default 8080; 0: any)")
    group.add_argument("--name", help="the model's id (default: its file's or folder's name)")
    group.add_argument(
        "--alias", action="append", default=[], metavar="NAME", help="one more id (repeat)"
    )
    group.add_argument(
        "--chat-template",
        type=Path,
        metavar="FILE",
        help="a Jinja template instead of the checkpoint's",
    )
    group.add_argument(
        "--tool-format",
        metavar="NAME",
        help="how the model writes tool calls (default: told by the template and tokenizer)",
    )
    group.add_argument(
        "--request-timeout",
        type=above_zero,
        metavar="SECONDS",
        help="longest that a request may take; then it ends with an error (default: any time)",
    )
    group.add_argument(
        "--drain-seconds",
        type=at_least_zero,
        default=10.0,
        metavar="SECONDS",
        help="time for replies to finish once the server is told to stop (default 10)",
    )
    defaults = parser.add_argument_group(
        "defaults for requests that do not say (else the checkpoint's own)"
    )
    defaults.add_argument("--max-tokens", type=positive, default=4096, metavar="N")
    defaults.add_argument("--temperature", type=finite, metavar="T", help="0: greedy")
    defaults.add_argument("--top-p", type=finite, metavar="P")
    defaults.add_argument("--top-k", type=integer, metavar="K")
    defaults.add_argument("--min-p", type=share, metavar="P")
    defaults.add_argument(
        "--reasoning-effort",
        choices=("none", "minimal", "low", "medium", "high", "xhigh", "max"),
        help="how hard to think, if the chat template can say so; none: not at all",
    )
    defaults.add_argument(
        "--thinking-budget", type=positive, default=0, metavar="N", help="tokens of reasoning"
    )
    group.add_argument(
        "--loop-guard",
        action="store_true",
        help="end reasoning that repeats a few tokens over and over",
    )


def server_defaults() -> argparse.Namespace:
    """What `server_options` come to where none is given."""
    parser = argparse.ArgumentParser()
    server_options(parser)
    return parser.parse_args([])


def refuse_engine_options(options: argparse.Namespace, url: str) -> None:
    """Raise ValueError for an option that only a model loaded here could follow."""
    parser = argparse.ArgumentParser(add_help=False)
    engine_options(parser)
    scheduling_options(parser)
    for name, default in vars(parser.parse_args([])).items():
        if getattr(options, name) != default:
            raise ValueError(
                f"--{name.replace('_', '-')} is for a model that is loaded here: leave it out, or "
                f"give it to the server at {url}"
            )


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return _read(text, int, lambda value: value >= 1, "a whole number of at least 1")


def at_least_two(text: str) -> int:
    """A whole number of at least 2."""
    return _read(text, int, lambda value: value >= 2, "a whole number of at least 2")


def lanes(text: str) -> int:
    """A whole number from 1 to `MOST_LANES`."""
    description = f"a whole number from 1 to {MOST_LANES}"
    return _read(text, int, lambda value: 1 <= value <= MOST_LANES, description)


def above_zero(text: str) -> float:
    """A finite number above 0."""
    return _read(text, float, lambda value: 0 < value < math.inf, "a finite number above 0")


def at_least_zero(text: str) -> float:
    """A finite number of at least 0."""
    return _read(text, float, lambda value: 0 <= value < math.inf, "a finite number of at least 0")


def finite(text: str) -> float:
    """Any finite number."""
    return _read(text, float, math.isfinite, "a finite number")


def share(text: str) -> float:
    """A number from 0 to 1."""
    return _read(text, float, lambda value: 0 <= value <= 1, "a number from 0 to 1")


def whole_at_least_zero(text: str) -> int:
    """A whole number of at least 0."""
    return _read(text, int, lambda value: value >= 0, "a whole number of at least 0")


def integer(text: str) -> int:
    """Any whole number."""
    return _read(text, int, lambda _: True, "a whole number")


def port(text: str) -> int:
    """A whole number from 0 to 65535."""
    return _read(text, int, lambda value: 0 <= value <= 65535, "a whole number from 0 to 65535")


def positives(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, commas between."""
    return _read(
        text,
        lambda whole: tuple(int(part) for part in whole.split(",")),
        lambda values: min(values) >= 1,
        "whole numbers of at least 1 with commas between",
    )


def _read(
    text: str, parse: Callable[[str], T], accepts: Callable[[T], bool], description: str
) -> T:
    """What `text` says. Raises ArgumentTypeError where it is not what `description` names."""
    try:
        value = parse(text)
        if accepts(value):
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"must be {description}, not {text!r}")
