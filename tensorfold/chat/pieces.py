"""What a reply's text is made of on its way from tokens to a client.

A reply is read in stages: its tokens become pieces of text (`ReplyText`), and each stage takes the
parts of the one before it: one splits off the reasoning, one finds the tool calls. Every token of
the reply is in exactly one part, in order. So what belongs to a token goes wherever its text goes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from tensorfold.engine.interface import TokenLogprobs


@dataclass(frozen=True)
class Token:
    """A token of a reply, with its log probabilities where they were asked for and are shown.

    `offset` is where the token's first character stands in the reply's text.
    """

    id: int
    logprobs: TokenLogprobs | None = None
    offset: int = 0


@dataclass(frozen=True)
class Piece:
    """A stretch of text, and the tokens whose text is complete with it; either may be empty.

    From `ReplyText` a piece begins where a token's text begins, so a token that the model wrote is
    told from text that only spells it by `tokens`.
    """

    text: str
    tokens: tuple[Token, ...] = ()
    kind: Literal["content", "reasoning"] = "content"

    def unseen(self, kind: Literal["content", "reasoning"] = "content") -> "Piece":
        """The piece as markup: its tokens count, and no text or log probability is shown."""
        return Piece("", tuple(replace(token, logprobs=None) for token in self.tokens), kind)


@dataclass(frozen=True)
class CallPiece:
    """A stretch of the arguments of tool call `index`; a call's first one has its id and name.

    Calls are numbered from 0 in the order of the reply and come one after another.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None
    tokens: tuple[Token, ...] = ()


Part = Piece | CallPiece


class Stage(Protocol):
    """One reader of a reply; it holds back what it can't decide yet and forgets no token."""

    def push(self, part: Part) -> Sequence[Part]:
        """What is decided once `part` has come."""
        ...

    def finish(self, cut: bool) -> Sequence[Part]:
        """The rest, at the reply's end; `cut` when the reply limit ended it."""
        ...


class Stages:
    """Several stages, each reading what the one before it decides."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = tuple(stages)

    def push(self, parts: Iterable[Part]) -> list[Part]:
        """What all stages have decided once `parts` have come."""
        return self._run(list(parts), 0)

    def finish(self, cut: bool) -> list[Part]:
        """The rest."""
        parts: list[Part] = []
        for i, stage in enumerate(self._stages):
            parts += self._run(list(stage.finish(cut)), i + 1)
        return parts

    def _run(self, parts: list[Part], first: int) -> list[Part]:
        for stage in self._stages[first:]:
            parts = [decided for part in parts for decided in stage.push(part)]
        return parts


def join(parts: Iterable[Part]) -> list[Part]:
    """`parts` with neighbours of a kind made one, so that none but the last is without text."""
    joined: list[Part] = []
    for part in parts:
        both = _joined(joined[-1], part) if joined else None
        if both is None:
            joined.append(part)
        else:
            joined[-1] = both
    return joined


def _joined(first: Part, second: Part) -> Part | None:
    """Two parts as one, or None when a client must see them apart."""
    tokens = first.tokens + second.tokens
    if isinstance(second, Piece) and not second.text:
        return replace(first, tokens=tokens)
    if isinstance(first, Piece) and not first.text:
        return replace(second, tokens=tokens)
    if isinstance(first, Piece) and isinstance(second, Piece) and first.kind == second.kind:
        return replace(first, text=first.text + second.text, tokens=tokens)
    if isinstance(first, CallPiece) and isinstance(second, CallPiece):
        # Clients take the arguments from what follows a call's id and name.
        if first.id is not None or second.id is not None:
            return None
        return replace(first, arguments=first.arguments + second.arguments, tokens=tokens)
    return None
