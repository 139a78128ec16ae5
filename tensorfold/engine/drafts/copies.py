"""Drafts copied from earlier in the same sequence: after what came before comes what came then."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tensorfold.engine.drafts.edits import Match, Rewriting
from tensorfold.engine.drafts.source import DraftSource
from tensorfold.engine.reply import Reply

_KEY = 2
"""Tokens that must match at the least."""
_LONGEST = 32
"""Where a longer match tells no more."""
_TRIED = 64
"""Earlier places that are compared, the latest first."""
_AT_ONCE = 8192
"""Places that join the index at a time: all of a long prompt's would hold up the other replies."""
_LONG = 21
"""Matches of so many tokens and more are counted alike."""
_FORGET = 0.95
"""What an older observation weighs against the next."""
_FIRST = (0.2, 0.5, 1.0, 1.4, 1.7, 0.6, 1.0, 1.4, 1.7)
"""Of two observations of each kind, those that are taken to have been right."""


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

    Longer matches are counted apart, and so are those of a copy in progress. Each begins with a
    guess that weighs as much as two observations: low enough for short ones that a copy must prove
    itself before it is drafted.
    """

    weight: list[float] = field(default_factory=lambda: [2.0] * len(_FIRST))
    hits: list[float] = field(default_factory=lambda: [*_FIRST])

    def of(self, match: Match, ahead: int = 0) -> float:
        """The chance of the token `ahead` places after the match, if those before it are right."""
        kind = _kind(match, ahead)
        return self.hits[kind] / self.weight[kind]

    def ahead(self, match: Match, most: int) -> list[float]:
        """The chances of the `most` tokens after the match."""
        near = min(most, max(0, _LONG - match.length))
        return [self.of(match, i) for i in range(near)] + [self.of(match, near)] * (most - near)

    def observe(self, match: Match, ahead: int, hit: bool) -> None:
        """Count one."""
        kind = _kind(match, ahead)
        self.weight[kind] = self.weight[kind] * _FORGET + 1
        self.hits[kind] = self.hits[kind] * _FORGET + hit


def _kind(match: Match, ahead: int) -> int:
    length = match.length + ahead
    if match.followed:
        return 5 + (length > 0) + (length > 3) + (length > 10)
    return (length > 3) + (length > 5) + (length > 10) + (length >= _LONG)


class CopyDrafts:
    """The copies of one reply. What it would have drafted is observed at no cost, so that a copy
    is entered only once such copies have paid, and left as soon as they no longer do.

    Copied is from the longest match, or on with the copy in progress, whichever has been right more
    often.
    """

    def __init__(self, tokens: list[int]):
        self._tokens = tokens
        self._index = SuffixIndex(tokens)
        self._rewriting = Rewriting(tokens)
        self._chances = Chances()
        self._matches: list[Match] = []
        self._looked_at = -1

    def chances(self, most: int) -> list[float]:
        """The chance of each of the next `most` copies that it is right, if those before it are."""
        matches = self._find()
        return self._chances.ahead(matches[0], most) if matches else []

    def propose(self, count: int) -> list[int]:
        """The next `count` copies."""
        matches = self._find()
        copies = self._rewriting.copies(matches[0], count) if matches else []
        return [copy.token for copy in copies]

    def observe(self, drawn: Sequence[int]) -> None:
        """What was drawn at the places last asked about, before it joins the sequence."""
        observed = []
        for match in self._find():
            copies, right = self._rewriting.copies(match, len(drawn) + 1), 0
            for copy, token in zip(copies, drawn, strict=False):
                self._chances.observe(match, right, copy.token == token)
                if copy.token != token:
                    break
                right += 1
            observed.append((match, copies, right))
        if observed:
            self._rewriting.observe(*max(observed, key=lambda seen: seen[2]))

    def _find(self) -> list[Match]:
        """The matches at the sequence's end, the likelier one first."""
        if self._looked_at != len(self._tokens):
            self._looked_at = len(self._tokens)
            found = filter(None, (self._index.longest(), self._rewriting.match()))
            self._matches = sorted(found, key=self._chances.of, reverse=True)
        return self._matches


class CopySource(DraftSource):
    """The copies of every reply, as a draft source."""

    seconds = 0.0
    name = "copies"
    takes_hidden = False

    def __init__(self) -> None:
        self._of: dict[Reply, CopyDrafts] = {}

    def chances(self, reply: Reply, most: int) -> list[float]:
        """See `DraftSource`."""
        return self._drafts(reply).chances(most)

    def propose(self, wanted: Sequence[tuple[Reply, int]]) -> list[list[int]]:
        """See `DraftSource`."""
        return [self._drafts(reply).propose(count) for reply, count in wanted]

    def observe(self, reply: Reply, drawn: Sequence[int], drafted: int) -> None:
        """See `DraftSource`."""
        self._drafts(reply).observe(drawn)

    def release(self, reply: Reply) -> None:
        """See `DraftSource`."""
        self._of.pop(reply, None)

    def _drafts(self, reply: Reply) -> CopyDrafts:
        if reply not in self._of:
            self._of[reply] = CopyDrafts(reply.known)
        return self._of[reply]
