import copy

import pytest

from tensorfold.chat.messages import UNPARSED_ARGUMENTS, MessageError, arrange, read_messages
from tensorfold.chat.traits import Traits


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
    arrange(read_messages(messages), Traits(later_system=False))
    assert messages == before


def test_nulls_are_absent_and_reasoning_has_every_name():
    (message,) = read_messages([{"role": "assistant", "content": "x", "audio": None}])
    assert message == {"role": "assistant", "content": "x"}
    for name in ("reasoning_content", "reasoning", "thinking"):
        (message,) = read_messages([{"role": "assistant", "content": "x", name: "r"}])
        assert (message["reasoning_content"], message["thinking"]) == ("r", "r")


def said(messages, **traits):
    return [(m["role"], m["content"]) for m in arrange(read_messages(messages), Traits(**traits))]


def turns(*roles):
    return [{"role": role, "content": str(i)} for i, role in enumerate(roles)]


@pytest.mark.parametrize("later_system", [True, False])
def test_cases_133_134_only_leading_system_and_developer_messages_merge(later_system):
    roles = ["system", "developer", "user", "developer", "assistant", "system"]
    later = "system" if later_system else "user"
    assert said(turns(*roles), later_system=later_system) == [
        ("system", "0\n\n1"),
        ("user", "2"),
        (later, "3"),
        ("assistant", "4"),
        (later, "5"),
    ]


def test_a_template_of_strict_turns_gets_turns():
    traits = {"leading_system": False, "later_system": False, "repeated_user": False}
    assert said(turns("system", "user", "system", "assistant", "user", "user"), **traits) == [
        ("user", "0\n\n1\n\n2"),
        ("assistant", "3"),
        ("user", "4\n\n5"),
    ]
    assert said(turns("user", "user")) == [("user", "0"), ("user", "1")]


def test_case_64_assistant_messages_in_a_row_are_one():
    assert said(turns("user", "assistant", "assistant", "user")) == [
        ("user", "0"),
        ("assistant", "1\n\n2"),
        ("user", "3"),
    ]


def test_case_136_text_and_calls_are_one_message_and_results_have_their_names():
    messages = [
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "hm"},
        {"role": "assistant", "content": None, "tool_calls": [call('{"a": 1}')]},
        {"role": "assistant", "tool_calls": [call("{}") | {"id": "d"}]},
        {"role": "tool", "content": "1", "tool_call_id": "d"},
        {"role": "tool", "content": "2", "tool_call_id": "c", "name": "own"},
        {"role": "tool", "content": "3", "tool_call_id": "none"},
        {"role": "assistant", "tool_calls": [call("{}")]},
        {"role": "assistant", "content": "after"},
    ]
    first, *results, calling, after = arrange(read_messages(messages), Traits())
    assert (first["content"], first["reasoning_content"]) == ("Let me see.", "hm")
    assert [one["id"] for one in first["tool_calls"]] == ["c", "d"]
    assert [one.get("name") for one in results] == ["f", "own", None]
    assert results[0]["tool_call_id"] == "d"
    # Its text would come before the calls.
    assert ("tool_calls" in calling, after["content"]) == (True, "after")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"b":1,"a":"東京"}', '{"b": 1, "a": "東京"}'),
        ({"a": [1.5, None]}, '{"a": [1.5, null]}'),
        ("not json", "not json"),
        (None, "{}"),
    ],
)
def test_arguments_are_text_for_templates_that_write_them_as_they_are(arguments, text):
    messages = read_messages([{"role": "assistant", "tool_calls": [call(arguments)]}])
    (message,) = arrange(messages, Traits(text_arguments=True))
    assert message["tool_calls"][0]["function"]["arguments"] == text
    (message,) = arrange(messages, Traits())
    assert isinstance(message["tool_calls"][0]["function"]["arguments"], dict)


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
        ([{"role": "tool", "tool_call_id": ["c"]}], "messages[0].tool_call_id"),
        ([{"role": "user", "name": 0}], "messages[0].name"),
        ([{"role": "assistant", "reasoning": 0}], "messages[0].reasoning"),
        (
            [{"role": "assistant", "tool_calls": [call("{}") | {"id": 0}]}],
            "messages[0].tool_calls[0].id",
        ),
    ],
)
def test_bad_messages_name_their_field(messages, param):
    with pytest.raises(MessageError) as caught:
        read_messages(messages)
    assert caught.value.param == param
    assert param.split("[")[0] in str(caught.value)
