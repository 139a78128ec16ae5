"""POST /v1/completions: a raw prompt in, the text that follows it out."""

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from quart import Response, request

from tensorfold.chat.pieces import Part, Piece, Token
from tensorfold.engine.interface import TokenLogprobs
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
    known_tokens,
    or_false,
    refuse,
    token_ids,
)
from tensorfold.serving.form import matching
from tensorfold.serving.generation import (
    MOST_REPLIES,
    REPLY_LIMITS,
    STREAM,
    Prompt,
    read_reply_options,
)
from tensorfold.serving.logprobs import (
    alternatives,
    decode,
    prompt_logprobs,
    prompt_tokens,
    text_logprobs,
)
from tensorfold.serving.service import Service

ADD_SPECIAL_TOKENS = Field(
    "add_special_tokens", boolean(), False, "Puts the tokenizer's own tokens around the text."
)
PROMPT_IDS = token_ids()
ECHO = Field("echo", boolean(), False, "Puts the prompt's text before the reply's.")
LOGPROBS: Field[int | None] = Field(
    "logprobs",
    or_false(alternatives()),
    None,
    "Tells each token's log probability, and as many of the likeliest tokens at each place.",
)
PROMPT_LOGPROBS: Field[int | None] = Field(
    "prompt_logprobs",
    or_false(alternatives()),
    None,
    "The same for the prompt's tokens; not in a stream.",
)
FIELDS: tuple[Field[Any], ...] = (ADD_SPECIAL_TOKENS, ECHO, LOGPROBS, PROMPT_LOGPROBS)
PROMPT_LOGPROBS_ALONE: Schema = {
    "if": {
        "properties": {PROMPT_LOGPROBS.name: {"type": "integer"}},
        "required": [PROMPT_LOGPROBS.name],
    },
    "then": {"properties": {name: {"enum": [False, None]} for name in (ECHO.name, STREAM.name)}},
}
"""The JSON Schema of bodies that ask for the prompt's log probabilities neither in a stream nor
with an echo, which has them itself."""
UNSUPPORTED = (Unsupported("suffix", EMPTY), Unsupported("thinking_budget", EMPTY))
_ONE_PROMPT = [{"type": "string", "minLength": 1}, {**PROMPT_IDS.schema, "minItems": 1}]
PROMPT: Schema = {
    "anyOf": [
        *_ONE_PROMPT,
        {"type": "array", "minItems": 1, "maxItems": MOST_REPLIES, "items": {"anyOf": _ONE_PROMPT}},
    ],
    "description": "The text or tokens to go on from, or several of them.",
}


