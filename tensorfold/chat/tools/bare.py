"""Calls without any marker: JSON at the start of an answer, bare or in a code fence.

It is a call only when every name in it was offered, so a structured answer stays an answer. One
whose first key no call has is known to be none at once, and streams.
"""

import re

from tensorfold.chat.tools.json_calls import ARGUMENT_KEYS, NAME_KEYS, OTHER_KEYS, calls_in
from tensorfold.chat.tools.parser import CallParser
from tensorfold.chat.tools.source import Steps

_KEYS = frozenset((*NAME_KEYS, *ARGUMENT_KEYS, *OTHER_KEYS))
_AHEAD = 128
_FIRST_KEY = re.compile(r'[\s{\[]*"([^"\\]*)"')
_FIRST_KEY_BEGUN = re.compile(r'[\s{\[]*(?:"[^"\\]*)?')
_NAMED = re.compile(r'"(?:name|tool|function|call)"\s*:\s*"([^"\\]+)"')


class BareJson(CallParser):
    """A format whose models forget the markers at times. `bare` says when the answer may do so."""

    separators = (";", ",")

    def parse(self) -> Steps[None]:
        """Bare calls first, then the format's own."""
        yield from self.bare()
        yield from super().parse()

    def bare(self) -> Steps[None]:
        """Read the calls that the answer begins with."""
        opener = yield from self.source.follows("{", "[", "```")
        if not opener:
            return
        self.source.mark()
        yield from self.source.blanks()
        if (yield from self._bare_calls(opener)):
            self.source.unmark()
        elif self.source.ended and self._cut and self._names_a_tool():
            self.source.drop()
        else:
            self.source.rewind(0)

    def _bare_calls(self, opener: str) -> Steps[bool]:
        fenced = opener == "```"
        if fenced and not (yield from self._fence()):
            return False
        first = True
        while first or (yield from self.source.follows("{", "[")):
            yield from self.source.blanks()
            if not (yield from self._may_be_call()):
                return not first
            calls = calls_in((yield from self.source.json()), self.tools, offered=True)
            if not calls or (fenced and not (yield from self.source.accept("```"))):
                return False
            self.made(*calls)
            first = False
            if fenced:
                break
            yield from self.source.accept(*self.separators)
        return True

    def _fence(self) -> Steps[bool]:
        if not (yield from self.source.accept("```")):
            return False
        yield from self.source.accept("json")
        return bool((yield from self.source.follows("{", "[")))

    def _may_be_call(self) -> Steps[bool]:
        """Whether the object that comes next begins with a key of calls."""
        while True:
            ahead = self.source.ahead(_AHEAD)
            if found := _FIRST_KEY.match(ahead):
                return found[1] in _KEYS
            if self.source.ended or len(ahead) == _AHEAD or not _FIRST_KEY_BEGUN.fullmatch(ahead):
                return False
            yield

    def _names_a_tool(self) -> bool:
        named = _NAMED.search(self.source.marked())
        return bool(named and self.tools.find(named[1]))
