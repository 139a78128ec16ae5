"""POST /v1/chat/completions: a conversation in, the assistant's next message out."""

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quart import Response, request

from tensorfold.chat.messages import Message, MessageError, is_title_request, read_messages
from tensorfold.chat.pieces import CallPiece, Part, Piece, Token
from tensorfold.chat.prompt import ChatEncoder
from tensorfold.chat.template import RESERVED_VARIABLES, ChatTemplateError
from tensorfold.chat.traits import EFFORTS
from tensorfold.serving.answer import Said, Shape, answer, now
from tensorfold.serving.body import read_body
from tensorfold.serving.errors import ApiError
from tensorfold.serving.fields import (
    EMPTY,
    Body,
    Field,
    Schema,
    Unsupported,
    boolean,
    mapping,
    one_of,
    refuse,
)
from tensorfold.serving.form import held_to_form, unopened
from tensorfold.serving.generation import Prompt, read_reply_options
from tensorfold.serving.logprobs import alternatives, chat_logprobs
from tensorfold.serving.service import Service
from tensorfold.serving.tool_calls import (
    PARALLEL_TOOL_CALLS,
    TOOL_CHOICE,
    TOOLS,
    ToolUse,
    call_constraint,
    call_stages,
    read_tool_use,
)

ENABLE_THINKING: Field[bool | None] = Field(
    "enable_thinking", boolean(), None, "Whether the model thinks first."
)
REASONING_EFFORT: Field[str | None] = Field(
    "reasoning_effort",
    one_of("none", *EFFORTS),
    None,
    "How hard to think: the nearest level that the chat template names; none turns thinking off.",
)
TEMPLATE_VARIABLES: Field[dict[str, Any]] = Field(
    "chat_template_kwargs", mapping(ENABLE_THINKING), {}, "Variables for the chat template."
)
_THINKING_TYPES = {"enabled": True, "disabled": False}

PROMPT_UNSUPPORTED = (
    Unsupported("functions", EMPTY),
    Unsupported("function_call", ["none", "auto"]),
    Unsupported("documents", EMPTY),
    Unsupported("chat_template", EMPTY),
    Unsupported("continue_final_message", EMPTY),
)
LOGPROBS = Field("logprobs", boolean(), False, "Tells each token's log probability.")
TOP_LOGPROBS: Field[int | None] = Field(
    "top_logprobs", alternatives(), None, "As many of the likeliest tokens at each place."
)
TOP_NEEDS_LOGPROBS: Schema = {
    "if": {
        "properties": {TOP_LOGPROBS.name: {"type": "integer", "minimum": 1}},
        "required": [TOP_LOGPROBS.name],
    },
    "then": {"properties": {LOGPROBS.name: {"const": True}}, "required": [LOGPROBS.name]},
}
"""The JSON Schema of bodies that ask for alternatives only with log probabilities."""
PROMPT_FIELDS: tuple[Field[Any], ...] = (
    REASONING_EFFORT,
    TEMPLATE_VARIABLES,
    TOOLS,
    TOOL_CHOICE,
)
FIELDS: tuple[Field[Any], ...] = (LOGPROBS, TOP_LOGPROBS, PARALLEL_TOOL_CALLS)
UNSUPPORTED = (
    Unsupported("prompt_logprobs", [False]),
    Unsupported("modalities", [["text"], []]),
)


@dataclass(frozen=True)
class ChatShape(Shape):
    """Chat completions and their chunks."""

    object: str = "chat.completion"
    chunk_object: str = "chat.completion.chunk"

    def beside_choices(self) -> dict[str, Any]:
        """The prompt's tokens, if they were asked for."""
        if not self.options.return_token_ids:
            return {}
        return {"prompt_token_ids": list(self.prompts[0].tokens)}

    def opening(self, index: int) -> dict[str, Any]:
        """The role, once and before any text."""
        return self._chunk(index, {"role": "assistant"}, ())

    def delta(self, index: int, part: Part) -> dict[str, Any]:
        """A stretch of content, of reasoning or of a call."""
        return self._chunk(index, _delta(part), part.tokens)

    def last(self, index: int, tokens: Sequence[Token], finish_reason: str) -> dict[str, Any]:
        """An empty delta."""
        return self._chunk(index, {}, tokens) | {"finish_reason": finish_reason}

    def whole(self, index: int, said: Said) -> dict[str, Any]:
        """The assistant's message."""
        message: dict[str, Any] = {"role": "assistant", "content": said.content, "refusal": None}
        if said.reasoning:
            message["reasoning_content"] = said.reasoning
        if said.calls:
            message["content"] = said.content or None
            message["tool_calls"] = [_call(call) for call in said.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(said.tokens),
            "finish_reason": said.finish_reason,
        } | self.token_ids(said.tokens)

    def _chunk(self, index: int, delta: dict[str, Any], tokens: Sequence[Token]) -> dict[str, Any]:
        return {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(tokens) if tokens else None,
            "finish_reason": None,
        } | self.token_ids(tokens)

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        return chat_logprobs(self.tokenizer, tokens) if self.options.logprobs is not None else None