@dataclass(frozen=True)
class TextShape(Shape):
    """Text completions and their chunks.

    only_prompt: the prompt is echoed and nothing is said after it
    """

    echo: bool = False
    only_prompt: bool = False
    object: str = "text_completion"
    chunk_object: str = "text_completion"

    def opening(self, index: int) -> dict[str, Any] | None:
        """The prompt's text or tokens, if they were asked for."""
        if not (self.echo or self.options.return_token_ids):
            return None
        if self.echo and self.options.logprobs is not None:
            # The log probabilities come with it.
            return None
        text = self._prompt_text(index) if self.echo else ""
        return _choice(index, text, None, None) | self._prompt_ids(index)

    def prompt(self, index: int, found: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The prompt's text with its log probabilities."""
        tokens = self._prompt_tokens(index, found)
        logprobs = text_logprobs(self.tokenizer, tokens)
        return _choice(index, self._prompt_text(index), logprobs, None) | self._prompt_ids(index)

    def delta(self, index: int, part: Part) -> dict[str, Any] | None:
        """A piece of the text."""
        if self.only_prompt or not isinstance(part, Piece):
            return None
        return self._said(index, part.text, part.tokens, None)

    def last(self, index: int, tokens: Sequence[Token], finish_reason: str) -> dict[str, Any]:
        """No text."""
        if self.only_prompt:
            return _choice(index, "", None, "length")
        return self._said(index, "", tokens, finish_reason)

    def whole(self, index: int, said: Said) -> dict[str, Any]:
        """The completion."""
        shown = [] if self.only_prompt else said.tokens
        found = said.prompt_logprobs
        text = "" if self.only_prompt else said.content
        before = self._prompt_tokens(index, found) if self.echo and found is not None else []
        if self.echo:
            text = self._prompt_text(index) + text
        logprobs = self._logprobs(index, shown, before)
        choice = _choice(index, text, logprobs, said.finish_reason)
        if self.options.prompt_logprobs is not None and found is not None and not self.echo:
            choice["prompt_logprobs"] = prompt_logprobs(self.tokenizer, found)
        return choice | self._prompt_ids(index) | self.token_ids(shown)

    def _said(
        self, index: int, text: str, tokens: Sequence[Token], finish_reason: str | None
    ) -> dict[str, Any]:
        logprobs = self._logprobs(index, tokens, []) if tokens else None
        return _choice(index, text, logprobs, finish_reason) | self.token_ids(tokens)

    def _logprobs(
        self, index: int, tokens: Sequence[Token], before: Sequence[Token]
    ) -> dict[str, Any] | None:
        if self.options.logprobs is None:
            return None
        start = len(self._prompt_text(index)) if self.echo else 0
        placed = [replace(token, offset=token.offset + start) for token in tokens]
        return text_logprobs(self.tokenizer, [*before, *placed])

    def _of(self, index: int) -> Sequence[int]:
        return self.prompts[index // self.options.n].tokens

    def _prompt_text(self, index: int) -> str:
        return decode(self.tokenizer, self._of(index))

    def _prompt_tokens(self, index: int, found: Sequence[TokenLogprobs]) -> list[Token]:
        return list(prompt_tokens(self.tokenizer, self._of(index), found))

    def _prompt_ids(self, index: int) -> dict[str, Any]:
        if not self.options.return_token_ids:
            return {}
        return {"prompt_token_ids": list(self._of(index))}


def _choice(
    index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


async def completions(service: Service) -> Response:
    """Answer a completion request."""
    arrived = time.monotonic()
    body = await read_body(request)
    refuse(body, UNSUPPORTED)
    options = read_reply_options(body, service)
    logprobs, prompt_logprobs = LOGPROBS.of(body), PROMPT_LOGPROBS.of(body)
    if prompt_logprobs is not None and options.stream:
        raise ApiError("prompt_logprobs is not sent in a stream", param="prompt_logprobs")
    echo = ECHO.of(body)
    if echo and prompt_logprobs is not None:
        raise ApiError("prompt_logprobs and echo can't both be asked for", param="prompt_logprobs")
    only_prompt = echo and options.max_tokens is None and _asks_for_none(body)
    options = replace(
        options,
        logprobs=logprobs,
        prompt_logprobs=logprobs if echo else prompt_logprobs,
        max_tokens=1 if only_prompt else options.max_tokens,
    )
    add_special_tokens = ADD_SPECIAL_TOKENS.of(body)
    options, constraint = await matching(service, body, options)
    prompts = [
        Prompt(
            await raw_prompt(service, prompt, add_special_tokens=add_special_tokens),
            constraint=constraint,
        )
        for prompt in _prompts(body)
    ]
    reply_id = f"cmpl-{uuid.uuid4().hex}"
    shape = TextShape(
        reply_id,
        options.model,
        now(),
        service.tokenizer,
        options,
        prompts,
        echo=echo,
        only_prompt=only_prompt,
    )
    return await answer(service, shape, param="prompt", arrived=arrived)


def _asks_for_none(body: Body) -> bool:
    """Whether a reply limit is zero and not just absent."""
    return any(body.get(field.name) is not None for field in REPLY_LIMITS)


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
