"""Replies that must match a schema, a pattern, a choice or a grammar, on both routes."""

import asyncio
import builtins
import json
import re

import jsonschema
import pytest
from conversing import CHAT, ROUTES, TEXT, Client, question
from scripted import TEMPLATE, ScriptedEngine, say
from test_reasoning import ASKED, CHOOSES, OPENS, both_ways, says, thinker

from tensorfold.chat.tools.qwen_xml import QwenXmlParser

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def wanting(text: str) -> Client:
    return Client(ScriptedEngine(lambda request: say(text)))


def text_of(reply: dict) -> str:
    choice = reply["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


async def matched(client: Client, path: str, **fields: object) -> str:
    """A reply's text, which a stream shares."""
    reply = await client.ask(path, **fields)
    events = await client.stream(path, **fields)
    choices = [choice for event in events for choice in event["choices"]]
    pieces = [c["text"] if "text" in c else c["delta"].get("content", "") for c in choices]
    assert "".join(pieces) == text_of(reply)
    assert choices[-1]["finish_reason"] == reply["choices"][0]["finish_reason"]
    return text_of(reply)


SCHEMA_FIELDS = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}},
    {"guided_json": PERSON},
    {"guided_json": json.dumps(PERSON)},
    {"structured_outputs": {"json": PERSON}},
    {"structured_outputs": {"json": json.dumps(PERSON), "regex": None}},
]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("fields", SCHEMA_FIELDS)
async def test_a_schema_is_kept_to(path, fields):
    wished = '{"name": "Ada", "age": 36}'
    assert await matched(wanting(wished), path, **fields) == wished
    # What is not allowed is not said, whatever the model would like.
    text = await matched(wanting('{"name": "Ada Lovelace", "age": "36"}'), path, **fields)
    person = json.loads(text)
    assert person["name"] == "Ada Lo"
    assert isinstance(person["age"], int)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "fields",
    [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}],
)
async def test_any_object(path, fields):
    assert await matched(wanting('{"é": [1, null]} and more'), path, **fields) == '{"é": [1, null]}'
    text = await matched(wanting("[1]"), path, **fields, max_tokens=40)
    assert re.match(r"\s{0,32}\{", text)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("guided", [True, False])
@pytest.mark.parametrize(
    ("kind", "value", "wished", "said"),
    [
        ("regex", "[0-9]{3}-[a-c]+", "123-abX", "123-ab"),
        ("choice", ["yes", "no", "nö"], "nö", "nö"),
        ("choice", ["yes", "no"], "never", "no"),
        ("grammar", 'root ::= "a" root "b" | "c"', "aacbb!", "aacbb"),
    ],
)
async def test_patterns_choices_and_grammars(path, guided, kind, value, wished, said):
    fields = {f"guided_{kind}": value} if guided else {"structured_outputs": {kind: value}}
    assert await matched(wanting(wished), path, **fields) == said


@pytest.mark.parametrize("path", ROUTES)
async def test_the_end_comes_with_the_value_and_not_before(path):
    fields = {"guided_regex": "a{3}"}
    reply = await wanting("").ask(path, **fields)
    assert text_of(reply) == "aaa"
    assert reply["choices"][0]["finish_reason"] == "stop"
    reply = await wanting("aaaaa").ask(path, **fields, ignore_eos=True)
    assert text_of(reply) == "aaa"
    reply = await wanting("aaa").ask(path, **fields, max_tokens=2)
    assert (text_of(reply), reply["choices"][0]["finish_reason"]) == ("aa", "length")


@pytest.mark.parametrize("path", ROUTES)
async def test_case_83_blanks_come_to_an_end(path):
    text = await matched(wanting("{" + " \n" * 200), path, guided_json=PERSON, max_tokens=300)
    assert json.loads(text)["name"] == "" or len(json.loads(text)["name"]) <= 6
    assert max(map(len, re.findall(r"\s+", text))) == 32


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"response_format": {}},
        {"response_format": None},
        {"structured_outputs": {}},
        {"structured_outputs": {"json": None, "json_object": False}},
        {"guided_json": None},
    ],
)
async def test_what_asks_for_nothing_is_nothing(fields):
    client = wanting("free")
    assert await matched(client, CHAT, **fields) == "free"
    assert client.engine.requests[0].constraint is None


