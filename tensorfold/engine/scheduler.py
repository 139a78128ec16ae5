"""Who runs next: the queue, lanes, pages, and whose prompt gets the next chunk."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorfold.engine.pages import PagePool
from tensorfold.engine.reply import Reply
from tensorfold.ops.rows import PAGE
from tensorfold.runtime.packed import pages_for
from tensorfold.runtime.step import StateShape

_PASSED_OVER = 8
"""Chunks that may go to other prompts before one gets the next in any case."""

_WORTH_COPYING = 4
"""Rows of another sequence's page that are worth a copy of the page."""


@dataclass(frozen=True)
class RowLimits:
    """Rows of a step: at most `alone` while only prompts run, `beside` while any reply decodes
    (a step is a pause for every running reply), and `chunk` of any one prompt. Between two chunks
    the running replies decode by themselves for `decode_share` of the time that a chunk took."""

    alone: int = 256
    beside: int = 64
    chunk: int = 256
    decode_share: float = 0.25

    @classmethod
    def of_buckets(cls, buckets: Sequence[int], decode_share: float = 0.25) -> "RowLimits":
        """The most that steps of these buckets can run."""
        most = max(buckets)
        return cls(most, min(most, cls.beside), most, decode_share)


class Scheduler:
    """Places replies in lanes and chooses prompts. Knows no device."""

    def __init__(
        self, shape: StateShape, limits: RowLimits = RowLimits(), pool: PagePool | None = None
    ):
        if shape.lanes >= limits.alone:
            raise ValueError(f"{shape.lanes} lanes do not fit a step of {limits.alone} rows")
        self.limits = limits
        self.pool = pool or PagePool(shape.pages, shape.kept)
        self.running: list[Reply] = []
        """In the order they were admitted."""
        self.preempted = 0
        """Replies put back in the queue."""
        self.settings = np.zeros((shape.lanes, 6), np.int32)
        self.block_table = np.zeros((shape.lanes, shape.pages_per_lane), np.int32)
        self.copies: list[tuple[int, int]] = []
        """(source, target) pages to be copied, in this order, before the next step."""
        self.lane_copies: list[tuple[int, int]] = []
        """Likewise of lanes' own state; a snapshot's slot counts on from the lanes."""
        self._foreground: deque[Reply] = deque()
        self._background: deque[Reply] = deque()
        self._free_lanes = list(reversed(range(shape.lanes)))
        self._short = False
        """Whether replies were left waiting when lanes were last given."""
        self._owed = 0.0
        """Seconds that running replies decode before the next chunk."""

    @property
    def waiting(self) -> list[Reply]:
        """The queue, the next one first."""
        return [*self._foreground, *self._background]

    @property
    def waiting_in_foreground(self) -> list[Reply]:
        """Those of the queue that no background reply is ahead of."""
        return list(self._foreground)

    def places(self, background: bool) -> int:
        """Lanes that the next replies get, which foreground ones may take from background ones:
        none while one like them waits and found no place."""
        if self._short and (background or self._foreground):
            return 0
        yielding = sum(reply.request.background for reply in tuple(self.running))
        return len(self._free_lanes) + (0 if background else yielding)

    def reset(self) -> None:
        """Forget what the state held; nothing may run."""
        self.pool.reset()
        self.copies.clear()
        self.lane_copies.clear()

    def add(self, reply: Reply) -> None:
        """Queue a reply."""
        self._queue(reply).append(reply)

    def admit(self) -> list[Reply]:
        """Give lanes and pages to waiting replies: foreground first, first come first served.

        A reply is promised all the pages it may ever need, so that it never stops for one. When a
        foreground reply finds no place, the newest background replies pause and queue again, if
        that helps.
        """
        admitted = []
        while self._foreground or self._background:
            queue = self._foreground or self._background
            if self._place(queue[0]):
                admitted.append(queue.popleft())
            elif queue is self._background or not self._pause_background(queue[0]):
                break
        self._short = bool(self._foreground or self._background)
        return admitted

    def release(self, reply: Reply) -> None:
        """Take a reply out of the queue or out of its lane. Its pages are kept for later ones."""
        if reply.holding is None:
            self._queue(reply).remove(reply)
            return
        self._keep_state(reply)
        first = reply.holding.shared_tokens
        rest = tuple(reply.known[first : min(reply.filled, first + PAGE)])
        self.pool.release(reply.holding, rest)
        self.running.remove(reply)
        self._free_lanes.append(reply.lane)
        reply.lane, reply.holding = -1, None

    def decoding(self) -> list[Reply]:
        """The running replies whose next row draws a new token."""
        return [reply for reply in self.running if reply.decoding]

    def next_chunk(self, decoding: int) -> tuple[Reply, int] | None:
        """The prompt that gets the next chunk, and its rows; None if there is none, or while the
        `decoding` replies beside it are owed time."""
        reading = [reply for reply in self.running if not reply.decoding]
        for reply in reading:
            self._follow(reply)
        if not reading or (decoding and self._owed > 0):
            return None
        # With many lanes several are overdue at any time, so the one that waits longest is next.
        chosen = max(reading, key=lambda reply: reply.passed_over)
        if chosen.passed_over < _PASSED_OVER:
            chosen = min(reading, key=_precedence)
        for reply in reading:
            reply.passed_over += 1
        chosen.passed_over = 0
        self._copy_rows(chosen)
        room = self.limits.alone
        if decoding:
            # However many lanes decode, a prompt beside them gets on.
            room = max(self.limits.beside, decoding + 1) - decoding
        rows = min(chosen.remaining, room, self.limits.chunk)
        holding = chosen.holding
        assert holding is not None
        if holding.known > chosen.filled:
            # Others begin like this too: stop where they part, for a snapshot.
            rows = min(rows, holding.known - chosen.filled)
        return chosen, rows

    def make_room(self, reply: Reply, rows: int) -> None:
        """Pages for the reply's next rows."""
        holding = reply.holding
        assert holding is not None
        while holding.tokens < reply.filled + rows:
            self.pool.take(holding)
        if holding.changed:
            pages = holding.pages
            self.block_table[reply.lane, : len(pages)] = pages
            holding.changed = False

    def advance(self, reply: Reply, filled: int) -> None:
        """The reply's rows up to position `filled` stand; full pages are shared from here on."""
        holding = reply.holding
        assert holding is not None
        reply.filled = filled
        while self.pool.shares and filled >= holding.shared_tokens + PAGE:
            first = holding.shared_tokens
            self.pool.share(holding, tuple(reply.known[first : first + PAGE]))
        if filled in (holding.known, reply.prompt_length) and not reply.drawn:
            self._keep_state(reply)

    def took(self, seconds: float, *, chunk: bool, decoding: bool) -> None:
        """A step of this kind took this long."""
        if chunk:
            self._owed = self.limits.decode_share * seconds if decoding else 0.0
        else:
            self._owed -= seconds

    def _queue(self, reply: Reply) -> deque[Reply]:
        return self._background if reply.request.background else self._foreground

    def _place(self, reply: Reply) -> bool:
        if not self._free_lanes:
            return False
        holding = self.pool.hold(*_wanted(reply))
        if holding is None:
            return False
        reply.holding, reply.lane = holding, self._free_lanes.pop()
        reply.filled = 0
        if self.pool.snapshots is not None and holding.shared_tokens:
            slot = self.pool.snapshots.use(holding.path[-1])
            self.lane_copies.append((len(self.block_table) + slot, reply.lane))
        self._skip(reply, holding.shared_tokens)
        self.settings[reply.lane] = reply.settings
        self.running.append(reply)
        return True

    def _follow(self, reply: Reply) -> None:
        """Go on over the pages that others have computed by now."""
        holding = reply.holding
        assert holding is not None
        if _reads_whole(reply):
            return
        while True:
            first = holding.shared_tokens
            if not self.pool.next_shared(holding, reply.known[first : first + PAGE + 1]):
                break
            self._skip(reply, holding.shared_tokens - reply.filled)

    def _copy_rows(self, reply: Reply) -> None:
        """Take over the rows that a page of another sequence has of this one."""
        holding = reply.holding
        assert holding is not None
        if holding.own or _reads_whole(reply):
            return
        rest = reply.known[reply.filled : reply.filled + PAGE + 1]
        source, rows = self.pool.closest_rows(holding, rest)
        if rows >= _WORTH_COPYING:
            self.copies.append((source, self.pool.take(holding)))
            self._skip(reply, rows)

    def _keep_state(self, reply: Reply) -> None:
        """Have the state of the reply's lane kept for the end of its last full page. A lane holds
        what is needed to go on there until it has run a page more and most of another, so that
        drafts which were not kept do no harm."""
        holding, snapshots = reply.holding, self.pool.snapshots
        assert holding is not None
        node = holding.path[-1]
        current = 0 < holding.shared_tokens == reply.filled // PAGE * PAGE
        if snapshots is not None and self.pool.shares and current and node not in snapshots:
            slot = len(self.block_table) + snapshots.add(node)
            self.lane_copies.append((reply.lane, slot))

    def _pause_background(self, ahead: Reply) -> bool:
        """Put the newest running background reply back at the head of its queue, unless `ahead`
        would find no pages even if all of them paused."""
        pausing = [reply for reply in self.running if reply.request.background]
        staying = [
            reply.holding
            for reply in self.running
            if reply.holding is not None and not reply.request.background
        ]
        if not pausing or not self.pool.fits_beside(staying, *_wanted(ahead)):
            return False
        reply = pausing[-1]
        self.release(reply)
        reply.filled, reply.preempted = 0, reply.preempted + 1
        reply.replayed = None
        if not reply.drawn:  # The prompt is read from its start, or from kept pages.
            reply.prompt_logprobs.clear()
        self.preempted += 1
        self._background.appendleft(reply)
        return True

    @staticmethod
    def _skip(reply: Reply, rows: int) -> None:
        """The reply's next rows are there already."""
        reply.filled += rows
        # A reply that runs again finds rows that it ran itself.
        if not reply.drawn and not reply.preempted:
            reply.cached += rows


def _reads_whole(reply: Reply) -> bool:
    """Log probabilities of a prompt need every row of it."""
    return reply.request.prompt_logprobs is not None and not reply.drawn


def _wanted(reply: Reply) -> tuple[str, list[int], int]:
    """What it asks the pool to hold: the salt, the tokens that may be there, how many pages."""
    known = [] if _reads_whole(reply) else reply.known
    return reply.request.cache_salt, known, pages_for(reply.capacity)


def _precedence(reply: Reply) -> tuple[bool, int]:
    """Foreground before background, then the prompt with the fewest tokens left."""
    return reply.request.background, reply.remaining
