"""Qwen's XML, as Qwen3-Coder, Qwen3.5 and later and Nemotron 3 write it.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

Values are raw: one newline on each side is framing, everything else is the value's own. A closing
tag ends a value only where the markup goes on behind it, so a value may speak of tags. A call
without `<tool_call>` and a value without `</parameter>` are read as models write them.
"""

from tensorfold.chat.tools.bare import BareJson
from tensorfold.chat.tools.interface import CallShape
from tensorfold.chat.tools.source import Steps
from tensorfold.chat.tools.values import parameter, quoted, typed

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_MOST = 256


class QwenXmlParser(BareJson):
    """Reads Qwen's XML."""

    name = "qwen3-xml"
    openers = (_CALL, _FUNCTION)
    shape = CallShape(
        opener="<tool_call>\n<function=",
        after_name=">\n",
        closer="</function>\n</tool_call>",
        arguments="qwen_xml",
        between="\n",
    )

    def call(self, opener: str) -> Steps[bool]:
        """The functions of a block, mostly one."""
        if opener == _CALL and not (yield from self.source.accept(_FUNCTION)):
            return False
        calls = []
        while True:
            function = yield from self._function()
            if function is None:
                return False
            calls.append(function)
            following = yield from self.source.follows(_CALL_END, _FUNCTION)
            if following != _FUNCTION or opener != _CALL:
                break
            yield from self.source.accept(_FUNCTION)
        if following == _CALL_END:
            yield from self.source.accept(_CALL_END)
        elif opener == _CALL and self.source.ended and self._cut:
            return False
        made = [call for call in (self.tools.call(*each) for each in calls) if call]
        self.made(*made)
        return len(made) == len(calls)

    def _function(self) -> Steps[tuple[str, str] | None]:
        """A function's name and arguments, from behind `<function=`."""
        name, end = yield from self.source.until(">", most=_MOST)
        if not end or not self.tools.call(name, "{}"):
            return None
        self.source.take(1)
        schema = self.tools.schema(name)
        arguments: dict[str, str] = {}
        while (found := (yield from self.source.accept(_PARAMETER, _FUNCTION_END))) == _PARAMETER:
            key, end = yield from self.source.until(">", most=_MOST)
            if not end:
                return None
            self.source.take(1)
            value = yield from self._value()
            if value is None:
                return None
            arguments[key.strip()] = typed(value, parameter(schema, key.strip()), schema)
        # At the model's own end a call may lack its closing tags, but it must have come to them.
        if not found and (self._cut or not self.source.at_end):
            return None
        text = ", ".join(f"{quoted(key)}: {value}" for key, value in arguments.items())
        return name, "{" + text + "}"

    def _value(self) -> Steps[str | None]:
        """A parameter's value without its framing; None when the reply ends inside it."""
        source = self.source
        pieces = []
        while True:
            text, marker = yield from source.until(
                _PARAMETER_END, "\n" + _PARAMETER, "\n" + _FUNCTION_END
            )
            pieces.append(text)
            if not marker:
                return None
            if marker == "\n" + _PARAMETER:
                return "".join(pieces).removeprefix("\n")
            if marker == _PARAMETER_END:
                pieces.append(source.take(len(marker)))
                after = yield from source.follows(_PARAMETER, _FUNCTION_END, _CALL_END)
                if after or source.at_end:
                    value = "".join(pieces[:-1])
                    return value.removeprefix("\n").removesuffix("\n")
            else:
                pieces.append(source.take(1))
                if (yield from source.follows(_FUNCTION_END + "\n" + _CALL_END)):
                    return "".join(pieces[:-1]).removeprefix("\n")
