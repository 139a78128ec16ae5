"""Reading takes time in proportion to the reply, whatever is in it."""

import time

import pytest
from call_texts import calls

from tensorfold.chat.tools.interface import Tool, Tools
from tensorfold.chat.tools.registry import FORMATS

TOOLS = Tools([Tool("ping", {"type": "object", "properties": {"a": {"type": "string"}}})])
BIG = {
    "hermes": ('<tool_call>{"name": "ping", "arguments": {"a": "', '"}}</tool_call>'),
    "nemotron": ('<TOOLCALL>[{"name": "ping", "arguments": {"a": "', '"}}]</TOOLCALL>'),
    "qwen3-xml": ("<function=ping>\n<parameter=a>\n", "\n</parameter>\n</function>"),
    "glm": ("<tool_call>ping<arg_key>a</arg_key><arg_value>", "</arg_value></tool_call>"),
    "gemma": ('<|tool_call>call:ping{a:<|"|>', '<|"|>}<tool_call|>'),
    "llama3-json": ('{"name": "ping", "parameters": {"a": "', '"}}'),
    "pythonic": ("[ping(a='", "')]"),
    "mistral": ('[TOOL_CALLS]ping[ARGS]{"a": "', '"}'),
    "deepseek": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{"a": "',
        '"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ),
    "dsml": (
        '<｜DSML｜tool_calls><｜DSML｜invoke name="ping">'
        '<｜DSML｜parameter name="a" string="true">',
        "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>",
    ),
    "kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:0"
        '<|tool_call_argument_begin|>{"a": "',
        '"}<|tool_call_end|><|tool_calls_section_end|>',
    ),
    "kimi-k3": (
        '<|open|>tools<|sep|><|open|>call tool="ping" index="1"<|sep|>'
        '<|open|>argument key="a" type="string"<|sep|>',
        "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    "harmony": (' to=functions.ping<|channel|>commentary<|message|>{"a": "', '"}<|call|>'),
}
HARD = {
    "hermes": '<tool_call>{"name": "',
    "nemotron": "<TOOLCALL>[{",
    "qwen3-xml": "<tool_call><function=ping><parameter=a></parameter> ",
    "glm": "<tool_call>ping<arg_key>a</arg_key><arg_value></tool_call>x",
    "gemma": "<|tool_call>call:ping{a:{",
    "llama3-json": '<|python_tag|>{"name": ',
    "pythonic": "<|python_start|>[ping(",
    "mistral": "[TOOL_CALLS]ping[ARGS]{",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{",
    "dsml": '<｜DSML｜tool_calls><｜DSML｜invoke name="ping"><｜DSML｜parameter name="a">',
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>ping<|tool_call_argument_begin|>{",
    "kimi-k3": '<|open|>tools<|sep|><|open|>call tool="ping"<|sep|><|open|>argument',
    "harmony": "<|start|> to=functions.ping<|channel|>final<|message|>{",
}


def seconds(name, text, piece):
    """CPU time of one reading, and its calls; the lesser of two, as others use the machine too."""
    taken = []
    for _ in range(2):
        parser = FORMATS[name](TOOLS)
        started = time.thread_time()
        events = []
        for start in range(0, len(text), piece):
            events += parser.feed(text[start : start + piece])
        events += parser.finish(cut=False)
        taken.append(time.thread_time() - started)
    return min(taken), calls(events)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_long_argument_takes_linear_time(name):
    before, after = BIG[name]
    sizes = (16 * 5_000, 16 * 20_000)
    times = []
    for size in sizes:
        value = "0123456789 abc\\n" * (size // 16)
        took, found = seconds(name, before + value + after, 16)
        assert len(found) == 1 and len(found[0].arguments) >= size
        times.append(took)
    assert times[1] < 12 * times[0] + 0.1


def test_a_megabyte_comes_a_few_letters_at_a_time():
    before, after = BIG["hermes"]
    half, _ = seconds("hermes", before + "abc " * 131_072 + after, 4)
    whole, found = seconds("hermes", before + "abc " * 262_144 + after, 4)
    assert len(found[0].arguments) > 2**20
    assert whole < 4 * half + 0.1


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("piece", [16, 10**9])
def test_unfinished_calls_over_and_over_take_linear_time(name, piece):
    few, _ = seconds(name, HARD[name] * 300, piece)
    many, _ = seconds(name, HARD[name] * 2400, piece)
    assert many < 24 * few + 0.2


@pytest.mark.parametrize("text", [" ", "\n", "<", "{", '{"', "[", "`", '{"name": "ping", '])
def test_one_letter_over_and_over_takes_linear_time(text):
    few, _ = seconds("hermes", text * 2_000, 7)
    many, _ = seconds("hermes", text * 16_000, 7)
    assert many < 24 * few + 0.2
