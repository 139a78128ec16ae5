"""The frame of every parser: prose goes to the client, what an opener begins is tried as a call."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import replace
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
    closers: ClassVar[tuple[str, ...]] = ()
    """Markers behind a call that is whole without them."""
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
        self._blanks: list[Content] = []
        self._said = False
        self._called = False
        self._made = 0
        self._long_tries = 0
        self._steps = self.parse()
        self._advance()

    @classmethod
    def call_id(cls, name: str, index: int) -> str:
        """An id for the conversation's call number `index`."""
        return f"call_{uuid.uuid4().hex[:24]}"

    def feed(self, text: str, control: bool = False) -> list[Event]:
        """What `text`, the next of the reply, decides; `control`: it is one control token."""
        self.source.feed(text, control)
        return self._advance()

    def finish(self, *, cut: bool) -> list[Event]:
        """The rest; with `cut`, a call that is not whole vanishes with its text."""
        self._cut = cut
        # One letter of a marker may be text, unless markup is what is written.
        least = 1 if self._called or self.channels else 2
        opening = cut and self.source.cut_off((*self.openers, *self.closers), least)
        self.source.ended = True
        events = self._advance()
        if opening:
            self._settle_blanks()
        # The template's blanks after a call, and blanks beside calls alone, are no content.
        if not self._called or (self._said and not self.framed):
            events += self._blanks
        self._blanks = []
        return joined(events)

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
            read = self.count_try()
            if self.tried_enough:
                self.say(self.source.rewind(read))
            else:
                self.say(self.source.rewind(len(opener) if self._made == made else 0))

    def count_try(self) -> int:
        """A call was tried in vain: the length of what was read for it."""
        read = len(self.source.marked())
        self._long_tries += read > _LONG
        return read

    @property
    def tried_enough(self) -> bool:
        """Whether so much was tried in vain that looking again would take more than linear time."""
        return self._long_tries > _LONG_TRIES

    @abstractmethod
    def call(self, opener: str) -> Steps[bool]:
        """Read what follows `opener` and give its calls to `made`; whether it was read to its
        end. What was read after the last call is content if it was not."""

    def say(self, text: str) -> None:
        """Text for the client, the last that was read. Blanks wait until it is known what follows
        them."""
        solid = text.rstrip(BLANKS)
        if not self.framed and (solid or self._said):
            solid = text
        start = self.source.place - len(text)
        end = start + len(solid)
        if solid:
            self._events += self._blanks
            self._events.append(Content(solid, start, end))
            self._blanks = []
            self._said = True
        if len(solid) < len(text):
            self._blanks.append(Content(text[len(solid) :], end, self.source.place))

    def think(self, text: str) -> None:
        """Text of a reasoning channel, the last that was read."""
        if text:
            place = self.source.place
            self._events.append(Reasoning(text, place - len(text), place))

    def add(self, event: Event) -> None:
        """An event of the parser's own making."""
        self._events.append(event)

    def made(self, *calls: Call) -> None:
        """These calls are whole. What is read from here is not theirs."""
        if calls:
            self._settle_blanks()
            self._events += [replace(call, end=self.source.place) for call in calls]
            self._made += len(calls)
            self.source.mark()

    def _settle_blanks(self) -> None:
        """A call follows the blanks that wait."""
        self._blanks = []
        self._called = True

    def _advance(self) -> list[Event]:
        next(self._steps, None)
        events, self._events = self._events, []
        return joined(events)


def joined(events: Iterable[Event]) -> list[Event]:
    """Neighbouring pieces of text as one, where they are neighbours in the reply too."""
    groups: list[list[Event]] = []
    for event in events:
        if groups and _adjacent(groups[-1][-1], event):
            groups[-1].append(event)
        else:
            groups.append([event])
    return [_one(group) for group in groups]


def _adjacent(first: Event, second: Event) -> bool:
    if isinstance(first, Call) or isinstance(second, Call):
        return False
    return type(first) is type(second) and first.end == second.start


def _one(group: list[Event]) -> Event:
    first = group[0]
    if isinstance(first, Call) or len(group) == 1:
        return first
    return replace(
        first,
        text="".join(each.text for each in group if not isinstance(each, Call)),
        end=group[-1].end,
    )
