"""GLM-4.5 and later: a name, then keys and values, each in tags.

    <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>

GLM-4.5 puts newlines between the parts. Values are raw and have no framing. A key without its
`<arg_key>` and a last value without its `</arg_value>` are read all the same.
"""

from tensorfold.chat.tools.bare import BareJson
from tensorfold.chat.tools.interface import CallShape
from tensorfold.chat.tools.source import Steps
from tensorfold.chat.tools.values import parameter, quoted, typed

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_MOST = 256
_AHEAD = 80


class GlmParser(BareJson):
    """Reads GLM's calls."""

    name = "glm"
    openers = (_CALL,)
    shape = CallShape(opener=_CALL, after_name="", closer=_CALL_END, arguments="glm", between="")

    def call(self, opener: str) -> Steps[bool]:
        """A name, then keys and values."""
        source = self.source
        yield from source.blanks()
        name, marker = yield from source.until("\n", _KEY, _CALL_END, most=_MOST)
        if not marker and source.ended:
            name = source.ahead(_MOST)
            source.drop()
        # Without markup behind it only an offered name is one.
        if not (self.tools.call(name, "{}") if marker else self.tools.find(name.strip())):
            return False
        schema = self.tools.schema(name)
        arguments: dict[str, str] = {}
        while not (yield from source.accept(_CALL_END)):
            if source.at_end:
                if self._cut:
                    return False
                break
            pair = yield from self._argument()
            if pair is None:
                return False
            arguments[pair[0]] = typed(pair[1], parameter(schema, pair[0]), schema)
        text = ", ".join(f"{quoted(key)}: {value}" for key, value in arguments.items())
        call = self.tools.call(name, "{" + text + "}")
        self.made(*([call] if call else []))
        return call is not None

    def _argument(self) -> Steps[tuple[str, str] | None]:
        """A key and its value as written."""
        source = self.source
        if not (yield from source.accept(_KEY)):
            yield from source.blanks()
        key, marker = yield from source.until(_KEY_END, most=_MOST)
        if not marker or not key.strip():
            return None
        source.take(len(marker))
        if not (yield from source.accept(_VALUE)):
            return None
        pieces = []
        while True:
            text, marker = yield from source.until(_VALUE_END, _CALL_END)
            pieces.append(text)
            if marker == _VALUE_END:
                source.take(len(marker))
                break
            if not marker:
                # The end token closes the value; the reply limit does not.
                if self._cut:
                    return None
                break
            if (yield from self._ends_call()):
                break
            pieces.append(source.take(len(marker)))
        return key.strip(), "".join(pieces)

    def _ends_call(self) -> Steps[bool]:
        """Whether the `</tool_call>` that comes next, inside a value, ends the call."""
        while len(ahead := self.source.ahead(_AHEAD)) < _AHEAD and not self.source.ended:
            yield
        behind = ahead[len(_CALL_END) :].strip()
        return behind.startswith(_CALL) or (not behind and self.source.ended and not self._cut)
