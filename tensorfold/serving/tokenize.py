"""POST /tokenize and /detokenize: the tokens a request would run with, and the text of tokens."""

from typing import Any

from quart import Response, request

from tensorfold.serving.body import read_body
from tensorfold.serving.chat_completions import chat_prompt
from tensorfold.serving.completions import raw_prompt
from tensorfold.serving.errors import ApiError
from tensorfold.serving.fields import Field, boolean, known_tokens, token_ids
from tensorfold.serving.service import Service
from tensorfold.serving.sse import json_response

ADD_SPECIAL_TOKENS = Field(
    "add_special_tokens", boolean(), True, "Puts the tokenizer's own tokens around a prompt."
)
ADD_GENERATION_PROMPT = Field(
    "add_generation_prompt", boolean(), True, "Ends messages where the assistant's next begins."
)
RETURN_TOKEN_STRS = Field(
    "return_token_strs", boolean(), False, "Also sends the tokens as the vocabulary spells them."
)
IDS = token_ids()
FIELDS: tuple[Field[Any], ...] = (ADD_SPECIAL_TOKENS, ADD_GENERATION_PROMPT, RETURN_TOKEN_STRS)


async def tokenize(service: Service) -> Response:
    """The tokens of a prompt, or of a chat request's messages."""
    body = await read_body(request)
    return_token_strs = RETURN_TOKEN_STRS.of(body)
    add_special_tokens = ADD_SPECIAL_TOKENS.of(body)
    add_generation_prompt = ADD_GENERATION_PROMPT.of(body)
    prompt = body.get("prompt")
    if body.get("messages") is not None:
        tokens, _ = await chat_prompt(service, body, add_generation_prompt=add_generation_prompt)
    elif isinstance(prompt, str):
        tokens = await raw_prompt(service, prompt, add_special_tokens=add_special_tokens)
    else:
        raise ApiError("prompt must be a string, or messages a list", param="prompt")
    answer = {
        "count": len(tokens),
        "max_model_len": service.engine.limits.context,
        "tokens": tokens,
    }
    if return_token_strs:
        answer["token_strs"] = [service.tokenizer.token_text(token) for token in tokens]
    return json_response(answer)


async def detokenize(service: Service) -> Response:
    """The text of tokens, control tokens included."""
    body = await read_body(request)
    tokens = body.get("tokens")
    if isinstance(tokens, list) and len(tokens) == 1 and isinstance(tokens[0], list):
        tokens = tokens[0]
    ids = known_tokens(IDS.read(tokens, "tokens"), "tokens", service.tokenizer.vocab_size)
    data = b"".join(map(service.tokenizer.token_bytes, ids))
    return json_response({"prompt": data.decode("utf-8", errors="replace")})


async def tokenizer_info(service: Service) -> Response:
    """What clients that build prompts themselves want to know of the tokenizer."""
    tokenizer, chat = service.tokenizer, service.chat
    ends = sorted(tokenizer.end_ids or service.end_ids)
    bos = tokenizer.bos_id
    return json_response(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "vocab_size": tokenizer.vocab_size,
            "model_max_length": service.engine.limits.context,
            "bos_token": None if bos is None else tokenizer.token_text(bos),
            "eos_token": tokenizer.token_text(ends[0]) if ends else None,
            "pad_token": None,
            "chat_template": None if chat is None else chat.template_source,
        }
    )
