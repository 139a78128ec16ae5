"""POST /v1/completions: a raw prompt in, the text that follows it out."""

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quart import Response, request

from tensorfold.chat.pieces import Part, Piece, Token
from tensorfold.serving.answer import Said, Shape, answer, now
from tensorfold.serving.body import read_body
from tensorfold.serving.errors import ApiError
from tensorfold.serving.fields import (
    EMPTY,
    Body,
    Field,
    Unsupported,
    boolean,
    known_tokens,
    refuse,
    token_ids,
)
from tensorfold.serving.generation import Prompt, read_reply_options
from tensorfold.serving.service import Service

ADD_SPECIAL_TOKENS = Field(
    "add_special_tokens", boolean(), False, "Puts the tokenizer's own tokens around the text."
)
PROMPT_IDS = token_ids()
UNSUPPORTED = (
    Unsupported("suffix", EMPTY),
    Unsupported("logprobs", [False]),
)


@dataclass(frozen=True)
class TextShape(Shape):
    """Text completions and their chunks."""

    object: str = "text_completion"
    chunk_object: str = "text_completion"

    def opening(self, index: int) -> None:
        """Text completions start with their text."""

    def delta(self, index: int, part: Part) -> dict[str, Any]:
        """A piece of the text."""
        return _choice(index, part.text if isinstance(part, Piece) else "", None)

    def last(self, index: int, tokens: Sequence[Token], finish_reason: str) -> dict[str, Any]:
        """No text."""
        return _choice(index, "", finish_reason)

    def whole(self, index: int, said: Said) -> dict[str, Any]:
        """The completion."""
        return _choice(index, said.content, said.finish_reason)


def _choice(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}


async def completions(service: Service) -> Response:
    """Answer a completion request."""
    arrived = time.monotonic()
    body = await read_body(request)
    refuse(body, UNSUPPORTED)
    options = read_reply_options(body, service)
    add_special_tokens = ADD_SPECIAL_TOKENS.of(body)
    prompts = [
        Prompt(await raw_prompt(service, prompt, add_special_tokens=add_special_tokens))
        for prompt in _prompts(body)
    ]
    shape = TextShape(f"cmpl-{uuid.uuid4().hex}", options.model, now())
    return await answer(service, options, prompts, shape, param="prompt", arrived=arrived)


async def raw_prompt(service: Service, prompt: object, *, add_special_tokens: bool) -> list[int]:
    """The tokens of a raw prompt: a string, or token ids taken as they are."""
    if not isinstance(prompt, str):
        ids = PROMPT_IDS.read(prompt, "prompt")
        return list(known_tokens(ids, "prompt", service.engine.limits.vocab_size))
    tokenizer = service.tokenizer
    tokens = await asyncio.to_thread(
        tokenizer.encode, prompt, add_special_tokens=add_special_tokens
    )
    if add_special_tokens and tokens[:2] == [tokenizer.bos_id] * 2:
        # The prompt spells the token that was about to be put before it.
        return tokens[1:]
    return tokens


def _prompts(body: Body) -> list[object]:
    """The request's prompts, none of them empty: one of a kind, or a list of them."""
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)
    prompts = prompt if several and isinstance(prompt, list) else [prompt]
    if not all(isinstance(one, str | list) and one for one in prompts):
        raise ApiError(
            "prompt must be a non-empty string or list of token ids, or a list of those",
            param="prompt",
        )
    return prompts
