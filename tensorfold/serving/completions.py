"""POST /v1/completions: a raw prompt in, the text that follows it out."""

import asyncio
import time
import uuid
from dataclasses import dataclass
from typing import Any

from quart import Response, request

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
    refuse,
    token_ids,
)
from tensorfold.serving.generation import read_reply_options
from tensorfold.serving.service import Service

ADD_SPECIAL_TOKENS = Field("add_special_tokens", boolean(), False)
UNSUPPORTED = (
    Unsupported("suffix", empty),
    Unsupported("logprobs", is_one_of(False)),
)


@dataclass(frozen=True)
class TextShape(Shape):
    """Text completions and their chunks."""

    def opening(self) -> None:
        """Text completions start with their text."""

    def chunk(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        """A piece of the text."""
        return self.whole(text, finish_reason)

    def usage_chunk(self) -> dict[str, Any]:
        """The chunk that carries only the usage."""
        return self.envelope("text_completion", [])

    def whole(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        """The completion."""
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
        return self.envelope("text_completion", [choice])


async def completions(service: Service) -> Response:
    """Answer a completion request."""
    arrived = time.monotonic()
    body = await read_body(request)
    refuse(body, UNSUPPORTED)
    options = read_reply_options(body, service)
    add_special_tokens = ADD_SPECIAL_TOKENS.of(body)
    prompt = await raw_prompt(service, _only_prompt(body), add_special_tokens=add_special_tokens)
    shape = TextShape(f"cmpl-{uuid.uuid4().hex}", options.model, now())
    return await answer(service, options, prompt, shape, param="prompt", arrived=arrived)


async def raw_prompt(service: Service, prompt: object, *, add_special_tokens: bool) -> list[int]:
    """The tokens of a raw prompt: a string, or token ids taken as they are."""
    if not isinstance(prompt, str):
        return list(token_ids(prompt, "prompt", service.engine.limits.vocab_size))
    tokenizer = service.tokenizer
    tokens = await asyncio.to_thread(
        tokenizer.encode, prompt, add_special_tokens=add_special_tokens
    )
    if add_special_tokens and tokens[:2] == [tokenizer.bos_id] * 2:
        # The prompt spells the token that was about to be put before it.
        return tokens[1:]
    return tokens


def _only_prompt(body: Body) -> object:
    """The prompt, also when it is the one entry of a list of prompts."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise ApiError(
                f"prompt holds {len(prompt)} prompts, and this version takes one a request",
                param="prompt",
            )
        prompt = prompt[0]
    if not isinstance(prompt, str | list) or not prompt:
        raise ApiError("prompt must be a non-empty string or list of token ids", param="prompt")
    return prompt
