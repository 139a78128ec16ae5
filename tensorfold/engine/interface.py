"""What the engine is asked and what it answers: the one door between text and tokens.

`serving` and `chat` know the engine through this file only, so they are tested against a scripted
engine without a model; the engine knows nothing of HTTP, templates or text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn (docs/exactness.md, "The sampling rule").

    `temperature <= 0` is greedy. `top_k <= 0` keeps every token, `top_p` cuts only when strictly
    between 0 and 1, `min_p = 0` is off. `seed` is any integer (its low 64 bits count); None derives
    one from the prompt's tokens.

    The penalties and biases change the logits first, as functions of the tokens before: the
    repetition penalty divides a positive and multiplies a negative logit of every token in the
    prompt or the reply; the frequency penalty is subtracted once for each time, and the presence
    penalty once for all the times, that the token stands in the reply; then `logit_bias`, (token,
    bias) pairs, is added. End tokens can't be drawn before the reply has `min_tokens` tokens.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0


class Constraint(Protocol):
    """Which tokens may come next in one reply: a grammar, a thinking budget, a forced call.

    A function of the reply's tokens so far, used by the engine's thread alone. An exception from a
    method ends its own reply as an error.
    """

    def masks(self, drafts: Sequence[int]) -> Sequence[np.ndarray | None]:
        """The masks at the next place and after each of `drafts`, for as long as the drafts are
        allowed: one to `len(drafts) + 1` of them. A mask is as engine/masks.py makes it and allows
        at least one token; None allows every one. Leaves the constraint where it was."""
        ...

    def forced(self) -> Sequence[int]:
        """Tokens that must come next, in order, as far as this is known; often none."""
        ...

    def accept(self, token: int) -> None:
        """The reply's next token, which the mask at this place allowed."""
        ...


@dataclass(frozen=True)
class Request:
    """One reply to generate: `prompt` is a non-empty tuple of token ids.

    The reply ends with the first token in `end_ids` (it is part of the reply's tokens) or after
    `max_tokens` tokens. `len(prompt) + max_tokens` must not exceed `Limits.context`.
    `draft=False` asks for plain one-token-at-a-time decoding; the tokens are the same.

    background: yields to every reply that is not
    cache_salt: replies share kept prefixes with those of the same salt only
    constraint: makes a fresh `Constraint`, again when the reply has to be replayed
    logprobs: with each token, its log probability and those of this many likeliest ones (0 to 20)
    prompt_logprobs: the same for the prompt's tokens; such a prompt is read from its start
    """

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    end_ids: frozenset[int] = frozenset()
    draft: bool = True
    background: bool = False
    cache_salt: str = ""
    constraint: Callable[[], Constraint] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True)
class TokenLogprobs:
    """A token under the model's raw distribution: before penalties, masks, temperature and cuts.

    Natural logarithms. `rank` counts the tokens at least as likely, itself included. `top` has the
    likeliest tokens as (id, log probability), likeliest first, lower ids first among equals.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class ReplyStats:
    """What a reply cost. Seconds are wall time; `time_to_first_token` counts from `submit`.

    cached_tokens: of the prompt's, those whose rows were there already
    rounds: steps that drew a token; drafted, accepted: draft tokens checked and kept
    preempted: times the reply gave up its lane and was replayed
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    time_to_first_token: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    preempted: int = 0


@dataclass(frozen=True)
class NewTokens:
    """The next tokens of a reply, in order; never empty.

    `digests` has 32 bits a token over the bits of all the logits it was drawn from, where the
    engine computes them: two replies with equal digests were computed bit for bit alike.
    """

    ids: tuple[int, ...]
    digests: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class PromptLogprobs:
    """Before any token, if asked for: an entry for every prompt token but the first."""

    tokens: tuple[TokenLogprobs, ...]


@dataclass(frozen=True)
class Finished:
    """The last event of every reply. `error` is a sentence when `reason` is "error"."""

    reason: FinishReason
    stats: ReplyStats
    error: str | None = None


Event = NewTokens | PromptLogprobs | Finished


@dataclass(frozen=True)
class Limits:
    """What an engine can hold: `context` tokens a sequence, `lanes` replies at once, and `queue`
    replies that wait for a lane (None: any number), background ones not counted against others."""

    context: int
    vocab_size: int
    lanes: int
    queue: int | None = None


@dataclass(frozen=True)
class EngineStats:
    """Counters since the start, and gauges of this moment.

    pages_used are held by replies, pages_cached kept for later ones; running_tokens are those that
    running replies have so far; cached_tokens were found instead of read; preempted counts replies
    put back in the queue; step_seconds is how long the step that runs now has taken, 0 between
    steps.
    """

    running: int = 0
    waiting: int = 0
    running_tokens: int = 0
    pages_used: int = 0
    pages_cached: int = 0
    pages_total: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    requests: int = 0
    cancelled: int = 0
    preempted: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    recompilations: int = 0
    decode_tokens_per_second: float = 0.0
    prefill_tokens_per_second: float = 0.0


class EngineClosed(RuntimeError):
    """The engine has stopped and takes no more requests."""


class EngineFull(RuntimeError):
    """As many replies wait as the engine lets wait; later there may be room."""


class Engine(Protocol):
    """Generates replies. Every method may be called from any thread."""

    @property
    def limits(self) -> Limits:
        """The engine's fixed capacity."""
        ...

    def submit(
        self, request: Request, deliver: Callable[[Event], None], *, joins: bool = False
    ) -> None:
        """Queue `request` and return at once. One that `joins` belongs to a request that was taken,
        as another choice of it, and is taken however many wait.

        `deliver` is called from the engine's thread with each event in order and must not block;
        the last one is always a `Finished`. Raises `ValueError` for a request that can never run
        (empty prompt, ids out of range, longer than the context), `EngineFull` when the queue is,
        `EngineClosed` after `close`.
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
