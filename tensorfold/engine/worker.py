"""One step after another: the part of the engine that needs no thread."""

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tensorfold.engine.interface import EngineStats, Event, FinishReason, NewTokens
from tensorfold.engine.reply import Reply
from tensorfold.engine.scheduler import Scheduler
from tensorfold.ops.sample import NO_TOKEN
from tensorfold.runtime.packed import Span
from tensorfold.runtime.step import Drawn

_log = logging.getLogger(__name__)

_RATE_SECONDS = 2.0


class Runner(Protocol):
    """What runs steps: a `StepFunction`, or a toy in tests."""

    def run(
        self, spans: Sequence[Span], block_table: np.ndarray, settings: np.ndarray
    ) -> list[Drawn]:
        """Run one step; an answer for each span."""
        ...

    def reset(self) -> None:
        """Start over with empty state after a failed step."""
        ...


class Worker:
    """Runs a scheduler's steps and delivers what they draw."""

    def __init__(self, runner: Runner, scheduler: Scheduler):
        self.runner = runner
        self.scheduler = scheduler
        self._pages = scheduler.free_pages
        self._requests = self._cancelled = self._steps = 0
        self._prompt_tokens = self._generated = 0
        self._recent: deque[tuple[float, int, int]] = deque()

    @property
    def idle(self) -> bool:
        """Whether no reply is waiting or running."""
        return not (self.scheduler.waiting or self.scheduler.running)

    def add(self, reply: Reply) -> None:
        """Queue a reply."""
        self._requests += 1
        self.scheduler.waiting.append(reply)

    def cancel(self, request_id: str) -> None:
        """End the reply of this id, wherever it is."""
        for reply in [*self.scheduler.running, *self.scheduler.waiting]:
            if reply.request.id == request_id:
                self._end(reply, "cancelled")

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        """End every reply, running and waiting."""
        for reply in [*self.scheduler.running, *self.scheduler.waiting]:
            self._end(reply, reason, error)

    def step(self) -> None:
        """Admit, run one step, deliver. A failed step ends the replies that ran in it."""
        now = time.monotonic()
        for reply in self.scheduler.admit():
            reply.started = now
        planned = self.scheduler.plan()
        if not planned:
            return
        try:
            drawn = self.runner.run(
                [span for _, span in planned], self.scheduler.block_table, self.scheduler.settings
            )
        except Exception as error:
            _log.exception("a step failed")
            for reply in list(self.scheduler.running):
                self._end(reply, "error", f"the step failed: {error}")
            self.runner.reset()
            return
        self._count(planned)
        for (reply, span), answer in zip(planned, drawn, strict=True):
            reply.filled += len(span.tokens)
            if answer.tokens:
                self._take(reply, answer)

    def stats(self, recompilations: int = 0) -> EngineStats:
        """Counters and gauges; rates are over the last two seconds."""
        since = time.monotonic() - _RATE_SECONDS
        recent = [entry for entry in tuple(self._recent) if entry[0] >= since]
        return EngineStats(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            pages_used=self._pages - self.scheduler.free_pages,
            pages_total=self._pages,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated,
            requests=self._requests,
            cancelled=self._cancelled,
            steps=self._steps,
            recompilations=recompilations,
            decode_tokens_per_second=sum(drawn for _, _, drawn in recent) / _RATE_SECONDS,
            prefill_tokens_per_second=sum(read for _, read, _ in recent) / _RATE_SECONDS,
        )

    def _count(self, planned: list[tuple[Reply, Span]]) -> None:
        read = sum(len(span.tokens) for reply, span in planned if not reply.decoding)
        drawn = sum(span.draws for _, span in planned)
        self._steps += 1
        self._prompt_tokens += read
        self._generated += drawn
        now = time.monotonic()
        self._recent.append((now, read, drawn))
        while self._recent[0][0] < now - _RATE_SECONDS:
            self._recent.popleft()

    def _take(self, reply: Reply, answer: Drawn) -> None:
        for index, token in enumerate(answer.tokens):
            if token == NO_TOKEN:
                self._end(reply, "error", "the model's logits are not finite numbers")
                return
            reason = reply.take(token)
            if not self._deliver(reply, NewTokens((token,), answer.digests[index : index + 1])):
                self._end(reply, "cancelled")
                return
            if reason:
                self._end(reply, reason)
                return

    def _end(self, reply: Reply, reason: FinishReason, error: str | None = None) -> None:
        self.scheduler.release(reply)
        self._cancelled += reason == "cancelled"
        self._deliver(reply, reply.finished(reason, error))

    @staticmethod
    def _deliver(reply: Reply, event: Event) -> bool:
        """Hand over an event; False if the receiver failed, which ends only its own reply."""
        try:
            reply.deliver(event)
        except Exception:
            _log.exception("request %s could not take an event", reply.request.id)
            return False
        return True
