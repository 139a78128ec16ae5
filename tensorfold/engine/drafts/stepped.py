"""What draft sources that run a step function of their own share."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from weakref import WeakSet

import numpy as np

from tensorfold.engine.pages import Holding, Node
from tensorfold.engine.reply import Reply
from tensorfold.ops.rows import PAGE
from tensorfold.ops.sample import NO_TOKEN
from tensorfold.runtime.packed import SETTINGS, Span
from tensorfold.runtime.step import StepFunction

_log = logging.getLogger(__name__)

_BEHIND = 32
"""Rows that are read along with the first draft; a reply that is further behind reads alone."""
_PRIOR = 0.7
"""The chance that a draft is right, before any was tried."""
_LEARN = 0.1
_FORGET = 0.003
"""How fast the chance returns to the prior while nothing is tried, so that drafts are tried again
now and then."""
_SMOOTH = 0.1
_PATIENCE, _AGAIN = 64, 512
"""Rounds without a draft worth its time after which a reply is no longer read, and after which it
is once more."""
_DEPTHS = 4
"""Drafts whose chances are counted apart; those after the last of them count as it does."""


Unread = tuple[Span, np.ndarray | None]
"""Rows of a reply, the last of them drawn, and the hidden vectors that they come with."""


@dataclass
class Reading:
    """How far a source has read a reply: its first `filled` rows, on these pages."""

    holding: Holding
    pages: list[int] = field(default_factory=list)
    filled: int = 0
    noted: int = 0
    """Shared pages that others were told of as read."""
    hidden: list[np.ndarray] = field(default_factory=list)
    """The target's hidden vectors of the rows that come next, where a source takes them."""
    drafts: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=lambda: [_PRIOR] * _DEPTHS)
    """How often the first draft was right lately, the second after a right one, and so on."""

    idle: int = 0
    """Rounds since a draft was tried."""

    @property
    def worthwhile(self) -> bool:
        """Whether to read on."""
        return self.idle % _AGAIN < _PATIENCE

    def chances(self, most: int) -> list[float]:
        """Of the next `most` drafts, each if those before it are right."""
        return [self.rates[min(depth, _DEPTHS - 1)] for depth in range(most)]


