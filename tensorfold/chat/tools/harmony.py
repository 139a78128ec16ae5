"""gpt-oss: OpenAI's harmony, in which every message names its channel and its recipient.

    <|channel|>analysis<|message|>REASONING<|end|><|start|>assistant<|channel|>commentary
    to=functions.NAME <|constrain|>json<|message|>{...}<|call|>

The prompt ends with `<|start|>assistant`. analysis is reasoning; final, and commentary without a
recipient, are text; a message to `functions.NAME` is a call on any channel. Messages to tools that
were not offered, on unknown channels and without `<|message|>` are dropped.
"""

import re

from tensorfold.chat.tools.interface import CallShape
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
    openers = ()
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
        self.source.mark()
        if any(self.tools) and (yield from self.call(name)):
            self.source.unmark()
        elif self.source.ended and self._cut:
            self.source.drop()
        else:
            self.source.rewind(0)
            yield from self._body("text")

    def _body(self, kind: str) -> Steps[None]:
        """The text of a message and its end."""
        say = {"text": self.say, "reasoning": self.think, "dropped": lambda text: None}[kind]
        # Two messages of a kind are two paragraphs.
        if kind == self._last and kind != "dropped":
            say("\n")
        self._last = kind
        _, end = yield from self.source.until(*_ENDS, release=say)
        if end and end != _START:
            self.source.take(len(end))
