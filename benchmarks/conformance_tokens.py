"""The control tokens in the fixtures' outputs, without the tokenizers, which the package lacks.

In most families every marker's letters are its token. In three a model may also write the letters
as ordinary tokens: there the fixture's token ids say which is which.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from canitoolcall.fixtures import Fixture

_THINK = ("<think>", "</think>")
_MARKERS = {
    "hermes": ("<tool_call>", "</tool_call>", *_THINK),
    "qwen3-xml": ("<tool_call>", "</tool_call>", *_THINK),
    "glm": (
        *("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        *_THINK,
    ),
    "gemma": ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
    "kimi": (
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
        *("<|tool_call_end|>", "<|tool_call_argument_begin|>"),
        *_THINK,
    ),
    "deepseek": (
        *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
        *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
        *_THINK,
    ),
    "dsml": ("｜DSML｜", *_THINK),
    "llama3-json": ("<|python_tag|>", "<|start_header_id|>", "<|end_header_id|>"),
    "pythonic": ("<|python_start|>", "<|python_end|>"),
}
_IDS = {
    "harmony": {
        "<|start|>": 200006,
        "<|end|>": 200007,
        "<|message|>": 200008,
        "<|channel|>": 200005,
        "<|constrain|>": 200003,
        "<|call|>": 200012,
        "<|return|>": 200002,
    },
    "kimi-k3": {"<|open|>": 163587, "<|close|>": 163588, "<|sep|>": 163589},
    "mistral": {"[TOOL_CALLS]": 9, "[ARGS]": 32, "[CALL_ID]": 33, "[THINK]": 34, "[/THINK]": 35},
}
_V3_IDS = {"[TOOL_CALLS]": 5}


@dataclass(frozen=True)
class Written:
    """A piece of an output; `token` is the id if it is one control token."""

    text: str
    token: int | None = None


def control_tokens(fixture: Fixture, format_name: str) -> dict[int, str]:
    """The ids and spellings of the control tokens that a format knows."""
    if format_name in _MARKERS:
        return dict(enumerate(_MARKERS[format_name]))
    ids = _V3_IDS if "v0.3" in fixture.models[0] else _IDS[format_name]
    return {token: marker for marker, token in ids.items()}


def written(fixture: Fixture, format_name: str) -> list[Written]:
    """A fixture's output as control tokens and the text between them."""
    if format_name in _MARKERS:
        markers = _MARKERS[format_name]
        pattern = "(" + "|".join(map(re.escape, markers)) + ")"
        parts = [part for part in re.split(pattern, fixture.raw_output) if part]
        return [Written(p, markers.index(p) if p in markers else None) for p in parts]
    markers_by_id = control_tokens(fixture, format_name)
    found = _align(fixture.raw_output, fixture.output_token_ids or (), markers_by_id)
    if found is None:
        raise ValueError(f"{fixture.id}: the tokens do not spell the text")
    return found


def letters(fixture: Fixture, format_name: str) -> list[Written]:
    """The output without tokens for a call's markers; none where only tokens tell them."""
    pieces = written(fixture, format_name)
    controls = control_tokens(fixture, format_name)
    tokens = sum(piece.token is not None for piece in pieces)
    if tokens < sum(fixture.raw_output.count(marker) for marker in controls.values()):
        return []
    markers = reasoning_markers(controls)
    joined: list[Written] = []
    for piece in pieces:
        if piece.token in markers:
            joined.append(piece)
        elif joined and joined[-1].token is None:
            joined[-1] = Written(joined[-1].text + piece.text)
        else:
            joined.append(Written(piece.text))
    return joined


def reasoning_markers(controls: dict[int, str]) -> tuple[int, ...]:
    """The control tokens around reasoning, opening and closing."""
    ids = {text: token for token, text in controls.items()}
    pairs = (_THINK, ("<|channel>", "<channel|>"), ("[THINK]", "[/THINK]"))
    return next((tuple(ids[text] for text in pair) for pair in pairs if pair[0] in ids), ())


def _align(text: str, ids: Sequence[int], by_id: dict[int, str]) -> list[Written] | None:
    """The control tokens among `ids` at their places in `text`: between two of them there is text
    exactly where there are ordinary tokens."""
    runs: list[tuple[int, int | None]] = []
    ordinary = 0
    for token in ids:
        if token in by_id:
            runs.append((ordinary, token))
            ordinary = 0
        else:
            ordinary += 1
    runs.append((ordinary, None))

    @cache
    def place(at: int, index: int) -> tuple[int, ...] | None:
        """Where the control tokens from `index` on stand, when the text before is read."""
        ordinary, token = runs[index]
        if token is None:
            return () if bool(ordinary) == (at < len(text)) else None
        marker = by_id[token]
        for start in _starts(text, marker, at, bool(ordinary)):
            rest = place(start + len(marker), index + 1)
            if rest is not None:
                return (start, *rest)
        return None

    places = place(0, 0)
    if places is None:
        return None
    pieces = []
    at = 0
    for start, (_, token) in zip(places, runs, strict=False):
        if start > at:
            pieces.append(Written(text[at:start]))
        at = start + len(by_id[token])  # type: ignore[index]
        pieces.append(Written(text[start:at], token))
    return [*pieces, Written(text[at:])] if at < len(text) else pieces


def _starts(text: str, marker: str, at: int, something_between: bool) -> Iterator[int]:
    if not something_between:
        if text.startswith(marker, at):
            yield at
        return
    start = text.find(marker, at + 1)
    while start >= 0:
        yield start
        start = text.find(marker, start + 1)
