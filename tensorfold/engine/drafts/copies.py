"""Drafts copied from earlier in the same sequence: after what came before comes what came then."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tensorfold.engine.reply import Reply

_KEY = 2
"""Tokens that must match at the least."""
_LONGEST = 32
"""Where a longer match tells no more."""
_TRIED = 64
"""Earlier places that are compared, the latest first."""
_AT_ONCE = 8192
"""Places that join the index at a time: all of a long prompt's would hold up the other replies."""
_FORGET = 0.9
"""What an older observation weighs against the next."""


@dataclass(frozen=True)
class Match:
    """`length` tokens before `position` equal the sequence's last ones."""

    position: int
    length: int


class SuffixIndex:
    """Finds where a growing sequence said its last tokens before."""

    def __init__(self, tokens: list[int]):
        """`tokens` is the sequence itself, appended to by its owner."""
        self._tokens = tokens
        self._latest: dict[tuple[int, ...], int] = {}
        self._before: list[int] = []
        """For each place: the place before it where the same key ended, or -1."""

    def longest(self) -> Match | None:
        """The longest match, at the latest place of those. None too while much of the sequence is
        new: each call looks at some of it."""
        if not self._extend():
            return None
        tokens = self._tokens
        end, best = len(tokens), Match(0, 0)
        place = self._before[end] if end >= _KEY else -1
        for _ in range(_TRIED):
            if place < 0 or best.length >= _LONGEST:
                break
            length = _KEY
            limit = min(_LONGEST, place)
            while length < limit and tokens[place - 1 - length] == tokens[end - 1 - length]:
                length += 1
            if length > best.length:
                best = Match(place, length)
            place = self._before[place]
        return best if best.length else None

    def _extend(self) -> bool:
        """Whether the index has the whole sequence by now."""
        tokens, before = self._tokens, self._before
        last = min(len(tokens), len(before) + _AT_ONCE - 1)
        for end in range(len(before), last + 1):
            if end < _KEY:
                before.append(-1)
                continue
            key = tuple(tokens[end - _KEY : end])
            before.append(self._latest.get(key, -1))
            self._latest[key] = end
        return last == len(tokens)


@dataclass
class Chances:
    """How often the token after a match of some length was the right one, lately.

    Longer matches are counted apart, and each begins with a guess that weighs as much as two
    observations: low enough for short ones that a copy must prove itself before it is drafted.
    """

    weight: list[float] = field(default_factory=lambda: [2.0] * 5)
    hits: list[float] = field(default_factory=lambda: [0.2, 0.5, 1.0, 1.4, 1.7])

    def of(self, length: int) -> float:
        """The chance that the token after a match of this length is right."""
        kind = _kind(length)
        return self.hits[kind] / self.weight[kind]

    def observe(self, length: int, hit: bool) -> None:
        """Count one."""
        kind = _kind(length)
        self.weight[kind] = self.weight[kind] * _FORGET + 1
        self.hits[kind] = self.hits[kind] * _FORGET + hit


def _kind(length: int) -> int:
    return (length > 3) + (length > 5) + (length > 10) + (length > 20)


class CopyDrafts:
    """The copies of one reply. What it would have drafted is observed at no cost, so that a copy
    is entered only once such copies have paid, and left as soon as they no longer do."""

    def __init__(self, tokens: list[int]):
        self._tokens = tokens
        self._index = SuffixIndex(tokens)
        self._chances = Chances()
        self._match: Match | None = None
        self._looked_at = -1

    def chances(self, most: int) -> list[float]:
        """The chance of each of the next `most` copies that it is right, if those before it are."""
        match = self._find()
        return [self._chances.of(match.length + i) for i in range(most)] if match else []

    def propose(self, count: int) -> list[int]:
        """The next `count` copies. A match that ends where the sequence does goes round."""
        match = self._find()
        if match is None:
            return []
        period = len(self._tokens) - match.position
        return [self._tokens[match.position + i % period] for i in range(count)]

    def observe(self, drawn: Sequence[int], drafted: int) -> None:
        """What was drawn at the places last asked about, before it joins the sequence; `drafted`
        copies were tried. One place is observed in any case."""
        match = self._find()
        if match is None:
            return
        guesses = self.propose(min(len(drawn), max(drafted, 1)))
        for i, (guess, token) in enumerate(zip(guesses, drawn, strict=False)):
            self._chances.observe(match.length + i, guess == token)
            if guess != token:
                break

    def _find(self) -> Match | None:
        if self._looked_at != len(self._tokens):
            self._looked_at = len(self._tokens)
            self._match = self._index.longest()
        return self._match


class CopySource:
    """The copies of every reply, as a draft source."""

    seconds = 0.0
    name = "copies"
    takes_hidden = False

    def __init__(self) -> None:
        self._of: dict[Reply, CopyDrafts] = {}

    def saw(self, reply: Reply, position: int, hidden: np.ndarray) -> None:
        """See `DraftSource`."""

    def follow(self, replies: Sequence[Reply]) -> None:
        """See `DraftSource`."""

    def chances(self, reply: Reply, most: int) -> list[float]:
        """See `DraftSource`."""
        return self._drafts(reply).chances(most)

    def propose(self, wanted: Sequence[tuple[Reply, int]]) -> list[list[int]]:
        """See `DraftSource`."""
        return [self._drafts(reply).propose(count) for reply, count in wanted]

    def observe(self, reply: Reply, drawn: Sequence[int], drafted: int) -> None:
        """See `DraftSource`."""
        self._drafts(reply).observe(drawn, drafted)

    def release(self, reply: Reply) -> None:
        """See `DraftSource`."""
        self._of.pop(reply, None)

    def _drafts(self, reply: Reply) -> CopyDrafts:
        if reply not in self._of:
            self._of[reply] = CopyDrafts(reply.known)
        return self._of[reply]
