"""The frame of every parser: prose goes to the client, what an opener begins is tried as a call."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from itertools import groupby
from typing import ClassVar

from tensorfold.chat.tools.interface import Call, CallShape, Content, Event, Reasoning, Tools
from tensorfold.chat.tools.source import BLANKS, Source, Steps

_LONG = 4096
_LONG_TRIES = 8


class CallParser(ABC):
    """Reads one reply of a format, as `ToolFormat` says. A format names its openers and reads what
    follows one.

    `prompt` is the end of the prompt, for formats whose first channel it opens.
    """

    name: ClassVar[str]
    shape: ClassVar[CallShape]
    openers: ClassVar[tuple[str, ...]]
    framed: ClassVar[bool] = True
    """Whether templates write blanks around calls, which are then no content."""
    channels: ClassVar[bool] = False
    """Whether the format holds reasoning and text in channels too, so that it reads every reply."""

    def __init__(
        self, tools: Tools | None = None, *, controls: Collection[str] = (), prompt: str = ""
    ) -> None:
        self.tools = tools or Tools()
        self.prompt = prompt
        self.source = Source(controls)
        self._cut = False
        self._events: list[Event] = []
        self._blanks: list[str] = []
        self._said = False
        self._called = False
        self._made = 0
        self._long_tries = 0
        self._steps = self.parse()
        self._advance()

    def feed(self, text: str, control: bool = False) -> list[Event]:
        """What `text`, the next of the reply, decides; `control`: it is one control token."""
        self.source.feed(text, control)
        return self._advance()

    def finish(self, *, cut: bool) -> list[Event]:
        """The rest; with `cut`, a call that is not whole vanishes with its text."""
        self._cut = cut
        self.source.ended = True
        events = self._advance()
        # The template's blanks after a call, and blanks beside calls alone, are no content.
        if not self._called or (self._said and not self.framed):
            events += [Content(text) for text in self._blanks]
        self._blanks = []
        return _joined(events)

    def parse(self) -> Steps[None]:
        """Read the reply."""
        while True:
            _, opener = yield from self.source.until(*self.openers, release=self.say)
            if not opener:
                return
            yield from self.attempt(opener)

    def attempt(self, opener: str) -> Steps[None]:
        """Read the call that `opener` begins. If it is none, its text is content, unless the reply
        limit cut it, and whatever follows the opener is looked at again."""
        made = self._made
        self.source.mark()
        self.source.take(len(opener))
        if (yield from self.call(opener)):
            self.source.unmark()
        elif self.source.ended and self._cut:
            self.source.drop()
            self._settle_blanks()
        else:
            read = len(self.source.marked())
            self._long_tries += read > _LONG
            if self._long_tries > _LONG_TRIES:
                # Looking at it again and again would take more than linear time.
                self.say(self.source.rewind(read))
            else:
                self.say(self.source.rewind(len(opener) if self._made == made else 0))

    @abstractmethod
    def call(self, opener: str) -> Steps[bool]:
        """Read what follows `opener` and give its calls to `made`; whether it was read to its
        end. What was read after the last call is content if it was not."""

    def say(self, text: str) -> None:
        """Text for the client. Blanks wait until it is known what follows them."""
        solid = text if self._said and not self.framed else text.rstrip(BLANKS)
        if solid:
            self._events += [Content(blank) for blank in self._blanks]
            self._events.append(Content(solid))
            self._blanks = []
            self._said = True
        if len(solid) < len(text):
            self._blanks.append(text[len(solid) :])

    def think(self, text: str) -> None:
        """Text of a reasoning channel."""
        if text:
            self._events.append(Reasoning(text))

    def made(self, *calls: Call) -> None:
        """These calls are whole. What is read from here is not theirs."""
        if calls:
            self._settle_blanks()
            self._events += calls
            self._made += len(calls)
            self.source.mark()

    def _settle_blanks(self) -> None:
        """A call follows the blanks that wait."""
        self._blanks = []
        self._called = True

    def _advance(self) -> list[Event]:
        next(self._steps, None)
        events, self._events = self._events, []
        return _joined(events)


def _joined(events: list[Event]) -> list[Event]:
    """Neighbouring pieces of text as one."""
    joined: list[Event] = []
    for kind, group in groupby(events, type):
        if kind is Call:
            joined += group
        else:
            joined.append(kind("".join(event.text for event in group)))
    return joined
