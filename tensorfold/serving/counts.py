"""What the server counts beside the engine."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from tensorfold.engine.interface import ReplyStats

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKEN_SECONDS = (
    *(0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
)


class Histogram:
    """Observations counted by upper bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value under the first bound that is not below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Counts:
    """What the server itself counts. For the event loop's thread only."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()
        """HTTP answers by route and status."""
        self.disconnections = 0
        self.rounds = 0
        self.latency = Histogram(_SECONDS)
        self.first_token = Histogram(_SECONDS)
        self.prefill = Histogram(_SECONDS)
        self.decode = Histogram(_SECONDS)
        self.per_token = Histogram(_TOKEN_SECONDS)

    def reply_ended(self, stats: ReplyStats, before: float, seconds: float) -> None:
        """Count a reply that ended well: `before` seconds passed ahead of the engine's queue,
        `seconds` in all."""
        self.rounds += stats.rounds
        self.latency.observe(seconds)
        self.prefill.observe(stats.prefill_seconds)
        if stats.completion_tokens:
            self.first_token.observe(before + stats.time_to_first_token)
            self.decode.observe(stats.decode_seconds)
        if stats.completion_tokens > 1:
            self.per_token.observe(stats.decode_seconds / (stats.completion_tokens - 1))
