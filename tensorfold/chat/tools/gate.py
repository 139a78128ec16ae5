"""A call that a request asks for: the reply must begin one, to an offered tool.

The gate is a `Constraint` of the engine. After any block of thinking it forces a format's text up
to a tool's name, holds the name to the offered ones, and forces the text behind it. The arguments
are the model's own: a grammar over the tool's schema can take over there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tensorfold.chat.tools.interface import CallShape
from tensorfold.checkpoints.interface import Tokenizer


@dataclass(frozen=True)
class Thinking:
    """The tokens around a block of thinking; `opened` when the prompt ends inside one."""

    open: int
    close: int
    opened: bool


class Spellings:
    """The tokens of a vocabulary that ordinary text is written with, by their bytes."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size

    @cached_property
    def by_bytes(self) -> Mapping[bytes, Sequence[int]]:
        """Which tokens add exactly these bytes."""
        found: dict[bytes, list[int]] = {}
        for token in range(min(self.vocab_size, self.tokenizer.vocab_size)):
            data = b"" if token in self.tokenizer.control_ids else self.tokenizer.token_bytes(token)
            if data:
                found.setdefault(data, []).append(token)
        return found

    def mask(self, tokens: Sequence[int]) -> np.ndarray:
        """Only these tokens: bits as in `Constraint.masks`."""
        mask = np.zeros(-(-self.vocab_size // 32), np.uint32)
        for token in tokens:
            mask[token // 32] |= np.uint32(1) << np.uint32(token % 32)
        return mask


@dataclass(frozen=True)
class _Place:
    """How far a reply is: thinking, at a token of the forced text, at a byte of a name, or past
    it all."""

    thinking: bool = False
    forced: int = 0
    written: bytes = b""
    past: bool = False


class CallGate:
    """Keeps one reply to a call; a `Constraint`."""

    def __init__(
        self,
        spellings: Spellings,
        shape: CallShape,
        names: Sequence[str],
        thinking: Thinking | None = None,
    ) -> None:
        self._spellings = spellings
        self._thinking = thinking
        self._text = spellings.tokenizer.encode(shape.before + shape.opener)
        self._endings = [(name + shape.after_name).encode() for name in names]
        self._place = _Place(thinking=bool(thinking and thinking.opened))

    def masks(self, drafts: Sequence[int]) -> list[np.ndarray | None]:
        """See `Constraint.masks`."""
        place = self._place
        found: list[np.ndarray | None] = []
        for token in [*drafts, None]:
            allowed = self._allowed(place)
            found.append(None if allowed is None else self._spellings.mask(allowed))
            if token is None or (allowed is not None and token not in allowed):
                break
            place = self._after(place, token)
        return found

    def forced(self) -> list[int]:
        """See `Constraint.forced`."""
        place = self._place
        tokens: list[int] = []
        while (allowed := self._allowed(place)) is not None and len(allowed) == 1:
            tokens.append(allowed[0])
            place = self._after(place, allowed[0])
        return tokens

    def accept(self, token: int) -> None:
        """See `Constraint.accept`."""
        self._place = self._after(self._place, token)

    def _allowed(self, place: _Place) -> list[int] | None:
        """The tokens that may come; None for all."""
        if place.past or place.thinking:
            return None
        if place.forced < len(self._text):
            first = self._thinking is not None and place == _Place()
            openers = [self._thinking.open] if self._thinking and first else []
            return [*openers, self._text[place.forced]]
        rests = [
            ending[len(place.written) :]
            for ending in self._endings
            if ending.startswith(place.written)
        ]
        by_bytes = self._spellings.by_bytes
        starts = {rest[:end] for rest in rests for end in range(1, len(rest) + 1)}
        return sorted(token for start in starts for token in by_bytes.get(start, ()))

    def _after(self, place: _Place, token: int) -> _Place:
        if place.past:
            return place
        if self._thinking and token == self._thinking.close and place.thinking:
            # A second block of thinking can't follow the first.
            return replace(place, thinking=False, written=b"")
        if place.thinking:
            return place
        if self._thinking and token == self._thinking.open and place == _Place():
            return replace(place, thinking=True)
        if place.forced < len(self._text):
            place = replace(place, forced=place.forced + 1)
        else:
            written = place.written + self._spellings.tokenizer.token_bytes(token)
            place = replace(place, written=written)
        whole = place.forced == len(self._text) and place.written in self._endings
        return replace(place, past=whole)
