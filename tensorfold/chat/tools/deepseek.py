"""DeepSeek V3, R1 and V3.1: a section of calls.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3 and R1 write `function<｜tool▁sep｜>NAME`, a newline and the arguments in a JSON code fence.
"""

from tensorfold.chat.tools.interface import CallShape
from tensorfold.chat.tools.json_calls import is_object
from tensorfold.chat.tools.parser import CallParser
from tensorfold.chat.tools.source import Steps

_SECTION, _SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_MOST = 256


class DeepSeekParser(CallParser):
    """Reads the calls of DeepSeek V3 and V3.1."""

    name = "deepseek"
    openers = (_SECTION,)
    shape = CallShape(
        before=_SECTION,
        opener=_CALL,
        after_name=_SEPARATOR,
        closer=_CALL_END,
        after=_SECTION_END,
    )

    def call(self, opener: str) -> Steps[bool]:
        """The calls of a section."""
        source = self.source
        while (found := (yield from source.accept(_CALL, _SECTION_END))) == _CALL:
            if not (yield from self._one()):
                return False
        return self._called and bool(found or (source.at_end and not self._cut))

    def _one(self) -> Steps[bool]:
        source = self.source
        name, marker = yield from source.until(_SEPARATOR, most=_MOST)
        if not marker:
            return False
        source.take(len(marker))
        fenced = not (yield from source.follows("{"))
        if fenced:
            name, fence = yield from source.until("```json", most=_MOST)
            source.take(len(fence))
            if not fence or not (yield from source.follows("{")):
                return False
        yield from source.blanks()
        arguments = yield from source.json()
        if fenced:
            yield from source.accept("```")
        closed = yield from source.accept(_CALL_END)
        if not closed and (self._cut or not source.at_end):
            return False
        call = self.tools.call(name, arguments) if is_object(arguments) else None
        self.made(*([call] if call else []))
        return call is not None
