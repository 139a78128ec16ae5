"""A reply is read the same however its text is cut."""

import pytest
from call_texts import PROSE, SAMPLES, calls, content, read
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfold.chat.tools.interface import Call
from tensorfold.chat.tools.registry import FORMATS

FRAGMENTS = [
    *(
        "a",
        " ",
        "\n",
        "\n\n",
        "{",
        "}",
        "[",
        "]",
        '"',
        ":",
        ",",
        "'",
        "(",
        ")",
        "=",
        "\\",
        "<",
        ">",
    ),
    *("1", "true", "name", '"name": "ping"', '"arguments": {}', "get_weather", "ping", "x y", "é"),
    *("```json", "```", "</", "<|", "|>", "/>", ";"),
]
MARKUP = {
    "hermes": ["<tool_call>", "</tool_call>"],
    "nemotron": ["<TOOLCALL>", "</TOOLCALL>"],
    "qwen3-xml": [
        *("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=city>"),
        *("<parameter=", "</parameter>", "<function=ping>"),
    ],
    "glm": [
        *("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ],
    "gemma": ["<|tool_call>", "<tool_call|>", '<|"|>', "call:ping{"],
    "llama3-json": ["<|python_tag|>"],
    "pythonic": ["<|python_start|>", "<|python_end|>", "[ping(", ")]"],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
    "deepseek": [
        *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
        *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
    ],
    "dsml": [
        *("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", '<｜DSML｜invoke name="ping">'),
        *(
            "</｜DSML｜invoke>",
            '<｜DSML｜parameter name="a" string="true">',
            "</｜DSML｜parameter>",
        ),
    ],
    "kimi": [
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
        *("<|tool_call_end|>", "<|tool_call_argument_begin|>", "functions.ping:0"),
    ],
    "kimi-k3": [
        *("<|open|>", "<|close|>", "<|sep|>", "tools<|sep|>", "argument<|sep|>", "call<|sep|>"),
        *('call tool="ping" index="1"', 'argument key="a" type="string"', "response", "think"),
    ],
    "harmony": [
        *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|constrain|>json"),
        *("assistant", "analysis", "final", "commentary to=functions.ping"),
    ],
}


@pytest.mark.parametrize("name", sorted(FORMATS))
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_cut_gives_the_same_events(name, data):
    whole = [SAMPLES[name].text, SAMPLES[name].first]
    piece = st.sampled_from([*FRAGMENTS, *MARKUP[name] * 4, *whole * 2])
    text = "".join(data.draw(st.lists(piece, max_size=14)))
    cut = data.draw(st.booleans())
    at = data.draw(st.sets(st.integers(1, max(len(text), 1)), max_size=8))
    expected = read(name, text, cut=cut, at=())
    assert read(name, text, cut=cut) == expected
    assert read(name, text, cut=cut, at=at) == expected


@pytest.mark.parametrize("name", sorted(FORMATS))
@given(text=st.text(st.characters(exclude_characters="<[{`", codec="utf-8"), max_size=60))
@settings(max_examples=60, deadline=None)
def test_text_without_a_call_is_content(name, text):
    events = read(name, PROSE.get(name, "") + text)
    assert content(events) == text
    assert calls(events) == []


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_reads_its_calls(name):
    sample = SAMPLES[name]
    text = PROSE.get(name, "") + "I will look." + sample.text
    expected = [Call("get_weather", '{"city": "Zürich", "days": 2}'), Call("ping", "{}")]
    for at in ((), None):
        events = read(name, text, at=at)
        assert calls(events) == expected
        assert content(events) == "I will look."


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_cases_32_and_53_a_reply_that_the_limit_cuts_keeps_whole_calls_only(name):
    sample = SAMPLES[name]
    prose = PROSE.get(name, "") + "I will look."
    whole = prose + sample.before + sample.first
    expected = [Call("get_weather", '{"city": "Zürich", "days": 2}'), Call("ping", "{}")]
    for end in range(len(prose) + 3, len(whole) + len(sample.second)):
        events = read(name, (whole + sample.second)[:end], cut=True, at=())
        assert content(events) == "I will look."
        found = calls(events)
        assert found == expected[: len(found)]
        # A list of calls is whole with its bracket.
        assert end >= len(whole.rstrip()) or found == []


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_markers_that_are_tokens_are_not_read_in_letters(name):
    text = PROSE.get(name, "") + "Write " + SAMPLES[name].text
    assert calls(read(name, text, controls=FORMATS[name].openers)) == []
