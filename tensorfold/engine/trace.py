"""A reply as `verify` compares it: its tokens, and the digests of their logits."""

from collections.abc import Sequence
from dataclasses import dataclass

from tensorfold.engine.interface import Event, Finished, NewTokens


@dataclass(frozen=True)
class Traced:
    """Two replies are equal only if they were computed bit for bit alike.

    error: why it ended before its time, if it did
    """

    tokens: tuple[int, ...]
    digests: tuple[int, ...]
    error: str = ""

    def or_raise(self) -> "Traced":
        """Itself. Raises RuntimeError if it failed."""
        if self.error:
            raise RuntimeError(self.error)
        return self

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(token, digest) pairs."""
        return list(zip(self.tokens, self.digests, strict=True))

    def first(self, count: int) -> "Traced":
        """The first `count` tokens."""
        return Traced(self.tokens[:count], self.digests[:count])

    def difference(self, got: "Traced") -> str:
        """What is otherwise in `got`, or nothing."""
        for index, (a, b) in enumerate(zip(self.pairs, got.pairs, strict=False)):
            if a[0] != b[0]:
                return f"token {index} is {b[0]}, decoded plainly it is {a[0]}"
            if a != b:
                return f"token {index} has other logits than when decoded plainly"
        if got.error:
            return f"failed after {len(got.tokens)} tokens: {got.error}"
        if len(got.tokens) != len(self.tokens):
            return f"{len(got.tokens)} tokens, decoded plainly {len(self.tokens)}"
        return ""


def trace(events: Sequence[Event]) -> Traced:
    """The reply that these events tell."""
    end = events[-1]
    error = end.error if isinstance(end, Finished) else None
    pieces = [event for event in events if isinstance(event, NewTokens)]
    return Traced(
        tuple(token for piece in pieces for token in piece.ids),
        tuple(digest for piece in pieces for digest in piece.digests),
        error or "",
    )
