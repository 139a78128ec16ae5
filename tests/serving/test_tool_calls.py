"""Tools in chat completions: what the model is shown, and its calls, streamed and whole."""

import json

import pytest
from conversing import CHAT, Client, finish_reason
from openai.lib.streaming._deltas import accumulate_delta
from scripted import ByteTokenizer, ScriptedEngine, say

from tensorfold.chat.prompt import ChatEncoder
from tensorfold.chat.template import ChatTemplate
from tensorfold.chat.tools.registry import FORMATS
from tensorfold.engine.masks import allows

TEMPLATE = (
    "{% for tool in tools or [] %}{{ (tool | tojson) + '\n' }}{% endfor %}"
    "{% for message in messages %}{{ message.role + ': ' + message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }};{% endfor %}"
    "{% endfor %}{{ '\n' }}{% endfor %}"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}
PING = {"type": "function", "function": {"name": "ping"}}
CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "東京", "days": 2}}\n</tool_call>'
)
SECOND = '<tool_call>\n{"name": "Ping", "arguments": {}}\n</tool_call>'


def client(text="Hello", **how):
    engine = ScriptedEngine(script=lambda request: say(text, **how))
    chat = ChatEncoder(ChatTemplate(TEMPLATE, {}), ByteTokenizer())
    return Client(engine, chat=chat)


def prompt(client):
    return bytes(client.engine.requests[-1].prompt).decode()


def accumulated(events):
    """The message of a stream, put together as openai-python does."""
    message = {}
    for event in events:
        for choice in event["choices"]:
            message = accumulate_delta(message, choice["delta"])
    return message


async def both(text, *, size=3, tools=(WEATHER, PING), end=True, **fields):
    """A reply, whole and streamed, which must be the same but for the calls' ids."""
    asking = client(text, size=size, end=end)
    fields = {"tools": tools, **fields}
    reply = await asking.ask(CHAT, **fields)
    events = await asking.stream(CHAT, **fields)
    (choice,) = reply["choices"]
    streamed = accumulated(events)
    whole = choice["message"]
    assert (streamed.get("content") or None) == (whole["content"] or None)
    for call in [*whole.get("tool_calls", []), *streamed.get("tool_calls", [])]:
        assert isinstance(call.pop("id"), str)
        call.pop("index", None)
    assert streamed.get("tool_calls", []) == whole.get("tool_calls", [])
    assert finish_reason(events) == choice["finish_reason"]
    return choice


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_a_call_is_the_same_whole_and_streamed(size):
    choice = await both("Let me see.\n\n" + CALL, size=size)
    assert choice["message"]["content"] == "Let me see."
    assert choice["message"]["tool_calls"] == [
        {
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "東京", "days": 2}'},
        }
    ]
    assert choice["finish_reason"] == "tool_calls"


async def test_cases_34_and_58_every_delta_of_a_call_has_its_index_and_only_the_first_its_name():
    events = await client(CALL + "\n" + SECOND, size=5).stream(CHAT, tools=[WEATHER, PING])
    deltas = [
        call
        for event in events
        for choice in event["choices"]
        for call in choice["delta"].get("tool_calls", [])
    ]
    assert [delta["index"] for delta in deltas] == [0, 0, 1, 1]
    for first, more in (deltas[:2], deltas[2:]):
        assert set(first) == {"index", "id", "type", "function"}
        assert first["type"] == "function" and first["function"]["arguments"] == ""
        assert set(more) == {"index", "function"} and set(more["function"]) == {"arguments"}
        json.loads(more["function"]["arguments"])
    assert [delta["function"].get("name") for delta in deltas] == [
        *("get_weather", None),
        *("ping", None),
    ]


async def test_cases_16_17_and_61_a_call_alone_has_null_content_and_its_own_finish_reason():
    choice = await both("\n\n" + CALL + "\n")
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("cut", range(2, len(CALL), 9))
async def test_cases_13_and_32_a_call_that_the_limit_cuts_is_no_call(cut):
    limit = len(b"I will check.\n") + len(CALL[:cut].encode())
    choice = await both("I will check.\n" + CALL, max_tokens=limit)
    assert choice["message"]["content"] == "I will check."
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "length"


async def test_case_13_the_limit_is_named_even_when_a_call_came_before_it():
    text = CALL + "\n" + SECOND
    choice = await both(text, max_tokens=len(text.encode()) - 5)
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["get_weather"]
    assert choice["finish_reason"] == "length"


