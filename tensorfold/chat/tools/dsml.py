"""DeepSeek V3.2 to V4.1: calls in DSML.

    <｜DSML｜tool_calls>
    <｜DSML｜invoke name="NAME">
    <｜DSML｜parameter name="KEY" string="true">VALUE</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜tool_calls>

The section is called `function_calls` in V3.2 and ` calls` in V4.1, whose tags all have a space.
Values with string="true" are raw, the others are JSON.
"""

from tensorfold.chat.tools.interface import CallShape
from tensorfold.chat.tools.parser import CallParser
from tensorfold.chat.tools.source import Steps
from tensorfold.chat.tools.values import any_json, quoted

_SECTIONS = ("function_calls", "tool_calls", " calls")
_MOST = 256


class DsmlParser(CallParser):
    """Reads DSML."""

    name = "dsml"
    openers = tuple(f"<｜DSML｜{section}>" for section in _SECTIONS)
    shape = CallShape(
        before="<｜DSML｜tool_calls>\n",
        opener='<｜DSML｜invoke name="',
        after_name='">\n',
        closer="</｜DSML｜invoke>",
        arguments="dsml",
        between="\n",
        after="\n</｜DSML｜tool_calls>",
    )

    def call(self, opener: str) -> Steps[bool]:
        """The calls of a section."""
        source = self.source
        space = " " if opener.startswith("<｜DSML｜ ") else ""
        invoke, end = f'<｜DSML｜{space}invoke name="', opener.replace("<", "</", 1)
        while True:
            found = yield from source.accept(invoke, end)
            if found != invoke:
                return self._called and bool(found or (source.at_end and not self._cut))
            if not (yield from self._invoke(space)):
                return False

    def _invoke(self, space: str) -> Steps[bool]:
        source = self.source
        parameter, end = f'<｜DSML｜{space}parameter name="', f"</｜DSML｜{space}invoke>"
        name, quote = yield from source.until('"', most=_MOST)
        source.take(len(quote))
        tag_end = yield from source.accept("/>", ">")
        if not quote or not tag_end:
            return False
        arguments: dict[str, str] = {}
        found = end if tag_end == "/>" else ""
        while not found or found == parameter:
            found = yield from source.accept(parameter, end)
            if found != parameter:
                break
            pair = yield from self._parameter(space)
            if pair is None:
                return False
            arguments[pair[0]] = pair[1]
        if not found and (self._cut or not source.at_end):
            return False
        text = ", ".join(f"{quoted(key)}: {value}" for key, value in arguments.items())
        call = self.tools.call(name, "{" + text + "}")
        self.made(*([call] if call else []))
        return call is not None

    def _parameter(self, space: str) -> Steps[tuple[str, str] | None]:
        """A key and its value's JSON, from behind `name="`."""
        source = self.source
        end = f"</｜DSML｜{space}parameter>"
        key, marker = yield from source.until('" string="', '">', most=_MOST)
        source.take(len(marker))
        raw = True
        if marker == '" string="':
            raw = (yield from source.accept('true">', 'false">')) == 'true">'
        elif not marker:
            return None
        pieces = []
        while True:
            text, marker = yield from source.until(end)
            pieces.append(text)
            if not marker:
                return None
            source.take(len(marker))
            following = yield from source.follows(
                f"<｜DSML｜{space}parameter", f"</｜DSML｜{space}invoke"
            )
            if following or source.at_end:
                break
            pieces.append(marker)
        value = "".join(pieces)
        return key, quoted(value) if raw else any_json(value)
