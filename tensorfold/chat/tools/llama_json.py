"""Llama 3: `{"name": ..., "parameters": {...}}` as the whole answer, or behind `<|python_tag|>`.

Several calls stand behind one another, mostly with `;` between them.
"""

from tensorfold.chat.tools.bare import BareJson
from tensorfold.chat.tools.interface import CallShape
from tensorfold.chat.tools.json_calls import calls_in
from tensorfold.chat.tools.source import Steps


class LlamaJsonParser(BareJson):
    """Reads Llama 3's JSON calls."""

    name = "llama3-json"
    openers = ("<|python_tag|>",)
    framed = False
    shape = CallShape(opener='{"name": "', after_name='", "parameters": ', closer="}", between="; ")

    def call(self, opener: str) -> Steps[bool]:
        """The calls behind the tag."""
        found = False
        while (yield from self.source.follows("{", "[")):
            yield from self.source.blanks()
            calls = calls_in((yield from self.source.json()), self.tools)
            if not calls:
                return False
            self.made(*calls)
            found = True
            yield from self.source.accept(*self.separators)
        if self.source.at_end:
            self.source.drop()
        return found
