"""A passage that a sequence repeats with edits: where its copy goes on, and what is replaced.

A file that is written once more with a name changed parts from its source wherever the name stands.
The copy is taken up again past each such place, and what stood there is from then on drafted as
what came instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_LONG = 8
"""Tokens in a row that make a copy worth following."""
_SURE = 3
"""Tokens in a row after an edit that end it."""
_MOST = 12
"""Tokens of an edit."""


@dataclass(frozen=True)
class Match:
    """The next token may be the one at `position`, since the `length` tokens before agree.

    followed: it goes on with a copy in progress, and `length` counts from the last edit
    """

    position: int
    length: int
    followed: bool = False


@dataclass(frozen=True)
class Copied:
    """A token that would come next, and where it or what it replaces stands in the sequence."""

    token: int
    source: int
    replaces: bool = False


@dataclass(frozen=True)
class Edit:
    """From `first` on the sequence has something else than what stands at `source`."""

    source: int
    first: int

    def resumed(self, tokens: Sequence[int]) -> Match | None:
        """Where the copy goes on: past as many tokens as are new, or near there if that agrees with
        more of the last ones. None once the edit has grown long."""
        end = len(tokens)
        new = end - self.first
        if new > _MOST:
            return None
        usual = self.source + new
        best, most = usual, 0
        for place in range(self.source, min(usual + _MOST, self.first)):
            length, limit = 0, min(new, place)
            while length < limit and tokens[place - 1 - length] == tokens[end - 1 - length]:
                length += 1
            if (length, -abs(place - usual)) > (most, -abs(best - usual)):
                best, most = place, length
        return Match(best, most, followed=True) if most or new == 1 else None


class Rewriting:
    """The copy in progress of one sequence, and what it replaces."""

    def __init__(self, tokens: list[int]):
        """`tokens` is the sequence itself, appended to by its owner."""
        self._tokens = tokens
        self._at: Match | Edit | None = None
        """Where the copy is, if there is one: at its next token, or within an edit."""
        self._replaced: dict[int, tuple[list[int], list[int]]] = {}
        """(old, new) tokens by the first of the old ones."""

    def match(self) -> Match | None:
        """Where the copy goes on."""
        return self._at.resumed(self._tokens) if isinstance(self._at, Edit) else self._at

    def copies(self, match: Match, count: int) -> list[Copied]:
        """The next `count` tokens, edited. What reaches the sequence's end goes round."""
        tokens, place = self._tokens, match.position
        copies: list[Copied] = []
        while len(copies) < count:
            if place >= len(tokens):
                place -= len(tokens) - match.position
            old, new = self._replaced.get(tokens[place], ((), ()))
            if old and tokens[place : place + len(old)] == old:
                copies += [Copied(token, place, replaces=True) for token in new]
                place += len(old)
            else:
                copies.append(Copied(tokens[place], place))
                place += 1
        return copies[:count]

    def observe(self, match: Match, copies: Sequence[Copied], right: int) -> None:
        """The first `right` of the match's copies are what comes next, before that joins the
        sequence. The one after them is wrong, or not yet known if it is the last."""
        length = match.length + right
        if length < (_SURE if match.followed else _LONG):
            return
        if match.followed and isinstance(self._at, Edit):
            self._replace(self._at, match)
        wrong, known = copies[right], right < len(copies) - 1
        begun = 0  # Tokens of what replaces the source that have come already.
        while wrong.replaces and begun < right and copies[right - 1 - begun].source == wrong.source:
            begun += 1
        if known and wrong.replaces:
            self._replaced.pop(self._tokens[wrong.source], None)
        if known or begun:
            self._at = Edit(wrong.source, len(self._tokens) + right - begun)
        else:
            self._at = Match(wrong.source, length, followed=True)

    def _replace(self, edit: Edit, match: Match) -> None:
        """The edit was over where the match began."""
        old = self._tokens[edit.source : match.position - match.length]
        new = self._tokens[edit.first : len(self._tokens) - match.length]
        if old and new:
            self._replaced[old[0]] = old, new
