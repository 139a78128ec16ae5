"""Drafts of what a reply's rules say must come next: markup, names, the end of a budget."""

from collections.abc import Sequence

from tensorfold.engine.drafts.source import DraftSource
from tensorfold.engine.reply import Reply


class ForcedSource(DraftSource):
    """The text that rules force, as a draft source."""

    seconds = 0.0
    name = "forced text"
    takes_hidden = False

    def chances(self, reply: Reply, most: int) -> list[float]:
        """See `DraftSource`. No other source is as sure."""
        return [1.0] * min(most, len(reply.forced))

    def propose(self, wanted: Sequence[tuple[Reply, int]]) -> list[list[int]]:
        """See `DraftSource`."""
        return [reply.forced[:count] for reply, count in wanted]
