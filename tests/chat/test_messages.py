import copy

import pytest

from tensorfold.chat.messages import UNPARSED_ARGUMENTS, MessageError, arrange, read_messages


def call(arguments):
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hi", "hi"),
        ("", ""),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b\n"}], "ab\n"),
    ],
)
def test_content_becomes_text(content, text):
    assert read_messages([{"role": "user", "content": content}])[0]["content"] == text


def test_case_62_an_assistant_call_needs_no_content():
    (message,) = read_messages([{"role": "assistant", "tool_calls": [call("{}")]}])
    assert message["content"] == ""


@pytest.mark.parametrize(
    ("arguments", "mapping"),
    [
        ('{"b": 1, "a": {"c": "東京"}}', {"b": 1, "a": {"c": "東京"}}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ("{", {UNPARSED_ARGUMENTS: "{"}),
        ("[1]", {UNPARSED_ARGUMENTS: "[1]"}),
        ([1], {UNPARSED_ARGUMENTS: [1]}),
        ("[" * 100_000, {UNPARSED_ARGUMENTS: "[" * 100_000}),
    ],
)
def test_case_67_arguments_become_a_mapping_in_their_own_order(arguments, mapping):
    (message,) = read_messages([{"role": "assistant", "tool_calls": [call(arguments)]}])
    found = message["tool_calls"][0]["function"]["arguments"]
    assert found == mapping
    assert list(found) == list(mapping)


def test_the_callers_messages_stay_as_they_are():
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}], "name": None},
        {"role": "system", "content": "b"},
        {"role": "assistant", "content": None, "tool_calls": [call('{"a": 1}')]},
        {"role": "system", "content": "c"},
    ]
    before = copy.deepcopy(messages)
    arrange(read_messages(messages), later_system=False)
    assert messages == before


def test_nulls_are_absent_and_reasoning_has_every_name():
    (message,) = read_messages([{"role": "assistant", "content": "x", "audio": None}])
    assert message == {"role": "assistant", "content": "x"}
    for name in ("reasoning_content", "reasoning", "thinking"):
        (message,) = read_messages([{"role": "assistant", "content": "x", name: "r"}])
        assert (message["reasoning_content"], message["thinking"]) == ("r", "r")


@pytest.mark.parametrize("later_system", [True, False])
def test_case_133_only_leading_system_and_developer_messages_merge(later_system):
    roles = ["system", "developer", "user", "developer", "assistant", "system"]
    messages = read_messages([{"role": role, "content": str(i)} for i, role in enumerate(roles)])
    later = "system" if later_system else "user"
    assert [(m["role"], m["content"]) for m in arrange(messages, later_system=later_system)] == [
        ("system", "0\n\n1"),
        ("user", "2"),
        (later, "3"),
        ("assistant", "4"),
        (later, "5"),
    ]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ({}, "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{}], "messages[0].role"),
        ([{"role": "wizard"}], "messages[0].role"),
        ([{"role": ["user"]}], "messages[0].role"),
        ([{"role": "user"}, {"role": "user", "content": 3}], "messages[1].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": {"x": 1}}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": ["f"]}], "messages[0].tool_calls[0]"),
    ],
)
def test_bad_messages_name_their_field(messages, param):
    with pytest.raises(MessageError) as caught:
        read_messages(messages)
    assert caught.value.param == param
    assert param.split("[")[0] in str(caught.value)
