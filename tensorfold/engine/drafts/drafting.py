"""The drafts of a step: which source proposes for which reply, and how many tokens."""

from collections.abc import Sequence

import numpy as np

from tensorfold.engine.drafts.copies import CopySource
from tensorfold.engine.drafts.forced import ForcedSource
from tensorfold.engine.drafts.source import DraftSource
from tensorfold.engine.drafts.widths import Offer, StepTimes, choose_widths
from tensorfold.engine.reply import Reply

MOST_DRAFTS = 63
"""Of one reply: with its own row they fill a bucket."""

MOST_BESIDE_SNAPSHOTS = 31
"""Where lanes have state of their own. It goes back by two chunks, and what a snapshot needs of the
first one must be there after the rows of rejected drafts."""


class Drafting:
    """Every draft source, and what decides among them and not drafting at all."""

    def __init__(
        self,
        buckets: Sequence[int],
        sources: Sequence[DraftSource] | None = None,
        times: StepTimes | None = None,
    ):
        self.times = times or StepTimes(buckets)
        usual: list[DraftSource] = [ForcedSource(), CopySource()]
        self._sources = usual if sources is None else list(sources)
        self._proposed: dict[Reply, DraftSource] = {}

    @property
    def takes_hidden(self) -> bool:
        """Whether `saw` must be called."""
        return any(source.takes_hidden for source in self._sources)

    def saw(self, reply: Reply, position: int, hidden: np.ndarray) -> None:
        """See `DraftSource`."""
        for source in self._sources:
            if source.takes_hidden and reply.request.draft:
                source.saw(reply, position, hidden)

    def propose(
        self, replies: Sequence[Reply], most_rows: int, most_drafts: int = MOST_DRAFTS
    ) -> list[list[int]]:
        """Drafts for each of the replies of a step of at most `most_rows` rows, `most_drafts` for
        one reply."""
        if not replies:
            return []
        drafted = [reply for reply in replies if reply.request.draft]
        for source in self._sources:
            source.follow(drafted)
        choices = [self._choose(reply, min(most_drafts, reply.most_drafts)) for reply in replies]
        offers = [offer for _, offer in choices]
        widths = choose_widths(offers, self.times, max(most_rows, len(replies)))
        drafts: list[list[int]] = [[] for _ in replies]
        self._proposed = {}
        for source in self._sources:
            wanted = [
                (index, reply, width)
                for index, (reply, (chosen, _), width) in enumerate(
                    zip(replies, choices, widths, strict=True)
                )
                if chosen is source and width
            ]
            if wanted:
                proposals = source.propose([(reply, width) for _, reply, width in wanted])
                for (index, reply, _), tokens in zip(wanted, proposals, strict=True):
                    drafts[index] = tokens
                    self._proposed[reply] = source
        return drafts

    def observe(self, reply: Reply, drawn: Sequence[int], drafted: int) -> None:
        """The tokens drawn next, before they join the reply, and how many drafts were tried."""
        if reply.request.draft:
            for source in self._sources:
                tried = drafted if self._proposed.get(reply) is source else 0
                source.observe(reply, drawn, tried)

    def release(self, reply: Reply) -> None:
        """The reply has left its lane."""
        self._proposed.pop(reply, None)
        for source in self._sources:
            source.release(reply)

    def _choose(self, reply: Reply, most: int) -> tuple[DraftSource | None, Offer]:
        """The source of the likeliest next token; None without one."""
        if not reply.request.draft or most < 1:
            return None, Offer()
        best: tuple[DraftSource | None, Offer] = None, Offer([0.0])
        for source in self._sources:
            chances = source.chances(reply, most)
            if len(chances) and chances[0] > best[1].chances[0]:
                best = source, Offer(chances, source.seconds)
        return best
