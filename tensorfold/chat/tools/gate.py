"""A call that a request asks for: the reply must begin one, to an offered tool.

The gate is a `Constraint` of the engine. It forces a format's text up to a tool's name, holds the
name to the offered ones and forces the text behind it. The arguments are the model's own, or held
by another constraint, which starts where the gate ends.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tensorfold.chat.tools.interface import CallShape
from tensorfold.checkpoints.interface import Tokenizer
from tensorfold.engine.interface import Constraint
from tensorfold.engine.masks import mask_of


class Spellings:
    """The tokens that ordinary text is written with, by their bytes.

    vocab_size: the model's, which may be more than the tokenizer's
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size

    @cached_property
    def by_bytes(self) -> Mapping[bytes, Sequence[int]]:
        """Which tokens add exactly these bytes."""
        found: dict[bytes, list[int]] = {}
        for token in range(min(self.vocab_size, self.tokenizer.vocab_size)):
            control = token in self.tokenizer.control_ids
            data = b"" if control else self.tokenizer.token_bytes(token)
            if data:
                found.setdefault(data, []).append(token)
        return found

    def mask(self, tokens: Sequence[int]) -> np.ndarray:
        """Only these tokens, as a mask of `Constraint.masks`."""
        return mask_of(tokens, self.vocab_size)


@dataclass(frozen=True)
class _Place:
    """How far a reply is: so many tokens of the opener, then so much of a name and behind it."""

    tokens: int = 0
    written: bytes = b""


class CallGate:
    """Keeps the beginning of one reply to a call; a `Constraint`.

    arguments: makes what holds the arguments of the tool that was named, if anything does
    """

    def __init__(
        self,
        spellings: Spellings,
        shape: CallShape,
        names: Sequence[str],
        arguments: Callable[[str], Constraint | None] = lambda name: None,
    ) -> None:
        self._spellings = spellings
        self._opener = spellings.tokenizer.encode(shape.before + shape.opener)
        self._names = {(name + shape.after_name).encode(): name for name in names}
        self._make_arguments = arguments
        self._place = _Place()
        self._arguments: Constraint | None = None

    def masks(self, drafts: Sequence[int]) -> list[np.ndarray | None]:
        """See `Constraint.masks`."""
        place = self._place
        found: list[np.ndarray | None] = []
        for count in range(len(drafts) + 1):
            if place.written in self._names:
                return [*found, *self._argument_masks(place, drafts[count:])]
            allowed = self._allowed(place)
            found.append(self._spellings.mask(allowed))
            if count == len(drafts) or drafts[count] not in allowed:
                break
            place = self._after(place, drafts[count])
        return found

    def forced(self) -> list[int]:
        """See `Constraint.forced`."""
        if self._arguments is not None:
            return list(self._arguments.forced())
        place = self._place
        tokens: list[int] = []
        while place.written not in self._names and len(allowed := self._allowed(place)) == 1:
            tokens.append(allowed[0])
            place = self._after(place, allowed[0])
        return tokens

    def accept(self, token: int) -> None:
        """See `Constraint.accept`."""
        if self._place.written not in self._names:
            self._place = self._after(self._place, token)
            if self._place.written in self._names:
                self._arguments = self._make_arguments(self._names[self._place.written])
        elif self._arguments is not None:
            self._arguments.accept(token)

    def _argument_masks(self, place: _Place, drafts: Sequence[int]) -> Sequence[np.ndarray | None]:
        arguments = self._arguments
        if arguments is None and place != self._place:
            arguments = self._make_arguments(self._names[place.written])
        return [None] * (len(drafts) + 1) if arguments is None else arguments.masks(drafts)

    def _allowed(self, place: _Place) -> list[int]:
        """The tokens that may come at a place of the gate."""
        if place.tokens < len(self._opener):
            return [self._opener[place.tokens]]
        written = place.written
        rests = [text[len(written) :] for text in self._names if text.startswith(written)]
        starts = {rest[:end] for rest in rests for end in range(1, len(rest) + 1)}
        by_bytes = self._spellings.by_bytes
        return sorted(token for start in starts for token in by_bytes.get(start, ()))

    def _after(self, place: _Place, token: int) -> _Place:
        if place.tokens < len(self._opener):
            return _Place(place.tokens + 1)
        written = place.written + self._spellings.tokenizer.token_bytes(token)
        return _Place(place.tokens, written)
