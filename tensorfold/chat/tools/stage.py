"""The stage that finds a reply's tool calls; `tensorfold/chat/pieces.py` says what stages are.

Text becomes content and whole calls. Every token goes where its text goes; of markup, which no
client sees, the tokens' log probabilities are not shown either.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tensorfold.chat.pieces import CallPiece, Part, Piece, Token
from tensorfold.chat.tools.interface import Call, Event, Reasoning, Tools
from tensorfold.chat.tools.parser import CallParser

Kind = Literal["content", "reasoning"]


@dataclass(frozen=True)
class CallReading:
    """How the calls of a request's replies are read.

    controls: the tokenizer's control tokens and their spellings
    prompt: the end of the prompt's text
    parallel: whether a reply may have more than one call; later ones are left out
    calls_before: calls in the conversation so far, which some formats number on
    """

    format: type[CallParser]
    tools: Tools = field(default_factory=Tools)
    controls: Mapping[int, str] = field(default_factory=dict)
    prompt: str = ""
    parallel: bool = True
    calls_before: int = 0

    def parser(self) -> CallParser:
        """A parser of one reply."""
        spellings = frozenset(self.controls.values())
        return self.format(self.tools, controls=spellings, prompt=self.prompt)

    def is_control(self, piece: Piece) -> bool:
        """Whether a piece is one control token."""
        return len(piece.tokens) == 1 and piece.tokens[0].id in self.controls


class ToolCalls:
    """Finds the calls of one reply; a `Stage`.

    A call that was written into a block of reasoning is the reply's when the block never closes.
    From such a call on the reasoning waits; it is reasoning if text follows the block.
    """

    def __init__(self, reading: CallReading) -> None:
        self._reading = reading
        self._answer = _Reader(reading)
        self._thought = _Reader(reading)
        self._thought_calls: list[Event] = []
        """The first call in the open block of reasoning and all that came behind it."""
        self._calls = 0

    def push(self, part: Part) -> list[Part]:
        """What is decided once `part` has come."""
        if isinstance(part, CallPiece):
            return [part]
        if part.kind == "content":
            closed = self._close_thought() if part.text else []
            return [*closed, *self._parts(self._answer.feed(part), self._answer, "content")]
        if self._reading.format.channels:
            return [part]
        events = [*self._thought_calls, *self._thought.feed(part)]
        first = next((i for i, event in enumerate(events) if isinstance(event, Call)), len(events))
        self._thought_calls = events[first:]
        return self._parts(events[:first], self._thought, "reasoning")

    def finish(self, cut: bool) -> list[Part]:
        """The rest, at the reply's end; `cut` when the reply limit ended it."""
        thought = [*self._thought_calls, *self._thought.finish(cut)]
        return [
            *self._parts(thought, self._thought, "reasoning"),
            *self._thought.rest("reasoning"),
            *self._parts(self._answer.finish(cut), self._answer, "content"),
            *self._answer.rest("content"),
        ]

    def _close_thought(self) -> list[Part]:
        """The block has ended, so all that waits of it is reasoning."""
        waiting = self._thought.waiting()
        self._thought = _Reader(self._reading)
        self._thought_calls = []
        return [waiting] if waiting.text or waiting.tokens else []

    def _parts(self, events: list[Event], reader: "_Reader", kind: Kind) -> list[Part]:
        parts: list[Part] = []
        for event in events:
            if isinstance(event, Call):
                parts += self._call(event, reader.tokens(event.end))
                continue
            shown: Kind = "reasoning" if isinstance(event, Reasoning) else kind
            if before := reader.tokens(event.start):
                parts.append(Piece("", before).unseen(shown))
            parts.append(Piece(event.text, reader.tokens(event.end), shown))
        return parts

    def _call(self, call: Call, tokens: tuple[Token, ...]) -> list[Part]:
        unseen = Piece("", tokens).unseen()
        if self._calls and not self._reading.parallel:
            return [unseen]
        index = self._calls
        self._calls += 1
        call_id = self._reading.format.call_id(call.name, self._reading.calls_before + index)
        return [
            CallPiece(index, id=call_id, name=call.name, tokens=unseen.tokens),
            CallPiece(index, call.arguments),
        ]


class _Reader:
    """A parser, and the pieces that it was fed and that nothing has become of yet."""

    def __init__(self, reading: CallReading) -> None:
        self._reading = reading
        self._parser = reading.parser()
        self._pieces: deque[tuple[int, Piece]] = deque()
        """Each with the place where it ends."""
        self._fed = 0
        self._taken = 0

    def feed(self, piece: Piece) -> list[Event]:
        """The events that a piece decides."""
        self._fed += len(piece.text)
        self._pieces.append((self._fed, piece))
        return self._parser.feed(piece.text, self._reading.is_control(piece))

    def finish(self, cut: bool) -> list[Event]:
        """The last events."""
        return self._parser.finish(cut=cut)

    def tokens(self, place: int) -> tuple[Token, ...]:
        """The tokens up to a place of the fed text that were not asked for before."""
        self._taken = place
        found: list[Token] = []
        while self._pieces and self._pieces[0][0] <= place:
            found += self._pieces.popleft()[1].tokens
        return tuple(found)

    def waiting(self) -> Piece:
        """The text behind the place of the last tokens, and its tokens, as reasoning."""
        text = "".join(piece.text for _, piece in self._pieces)
        text = text[len(text) - (self._fed - self._taken) :]
        tokens = tuple(token for _, piece in self._pieces for token in piece.tokens)
        return Piece(text, tokens, "reasoning")

    def rest(self, kind: Kind) -> list[Part]:
        """The tokens that are left, of text that nobody sees."""
        tokens = self.tokens(self._fed)
        return [Piece("", tokens).unseen(kind)] if tokens else []
