"""Kimi K2: a section of calls whose ids, `functions.NAME:INDEX`, hold the names.

<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>
{...}<|tool_call_end|><|tool_calls_section_end|>
"""

import re

from tensorfold.chat.tools.interface import CallShape
from tensorfold.chat.tools.json_calls import is_object
from tensorfold.chat.tools.parser import CallParser
from tensorfold.chat.tools.source import Steps

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_ID = re.compile(r"\s*(?:functions\.)?(.*?)(?::\d+)?\s*")
_MOST = 256


class KimiParser(CallParser):
    """Reads Kimi K2's calls."""

    name = "kimi"
    openers = (_SECTION,)
    framed = False
    shape = CallShape(
        before=_SECTION,
        opener=_CALL + "functions.",
        after_name=":0" + _ARGUMENTS,
        closer=_CALL_END,
        after=_SECTION_END,
    )

    @classmethod
    def call_id(cls, name: str, index: int) -> str:
        """The id as the model wrote it: it counts the conversation's calls."""
        return f"functions.{name}:{index}"

    def call(self, opener: str) -> Steps[bool]:
        """The calls of a section. What stands between them is noise."""
        while True:
            _, marker = yield from self.source.until(_CALL, _SECTION_END)
            self.source.take(len(marker))
            if marker == _SECTION_END:
                return True
            if not marker:
                return self._called and not self._cut
            if not (yield from self._one()):
                return False

    def _one(self) -> Steps[bool]:
        source = self.source
        name, marker = yield from source.until(_ARGUMENTS, most=_MOST)
        source.take(len(marker))
        if not marker or not (yield from source.follows("{")):
            return False
        yield from source.blanks()
        arguments = yield from source.json()
        closed = yield from source.accept(_CALL_END)
        if not closed and (self._cut or not source.at_end):
            return False
        found = _ID.fullmatch(name)
        call = self.tools.call(found[1], arguments) if found and is_object(arguments) else None
        self.made(*([call] if call else []))
        return call is not None
