"""Hermes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as in Qwen3."""

from tensorfold.chat.tools.bare import BareJson
from tensorfold.chat.tools.interface import CallShape
from tensorfold.chat.tools.json_calls import calls_in
from tensorfold.chat.tools.source import Steps


class HermesParser(BareJson):
    """Reads Hermes' calls."""

    name = "hermes"
    openers = ("<tool_call>",)
    closer = "</tool_call>"
    shape = CallShape(
        opener='<tool_call>\n{"name": "',
        after_name='", "arguments": ',
        closer="}\n</tool_call>",
        between="\n",
    )

    def call(self, opener: str) -> Steps[bool]:
        """One JSON call between the tags, or a list of them."""
        if not (yield from self.source.follows("{", "[")):
            return False
        yield from self.source.blanks()
        calls = calls_in((yield from self.source.json()), self.tools)
        if not calls:
            return False
        following = yield from self.source.follows(self.closer, *self.openers)
        if following == self.closer:
            yield from self.source.accept(self.closer)
        elif not following and not (self.source.at_end and not self._cut):
            return False
        self.made(*calls)
        return True
