"""What a finished reply reports about itself: usage, and the `tensorfold` block."""

import hashlib
from collections.abc import Sequence
from typing import Any

from tensorfold.chat.thinking import loop_seen
from tensorfold.serving.reply import Asked, ReplyEnd

ENGINE = "tensorfold-jax"


def usage(asked: Sequence[Asked], ends: Sequence[ReplyEnd], n: int) -> dict[str, Any]:
    """OpenAI's usage object for a request's replies, `n` to a prompt; a prompt counts once."""
    prompt = sum(len(one.request.prompt) for one in asked[::n])
    completion = sum(len(end.tokens) for end in ends)
    cached = sum(end.stats.cached_tokens for end in ends[::n])
    reasoning = sum(end.reasoning_tokens for end in ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def runtime(asked: Asked, end: ReplyEnd) -> dict[str, Any]:
    """The `tensorfold` block: what was run, and how fast."""
    request, stats = asked.request, end.stats
    count = len(end.tokens)
    return {
        "engine": ENGINE,
        "tokens_per_second": round(_ratio(max(count - 1, 0), stats.decode_seconds), 2),
        "seconds": round(stats.decode_seconds, 6),
        "time_to_first_token": round(end.seconds_before + stats.time_to_first_token, 6),
        "prefill_seconds": round(stats.prefill_seconds, 6),
        "sampling": "exact" if request.sampling.temperature > 0 else "greedy",
        "drafts": request.draft,
        "token_sha": token_sha(end.tokens),
        "rounds": stats.rounds,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "acceptance_rate": round(_ratio(stats.accepted, stats.drafted), 4),
        "tokens_per_round": round(_ratio(count, stats.rounds), 4),
    } | _loop(asked, end)


def _loop(asked: Asked, end: ReplyEnd) -> dict[str, Any]:
    """The repetition for which the reasoning was closed, if it was."""
    period = loop_seen(asked.thinking, end.tokens) if asked.thinking else None
    return {} if period is None else {"loop": {"period": period}}


def token_sha(tokens: Sequence[int]) -> str:
    """A short fingerprint of a reply: equal exactly when its tokens are."""
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()[:12]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