class SteppedSource(ABC):
    """Readings of replies by a step function, and the drafts that it draws.

    Its state has the target's lanes and pages and is read and written by the target's block tables,
    so it shares pages among replies and keeps prefixes just as the target does.
    """

    def __init__(self, step: StepFunction, vocab_size: int):
        """`step` has the shape of the target's state; drafts are tokens below `vocab_size`."""
        self.step = step
        self.vocab_size = vocab_size
        self.takes_hidden = step.width > 0
        """See `DraftSource`."""
        self.readings: dict[Reply, Reading] = {}
        self.behind = min(_BEHIND, step.buckets[-1] // 2)
        self.seconds = 0.0
        """See `DraftSource`."""
        self._table = np.zeros((step.shape.lanes, step.shape.pages_per_lane), np.int32)
        self._settings = np.zeros((step.shape.lanes, SETTINGS), np.int32)
        self._read: WeakSet[Node] = WeakSet()
        """Shared pages whose rows the step function has run as well."""
        self._time_step()

    @abstractmethod
    def unread(self, reply: Reply) -> Unread:
        """The rows that the next draft needs."""

    def propose(self, wanted: Sequence[tuple[Reply, int]]) -> list[list[int]]:
        """See `DraftSource`. A reply for which a step has no room gets none."""
        started, turns, room = time.perf_counter(), 0, self.step.buckets[-1]
        widths = dict(wanted)
        asked: dict[Reply, Unread] = {}
        for reply in widths:
            self.readings[reply].drafts = []
            rows = self.unread(reply)
            if len(rows[0].tokens) <= room:
                room -= len(rows[0].tokens)
                asked[reply] = rows
                self.readings[reply].filled += len(rows[0].tokens)
                self.readings[reply].hidden = []
        while asked:
            turns += 1
            asked = self._draw(asked, widths)
        self._took((time.perf_counter() - started) / max(turns, 1))
        return [self.readings[reply].drafts for reply in widths]

    def _draw(self, asked: dict[Reply, Unread], widths: dict[Reply, int]) -> dict[Reply, Unread]:
        """Draw a draft for each; the rows of those that get another one."""
        drawn = self.run([span for span, _ in asked.values()], [h for _, h in asked.values()])
        following: dict[Reply, Unread] = {}
        end = 0
        for (reply, (span, _)), token in zip(asked.items(), drawn, strict=True):
            end += len(span.tokens)
            if 0 <= token < self.vocab_size:
                drafts = self.readings[reply].drafts
                drafts.append(token)
                if len(drafts) < widths[reply]:
                    position = span.position + len(span.tokens)
                    hidden = self.step.hidden()[end - 1 : end] if self.takes_hidden else None
                    following[reply] = Span(reply.lane, position, [token], 1), hidden
        return following

    def sync(self, reply: Reply) -> Reading:
        """Take note of the reply's lane and pages as they are now."""
        holding = reply.holding
        assert holding is not None
        reading = self.readings.get(reply)
        if reading is None or reading.holding is not holding:
            reading = self.readings[reply] = Reading(holding)
        pages, shared = holding.pages, holding.path[1:]
        filled = min(reading.filled, _alike(pages, reading.pages) * PAGE)
        while self.step.paged and filled % PAGE == 0 and filled // PAGE < len(shared):
            if shared[filled // PAGE] not in self._read:
                break
            filled += PAGE
        reading.filled, reading.pages = min(filled, len(reply.known) - 1), pages
        end = min(reading.filled // PAGE, len(shared))
        self._read.update(shared[reading.noted : end])
        reading.noted = end
        self._table[reply.lane, : len(pages)] = pages
        self._settings[reply.lane] = reply.settings
        return reading

    def learn(self, reply: Reply, drawn: Sequence[int], drafted: int) -> int:
        """How many of the `drafted` drafts were right, from what was `drawn` in their places."""
        reading = self.readings[reply]
        if not drafted:
            reading.rates = [rate + _FORGET * (_PRIOR - rate) for rate in reading.rates]
            reading.idle += 1
            return 0
        reading.idle = 0
        right = _alike(reading.drafts[:drafted], drawn)
        for depth in range(min(right + 1, drafted, len(drawn))):
            kind = min(depth, _DEPTHS - 1)
            reading.rates[kind] += _LEARN * ((depth < right) - reading.rates[kind])
        return right

    def release(self, reply: Reply) -> None:
        """See `DraftSource`."""
        self.readings.pop(reply, None)

    def run(self, spans: Sequence[Span], hidden: Sequence[np.ndarray | None]) -> list[int]:
        """Run a step; the drawn tokens, NO_TOKEN for each if it failed: drafts are then poor for a
        while. `hidden` [rows, D] of each span's rows, where the step function takes them."""
        given = [each for each in hidden if each is not None] if self.takes_hidden else None
        try:
            answers = self.step.run(spans, self._table, self._settings, hidden=given)
        except Exception:
            _log.exception("a step of a draft source failed")
            self.step.reset()
            self._read.clear()
            return [NO_TOKEN] * sum(span.draws for span in spans)
        return [token for answer in answers for token in answer.tokens]

    def _time_step(self) -> None:
        """Learn what a draft costs from a step, the second one."""
        nothing = [np.zeros((1, self.step.width), np.float32)]
        self.run([Span(0, 0, [0], 1)], nothing)
        started = time.perf_counter()
        self.run([Span(0, 0, [0], 1)], nothing)
        self._took(time.perf_counter() - started)

    def _took(self, seconds: float) -> None:
        """A draft of every reply in a step took this long."""
        self.seconds += (_SMOOTH if self.seconds else 1.0) * (seconds - self.seconds)


def _alike(some: Sequence[int], others: Sequence[int]) -> int:
    """How many of the first entries are equal."""
    if some[: len(others)] == others:  # As most often, and thousands of pages are soon compared.
        return len(others)
    pairs = zip(some, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
