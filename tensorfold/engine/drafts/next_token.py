"""Drafts of a model's own next-token layers (multi-token prediction, DeepSeek-AI 2024,
arXiv:2412.19437, section 2.2).

A row at position p takes the target's hidden vector there and the token at p + 1, and draws the
token at p + 2 with the target's head, settings and noise. Further drafts take the layers' own
hidden vector in place of the target's.
"""

import time
from collections.abc import Sequence

import numpy as np

from tensorfold.engine.drafts.stepped import SteppedSource
from tensorfold.engine.reply import Reply
from tensorfold.ops.rows import PAGE
from tensorfold.runtime.packed import Span
from tensorfold.runtime.step import StepFunction


class NextTokenSource(SteppedSource):
    """Next-token layers as a draft source."""

    name = "next-token layers"
    takes_hidden = True

    def __init__(self, step: StepFunction):
        """`step` runs the next-token layers and has the shape of the target's state."""
        super().__init__(step)
        self._vocab_size = step.model.spec.vocab_size
        nothing = [np.zeros((1, step.width), np.float32)]
        self.run([Span(0, 0, [0], 1)], nothing)
        started = time.perf_counter()
        self.run([Span(0, 0, [0], 1)], nothing)
        self.took(time.perf_counter() - started)

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

    def propose(self, wanted: Sequence[tuple[Reply, int]]) -> list[list[int]]:
        """See `DraftSource`. A reply for which a step has no room gets none."""
        started, turns, room = time.perf_counter(), 0, self.step.buckets[-1]
        spans: dict[Reply, tuple[Span, np.ndarray]] = {}
        for reply, _ in wanted:
            reading = self.readings[reply]
            reading.drafts = []
            tokens = reply.known[reading.filled + 1 :]
            if len(tokens) <= room:
                room -= len(tokens)
                hidden = np.stack(reading.hidden)
                spans[reply] = Span(reply.lane, reading.filled, tokens, 1), hidden
                reading.filled, reading.hidden = len(reply.known) - 1, []
        widths = dict(wanted)
        while spans:
            turns += 1
            asked, spans = spans, {}
            drawn = self.run([s for s, _ in asked.values()], [h for _, h in asked.values()])
            hidden, row = self.step.hidden(), 0
            for (reply, (span, _)), token in zip(asked.items(), drawn, strict=True):
                row += len(span.tokens)
                if 0 <= token < self._vocab_size:
                    drafts = self.readings[reply].drafts
                    drafts.append(token)
                    if len(drafts) < widths[reply]:
                        position = span.position + len(span.tokens)
                        spans[reply] = Span(reply.lane, position, [token], 1), hidden[row - 1 : row]
        self.took((time.perf_counter() - started) / max(turns, 1))
        return [self.readings[reply].drafts for reply in widths]

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
