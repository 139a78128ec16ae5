"""A reply in the making."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tensorfold.engine.interface import Event, Finished, FinishReason, ReplyStats, Request


@dataclass
class Reply:
    """One request's progress. Its sequence is the prompt and then the tokens drawn so far."""

    request: Request
    deliver: Callable[[Event], None]
    settings: np.ndarray
    """The packed sampling settings, int32 [6]."""
    tokens: list[int] = field(default_factory=list)
    filled: int = 0
    """Positions of the sequence whose rows have run."""
    lane: int = -1
    pages: list[int] = field(default_factory=list)
    rounds: int = 0
    submitted: float = field(default_factory=time.monotonic)
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0

    @property
    def capacity(self) -> int:
        """Positions that the finished sequence may take."""
        return len(self.request.prompt) + self.request.max_tokens

    @property
    def remaining(self) -> int:
        """Rows to run before the next draw; 1 while decoding."""
        return len(self.request.prompt) + len(self.tokens) - self.filled

    @property
    def decoding(self) -> bool:
        """Whether the prompt has been read."""
        return bool(self.tokens)

    def next_tokens(self, most: int) -> list[int]:
        """The sequence's next tokens to run, `most` at the most."""
        if self.decoding:
            return self.tokens[self.filled - len(self.request.prompt) :][:most]
        return list(self.request.prompt[self.filled : self.filled + most])

    def take(self, token: int) -> FinishReason | None:
        """Add a drawn token; the reason if it ends the reply."""
        self.last_token = time.monotonic()
        if not self.tokens:
            self.first_token = self.last_token
        self.tokens.append(token)
        self.rounds += 1
        if token in self.request.end_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.request.max_tokens else None

    def finished(self, reason: FinishReason, error: str | None = None) -> Finished:
        """The last event, with what the reply cost."""
        begun = bool(self.tokens)
        stats = ReplyStats(
            prompt_tokens=len(self.request.prompt),
            completion_tokens=len(self.tokens),
            time_to_first_token=self.first_token - self.submitted if begun else 0.0,
            prefill_seconds=self.first_token - self.started if begun else 0.0,
            decode_seconds=self.last_token - self.first_token if begun else 0.0,
            rounds=self.rounds,
        )
        return Finished(reason, stats, error)