async def test_a_call_without_its_closing_tag_is_whole_at_the_models_own_end():
    choice = await both(CALL.removesuffix("\n</tool_call>"))
    assert choice["finish_reason"] == "tool_calls"


async def test_one_call_at_most_when_calls_may_not_be_parallel():
    choice = await both("Hm. " + CALL + SECOND, parallel_tool_calls=False)
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["get_weather"]
    assert choice["message"]["content"] == "Hm."


async def test_usage_counts_the_calls_that_are_left_out():
    text = CALL + SECOND
    reply = await client(text).ask(CHAT, tools=[WEATHER], parallel_tool_calls=False)
    assert reply["usage"]["completion_tokens"] == len(text.encode()) + 1


@pytest.mark.parametrize(
    "fields", [{}, {"tools": [WEATHER], "tool_choice": "none"}, {"tools": None}]
)
async def test_without_tools_a_call_is_text(fields):
    choice = await both(CALL, **({"tools": []} | fields))
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"


async def test_the_template_sees_the_tools_in_the_clients_order():
    asking = client()
    await asking.ask(CHAT, tools=[WEATHER, PING])
    first, second = prompt(asking).splitlines()[:2]
    assert first == json.dumps(WEATHER)
    assert json.loads(second)["function"] == {
        "name": "ping",
        "parameters": {"type": "object", "properties": {}},
    }


@pytest.mark.parametrize("choice", [None, "auto"])
async def test_case_59_no_choice_is_auto(choice):
    asking = client()
    await asking.ask(CHAT, tools=[WEATHER], tool_choice=choice)
    assert "get_weather" in prompt(asking)


async def test_tool_choice_none_hides_the_tools():
    asking = client()
    await asking.ask(CHAT, tools=[WEATHER], tool_choice="none")
    assert "get_weather" not in prompt(asking)


async def test_allowed_tools_are_the_only_ones_shown():
    asking = client()
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "ping"}}]}
    await asking.ask(
        CHAT,
        tools=[WEATHER, PING],
        tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
    )
    assert "get_weather" not in prompt(asking) and "ping" in prompt(asking)


async def test_cases_62_and_67_earlier_calls_reach_the_template_with_their_order():
    asking = client()
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": '{"b": 1, "a": 2}'},
    }
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "4"},
    ]
    await asking.ask(CHAT, messages=messages, tools=[WEATHER])
    assert prompt(asking).endswith("user: Hi\nassistant: b=1;a=2;\ntool: 4\n")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": "f"}, "tools"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [WEATHER, {"type": "function"}]}, "tools[1].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": " "}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "description": 1}}]},
            "tools[0].function.description",
        ),
        ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": 1}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}},
            "tool_choice.allowed_tools",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
async def test_bad_tool_fields_are_named(fields, param):
    error = await client().refused(CHAT, {"messages": [{"role": "user", "content": "x"}]} | fields)
    assert error["param"] == param
    assert param.split(".")[0] in error["message"]


async def test_another_format_and_its_control_tokens():
    asking = client("x<|python_tag|>", end=True)
    app = Client(
        ScriptedEngine(script=lambda request: say('[get_weather(city="a", days=1)]')),
        tool_format=FORMATS["pythonic"],
    )
    reply = await app.ask(CHAT, tools=[WEATHER])
    (call,) = reply["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "a", "days": 1}
    assert (await asking.ask(CHAT))["choices"][0]["message"]["content"] == "x<|python_tag|>"


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "ping"}),
        ({"type": "function", "function": {"name": "ping"}}, {"ping"}),
    ],
)
async def test_a_required_call_is_held_to_the_tools(choice, names):
    asking = client(CALL)
    await asking.ask(CHAT, tools=[WEATHER, PING], tool_choice=choice)
    make = asking.engine.requests[-1].constraint
    constraint = make()
    assert make() is not constraint

    def allowed() -> set[int]:
        (mask,) = constraint.masks([])
        return {token for token in range(256) if allows(mask, token)}

    for token in b'<tool_call>\n{"name": "':
        assert token in allowed()
        constraint.accept(token)
    assert allowed() == {name.encode()[0] for name in names}
    assert ("get_weather" in prompt(asking)) == ("get_weather" in names)


async def test_a_call_that_nobody_requires_is_held_to_nothing():
    asking = client()
    await asking.ask(CHAT, tools=[WEATHER])
    assert asking.engine.requests[-1].constraint is None
