"""The spellings of strings, names and listed values in JSON, also where it stands between tags."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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

_ANY_TEXT = lengths(0, None)
_QUOTE = '"\\""'


@dataclass(frozen=True)
class Notation:
    """How strings are written.

    kept: what strings and names may hold, where JSON stands in a text that some would end
    """

    kept: Automaton | None = None

    def strings(self, rules: Rules, asked: Strings) -> Iterator[Sequence_]:
        """Every string that is as asked."""
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
        """One string; None when it can't be written."""
        if self.kept is not None and not self.kept.matches(value):
            return None
        return (literal(json.dumps(value, ensure_ascii=False)),)

    def names(self, rules: Rules, names: Automaton) -> Sequence_:
        """Every name in `names` that can be written."""
        if self.kept is not None:
            return _QUOTE, rules.quoted(both(names, self.kept))
        return _QUOTE, Ref("text") if names == _ANY_TEXT else rules.quoted(names)


JSON = Notation()


def spelled(value: Any, notation: Notation) -> Sequence_ | None:
    """The text of exactly `value`; None when a string or a name in it can't be written."""
    parts: list[Sequence_ | None]
    if isinstance(value, str):
        return notation.string(value)
    if isinstance(value, dict):
        parts = [_member(name, item, notation) for name, item in value.items()]
        return _enclosed('"{"', parts, '"}"')
    if isinstance(value, list):
        parts = [spelled(item, notation) for item in value]
        return _enclosed('"["', parts, '"]"')
    return (literal(json.dumps(value)),)


def _member(name: str, value: Any, notation: Notation) -> Sequence_ | None:
    key, item = notation.string(name), spelled(value, notation)
    return None if key is None or item is None else after_colon(key, item)


def after_colon(key: Sequence_, value: Sequence_) -> Sequence_:
    """A property's name and its value."""
    return (*key, WS, '":"', WS, *value)


def _enclosed(opening: Symbol, parts: list[Sequence_ | None], closing: Symbol) -> Sequence_ | None:
    found: list[Symbol] = [opening, WS]
    for index, part in enumerate(parts):
        if part is None:
            return None
        found += [WS, '","', WS] if index else []
        found += part
    return (*found, *((WS,) if parts else ()), closing)
