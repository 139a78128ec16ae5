"""Drafts of a model's own next-token layers (multi-token prediction, DeepSeek-AI 2024,
arXiv:2412.19437, section 2.2).

A row at position p takes the target's hidden vector there and the token at p + 1, and draws the
token at p + 2 with the target's head, settings and noise. Further drafts take the layers' own
hidden vector in place of the target's.
"""

from collections.abc import Sequence

import numpy as np

from tensorfold.engine.drafts.stepped import SteppedSource, Unread
from tensorfold.engine.reply import Reply
from tensorfold.ops.rows import PAGE
from tensorfold.runtime.packed import Span
from tensorfold.runtime.step import StepFunction


class NextTokenSource(SteppedSource):
    """Next-token layers as a draft source."""

    name = "next-token layers"

    def __init__(self, step: StepFunction):
        """`step` runs the next-token layers and has the shape of the target's state."""
        super().__init__(step, step.model.spec.vocab_size)

    def saw(self, reply: Reply, position: int, hidden: np.ndarray) -> None:
        """See `DraftSource`. Many rows are run at once, few with the next drafts."""
        reading = self.sync(reply)
        if position != reading.filled + len(reading.hidden):
            # Rows that were shared have no hidden vectors: what the layers would see is missing.
            reading.filled, reading.hidden = position, []
        reading.hidden += list(hidden)
        if len(reading.hidden) >= self.behind:
            self._read_on(reply)

    def follow(self, replies: Sequence[Reply]) -> None:
        """See `DraftSource`."""
        for reply in replies:
            self.sync(reply)

    def chances(self, reply: Reply, most: int) -> list[float]:
        """See `DraftSource`."""
        reading = self.readings[reply]
        room = len(reading.pages) * PAGE - len(reply.known)
        current = reading.filled + len(reading.hidden) == len(reply.known) - 1
        return reading.chances(min(most, room)) if current and reading.hidden else []

    def unread(self, reply: Reply) -> Unread:
        """The rows whose hidden vectors are here."""
        reading = self.readings[reply]
        tokens = reply.known[reading.filled + 1 :]
        return Span(reply.lane, reading.filled, tokens, 1), np.stack(reading.hidden)

    def observe(self, reply: Reply, drawn: Sequence[int], drafted: int) -> None:
        """See `DraftSource`. The rows of drafts are run again, with the target's hidden vectors."""
        if reply in self.readings:
            self.learn(reply, drawn, drafted)
            self.readings[reply].drafts = []

    def _read_on(self, reply: Reply) -> None:
        """Run the rows whose hidden vectors are here."""
        reading = self.readings[reply]
        most = self.step.buckets[-1]
        while reading.hidden:
            hidden = np.stack(reading.hidden[:most])
            first = reading.filled + 1
            tokens = reply.known[first : first + len(hidden)]
            self.run([Span(reply.lane, reading.filled, tokens, 0)], [hidden])
            reading.filled += len(hidden)
            reading.hidden = reading.hidden[most:]
