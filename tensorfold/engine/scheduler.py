"""Which rows the next step runs: lanes, pages and the queue."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorfold.engine.reply import Reply
from tensorfold.runtime.packed import Span, pages_for
from tensorfold.runtime.step import StateShape


@dataclass(frozen=True)
class RowLimits:
    """Rows of a step: at most `alone` while only prompts run, `beside` while any reply decodes
    (a step is a pause for every running reply), and `chunk` of any one prompt."""

    alone: int = 256
    beside: int = 64
    chunk: int = 256

    @classmethod
    def of_buckets(cls, buckets: Sequence[int]) -> "RowLimits":
        """The most that steps of these buckets can run."""
        most = max(buckets)
        return cls(alone=most, beside=min(most, cls.beside), chunk=most)


class Scheduler:
    """Places replies in lanes in the order they came and cuts steps. Knows no device."""

    def __init__(self, shape: StateShape, limits: RowLimits = RowLimits()):
        if shape.lanes >= limits.alone:
            raise ValueError(f"{shape.lanes} lanes do not fit a step of {limits.alone} rows")
        self.limits = limits
        self.waiting: deque[Reply] = deque()
        self.running: list[Reply] = []
        """In the order they were admitted."""
        self.settings = np.zeros((shape.lanes, 6), np.int32)
        self.block_table = np.zeros((shape.lanes, shape.pages_per_lane), np.int32)
        self._free_lanes = list(reversed(range(shape.lanes)))
        self._free_pages = list(reversed(range(shape.pages)))

    @property
    def free_pages(self) -> int:
        """Pages that no reply holds."""
        return len(self._free_pages)

    def admit(self) -> list[Reply]:
        """Give lanes and pages to waiting replies, first come first served.

        A reply takes all the pages it may ever need, so that it never has to stop for one.
        """
        admitted = []
        while self.waiting and self._free_lanes:
            needed = pages_for(self.waiting[0].capacity)
            if needed > len(self._free_pages):
                break
            reply = self.waiting.popleft()
            reply.lane = self._free_lanes.pop()
            reply.pages = [self._free_pages.pop() for _ in range(needed)]
            self.settings[reply.lane] = reply.settings
            self.block_table[reply.lane, :needed] = reply.pages
            self.running.append(reply)
            admitted.append(reply)
        return admitted

    def release(self, reply: Reply) -> None:
        """Take a reply out of the queue or out of its lane."""
        if reply.lane < 0:
            self.waiting.remove(reply)
            return
        self.running.remove(reply)
        self._free_lanes.append(reply.lane)
        self._free_pages.extend(reversed(reply.pages))
        reply.lane, reply.pages = -1, []

    def plan(self) -> list[tuple[Reply, Span]]:
        """The next step: a row of every decoding reply, then prompts in order of arrival."""
        decoding = [reply for reply in self.running if reply.decoding]
        reading = [reply for reply in self.running if not reply.decoding]
        room = self.limits.alone
        if decoding:
            # However many lanes decode, a prompt beside them gets on.
            room = max(self.limits.beside, len(decoding) + 1) - len(decoding)
        planned = [(reply, self._span(reply, 1)) for reply in decoding]
        for reply in reading:
            most = min(room, self.limits.chunk)
            if most > 0:
                span = self._span(reply, most)
                planned.append((reply, span))
                room -= len(span.tokens)
        return planned

    @staticmethod
    def _span(reply: Reply, most: int) -> Span:
        tokens = reply.next_tokens(most)
        return Span(reply.lane, reply.filled, tokens, int(len(tokens) == reply.remaining))
