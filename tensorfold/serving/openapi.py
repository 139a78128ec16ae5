"""GET /openapi.json: the API in OpenAPI 3.1, from the declarations that check requests."""

from dataclasses import dataclass
from typing import Any

from quart import Response

from tensorfold import __version__
from tensorfold.chat.messages import MESSAGES
from tensorfold.serving import (
    chat_completions,
    completions,
    form,
    generation,
    structured_output,
    tokenize,
)
from tensorfold.serving.fields import Field, Schema, Unsupported, body_schema, given
from tensorfold.serving.reply_schemas import SCHEMAS
from tensorfold.serving.service import Service
from tensorfold.serving.sse import json_response
from tensorfold.serving.structured_output import ONE_FORM

CHAT_PROMPT: tuple[Field[Any] | Unsupported, ...] = (
    *chat_completions.PROMPT_FIELDS,
    *chat_completions.PROMPT_UNSUPPORTED,
)
CHAT: tuple[Field[Any] | Unsupported, ...] = (
    *CHAT_PROMPT,
    *chat_completions.FIELDS,
    *generation.FIELDS,
    *structured_output.FIELDS,
    form.THINKING_BUDGET,
    *chat_completions.UNSUPPORTED,
    *generation.UNSUPPORTED,
)
TEXT: tuple[Field[Any] | Unsupported, ...] = (
    *completions.FIELDS,
    *generation.FIELDS,
    *structured_output.FIELDS,
    *completions.UNSUPPORTED,
    *generation.UNSUPPORTED,
)


@dataclass(frozen=True)
class Operation:
    """One route: the schema of its body, if it takes one, and the names of its replies' schemas."""

    method: str
    path: str
    summary: str
    reply: str
    body: Schema | None = None
    chunk: str | None = None
    """Of an event of the stream, for routes that stream."""
    content: str = "application/json"
    """What the reply is written in."""


_IDS = tokenize.IDS.schema
OPERATIONS = (
    Operation(
        "post",
        "/v1/chat/completions",
        "The assistant's next message",
        "ChatCompletion",
        body_schema(CHAT, {"messages": MESSAGES})
        | {"allOf": [ONE_FORM, chat_completions.TOP_NEEDS_LOGPROBS]},
        "ChatCompletionChunk",
    ),
    Operation(
        "post",
        "/v1/completions",
        "The text that follows a prompt",
        "TextCompletion",
        body_schema(TEXT, {"prompt": completions.PROMPT})
        | {"allOf": [ONE_FORM, completions.PROMPT_LOGPROBS_ALONE]},
        "TextCompletion",
    ),
    Operation("get", "/v1/models", "The ids that requests may name", "ModelList"),
    Operation("get", "/health", "What is served and how busy it is", "Health"),
    Operation(
        "post",
        "/tokenize",
        "The tokens of a prompt or of messages",
        "Tokens",
        {
            "anyOf": [
                body_schema(tokenize.FIELDS, {"prompt": {"type": "string"}})
                | {"not": given("messages")},
                body_schema((*tokenize.FIELDS, *CHAT_PROMPT), {"messages": MESSAGES}),
            ]
        },
    ),
    Operation(
        "post",
        "/detokenize",
        "The text of tokens",
        "Text",
        body_schema(
            (),
            {"tokens": {"anyOf": [_IDS, {"type": "array", "items": _IDS, "maxItems": 1}]}},
        ),
    ),
    Operation("get", "/tokenizer_info", "About the tokenizer", "TokenizerInfo"),
    Operation("post", "/v1/requests/{id}/cancel", "Ends a reply", "Cancelled"),
    Operation("get", "/metrics", "Counters for Prometheus", "Metrics", content="text/plain"),
    Operation("get", "/openapi.json", "This description", "Description"),
)
ERRORS = {
    "400": "The body or a field can't be served; `param` names the field.",
    "404": "No reply has this id now.",
    "413": "The body is too large.",
    "499": "The request was cancelled by its id.",
    "500": "A fault of the server's own.",
    "503": "The server is stopping, or as many requests wait as may.",
    "504": "The request took longer than the server lets one take.",
}


_ID = str.maketrans({"/": "_", "{": None, "}": None})


async def openapi(service: Service) -> Response:
    """Describe the API."""
    return json_response(describe(service.engine.limits.vocab_size))


def describe(vocab_size: int) -> dict[str, Any]:
    """The OpenAPI document of a server whose model has `vocab_size` tokens."""
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    token = {"type": "integer", "minimum": 0, "maximum": vocab_size - 1}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "TensorFold",
            "version": __version__,
            "description": "Every path works with and without /v1.",
        },
        "paths": paths,
        "components": {"schemas": {"TokenId": token, **SCHEMAS}},
    }


def _operation(operation: Operation) -> dict[str, Any]:
    contents = {operation.content: _schema(operation.reply)}
    if operation.chunk is not None:
        contents["text/event-stream"] = {
            "schema": {
                "type": "object",
                "description": "Each event.",
                "properties": {"data": _event_data(operation.chunk)},
                "required": ["data"],
            }
        }
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": operation.path.removeprefix("/v1").strip("/").translate(_ID),
        "responses": {
            "200": {"description": operation.summary, "content": contents},
            **{status: _error(told) for status, told in _errors(operation).items()},
        },
    }
    if "{id}" in operation.path:
        described["parameters"] = [
            {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": operation.body}},
        }
    return described


def _errors(operation: Operation) -> dict[str, str]:
    taken = ["500", "503"]
    if operation.body is not None:
        taken = ["400", "413", *taken]
    if "{id}" in operation.path:
        taken = ["404", *taken]
    if operation.chunk is not None:
        taken = sorted([*taken, "499", "504"])
    return {status: ERRORS[status] for status in taken}


def _event_data(chunk: str) -> dict[str, Any]:
    content = [{"$ref": f"#/components/schemas/{name}"} for name in (chunk, "Error")]
    told = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": content},
    }
    return {"anyOf": [told, {"const": "[DONE]", "description": "The last."}]}


def _error(told: str) -> dict[str, Any]:
    return {"description": told, "content": {"application/json": _schema("Error")}}


def _schema(name: str) -> dict[str, Any]:
    return {"schema": {"$ref": f"#/components/schemas/{name}"}}