def _delta(part: Part) -> dict[str, Any]:
    if isinstance(part, Piece):
        return {"content" if part.kind == "content" else "reasoning_content": part.text}
    if part.id is None:
        return {"tool_calls": [{"index": part.index, "function": {"arguments": part.arguments}}]}
    return {"tool_calls": [{"index": part.index} | _call(part)]}


def _call(part: CallPiece) -> dict[str, Any]:
    function = {"name": part.name, "arguments": part.arguments}
    return {"id": part.id, "type": "function", "function": function}


async def chat_completions(service: Service) -> Response:
    """Answer a chat request."""
    arrived = time.monotonic()
    body = await read_body(request)
    refuse(body, UNSUPPORTED)
    options = replace(read_reply_options(body, service), logprobs=_alternatives(body))
    tokens, use = await chat_prompt(service, body)
    prompt = Prompt(
        tokens,
        stages=call_stages(service, use, tokens, body["messages"]),
        constraint=call_constraint(service, use),
    )
    options, prompt = await held_to_form(service, body, use, options, prompt)
    if is_title_request(body["messages"]) and not use.offered:
        options = replace(options, background=True)
    reply_id = f"chatcmpl-{uuid.uuid4().hex}"
    shape = ChatShape(reply_id, options.model, now(), service.tokenizer, options, [prompt])
    return await answer(service, shape, param="messages", arrived=arrived)


def _alternatives(body: Body) -> int | None:
    """How many alternatives to tell of with each token; None for no log probabilities."""
    count = TOP_LOGPROBS.of(body)
    if LOGPROBS.of(body):
        return count or 0
    if count:
        raise ApiError("top_logprobs needs logprobs to be true", param="top_logprobs")
    return None


async def chat_prompt(
    service: Service, body: Body, *, add_generation_prompt: bool = True
) -> tuple[list[int], ToolUse]:
    """The tokens that a chat body's messages come to, and its tools. Raises `ApiError`."""
    refuse(body, PROMPT_UNSUPPORTED)
    use = read_tool_use(body)
    chat = service.chat
    if chat is None:
        raise ApiError(
            "this model has no chat template; use /v1/completions, or start the server with one",
            param="messages",
        )
    variables = _template_variables(service, chat, body)
    try:
        messages: list[Message] = read_messages(body.get("messages"))
        # Rendering and encoding a long conversation takes long enough to keep others waiting.
        tokens = await asyncio.to_thread(
            chat.encode,
            messages,
            tools=use.shown,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
        )
        if add_generation_prompt:
            tokens = tokens + unopened(service, tokens, variables)
        return tokens, use
    except MessageError as error:
        raise ApiError(str(error), param=error.param) from error
    except ChatTemplateError as error:
        raise ApiError(str(error), param="messages") from error


def _template_variables(service: Service, chat: ChatEncoder, body: Body) -> Mapping[str, Any]:
    """The request's own template variables, with thinking turned on or off by any of its names."""
    field = TEMPLATE_VARIABLES
    given = {name: item for name, item in field.of(body).items() if item is not None}
    if reserved := sorted(RESERVED_VARIABLES & set(given)):
        raise ApiError(f"{field.name} must not contain {reserved[0]}", param=field.name)
    effort = REASONING_EFFORT.of(body) or given.pop("reasoning_effort", service.reasoning_effort)
    enabled = ENABLE_THINKING.of(given)
    thinking = given.pop("thinking", None)
    if isinstance(thinking, dict) and isinstance(thinking.get("type"), str):
        thinking = _THINKING_TYPES.get(thinking["type"])
    if enabled is None and isinstance(thinking, bool):
        enabled = thinking
    if enabled is None and effort is not None:
        enabled = effort != "none"
    if enabled is not None:
        # Some templates call the variable thinking and some enable_thinking.
        given |= {"thinking": enabled, "enable_thinking": enabled}
    if effort in (None, "none") or enabled is False:
        return given
    known = isinstance(effort, str) and effort in EFFORTS
    return given | {"reasoning_effort": chat.template.traits.hears(effort) if known else effort}
