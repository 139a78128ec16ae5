"""Drafts of a smaller model with the same tokenizer.

It draws as the target does: with a reply's own settings and with the noise of its seed at each
position, so that the two agree more often than two independent draws would.
"""

import logging
import time
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


@dataclass
class _Reading:
    """How far the draft model has read a reply: its first `filled` rows, on these pages."""

    holding: Holding
    pages: list[int] = field(default_factory=list)
    filled: int = 0
    drafts: list[int] = field(default_factory=list)
    chance: float = _PRIOR


class ModelSource:
    """A draft model as a draft source.

    Its state has the target's lanes and pages and is read and written by the target's block tables,
    so it shares pages among replies and keeps prefixes just as the target does.
    """

    def __init__(self, step: StepFunction, vocab_size: int):
        """`step` runs the draft model and has the shape of the target's state; `vocab_size` is the
        target's."""
        self._step = step
        self._vocab_size = min(vocab_size, step.model.spec.vocab_size)
        self._behind = min(_BEHIND, step.buckets[-1] // 2)
        self._context = min(step.model.spec.context, step.shape.context)
        self._table = np.zeros((step.shape.lanes, step.shape.pages_per_lane), np.int32)
        self._settings = np.zeros((step.shape.lanes, SETTINGS), np.int32)
        self._readings: dict[Reply, _Reading] = {}
        self._read: WeakSet[Node] = WeakSet()
        """Shared pages whose rows the draft model has run as well."""
        self.seconds = 0.0
        self._run([Span(0, 0, [0], 1)])
        started = time.perf_counter()
        self._run([Span(0, 0, [0], 1)])
        self.seconds = time.perf_counter() - started

    def follow(self, replies: Sequence[Reply]) -> None:
        """See `DraftSource`. Reads on where it is far behind, as much as one step holds."""
        room = self._step.buckets[-1]
        spans, ends = [], []
        for reply in replies:
            reading = self._sync(reply)
            behind = len(reply.known) - 1 - reading.filled
            rows = min(behind, room)
            if behind >= self._behind and rows and self._can_read(reply, rows):
                end = reading.filled + rows
                tokens = reply.known[reading.filled : end]
                spans.append(Span(reply.lane, reading.filled, tokens, 0))
                ends.append((reading, end))
                room -= rows
        if spans:
            self._run(spans)
        for reading, end in ends:
            reading.filled = end

    def chances(self, reply: Reply, most: int) -> list[float]:
        """See `DraftSource`."""
        reading = self._readings[reply]
        behind = len(reply.known) - reading.filled
        if behind > self._behind or not self._can_read(reply, behind + most):
            return []
        return [reading.chance] * most

    def propose(self, wanted: Sequence[tuple[Reply, int]]) -> list[list[int]]:
        """See `DraftSource`. A reply for which a step has no room gets none."""
        started, room = time.perf_counter(), self._step.buckets[-1]
        widths = dict(wanted)
        spans: dict[Reply, Span] = {}
        for reply in widths:
            reading = self._readings[reply]
            reading.drafts = []
            tokens = reply.known[reading.filled :]
            if len(tokens) <= room:
                room -= len(tokens)
                spans[reply] = Span(reply.lane, reading.filled, tokens, 1)
                reading.filled = len(reply.known)
        turns = 0
        while spans:
            turns += 1
            for reply, token in zip(list(spans), self._run(list(spans.values())), strict=True):
                drafts, span = self._readings[reply].drafts, spans.pop(reply)
                if not 0 <= token < self._vocab_size:
                    continue
                drafts.append(token)
                if len(drafts) < widths[reply]:
                    following = span.position + len(span.tokens)
                    spans[reply] = Span(reply.lane, following, [token], 1)
        if turns:
            self.seconds += _SMOOTH * ((time.perf_counter() - started) / turns - self.seconds)
        return [self._readings[reply].drafts for reply in widths]

    def observe(self, reply: Reply, drawn: Sequence[int], drafted: int) -> None:
        """See `DraftSource`."""
        reading = self._readings.get(reply)
        if reading is None:
            return
        if not drafted:
            reading.chance += _FORGET * (_PRIOR - reading.chance)
            reading.drafts = []
            return
        pairs = zip(reading.drafts[:drafted], drawn, strict=False)
        right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        for hit in [True] * right + [False] * (right < min(drafted, len(drawn))):
            reading.chance += _LEARN * (hit - reading.chance)
        # Every draft but the last has a row of its own, which stands if the draft does.
        reading.filled += min(right, len(reading.drafts) - 1)
        reading.drafts = []

    def release(self, reply: Reply) -> None:
        """See `DraftSource`."""
        self._readings.pop(reply, None)

    def _can_read(self, reply: Reply, rows: int) -> bool:
        """Whether the next `rows` rows are within the draft model's reach."""
        reading = self._readings[reply]
        end = reading.filled + rows
        room = min(self._context, len(reading.pages) * PAGE)
        return end <= room and max(reply.known[reading.filled :]) < self._vocab_size

    def _sync(self, reply: Reply) -> _Reading:
        """Take note of the reply's lane and pages as they are now."""
        holding = reply.holding
        assert holding is not None
        reading = self._readings.get(reply)
        if reading is None or reading.holding is not holding:
            reading = self._readings[reply] = _Reading(holding)
        pages, shared = holding.pages, holding.path[1:]
        pairs = zip(pages, reading.pages, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        filled = min(reading.filled, same * PAGE)
        while filled % PAGE == 0 and filled // PAGE < len(shared):
            if shared[filled // PAGE] not in self._read:
                break
            filled += PAGE
        reading.filled, reading.pages = min(filled, len(reply.known) - 1), pages
        self._read.update(shared[: reading.filled // PAGE])
        self._table[reply.lane, : len(pages)] = pages
        self._settings[reply.lane] = reply.settings
        return reading

    def _run(self, spans: Sequence[Span]) -> list[int]:
        """Run a step; the drawn tokens. After a step that failed, drafts are poor for a while."""
        try:
            answers = self._step.run(spans, self._table, self._settings)
        except Exception:
            _log.exception("a step of the draft model failed")
            self._step.reset()
            self._read.clear()
            return [NO_TOKEN] * len(spans)
        return [token for answer in answers for token in answer.tokens]
