"""What the engine is asked and what it answers: the one door between text and tokens.

`serving` and `chat` know the engine through this file only, so they are tested against a scripted
engine without a model; the engine knows nothing of HTTP, templates or text.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn (docs/exactness.md, "The sampling rule").

    `temperature <= 0` is greedy. `top_k <= 0` keeps every token, `top_p` cuts only when strictly
    between 0 and 1, `min_p = 0` is off. `seed` is any integer (its low 64 bits count); None derives
    one from the prompt's tokens.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None


@dataclass(frozen=True)
class Request:
    """One reply to generate: `prompt` is a non-empty tuple of token ids.

    The reply ends with the first token in `end_ids` (it is part of the reply's tokens) or after
    `max_tokens` tokens. `len(prompt) + max_tokens` must not exceed `Limits.context`.
    `draft=False` asks for plain one-token-at-a-time decoding; the tokens are the same.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    end_ids: frozenset[int] = frozenset()
    draft: bool = True


@dataclass(frozen=True)
class ReplyStats:
    """What a reply cost. Seconds are wall time; `time_to_first_token` counts from `submit`."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    time_to_first_token: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class NewTokens:
    """The next tokens of a reply, in order; never empty.

    `digests` has 32 bits a token over the bits of all the logits it was drawn from, where the
    engine computes them: two replies with equal digests were computed bit for bit alike.
    """

    ids: tuple[int, ...]
    digests: tuple[int, ...] = ()


@dataclass(frozen=True)
class Finished:
    """The last event of every reply. `error` is a sentence when `reason` is "error"."""

    reason: FinishReason
    stats: ReplyStats
    error: str | None = None


Event = NewTokens | Finished


@dataclass(frozen=True)
class Limits:
    """What an engine can hold: `context` tokens a sequence, `lanes` replies at once."""

    context: int
    vocab_size: int
    lanes: int


@dataclass(frozen=True)
class EngineStats:
    """Counters since the start, and gauges of this moment."""

    running: int = 0
    waiting: int = 0
    pages_used: int = 0
    pages_total: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    requests: int = 0
    cancelled: int = 0
    steps: int = 0
    recompilations: int = 0
    decode_tokens_per_second: float = 0.0
    prefill_tokens_per_second: float = 0.0


class EngineClosed(RuntimeError):
    """The engine has stopped and takes no more requests."""


class Engine(Protocol):
    """Generates replies. Every method may be called from any thread."""

    @property
    def limits(self) -> Limits:
        """The engine's fixed capacity."""
        ...

    def submit(self, request: Request, deliver: Callable[[Event], None]) -> None:
        """Queue `request` and return at once.

        `deliver` is called from the engine's thread with each event in order and must not block;
        the last one is always a `Finished`. Raises `ValueError` for a request that can never run
        (empty prompt, ids out of range, longer than the context), `EngineClosed` after `close`.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """End a reply at the next step, or before it starts; unknown ids are ignored."""
        ...

    def stats(self) -> EngineStats:
        """Counters and gauges."""
        ...

    def close(self) -> None:
        """End every reply as cancelled and stop."""
        ...
