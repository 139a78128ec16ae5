"""Which format a model writes its calls in, by its chat template and its tokenizer."""

from collections.abc import Collection

from tensorfold.chat.tools.deepseek import DeepSeekParser
from tensorfold.chat.tools.dsml import DsmlParser
from tensorfold.chat.tools.gemma import GemmaParser
from tensorfold.chat.tools.glm import GlmParser
from tensorfold.chat.tools.harmony import HarmonyParser
from tensorfold.chat.tools.hermes import HermesParser
from tensorfold.chat.tools.kimi import KimiParser
from tensorfold.chat.tools.kimi_k3 import KimiK3Parser
from tensorfold.chat.tools.llama_json import LlamaJsonParser
from tensorfold.chat.tools.mistral import MistralParser
from tensorfold.chat.tools.nemotron import NemotronParser
from tensorfold.chat.tools.parser import CallParser
from tensorfold.chat.tools.pythonic import PythonicParser
from tensorfold.chat.tools.qwen_xml import QwenXmlParser

# Each with spellings that it alone has, those that others share further down.
_MARKS: tuple[tuple[type[CallParser], tuple[str, ...]], ...] = (
    (KimiK3Parser, ("<|open|>", "<|close|>")),
    (HarmonyParser, ("<|start|>", "<|channel|>", "<|message|>")),
    (KimiParser, ("<|tool_calls_section_begin|>",)),
    (DsmlParser, ("｜DSML｜",)),
    (DeepSeekParser, ("<｜tool▁calls▁begin｜>",)),
    (GemmaParser, ("<|tool_call>", "<tool_call|>")),
    (GlmParser, ("<arg_key>",)),
    (QwenXmlParser, ("<function=", "<parameter=")),
    (NemotronParser, ("<TOOLCALL>",)),
    (MistralParser, ("[TOOL_CALLS]",)),
    (PythonicParser, ("<|python_start|>",)),
    (PythonicParser, ("<|tool_call_start|>",)),
    (PythonicParser, ("[func_name1(",)),
    (HermesParser, ("<tool_call>",)),
    (LlamaJsonParser, ("<|python_tag|>",)),
    (LlamaJsonParser, ("<|start_header_id|>",)),
)
FORMATS: dict[str, type[CallParser]] = {parser.name: parser for parser, _ in _MARKS}


def choose_format(name: str | None, template: str, controls: Collection[str]) -> type[CallParser]:
    """The format of a name; without one, that of which the template has the spellings, else the
    tokenizer's control tokens, else Hermes, the most common. Raises ValueError for no format."""
    if name is not None and name not in FORMATS:
        raise ValueError(f"unknown tool format {name!r}; there are {', '.join(sorted(FORMATS))}")
    if name is not None:
        return FORMATS[name]
    for text in (template, " ".join(controls)):
        for parser, marks in _MARKS:
            if all(mark in text for mark in marks):
                return parser
    return HermesParser
