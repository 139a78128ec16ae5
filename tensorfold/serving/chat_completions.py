"""POST /v1/chat/completions: a conversation in, the assistant's next message out."""

import asyncio
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quart import Response, request

from tensorfold.chat.messages import Message, MessageError, read_messages
from tensorfold.chat.template import RESERVED_VARIABLES, ChatTemplateError
from tensorfold.serving.answer import Shape, answer, now
from tensorfold.serving.body import read_body
from tensorfold.serving.errors import ApiError
from tensorfold.serving.fields import (
    Body,
    Field,
    Unsupported,
    boolean,
    empty,
    is_one_of,
    mapping,
    refuse,
)
from tensorfold.serving.generation import read_reply_options
from tensorfold.serving.service import Service

TEMPLATE_VARIABLES: Field[dict[str, Any]] = Field("chat_template_kwargs", mapping(), {})
ENABLE_THINKING: Field[bool | None] = Field("enable_thinking", boolean(), None)
_THINKING_TYPES = {"enabled": True, "disabled": False}

PROMPT_UNSUPPORTED = (
    Unsupported("functions", empty),
    Unsupported("function_call", is_one_of("none", "auto")),
    Unsupported("documents", empty),
    Unsupported("chat_template", empty),
    Unsupported("continue_final_message", empty),
)
UNSUPPORTED = (
    Unsupported("logprobs", is_one_of(False)),
    Unsupported("top_logprobs", empty),
    Unsupported("modalities", is_one_of(["text"], [])),
)


@dataclass(frozen=True)
class ChatShape(Shape):
    """Chat completions and their chunks."""

    def opening(self) -> dict[str, Any]:
        """The role, once and before any text."""
        return self._chunk({"role": "assistant"}, None)

    def chunk(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        """A delta of content, or an empty one with the finish reason."""
        return self._chunk({"content": text} if finish_reason is None else {}, finish_reason)

    def usage_chunk(self) -> dict[str, Any]:
        """The chunk that carries only the usage."""
        return self.envelope("chat.completion.chunk", [])

    def whole(self, text: str, finish_reason: str) -> dict[str, Any]:
        """The assistant's message."""
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": finish_reason}
        return self.envelope("chat.completion", [choice])

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return self.envelope("chat.completion.chunk", [choice])


async def chat_completions(service: Service) -> Response:
    """Answer a chat request."""
    arrived = time.monotonic()
    body = await read_body(request)
    refuse(body, UNSUPPORTED)
    options = read_reply_options(body, service)
    prompt = await chat_prompt(service, body)
    shape = ChatShape(f"chatcmpl-{uuid.uuid4().hex}", options.model, now())
    return await answer(service, options, prompt, shape, param="messages", arrived=arrived)


async def chat_prompt(
    service: Service, body: Body, *, add_generation_prompt: bool = True
) -> list[int]:
    """The tokens that a chat body's messages come to. Raises `ApiError`."""
    refuse(body, PROMPT_UNSUPPORTED)
    _refuse_tools(body)
    chat = service.chat
    if chat is None:
        raise ApiError(
            "this model has no chat template; use /v1/completions, or start the server with one",
            param="messages",
        )
    variables = _template_variables(body)
    try:
        messages: list[Message] = read_messages(body.get("messages"))
        # Rendering and encoding a long conversation takes long enough to keep others waiting.
        return await asyncio.to_thread(
            chat.encode,
            messages,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
        )
    except MessageError as error:
        raise ApiError(str(error), param=error.param) from error
    except ChatTemplateError as error:
        raise ApiError(str(error), param="messages") from error


def _refuse_tools(body: Body) -> None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools is not None and not isinstance(tools, list):
        raise ApiError("tools must be a list or null", param="tools")
    if choice is not None and not isinstance(choice, str | dict):
        raise ApiError("tool_choice must be a string, an object or null", param="tool_choice")
    if tools and choice != "none":
        raise ApiError(
            'tools are not supported by this version; send tool_choice "none" to go without',
            param="tools",
        )
    if choice not in (None, "none", "auto"):
        raise ApiError("tool_choice is not supported by this version", param="tool_choice")


def _template_variables(body: Body) -> Mapping[str, Any]:
    """The request's own template variables, with thinking turned on or off by either name."""
    field = TEMPLATE_VARIABLES
    given = {name: item for name, item in field.of(body).items() if item is not None}
    if reserved := sorted(RESERVED_VARIABLES & set(given)):
        raise ApiError(f"{field.name} must not contain {reserved[0]}", param=field.name)
    try:
        enabled = ENABLE_THINKING.of(given)
    except ApiError as error:
        raise ApiError(f"{field.name}: {error.message}", param=field.name) from None
    thinking = given.pop("thinking", None)
    if isinstance(thinking, dict) and isinstance(thinking.get("type"), str):
        thinking = _THINKING_TYPES.get(thinking["type"])
    if isinstance(thinking, bool) and enabled is None:
        # Some templates call the variable thinking and some enable_thinking.
        return given | {"thinking": thinking, "enable_thinking": thinking}
    return given if enabled is None else given | {"thinking": enabled}
