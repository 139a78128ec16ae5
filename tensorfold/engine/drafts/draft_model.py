"""Drafts of a smaller model with the same tokenizer.

It draws as the target does: with a reply's own settings and with the noise of its seed at each
position, so that the two agree more often than two independent draws would.
"""

from collections.abc import Sequence

import numpy as np

from tensorfold.engine.drafts.stepped import SteppedSource, Unread
from tensorfold.engine.reply import Reply
from tensorfold.ops.rows import PAGE
from tensorfold.runtime.packed import Span
from tensorfold.runtime.step import StepFunction


class ModelSource(SteppedSource):
    """A draft model as a draft source. A row of it is a token of the reply."""

    name = "the draft model"

    def __init__(self, step: StepFunction, vocab_size: int):
        """`step` runs the draft model and has the shape of the target's state; `vocab_size` is the
        target's."""
        super().__init__(step, min(vocab_size, step.model.spec.vocab_size))
        self._context = min(step.model.spec.context, step.shape.context)

    def saw(self, reply: Reply, position: int, hidden: np.ndarray) -> None:
        """See `DraftSource`."""

    def follow(self, replies: Sequence[Reply]) -> None:
        """See `DraftSource`. Reads on where it is far behind, as much as one step holds."""
        room = self.step.buckets[-1]
        spans, ends = [], []
        for reply in replies:
            reading = self.sync(reply)
            behind = len(reply.known) - 1 - reading.filled
            rows = min(behind, room)
            late = behind >= self.behind and reading.worthwhile
            if late and rows and self._can_read(reply, rows):
                end = reading.filled + rows
                tokens = reply.known[reading.filled : end]
                spans.append(Span(reply.lane, reading.filled, tokens, 0))
                ends.append((reading, end))
                room -= rows
        if spans:
            self.run(spans, [None] * len(spans))
        for reading, end in ends:
            reading.filled = end

    def chances(self, reply: Reply, most: int) -> list[float]:
        """See `DraftSource`."""
        reading = self.readings[reply]
        behind = len(reply.known) - reading.filled
        if behind > self.behind or not self._can_read(reply, behind + most):
            return []
        return reading.chances(most)

    def unread(self, reply: Reply) -> Unread:
        """What the draft model has not read."""
        filled = self.readings[reply].filled
        return Span(reply.lane, filled, reply.known[filled:], 1), None

    def observe(self, reply: Reply, drawn: Sequence[int], drafted: int) -> None:
        """See `DraftSource`."""
        if reply in self.readings:
            reading = self.readings[reply]
            right = self.learn(reply, drawn, drafted)
            # Every draft but the last has a row of its own, which stands if the draft does.
            reading.filled += min(right, max(len(reading.drafts) - 1, 0))
            reading.drafts = []

    def _can_read(self, reply: Reply, rows: int) -> bool:
        """Whether the next `rows` rows are within the draft model's reach."""
        reading = self.readings[reply]
        end = reading.filled + rows
        room = min(self._context, len(reading.pages) * PAGE)
        return end <= room and max(reply.known[reading.filled : end]) < self.vocab_size
