"""A conversation as prompt tokens, in which only the template writes control tokens.

A control token that a client spells in a message (`<|im_end|>` in a pasted log) must reach the
model as ordinary text. The conversation is rendered a second time with every such spelling between
two private characters; what still stands between them in the rendered text came from the client.
Without such a spelling the tokens are simply the tokens of the rendered text.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tensorfold.chat.messages import Message, arrange
from tensorfold.chat.template import ChatTemplate
from tensorfold.checkpoints.interface import Tokenizer

_PRIVATE_USE = range(0xF0000, 0xFFFFE)


@dataclass(frozen=True)
class _Spelling:
    """A control token's spelling in a text; `quoted` when the client wrote it."""

    start: int
    end: int
    text: str
    quoted: bool = False


@dataclass(frozen=True)
class _Sent:
    """What of a prompt is the client's."""

    messages: list[Message]
    tools: list[Mapping[str, Any]] | None
    variables: dict[str, Any]


class ControlSpellings:
    """Finds the spellings of a tokenizer's control tokens, leftmost first and longest first."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        texts = {tokenizer.token_text(token) for token in tokenizer.control_ids}
        self._texts = frozenset(text for text in texts if text)
        # Some vocabularies have thousands of control tokens: a table of lengths by first
        # character stays fast where one regular expression of all spellings does not.
        lengths: dict[str, set[int]] = {}
        for text in self._texts:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._first = re.compile(f"[{re.escape(''.join(lengths))}]") if lengths else None

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of each spelling in `text`, in order and apart."""
        position = 0
        while self._first and (match := self._first.search(text, position)):
            start = match.start()
            lengths = self._lengths[text[start]]
            candidates = (text[start : start + length] for length in lengths)
            found = next((spelling for spelling in candidates if spelling in self._texts), "")
            if found:
                yield start, start + len(found)
            position = start + (len(found) or 1)

    def spelled_in(self, text: str) -> bool:
        """Whether `text` spells any control token."""
        return next(self.find(text), None) is not None

    def __contains__(self, text: str) -> bool:
        return text in self._texts


class ChatEncoder:
    """Turns checked messages (`read_messages`) into the tokens a model is asked with."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._controls = ControlSpellings(tokenizer)

    @property
    def template_source(self) -> str:
        """The template's text."""
        return self._template.source

    @property
    def template(self) -> ChatTemplate:
        """The template that writes the conversations."""
        return self._template

    def encode(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The prompt's tokens; `tools` are those the model is offered, as the template reads them.

        Raises `ChatTemplateError` when the template refuses.
        """
        sent = _Sent(
            arrange(messages, self._template.traits),
            list(tools) if tools else None,
            dict(variables or {}),
        )

        def render(sent: _Sent) -> str:
            return self._template.render(
                sent.messages,
                tools=sent.tools,
                add_generation_prompt=add_generation_prompt,
                variables=sent.variables,
            )

        plain = render(sent)
        strings = list(_strings([sent.messages, sent.tools, sent.variables]))
        if not any(self._controls.spelled_in(text) for text in strings):
            return self._tokenizer.encode(plain)
        opening, closing = _unused_characters([*strings, self._template.source])
        mark = partial(self._mark, opening=opening, closing=closing)
        marked = render(
            _Sent(
                _map_strings(sent.messages, mark),
                _map_strings(sent.tools, mark),
                _map_strings(sent.variables, mark),
            )
        )
        text, spellings = self._unmark(marked, opening, closing)
        places = list(self._controls.find(plain))
        if [plain[start:end] for start, end in places] == [found.text for found in spellings]:
            # The private characters may keep a template from trimming blanks beside them, so the
            # plain text is the better one wherever both spell the same control tokens.
            text = plain
            spellings = [
                replace(found, start=start, end=end)
                for found, (start, end) in zip(spellings, places, strict=True)
            ]
        return self._encode_quoting(text, spellings)

    def _mark(self, text: str, opening: str, closing: str) -> str:
        pieces = []
        position = 0
        for start, end in self._controls.find(text):
            pieces += [text[position:start], opening, text[start:end], closing]
            position = end
        return "".join([*pieces, text[position:]])

    def _unmark(self, marked: str, opening: str, closing: str) -> tuple[str, list[_Spelling]]:
        """The text without private characters, and its spellings."""
        for character in (opening, closing):
            # A template may write JSON with every non-ASCII character escaped.
            marked = marked.replace(_escaped(character), character)
        parts = re.split(f"([{opening}{closing}])", marked)
        quoted = set()
        position = 0
        for i in range(0, len(parts), 2):
            inside = 0 < i < len(parts) - 1 and (parts[i - 1], parts[i + 1]) == (opening, closing)
            if inside and parts[i] in self._controls:
                quoted.add((position, position + len(parts[i])))
            position += len(parts[i])
        text = "".join(parts[::2])
        return text, [
            _Spelling(start, end, text[start:end], (start, end) in quoted)
            for start, end in self._controls.find(text)
        ]

    def _encode_quoting(self, text: str, spellings: Sequence[_Spelling]) -> list[int]:
        """Encode `text` with its quoted spellings as ordinary text.

        Tokenizers never merge across a control token, so the text may be cut there and only there.
        """
        tokens: list[int] = []
        done = 0
        start = 0
        quotes = False
        for spelling in [*spellings, _Spelling(len(text), len(text), "")]:
            if spelling.quoted:
                quotes = True
                continue
            if quotes:
                tokens += self._tokenizer.encode(text[done:start]) if start > done else []
                tokens += self._tokenizer.encode(text[start : spelling.start], control=False)
                done = spelling.start
            start = spelling.end
            quotes = False
        return tokens + (self._tokenizer.encode(text[done:]) if done < len(text) else [])


def _strings(value: object) -> Iterator[str]:
    """Every string in a JSON value that a template may write, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a JSON value with its strings changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_map_strings(item, change) for item in value]
    return value


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1]


def _unused_characters(texts: Sequence[str]) -> tuple[str, str]:
    """Two private-use characters that no text contains, written out or escaped."""
    free = (
        character
        for character in map(chr, _PRIVATE_USE)
        if not any(character in text or _escaped(character) in text for text in texts)
    )
    return next(free), next(free)