MALFORMED = [
    ("response_format", {"type": "sound"}),
    ("response_format", {"type": "hiccup"}),
    ("response_format", {"type": "json_schema"}),
    ("response_format", {"type": "json_schema", "json_schema": {}}),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": 123}}),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": {}, "name": 0}}),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": {}, "strict": 0}}),
    ("response_format", {"schema": {}}),
    ("response_format", "json"),
    ("guided_json", 123),
    ("guided_json", "{"),
    ("guided_json", {"type": "hiccup"}),
    ("guided_json", {"type": "array", "uniqueItems": True}),
    ("guided_regex", "("),
    ("guided_regex", 3),
    ("guided_regex", "[]"),
    ("guided_choice", []),
    ("guided_choice", "yes"),
    ("guided_choice", ["yes", 1]),
    ("guided_choice", ["yes", ""]),
    ("guided_grammar", "nonsense"),
    ("guided_grammar", "root ::= missing"),
    ("guided_grammar", ""),
    ("structured_outputs", {"json": PERSON, "regex": "a"}),
    ("structured_outputs", {"structural_tag": "x"}),
    ("structured_outputs", {"json_object": "yes"}),
    ("structured_outputs", {"choice": []}),
    # Zero is not false, and only json_object's false asks for nothing.
    *[
        ("structured_outputs", {name: 0})
        for name in ("json", "json_object", "regex", "choice", "grammar")
    ],
    ("structured_outputs", {"json": False}),
    ("structured_outputs", []),
]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(("name", "value"), MALFORMED)
async def test_cases_85_88_malformed_fields_are_refused(path, name, value):
    client = wanting("x")
    for stream in (True, False):
        error = await client.refused(path, question(path) | {name: value, "stream": stream})
        assert error["param"] == name
        assert error["message"].startswith(name)
    assert client.engine.requests == []


async def test_cases_79_80_82_refusals_name_the_keyword():
    schema = {"type": "object", "properties": {"a": {"not": {}}}}
    error = await wanting("x").refused(CHAT, question(CHAT) | {"guided_json": schema})
    assert '"not"' in error["message"]


@pytest.mark.parametrize("path", ROUTES)
async def test_only_one_form_can_be_asked_for(path):
    body = question(path) | {"guided_regex": "a", "response_format": {"type": "json_object"}}
    error = await wanting("x").refused(path, body)
    assert "response_format and guided_regex" in error["message"]


async def test_without_xgrammar_the_error_says_what_to_install(monkeypatch):
    plain = builtins.__import__

    def without_xgrammar(name, *args, **kwargs):
        if name == "xgrammar":
            raise ImportError(name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_xgrammar)
    error = await wanting("x").refused(CHAT, question(CHAT) | {"guided_regex": "a"})
    assert "pip install 'xgrammar>=0.2'" in error["message"]
    assert text_of(await wanting("free").ask(CHAT)) == "free"


YES = {"guided_regex": '"[a-z]+"'}


@pytest.mark.parametrize("template", [OPENS, CHOOSES])
async def test_case_71_a_grammar_starts_after_the_reasoning(template):
    client = thinker('{"no": </think>"yes"', template)
    reasoning, content, _ = await both_ways(client, **YES)
    assert (reasoning, content) == ('{"no": ', '"yes"')


async def test_case_70_without_reasoning_it_starts_at_once():
    client = thinker('"yes"', CHOOSES)
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert (await both_ways(client, **off, **YES))[:2] == ("", '"yes"')


@pytest.mark.parametrize(
    ("said", "reasoning", "content"),
    [('<think>why</think>"yes"', "why", '"yes"'), ('"yes"', "", '"yes"')],
)
async def test_a_model_may_open_its_reasoning_first(said, reasoning, content):
    assert (await both_ways(thinker(said, TEMPLATE), **YES))[:2] == (reasoning, content)


async def test_no_end_without_a_value():
    # An end token inside the reasoning is not allowed, and the least token comes in its place.
    client = thinker("ab", OPENS)
    reasoning, content, usage = await both_ways(client, **YES, max_tokens=9)
    assert reasoning.startswith("ab\0")
    assert (content, usage["completion_tokens"]) == ("", 9)


async def test_a_budget_hands_over_to_the_grammar():
    reasoning, content, _ = await both_ways(thinker('abcdef"yes"', OPENS), **YES, thinking_budget=4)
    assert reasoning == "abc"
    assert re.fullmatch(YES["guided_regex"], content)


async def test_blanks_may_come_between_reasoning_and_json():
    client = thinker("so</think>\n\n{}", OPENS)
    assert (await both_ways(client, guided_json={"type": "object"}))[:2] == ("so", "{}")
    assert ASKED in TEMPLATE


