"""Log probabilities as the APIs write them: chat's rows, the older lists, vLLM's for prompts."""

import codecs
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tensorfold.chat.pieces import Token
from tensorfold.checkpoints.interface import Tokenizer
from tensorfold.engine.interface import TokenLogprobs
from tensorfold.serving.fields import Kind, integer

MOST_ALTERNATIVES = 20
_LEAST = -9999.0
"""Written for a token that can't be, since JSON has no infinity."""


def alternatives() -> Kind[int]:
    """How many of the likeliest tokens to tell of."""
    return integer(0, MOST_ALTERNATIVES)


def spelling(tokenizer: Tokenizer, token: int) -> str:
    """A token's text; bytes that are no text by themselves are written `bytes:\\xf0\\x9f`."""
    if token in tokenizer.control_ids:
        return tokenizer.token_text(token)
    data = tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def decode(tokenizer: Tokenizer, tokens: Iterable[int]) -> str:
    """The text of tokens, control tokens written out."""
    return b"".join(map(tokenizer.token_bytes, tokens)).decode("utf-8", errors="replace")


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[Token]) -> dict[str, Any]:
    """Chat's form: a row for every token that has one."""
    rows = []
    for token in tokens:
        if (found := token.logprobs) is not None:
            row = _entry(tokenizer, found.token, found.logprob)
            row["top_logprobs"] = [_entry(tokenizer, *one) for one in found.top]
            rows.append(row)
    return {"content": rows, "refusal": None}


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    control = token in tokenizer.control_ids
    return {
        "token": spelling(tokenizer, token),
        "logprob": max(logprob, _LEAST),
        "bytes": None if control else list(tokenizer.token_bytes(token)),
    }


def text_logprobs(tokenizer: Tokenizer, tokens: Sequence[Token], start: int = 0) -> dict[str, Any]:
    """The older form: a list for each kind of fact; a token without its own gets null.

    start: where the tokens' text begins in the text that offsets count in
    """
    found = [token.logprobs for token in tokens]
    return {
        "tokens": [spelling(tokenizer, token.id) for token in tokens],
        "token_logprobs": [one and max(one.logprob, _LEAST) for one in found],
        "top_logprobs": [one and _by_text(tokenizer, one) for one in found],
        "text_offset": [start + token.offset for token in tokens],
    }


def _by_text(tokenizer: Tokenizer, found: TokenLogprobs) -> dict[str, float]:
    """The alternatives, and the token itself after them if it is none."""
    entries = dict([*found.top, (found.token, found.logprob)])
    return {spelling(tokenizer, token): max(p, _LEAST) for token, p in entries.items()}


def prompt_tokens(
    tokenizer: Tokenizer, prompt: Sequence[int], found: Sequence[TokenLogprobs]
) -> Iterator[Token]:
    """A prompt's tokens as a reply's are: the first has no log probability."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    offset = 0
    for token, logprobs in zip(prompt, [None, *found], strict=True):
        yield Token(token, logprobs, offset)
        offset += len(decoder.decode(tokenizer.token_bytes(token)))


def prompt_logprobs(
    tokenizer: Tokenizer, found: Sequence[TokenLogprobs]
) -> list[dict[str, dict[str, Any]] | None]:
    """vLLM's form: null for the first token, then an object by token id, the prompt's own first."""
    return [None, *(_by_id(tokenizer, one) for one in found)]


def _by_id(tokenizer: Tokenizer, found: TokenLogprobs) -> dict[str, dict[str, Any]]:
    ranked = [(found.token, found.logprob, found.rank)]
    ranked += [
        (token, logprob, place)
        for place, (token, logprob) in enumerate(found.top, start=1)
        if token != found.token
    ]
    return {
        str(token): {
            "logprob": max(logprob, _LEAST),
            "rank": rank,
            "decoded_token": spelling(tokenizer, token),
        }
        for token, logprob, rank in ranked
    }
