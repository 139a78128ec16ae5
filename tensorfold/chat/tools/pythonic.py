"""Pythonic calls, as Llama 4 and Llama 3.2 write them: `[NAME(KEY=VALUE, ...), NAME()]`.

The list is the answer's beginning and calls offered tools only, or stands between markers.
"""

import re
from collections.abc import Iterator

from tensorfold.chat.tools.interface import Call, CallShape
from tensorfold.chat.tools.parser import CallParser
from tensorfold.chat.tools.python_literals import LiteralReader
from tensorfold.chat.tools.source import Steps

_MARKERS = {
    "<|python_start|>": "<|python_end|>",
    "<|tool_call_start|>": "<|tool_call_end|>",
}
_BEGINS = re.compile(r"\s*\[\s*([A-Za-z_][\w.]*)\s*\(")
_BEGUN = re.compile(r"\s*(?:\[\s*(?:[A-Za-z_][\w.]*\s*)?)?")
_AHEAD = 320


class PythonicParser(CallParser):
    """Reads lists of Python calls."""

    name = "pythonic"
    openers = tuple(_MARKERS)
    closers = tuple(_MARKERS.values())
    framed = False
    shape = CallShape(
        before="[",
        opener="",
        after_name="(",
        closer=")",
        arguments="python",
        between=", ",
        after="]",
    )

    def parse(self) -> Steps[None]:
        """Read the list that the answer begins with, then what markers hold."""
        name = yield from self._first_name()
        if name and self.tools.find(name):
            self.source.mark()
            if (yield from self._list(offered=True)):
                self.source.unmark()
            elif self.source.ended and self._cut:
                self.source.drop()
            else:
                self.source.rewind(0)
        yield from super().parse()

    def call(self, opener: str) -> Steps[bool]:
        """The list between markers."""
        if not (yield from self._first_name()):
            return False
        if not (yield from self._list(offered=False)):
            return False
        yield from self.source.accept(_MARKERS[opener])
        return True

    def _first_name(self) -> Steps[str]:
        """The name in the call that comes next; "" when none does."""
        while True:
            ahead = self.source.ahead(_AHEAD)
            if found := _BEGINS.match(ahead):
                return found[1]
            if self.source.ended or len(ahead) == _AHEAD or not _BEGUN.fullmatch(ahead):
                return ""
            yield

    def _list(self, *, offered: bool) -> Steps[bool]:
        yield from self.source.blanks()
        text = yield from self.source.bracketed("[](){}", "\"'")
        calls = list(self._calls(text)) if text else []
        known = [
            call for call in calls if call and not (offered and not self.tools.find(call.name))
        ]
        if not calls or len(known) < len(calls):
            return False
        self.made(*known)
        return True

    def _calls(self, text: str) -> Iterator[Call | None]:
        """The calls of a whole list, None for what is none."""
        reader = LiteralReader(text)
        try:
            for name, arguments in reader.calls():
                yield self.tools.call(name, arguments)
        except ValueError:
            yield None
