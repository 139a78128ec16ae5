"""Nemotron up to Nano 2: `<TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>`.

Nemotron 3 writes Qwen's XML.
"""

from tensorfold.chat.tools.hermes import HermesParser
from tensorfold.chat.tools.interface import CallShape


class NemotronParser(HermesParser):
    """Reads Nemotron's lists of calls."""

    name = "nemotron"
    openers = ("<TOOLCALL>",)
    closer = "</TOOLCALL>"
    shape = CallShape(
        before="<TOOLCALL>[",
        opener='{"name": "',
        after_name='", "arguments": ',
        closer="}",
        between=", ",
        after="]</TOOLCALL>",
    )
