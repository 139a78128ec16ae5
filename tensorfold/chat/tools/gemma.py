"""Gemma 4: `<|tool_call>call:NAME{KEY:VALUE,...}<tool_call|>`.

Values are JSON's but for strings, which stand raw between two `<|"|>`, and keys, which stand bare
and may hold spaces. Between the quotes everything is the string's own, markers too.
"""

from tensorfold.chat.tools.interface import CallShape
from tensorfold.chat.tools.parser import CallParser
from tensorfold.chat.tools.source import Steps
from tensorfold.chat.tools.values import any_json, quoted

_CALL, _CALL_END, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_MOST = 256
_DEPTH = 64


class GemmaParser(CallParser):
    """Reads Gemma's calls."""

    name = "gemma"
    openers = (_CALL,)
    framed = False
    shape = CallShape(
        opener="<|tool_call>call:",
        after_name="{",
        closer="}<tool_call|>",
        arguments="gemma",
    )

    def call(self, opener: str) -> Steps[bool]:
        """A name and an object."""
        source = self.source
        if not (yield from source.accept("call:")):
            return False
        name, brace = yield from source.until("{", most=_MOST)
        if not brace or not self.tools.call(name, "{}"):
            return False
        arguments = yield from self._value(_DEPTH)
        if arguments is None:
            return False
        closed = yield from source.accept(_CALL_END)
        if not closed and (self._cut or not source.at_end):
            return False
        call = self.tools.call(name, arguments)
        self.made(*([call] if call else []))
        return call is not None

    def _value(self, depth: int) -> Steps[str | None]:
        """The JSON of the value that comes next; None when it is none."""
        opening = yield from self.source.accept("{", "[", _QUOTE)
        if opening == _QUOTE:
            return (yield from self._string())
        if opening and depth:
            return (yield from self._members(opening, depth - 1))
        if opening:
            return None
        text, end = yield from self.source.until(",", "}", "]", _QUOTE)
        if not end or end == _QUOTE or not text.strip():
            return None
        return any_json(text.strip())

    def _string(self) -> Steps[str | None]:
        """A string from behind its first quote."""
        text, quote = yield from self.source.until(_QUOTE)
        self.source.take(len(quote))
        return quoted(text) if quote else None

    def _members(self, opening: str, depth: int) -> Steps[str | None]:
        """An object or array from behind its opening bracket."""
        closing = "}" if opening == "{" else "]"
        items: list[str] = []
        while not (yield from self.source.accept(closing)):
            if items and not (yield from self.source.accept(",")):
                return None
            key = ""
            if opening == "{":
                name = yield from self._key()
                if name is None:
                    return None
                key = f"{name}: "
            value = yield from self._value(depth)
            if value is None:
                return None
            items.append(key + value)
        return opening + ", ".join(items) + closing

    def _key(self) -> Steps[str | None]:
        """A key and its colon, as a JSON string."""
        if (yield from self.source.accept(_QUOTE)):
            key = yield from self._string()
        else:
            text, _ = yield from self.source.until(":", most=_MOST)
            key = quoted(text.strip().strip('"')) if text.strip() else None
        return key if key and (yield from self.source.accept(":")) else None
