"""What a draft source is. Whatever it proposes, the reply's tokens are the model's own."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tensorfold.engine.reply import Reply


class DraftSource(Protocol):
    """Proposes a reply's next tokens. Used by the engine's thread alone. What returns nothing does
    nothing in a source that does not say otherwise."""

    @property
    def name(self) -> str:
        """What it is, for reports."""
        ...

    @property
    def takes_hidden(self) -> bool:
        """Whether it must be told of hidden vectors."""
        ...

    @property
    def seconds(self) -> float:
        """What proposing one more token costs, for all replies of a step together."""
        ...

    def saw(self, reply: Reply, position: int, hidden: np.ndarray) -> None:
        """Rows of the reply from `position` have run, with these hidden vectors [rows, D]; the
        token after each is known. Called if `takes_hidden`, for replies that may be drafted."""
        return

    def follow(self, replies: Sequence[Reply]) -> None:
        """The replies that may be drafted in the next step, their lanes and pages as they are now.
        Called before `chances` is asked about them."""
        return

    def chances(self, reply: Reply, most: int) -> Sequence[float]:
        """The chance of each of the next `most` proposals, or fewer, that it is right if those
        before it are. Empty: nothing to propose."""
        ...

    def propose(self, wanted: Sequence[tuple[Reply, int]]) -> list[list[int]]:
        """For each reply up to the wanted number of tokens."""
        ...

    def observe(self, reply: Reply, drawn: Sequence[int], drafted: int) -> None:
        """The tokens drawn next, before they join the reply; `drafted` of this source's proposals
        were tried at their places."""
        return

    def release(self, reply: Reply) -> None:
        """The reply has left its lane."""
        return
