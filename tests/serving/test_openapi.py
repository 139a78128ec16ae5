"""/openapi.json describes what is checked and what is answered."""

import json
from types import ModuleType

import jsonschema
import pytest
from conversing import CHAT, ROUTES, TEXT, Client, question
from scripted import ByteTokenizer
from test_api_requests import BAD_CHAT_FIELDS, BAD_FIELDS, BAD_TEXT_FIELDS, HARMLESS

from tensorfold.serving import (
    chat_completions,
    completions,
    form,
    generation,
    structured_output,
    tokenize,
    tool_calls,
)
from tensorfold.serving.app import ROUTES as SERVED
from tensorfold.serving.fields import Field, Unsupported
from tensorfold.serving.openapi import describe

DOCUMENT = describe(ByteTokenizer.vocab_size)


def validator(schema):
    whole = {"components": DOCUMENT["components"], **schema}
    return jsonschema.Draft202012Validator(whole)


def body_schema(path):
    content = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]
    return content["application/json"]["schema"]


def reply_validator(name):
    return validator({"$ref": f"#/components/schemas/{name}"})


async def test_the_document_is_served_and_well_formed():
    for path in ("/openapi.json", "/v1/openapi.json"):
        assert json.loads(await (await Client().get(path)).get_data()) == DOCUMENT
    assert DOCUMENT["openapi"].startswith("3.1")
    for path in (*ROUTES, "/tokenize", "/detokenize"):
        jsonschema.Draft202012Validator.check_schema(body_schema(path))
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    named = json.dumps(DOCUMENT).split('"$ref": "#/components/schemas/')[1:]
    assert {text.split('"')[0] for text in named} <= set(DOCUMENT["components"]["schemas"])


def test_every_route_is_described():
    described = {
        (method.upper(), path.removeprefix("/v1"))
        for path, methods in DOCUMENT["paths"].items()
        for method in methods
    }
    assert described == {
        (method, path.replace("<id>", "{id}")) for method, path, _ in SERVED if path
    }


def declared(module: ModuleType):
    for value in vars(module).values():
        for field in value if isinstance(value, tuple) else (value,):
            if isinstance(field, Field | Unsupported):
                yield field.name


@pytest.mark.parametrize(
    ("module", "path"),
    [(generation, CHAT), (generation, TEXT), (chat_completions, CHAT), (tool_calls, CHAT),
     (completions, TEXT), (structured_output, CHAT), (structured_output, TEXT), (form, CHAT)],
)  # fmt: skip
def test_every_declared_field_is_described(module, path):
    inner = {"include_usage", "enable_thinking"}
    assert set(declared(module)) - inner <= set(body_schema(path)["properties"])


def test_every_field_of_tokenize_is_described():
    either = body_schema("/tokenize")["anyOf"]
    for schema in either:
        assert set(declared(tokenize)) <= set(schema["properties"])
    assert {"tools", "chat_template_kwargs", "reasoning_effort"} <= set(either[1]["properties"])


# Refused for what is beside them, or for what the tokenizer or the template says.
BEYOND_A_SCHEMA = {"tool_choice", "tools", "logit_bias", "chat_template_kwargs"}
BEYOND_A_SCHEMA |= {"guided_json", "guided_regex", "guided_grammar"}


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        *[(path, *field) for path in ROUTES for field in BAD_FIELDS],
        *[(CHAT, *field) for field in BAD_CHAT_FIELDS],
        *[(TEXT, *field) for field in BAD_TEXT_FIELDS],
    ],
)
def test_what_is_refused_is_outside_the_schema(path, name, value):
    if name in BEYOND_A_SCHEMA or value == 10**400:
        return
    assert not validator(body_schema(path)).is_valid(question(path) | {name: value})


@pytest.mark.parametrize("path", ROUTES)
def test_what_is_taken_is_inside_the_schema(path):
    check = validator(body_schema(path))
    check.validate(question(path))
    check.validate(question(path) | HARMLESS)
    check.validate(question(path) | {"seed": "7", "top_k": -1, "max_tokens": "5", "stop": ["a"]})
    assert not check.is_valid({})


@pytest.mark.parametrize(
    "prompt", ["x", ["x", "y"], [1, 2], [1.0], [[1], [2]], ["x", [3]]]
)  # fmt: skip
def test_prompts_of_every_form(prompt):
    validator(body_schema(TEXT)).validate({"prompt": prompt})


@pytest.mark.parametrize("prompt", [None, "", [], [""], [[]], 3, [1, "a"], [-1], [262]])
def test_prompts_of_no_form(prompt):
    assert not validator(body_schema(TEXT)).is_valid({"prompt": prompt})


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {}),
        (CHAT, {"n": 2, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}),
        (TEXT, {"logprobs": 2, "echo": True, "return_token_ids": True}),
        (TEXT, {"prompt_logprobs": 1, "n": 2}),
    ],
)
async def test_replies_are_as_described(path, fields):
    whole, chunk = {
        CHAT: ("ChatCompletion", "ChatCompletionChunk"),
        TEXT: ("TextCompletion", "TextCompletion"),
    }[path]
    client = Client()
    reply_validator(whole).validate(await client.ask(path, **fields))
    if "prompt_logprobs" not in fields:
        for event in await client.stream(path, **fields):
            reply_validator(chunk).validate(event)
    response = await client.post(path, {})
    reply_validator("Error").validate(json.loads(await response.get_data()))


@pytest.mark.parametrize(
    ("method", "path", "body", "name"),
    [
        ("get", "/v1/models", None, "ModelList"),
        ("get", "/health", None, "Health"),
        ("get", "/tokenizer_info", None, "TokenizerInfo"),
        ("post", "/tokenize", {"prompt": "x", "return_token_strs": True}, "Tokens"),
        ("post", "/detokenize", {"tokens": [1]}, "Text"),
    ],
)
async def test_other_answers_are_as_described(method, path, body, name):
    client = Client()
    response = await (client.get(path) if body is None else client.post(path, body))
    assert response.status_code == 200
    reply_validator(name).validate(json.loads(await response.get_data()))


async def test_tokenizer_info():
    info = json.loads(await (await Client().get("/tokenizer_info")).get_data())
    assert (info["bos_token"], info["eos_token"]) == ("<bos>", "<|im_end|>")
    assert (info["vocab_size"], info["model_max_length"]) == (ByteTokenizer.vocab_size, 4096)
    assert "im_start" in info["chat_template"]
    without = json.loads(await (await Client(chat=None).get("/v1/tokenizer_info")).get_data())
    assert without["chat_template"] is None
