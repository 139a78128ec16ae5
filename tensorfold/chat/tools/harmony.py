"""gpt-oss: OpenAI's harmony, in which every message names its channel and its recipient.

    <|channel|>analysis<|message|>REASONING<|end|><|start|>assistant<|channel|>commentary
    to=functions.NAME <|constrain|>json<|message|>{...}<|call|>

The prompt ends with `<|start|>assistant`. analysis is reasoning; final, and commentary without a
recipient, are text; a message to `functions.NAME` is a call on any channel. Messages to tools that
were not offered, on unknown channels and without `<|message|>` are dropped.
"""

import re

from tensorfold.chat.tools.interface import CallShape, Content, Reasoning
from tensorfold.chat.tools.json_calls import is_object
from tensorfold.chat.tools.parser import CallParser
from tensorfold.chat.tools.source import Steps

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START)
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_WORD = re.compile(r"\s*(\w*)")
_FUNCTIONS = "functions."
_MOST = 1024


class HarmonyParser(CallParser):
    """Reads harmony's messages."""

    name = "harmony"
    openers = _ENDS
    framed = False
    channels = True
    shape = CallShape(
        opener="<|channel|>commentary to=functions.",
        after_name=" <|constrain|>json<|message|>",
        closer="<|call|>",
    )

    def parse(self) -> Steps[None]:
        """Message after message."""
        source = self.source
        self._last = ""
        self._breaks = False
        while not source.at_end:
            header, marker = yield from source.until(_MESSAGE, *_ENDS)
            source.take(len(marker))
            if marker == _MESSAGE:
                yield from self._message(header)
            elif not marker:
                return

    def call(self, opener: str) -> Steps[bool]:
        """A call's arguments, from behind its header, to the end of the message."""
        source = self.source
        if not (yield from source.follows("{")):
            return False
        yield from source.blanks()
        arguments = yield from source.json()
        end = yield from source.follows(*_ENDS)
        if not is_object(arguments) or not (end or (source.at_end and not self._cut)):
            return False
        call = self.tools.call(opener, arguments)
        self.made(*([call] if call else []))
        return call is not None

    def _message(self, header: str) -> Steps[None]:
        role, *channels = header.split(_CHANNEL)
        where = channels[-1] if channels else ""
        channel = (_WORD.match(where) or [""])[1]
        recipient = _RECIPIENT.search(where) or _RECIPIENT.search(role)
        name = recipient[1].removeprefix(_FUNCTIONS) if recipient else ""
        if recipient and (recipient[1] != name or self.tools.find(name)):
            yield from self._call_message(name)
        elif recipient:
            yield from self._body("dropped")
        elif channel == "analysis":
            yield from self._body("reasoning")
        else:
            yield from self._body("text" if channel in ("final", "commentary") else "dropped")

    def _call_message(self, name: str) -> Steps[None]:
        """A message to a function, which is text if it is no call."""
        tried = any(self.tools) and not self.tried_enough
        self.source.mark()
        if tried and (yield from self.call(name)):
            self.source.unmark()
        elif self.source.ended and self._cut:
            self.source.drop()
        else:
            self.count_try()
            self.source.rewind(0)
            yield from self._body("text")

    def _body(self, kind: str) -> Steps[None]:
        """The text of a message and its end."""
        # Two messages of a kind are two paragraphs.
        self._breaks = kind == self._last
        self._last = kind
        release = {"text": self._text, "reasoning": self._reason}.get(kind, _drop)
        _, end = yield from self.source.until(*_ENDS, release=release)
        if end and end != _START:
            self.source.take(len(end))

    def _text(self, text: str) -> None:
        if text and self._breaks:
            self.add(Content("\n", self.source.place, self.source.place))
            self._breaks = False
        self.say(text)

    def _reason(self, text: str) -> None:
        if text and self._breaks:
            self.add(Reasoning("\n", self.source.place, self.source.place))
            self._breaks = False
        self.think(text)


def _drop(text: str) -> None:
    pass
