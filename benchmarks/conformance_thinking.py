"""The fixtures' reasoning, split off before the calls are looked for."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from tensorfold.chat.pieces import CallPiece, Part, Piece
from tensorfold.chat.tools.source import BLANKS, Source, Steps
from tensorfold.chat.tools.stage import CallReading

_MARKERS = {
    "gemma": (("<|channel>",), ("<channel|>",)),
    "mistral": (("[THINK]", "<think>"), ("[/THINK]", "</think>")),
}
_OTHERS = (("<think>",), ("</think>",))


class Thinking:
    """A block of reasoning at the start of a reply, which the prompt may have opened; a `Stage`."""

    def __init__(self, reading: CallReading) -> None:
        self._reading = reading
        self._markers = _MARKERS.get(reading.format.name, _OTHERS)
        self._source = Source(frozenset(reading.controls.values()))
        self._pieces: deque[tuple[int, Piece]] = deque()
        self._fed = 0
        self._done = 0
        self._parts: list[Part] = []
        self._steps = self._read()
        next(self._steps, None)

    def push(self, part: Part) -> Sequence[Part]:
        """What is decided once `part` has come."""
        assert not isinstance(part, CallPiece)
        self._fed += len(part.text)
        self._pieces.append((self._fed, part))
        self._source.feed(part.text, self._reading.is_control(part))
        return self._advance()

    def finish(self, cut: bool) -> Sequence[Part]:
        """The rest."""
        self._source.ended = True
        parts = self._advance()
        return [*parts, *(piece.unseen() for _, piece in self._pieces)]

    def _advance(self) -> list[Part]:
        next(self._steps, None)
        parts, self._parts = self._parts, []
        return parts

    def _read(self) -> Steps[None]:
        opens, closes = self._markers
        source = self._source
        prompt = self._reading.prompt.rstrip(BLANKS)
        if self._reading.format.channels or prompt.endswith(closes):
            opened = False
        else:
            opened = prompt.endswith(opens) or bool((yield from source.accept(*opens)))
        if opened:
            if self._reading.format.name == "gemma":
                yield from source.accept("thought")
            yield from source.blanks()
            self._give("reasoning", seen=False)
            _, end = yield from source.until(*closes, release=self._think)
            if not end:
                self._give("reasoning")
            source.take(len(end))
            if end:
                yield from source.blanks()
            self._give("reasoning", seen=False)
        while not source.ended or source.ahead(1):
            source.drop()
            self._give("content")
            yield

    def _think(self, text: str) -> None:
        """Blanks wait, and vanish before the end marker."""
        solid = len(text.rstrip(BLANKS))
        if solid:
            self._give("reasoning", place=self._source.place - len(text) + solid)

    def _give(
        self, kind: Literal["content", "reasoning"], seen: bool = True, place: int | None = None
    ) -> None:
        """What was read and not given, piece by piece."""
        place = self._source.place if place is None else place
        while self._pieces and self._done < place:
            end, piece = self._pieces[0]
            until = min(end, place)
            start = end - len(piece.text)
            text = piece.text[self._done - start : until - start]
            whole = until == end
            part = replace(piece, text=text, tokens=piece.tokens if whole else (), kind=kind)
            self._parts.append(part if seen else part.unseen(kind))
            self._done = until
            if whole:
                self._pieces.popleft()