async def test_a_fault_of_the_grammar_ends_its_reply_alone():
    client = Client(ScriptedEngine(lambda request: says("abc")))
    good, bad = await asyncio.gather(
        client.ask(CHAT, guided_regex="[a-z]+"), client.ask(TEXT, guided_choice=["x", "y"])
    )
    assert (text_of(good), text_of(bad)) == ("abc", "x")


async def test_choices_of_a_request_have_a_grammar_each():
    reply = await wanting("ab").ask(CHAT, guided_regex="a[bc]", n=3)
    assert [choice["message"]["content"] for choice in reply["choices"]] == ["ab"] * 3


TOOLS = [
    {"type": "function", "function": {"name": "find", "parameters": PERSON}},
    {"type": "function", "function": {"name": "ping"}},
]
CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'


@pytest.mark.parametrize("template", [TEMPLATE, OPENS])
@pytest.mark.parametrize(
    ("choice", "parallel", "said", "calls"),
    [
        ("required", True, CALL % ("ping", "{}"), [("ping", {})]),
        (
            "required",
            True,
            CALL % ("ping", "{}") + "\n" + CALL % ("find", '{"name": "x", "age": 3}'),
            [("ping", {}), ("find", {"name": "x", "age": 3})],
        ),
        ("required", False, 2 * (CALL % ("ping", "{}") + "\n"), [("ping", {})]),
        ("find", True, CALL % ("find", '{"name": "Ada Lovelace", "age": 36}'), None),
        ("find", True, "Prose, no call", None),
        ("ping", True, CALL % ("ping", '{"name": 1}'), [("ping", {})]),
    ],
)
async def test_required_calls_keep_to_the_schemas(template, choice, parallel, said, calls):
    prefix = "why</think>\n\n" if template == OPENS else ""
    client = thinker(prefix + said, template)
    named = {"type": "function", "function": {"name": choice}}
    fields = {
        "tools": TOOLS,
        "tool_choice": choice if choice == "required" else named,
        "parallel_tool_calls": parallel,
        "max_tokens": 400,
    }
    reply = await client.ask(CHAT, **fields)
    message = reply["choices"][0]["message"]
    found = [call["function"] for call in message["tool_calls"]]
    if calls is None:
        assert found[0]["name"] == "find"
        jsonschema.validate(json.loads(found[0]["arguments"]), PERSON)
    else:
        assert [(each["name"], json.loads(each["arguments"])) for each in found] == calls
    assert message["content"] is None
    assert reply["choices"][0]["finish_reason"] == "tool_calls"


XML_CALL = "<tool_call>\n<function=find>\n%s</function>\n</tool_call>"
XML = "<parameter=%s>\n%s\n</parameter>\n"


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        (XML % ("name", "Ada") + XML % ("age", "36"), {"name": "Ada", "age": 36}),
        (XML % ("name", "</p>\n") + XML % ("age", "-1"), None),
        (XML % ("age", "36") + XML % ("name", "Ada"), None),
        (XML % ("name", "Ada Lovelace") + XML % ("age", '"36"'), None),
        (XML % ("name", "Ada") + XML % ("born", "1815"), None),
        ("", None),
    ],
)
async def test_required_calls_between_tags_keep_to_the_schemas(said, arguments):
    wished = "Prose" if not said else XML_CALL % said
    client = Client(ScriptedEngine(lambda request: say(wished)), tool_format=QwenXmlParser)
    reply = await client.ask(CHAT, tools=TOOLS[:1], tool_choice="required", max_tokens=400)
    message = reply["choices"][0]["message"]
    (call,) = message["tool_calls"]
    found = json.loads(call["function"]["arguments"])
    jsonschema.validate(found, PERSON)
    assert arguments is None or found == arguments
    assert message["content"] is None and call["function"]["name"] == "find"


async def test_a_required_call_whose_schema_cannot_be_kept_is_refused():
    parameters = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tools = [{"type": "function", "function": {"name": "odd", "parameters": parameters}}]
    body = question(CHAT) | {"tools": tools, "tool_choice": "required"}
    error = await wanting("x").refused(CHAT, body)
    assert "odd" in error["message"] and '"uniqueItems"' in error["message"]
    tagged = Client(ScriptedEngine(lambda request: say("x")), tool_format=QwenXmlParser)
    assert await tagged.refused(CHAT, body) == error
    both = question(CHAT) | {"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}
    assert (await wanting("x").refused(CHAT, both))["param"] == "tool_choice"
