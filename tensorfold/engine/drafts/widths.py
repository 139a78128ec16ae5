"""How many drafts each reply gets: as many as raise the expected tokens per second."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

_SMOOTH = 0.1
_OUTLIER = 2.0
"""A step that took this many times its usual is counted as if it had taken just that."""
_ROW_COST = 0.2
"""What a row adds to a step of one row, where nothing has been measured yet."""


class StepTimes:
    """Seconds of a decoding step in each row bucket, learnt from the steps that run.

    One that does not learn takes all steps for equally long, so that every draft is worth a try.
    """

    def __init__(self, buckets: Sequence[int], learns: bool = True):
        self.buckets = tuple(buckets)
        self._learns = learns
        self._seconds: dict[int, float] = {}

    def observe(self, rows: int, seconds: float) -> None:
        """A step of `rows` rows, all of them drawn, took this long."""
        if not self._learns:
            return
        bucket = self.bucket(rows)
        known = self._seconds.get(bucket)
        if known is not None:
            seconds = known + _SMOOTH * (min(seconds, _OUTLIER * known) - known)
        self._seconds[bucket] = seconds

    def of(self, bucket: int) -> float:
        """The expected seconds of a step in a bucket."""
        if not self._learns:
            return 1.0
        if bucket in self._seconds:
            return self._seconds[bucket]
        if not self._seconds:
            return _guess(bucket)
        nearest = min(self._seconds, key=lambda known: abs(known - bucket))
        return self._seconds[nearest] * _guess(bucket) / _guess(nearest)

    def bucket(self, rows: int) -> int:
        """The bucket that holds `rows` rows."""
        return next(bucket for bucket in self.buckets if bucket >= rows)


def _guess(bucket: int) -> float:
    return 1 + _ROW_COST * (bucket - 1)


@dataclass(frozen=True)
class Offer:
    """What a source could propose for one reply: the chances of its drafts, each if those before
    it are right, and the seconds that each costs."""

    chances: Sequence[float] = ()
    seconds: float = 0.0


def choose_widths(offers: Sequence[Offer], times: StepTimes, most_rows: int) -> list[int]:
    """Drafts for each reply of a step in which every reply has a row of its own.

    For every bucket the drafts most likely to be kept fill its rows; the bucket with the most
    expected tokens per second is taken, the smallest one, without drafts, included.
    """
    replies = len(offers)
    best, best_rate = [0] * replies, replies / times.of(times.bucket(replies))
    ordered = _likeliest_first(offers, most_rows - replies)
    for bucket in times.buckets:
        room = min(bucket, most_rows) - replies
        if room < 1 or bucket > times.bucket(most_rows):
            continue
        widths, tokens = [0] * replies, float(replies)
        for gain, reply in ordered[:room]:
            widths[reply] += 1
            tokens += gain
        proposing = max(w * offer.seconds for w, offer in zip(widths, offers, strict=True))
        rate = tokens / (times.of(bucket) + proposing)
        if rate > best_rate:
            best, best_rate = widths, rate
        if room >= len(ordered):
            break
    return best


def _likeliest_first(offers: Sequence[Offer], most: int) -> list[tuple[float, int]]:
    """(chance to be kept, reply) of the drafts most likely to be kept. A reply's come in order,
    because each is kept only if the one before it is."""
    heap = [(-o.chances[0], reply, 0) for reply, o in enumerate(offers) if len(o.chances)]
    heapq.heapify(heap)
    ordered: list[tuple[float, int]] = []
    while heap and len(ordered) < most:
        loss, reply, place = heapq.heappop(heap)
        ordered.append((-loss, reply))
        chances = offers[reply].chances
        if place + 1 < len(chances):
            heapq.heappush(heap, (loss * chances[place + 1], reply, place + 1))
    return ordered
