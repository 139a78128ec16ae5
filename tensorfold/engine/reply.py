"""A reply in the making."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tensorfold.engine.interface import (
    Event,
    Finished,
    FinishReason,
    ReplyStats,
    Request,
    TokenLogprobs,
)
from tensorfold.engine.pages import Holding
from tensorfold.engine.rules import Rules
from tensorfold.runtime.head import RowRules


@dataclass(eq=False)
class Reply:
    """One request's progress.

    `known` is its sequence: the prompt and the tokens drawn so far. Rows are run up to `filled`.
    A reply that gave up its lane starts again at 0 and keeps what it knows: its own tokens are then
    read like a prompt, each drawn once more and compared.
    """

    request: Request
    deliver: Callable[[Event], None]
    settings: np.ndarray
    """The packed sampling settings, int32 [6]."""
    rules: Rules | None = None
    """What acts on the logits before the draw, if anything does."""
    replayed: tuple[Rules, int] | None = None
    """While the reply runs again: its rules as they were after so many of its tokens."""
    known: list[int] = field(init=False)
    filled: int = 0
    lane: int = -1
    holding: Holding | None = None
    forced: list[int] = field(default_factory=list)
    """Tokens that the rules say must come next."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    passed_over: int = 0
    """Prompt chunks that went to others while this prompt waited."""
    cached: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    preempted: int = 0
    submitted: float = field(default_factory=time.monotonic)
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0

    def __post_init__(self) -> None:
        self.known = list(self.request.prompt)

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def drawn(self) -> int:
        """Tokens of the reply so far."""
        return len(self.known) - self.prompt_length

    @property
    def capacity(self) -> int:
        """Positions that the finished sequence may take."""
        return self.prompt_length + self.request.max_tokens

    @property
    def remaining(self) -> int:
        """Known tokens whose rows have not run; 1 while decoding."""
        return len(self.known) - self.filled

    @property
    def decoding(self) -> bool:
        """Whether the next row draws a new token."""
        return self.remaining == 1 and self.drawn > 0

    @property
    def most_drafts(self) -> int:
        """Drafts that could still be accepted: the last token of a reply is never one."""
        return self.request.max_tokens - self.drawn - 1

    def rules_again(self, position: int) -> RowRules:
        """The rules of the row at `position`, which draws a token that the reply has. To be asked
        for in order."""
        assert self.rules is not None
        rules, taken = self.replayed or (self.rules.anew(), 0)
        before = self.known[self.prompt_length + taken : position + 1]
        rules.accept(before)
        self.replayed = rules, taken + len(before)
        return rules.rows(())[0]

    def append(self, token: int) -> FinishReason | None:
        """Add a new token; the reason if it ends the reply."""
        self.last_token = time.monotonic()
        if not self.drawn:
            self.first_token = self.last_token
        self.known.append(token)
        if token in self.request.end_ids:
            return "stop"
        return "length" if self.drawn >= self.request.max_tokens else None

    def finished(self, reason: FinishReason, error: str | None = None) -> Finished:
        """The last event, with what the reply cost."""
        begun = self.drawn > 0
        stats = ReplyStats(
            prompt_tokens=self.prompt_length,
            cached_tokens=self.cached,
            completion_tokens=self.drawn,
            time_to_first_token=self.first_token - self.submitted if begun else 0.0,
            prefill_seconds=self.first_token - self.started if begun else 0.0,
            decode_seconds=self.last_token - self.first_token if begun else 0.0,
            rounds=self.rounds,
            drafted=self.drafted,
            accepted=self.accepted,
            preempted=self.preempted,
        )
        return Finished(reason, stats, error)
