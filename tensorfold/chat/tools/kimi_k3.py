"""Kimi K3's XTML: channels for thinking, the response and calls, in tags of control tokens.

    ...<|close|>think<|sep|><|open|>response<|sep|>...<|close|>response<|sep|><|open|>tools<|sep|>
    <|open|>call tool="NAME" index="1"<|sep|><|open|>argument key="KEY" type="string"<|sep|>VALUE
    <|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>

The prompt opens the first channel. Values of type string are raw, the others JSON.
"""

import html
import re

from tensorfold.chat.tools.interface import CallShape
from tensorfold.chat.tools.parser import CallParser
from tensorfold.chat.tools.source import Steps
from tensorfold.chat.tools.values import any_json, quoted

_OPEN, _CLOSE, _SEP = "<|open|>", "<|close|>", "<|sep|>"
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_OPENED = re.compile(r"<\|open\|>(\w+)<\|sep\|>\s*\Z")
_MOST = 1024


class KimiK3Parser(CallParser):
    """Reads XTML."""

    name = "kimi-k3"
    openers = (_OPEN, _CLOSE)
    framed = False
    channels = True
    shape = CallShape(
        before="<|open|>tools<|sep|>",
        opener='<|open|>call tool="',
        after_name='" index="1"<|sep|>',
        closer="<|close|>call<|sep|>",
        arguments="xtml",
        after="<|close|>tools<|sep|>",
    )

    def parse(self) -> Steps[None]:
        """Channel after channel."""
        source = self.source
        opened = _OPENED.search(self.prompt)
        channel = opened[1] if opened else "response"
        while not source.at_end:
            say = self.think if channel == "think" else self.say
            _, marker = yield from source.until(_OPEN, _CLOSE, release=say)
            if not marker:
                return
            tag = yield from self._tag(marker)
            if tag is None:
                continue
            channel = tag if marker == _OPEN else "response"
            if channel == "tools" and any(self.tools):
                yield from self.attempt("")

    def call(self, opener: str) -> Steps[bool]:
        """The calls of a tools channel."""
        while True:
            marker = yield from self.source.accept(_OPEN, _CLOSE)
            tag, closed = yield from self.source.until(_SEP, most=_MOST)
            self.source.take(len(closed))
            if not marker or not closed:
                return False
            if marker == _CLOSE:
                return True
            if not tag.startswith("call ") or not (yield from self._one(tag)):
                return False

    def _tag(self, marker: str) -> Steps[str | None]:
        """The name in a tag; what is no tag is dropped with its marker."""
        self.source.take(len(marker))
        tag, closed = yield from self.source.until(_SEP, most=_MOST)
        if not closed:
            if self.source.ended:
                self.source.drop()
            return None
        self.source.take(len(closed))
        return tag.split(" ")[0]

    def _one(self, tag: str) -> Steps[bool]:
        source = self.source
        arguments: dict[str, str] = {}
        while True:
            marker = yield from source.accept(_OPEN, _CLOSE)
            tag_inside, closed = yield from source.until(_SEP, most=_MOST)
            source.take(len(closed))
            if not marker or not closed:
                return False
            if marker == _CLOSE:
                break
            attributes = _attributes(tag_inside)
            value = yield from self._value()
            if value is None or "key" not in attributes:
                return False
            raw = attributes.get("type", "string") == "string"
            arguments[attributes["key"]] = quoted(value) if raw else any_json(value)
        text = ", ".join(f"{quoted(key)}: {value}" for key, value in arguments.items())
        call = self.tools.call(_attributes(tag).get("tool", ""), "{" + text + "}")
        self.made(*([call] if call else []))
        return call is not None

    def _value(self) -> Steps[str | None]:
        """An argument's text; its end tag ends it only where another tag follows."""
        source = self.source
        end = f"{_CLOSE}argument{_SEP}"
        pieces = []
        while True:
            text, marker = yield from source.until(_CLOSE)
            pieces.append(text)
            if not marker:
                return None
            if (yield from source.accept(end)):
                if (yield from source.follows(_OPEN, _CLOSE)):
                    return "".join(pieces)
                pieces.append(end)
            else:
                pieces.append(source.take(len(marker)))


def _attributes(tag: str) -> dict[str, str]:
    return {key: html.unescape(value) for key, value in _ATTRIBUTE.findall(tag)}
