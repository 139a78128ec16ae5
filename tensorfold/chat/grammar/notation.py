"""How the values of JSON are spelled: as JSON, in JSON that stands between tags, or otherwise."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tensorfold.chat.grammar.automaton import Automaton, both, lengths
from tensorfold.chat.grammar.cases import Strings
from tensorfold.chat.grammar.rawtext import kept_in
from tensorfold.chat.grammar.rules import (
    MOST_COUNTED,
    PLAIN,
    PLAIN_FREE_OF_TAGS,
    WS,
    Ref,
    Rules,
    Sequence_,
    Symbol,
    literal,
)

ANY_TEXT = lengths(0, None)
_QUOTE = '"\\""'


class Notation(Protocol):
    """A spelling of values; objects stand in braces and arrays in brackets in all of them."""

    @property
    def blanks(self) -> Sequence_:
        """What may stand between two tokens."""
        ...

    @property
    def constants(self) -> Mapping[str, tuple[Symbol, ...]]:
        """The spellings of null, true and false."""
        ...

    def strings(self, rules: Rules, asked: Strings) -> Iterator[Sequence_]:
        """Every string that is as asked."""
        ...

    def string(self, value: str) -> Sequence_ | None:
        """One string; None when it can't be written."""
        ...

    def key(self, name: str) -> Sequence_ | None:
        """One property's name; None when it can't be written."""
        ...

    def keys(self, rules: Rules, names: Automaton) -> Iterator[Sequence_]:
        """Every name in `names` that can be written."""
        ...


@dataclass(frozen=True)
class Json:
    """JSON.

    kept: what its strings and names may hold, where it stands in a text that some would end
    """

    kept: Automaton | None = None

    @property
    def blanks(self) -> Sequence_:
        """See `Notation`."""
        return (WS,)

    @property
    def constants(self) -> Mapping[str, tuple[Symbol, ...]]:
        """See `Notation`."""
        return {name: (f'"{name}"',) for name in ("null", "true", "false")}

    def strings(self, rules: Rules, asked: Strings) -> Iterator[Sequence_]:
        """See `Notation`."""
        automaton = asked.automaton() if asked.automata else None
        if self.kept is not None:
            automaton = kept_in(self.kept, asked)
        if automaton is not None:
            yield _QUOTE, rules.quoted(automaton)
        elif asked.most is None or asked.least <= asked.most:
            plain = PLAIN if self.kept is None else PLAIN_FREE_OF_TAGS
            yield _QUOTE, rules.characters(asked.least, asked.most, plain)
            if asked.most is not None and asked.most > MOST_COUNTED:
                # Counting is quick only for characters of one class.
                yield _QUOTE, f"{plain}{{{asked.least},{asked.most}}}", _QUOTE

    def string(self, value: str) -> Sequence_ | None:
        """See `Notation`."""
        if self.kept is not None and not self.kept.matches(value):
            return None
        return (literal(json.dumps(value, ensure_ascii=False)),)

    key = string

    def keys(self, rules: Rules, names: Automaton) -> Iterator[Sequence_]:
        """See `Notation`."""
        if self.kept is not None:
            yield _QUOTE, rules.quoted(both(names, self.kept))
        elif names == ANY_TEXT:
            yield _QUOTE, Ref("text")
        else:
            yield _QUOTE, rules.quoted(names)


JSON = Json()


def spelled(value: Any, notation: Notation) -> Sequence_ | None:
    """The text of exactly `value`; None when a string or a name in it can't be written."""
    parts: list[Sequence_ | None]
    if isinstance(value, str):
        return notation.string(value)
    if isinstance(value, dict):
        parts = [_member(name, item, notation) for name, item in value.items()]
        return _enclosed('"{"', parts, '"}"', notation)
    if isinstance(value, list):
        parts = [spelled(item, notation) for item in value]
        return _enclosed('"["', parts, '"]"', notation)
    if value is None or isinstance(value, bool):
        return (notation.constants[json.dumps(value)][0],)
    return (literal(json.dumps(value)),)


def _member(name: str, value: Any, notation: Notation) -> Sequence_ | None:
    key, item = notation.key(name), spelled(value, notation)
    return None if key is None or item is None else after_colon(key, item, notation)


def after_colon(key: Sequence_, value: Sequence_, notation: Notation) -> Sequence_:
    """A property's name and its value."""
    return (*key, *notation.blanks, '":"', *notation.blanks, *value)


def _enclosed(
    opening: Symbol, parts: list[Sequence_ | None], closing: Symbol, notation: Notation
) -> Sequence_ | None:
    found: list[Symbol] = [opening, *notation.blanks]
    for index, part in enumerate(parts):
        if part is None:
            return None
        found += [*notation.blanks, '","', *notation.blanks] if index else []
        found += part
    return (*found, *(notation.blanks if parts else ()), closing)
