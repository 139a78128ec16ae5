"""Mistral: `[TOOL_CALLS]`, then a JSON list of calls (tokenizers up to v7) or, for each call,
`NAME[ARGS]{...}` (v11 and later), with `[CALL_ID]ID` behind the name in some."""

import uuid

from tensorfold.chat.tools.interface import CallShape
from tensorfold.chat.tools.json_calls import calls_in, is_object
from tensorfold.chat.tools.parser import CallParser
from tensorfold.chat.tools.source import Steps

_MOST = 256


class MistralParser(CallParser):
    """Reads Mistral's calls, in both forms."""

    name = "mistral"
    openers = ("[TOOL_CALLS]",)
    framed = False
    shape = CallShape(opener="[TOOL_CALLS]", after_name="[ARGS]", closer="")

    @classmethod
    def call_id(cls, name: str, index: int) -> str:
        """Nine letters and digits: the templates take no other."""
        return uuid.uuid4().hex[:9]

    def call(self, opener: str) -> Steps[bool]:
        """A list of calls, or one."""
        source = self.source
        if (yield from source.follows("[")):
            yield from source.blanks()
            calls = calls_in((yield from source.json()), self.tools)
            self.made(*calls)
            return bool(calls)
        name, marker = yield from source.until("[ARGS]", "[CALL_ID]", "{", most=_MOST)
        if marker == "[CALL_ID]":
            source.take(len(marker))
            _, marker = yield from source.until("[ARGS]", "{", most=_MOST)
        if marker == "[ARGS]":
            source.take(len(marker))
        if not marker or not (yield from source.follows("{")):
            return False
        yield from source.blanks()
        arguments = yield from source.json()
        call = self.tools.call(name, arguments) if is_object(arguments) else None
        self.made(*([call] if call else []))
        return call is not None
