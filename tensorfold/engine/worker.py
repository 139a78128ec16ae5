"""One step after another: the part of the engine that needs no thread."""

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import numpy as np

from tensorfold.engine.drafts.drafting import MOST_BESIDE_SNAPSHOTS, MOST_DRAFTS, Drafting
from tensorfold.engine.interface import (
    EngineStats,
    Event,
    FinishReason,
    NewTokens,
    PromptLogprobs,
    TokenLogprobs,
)
from tensorfold.engine.reply import Reply
from tensorfold.engine.scheduler import Scheduler
from tensorfold.ops.sample import NO_TOKEN
from tensorfold.runtime.head import HeadDrawn, HeadRow, RowRules
from tensorfold.runtime.packed import Span
from tensorfold.runtime.step import Drawn

_log = logging.getLogger(__name__)

_RATE_SECONDS = 2.0


class Runner(Protocol):
    """What runs steps: a `StepFunction`, or a toy in tests."""

    @property
    def buckets(self) -> Sequence[int]:
        """Rows that a step may have, smallest first."""
        ...

    def run(
        self, spans: Sequence[Span], block_table: np.ndarray, settings: np.ndarray
    ) -> list[Drawn]:
        """Run one step; an answer for each span."""
        ...

    def draw(self, rows: Sequence[HeadRow]) -> list[HeadDrawn]:
        """Draw from rows of the last step under rules of their own."""
        ...

    def hidden(self) -> np.ndarray:
        """Every row's hidden vector of the last step, [R, D]."""
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Make a page hold what another does."""
        ...

    def copy_lane(self, source: int, target: int) -> None:
        """Make a lane's own state, or a slot's after the lanes, what another's is."""
        ...

    def reset(self) -> None:
        """Start over with empty state after a failed step."""
        ...


@dataclass
class Part:
    """One reply's part of a step: its span, the drafts at its end, and the rules of its drawn rows
    if it has any."""

    reply: Reply
    span: Span
    drafts: list[int] = field(default_factory=list)
    rules: list[RowRules] = field(default_factory=list)


@dataclass(frozen=True)
class Draw:
    """A drawn token, with what is told of it."""

    token: int
    digest: int
    logprobs: TokenLogprobs | None = None


class Worker:
    """Runs a scheduler's steps and delivers what they draw."""

    def __init__(self, runner: Runner, scheduler: Scheduler, drafting: Drafting | None = None):
        self.runner = runner
        self.scheduler = scheduler
        self._drafting = drafting or Drafting(runner.buckets)
        snapshots = scheduler.pool.snapshots is not None
        self._most_drafts = MOST_BESIDE_SNAPSHOTS if snapshots else MOST_DRAFTS
        self._requests = self._cancelled = self._steps = 0
        self._prompt_tokens = self._cached = self._generated = 0
        self._drafted = self._accepted = 0
        self._step_started = 0.0
        self._recent: deque[tuple[float, int, int]] = deque()

    @property
    def idle(self) -> bool:
        """Whether no reply is waiting or running."""
        return not (self.scheduler.running or self.scheduler.waiting)

    def add(self, reply: Reply) -> None:
        """Queue a reply."""
        self._requests += 1
        self.scheduler.add(reply)

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
        self._step_started = time.monotonic()
        try:
            self._step()
        finally:
            self._step_started = 0.0

    def _step(self) -> None:
        for reply in self.scheduler.admit():
            reply.started = reply.started or self._step_started
        parts = self._plan()
        if not parts:
            return
        started = time.monotonic()
        try:
            draws = self._run(parts)
        except Exception as error:
            _log.exception("a step failed")
            for reply in list(self.scheduler.running):
                self._end(reply, "error", f"the step failed: {error}")
            self.scheduler.reset()
            self.runner.reset()
            return
        self._time(parts, time.monotonic() - started)
        read = sum(len(part.span.tokens) for part in parts if not part.reply.decoding)
        drawn = sum(self._take(part, drawn) for part, drawn in zip(parts, draws, strict=True))
        if self._drafting.takes_hidden:
            self._tell(parts)
        self._count(read, drawn)

    def stats(self, recompilations: int = 0) -> EngineStats:
        """Counters and gauges; rates are over the last two seconds."""
        now, step_started = time.monotonic(), self._step_started
        recent = [entry for entry in tuple(self._recent) if entry[0] >= now - _RATE_SECONDS]
        pool, running = self.scheduler.pool, tuple(self.scheduler.running)
        return EngineStats(
            running=len(running),
            waiting=len(self.scheduler.waiting),
            running_tokens=sum(reply.drawn for reply in running),
            pages_used=pool.held,
            pages_cached=pool.kept,
            pages_total=pool.total,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached,
            generated_tokens=self._generated,
            drafted=self._drafted,
            accepted=self._accepted,
            requests=self._requests,
            cancelled=self._cancelled,
            preempted=self.scheduler.preempted,
            steps=self._steps,
            step_seconds=now - step_started if step_started else 0.0,
            recompilations=recompilations,
            decode_tokens_per_second=sum(drawn for _, _, drawn in recent) / _RATE_SECONDS,
            prefill_tokens_per_second=sum(read for _, read, _ in recent) / _RATE_SECONDS,
        )

    def _plan(self) -> list[Part]:
        """The next step: a row of every decoding reply, and either drafts after them or a chunk of
        a prompt."""
        decoding = self.scheduler.decoding()
        chunk = self.scheduler.next_chunk(len(decoding))
        parts = []
        limits = self.scheduler.limits
        if chunk is None:
            for reply in decoding:
                # A draft source may keep state of its own on the reply's pages.
                self.scheduler.make_room(reply, 1 + min(self._most_drafts, reply.most_drafts))
            most_rows = min(limits.alone, limits.beside)
            drafts = self._drafting.propose(decoding, most_rows, self._most_drafts)
        else:
            drafts = [[] for _ in decoding]
        for reply, proposed in zip(decoding, drafts, strict=True):
            parts.append(self._part(reply, 1, proposed))
        if chunk is not None:
            parts.append(self._part(*chunk, []))
        return [part for part in parts if part is not None]

    def _part(self, reply: Reply, rows: int, drafts: list[int]) -> Part | None:
        """The reply's next known rows and `drafts`, as far as its rules let them come. None if its
        rules failed, which ends it."""
        rules: list[RowRules] = []
        if reply.rules:
            try:
                # Rows that draw once more what the reply has, under the rules that they had.
                first, end = max(reply.filled, reply.prompt_length - 1), reply.filled + rows
                again = range(first, min(end, len(reply.known) - 1))
                rules = [reply.rules_again(position) for position in again]
                if rows == reply.remaining:
                    new = reply.rules.rows(drafts)
                    rules, drafts = rules + new, drafts[: len(new) - 1]
            except Exception as error:
                self._fail(reply, error)
                return None
        tokens = reply.known[reply.filled : reply.filled + rows] + drafts
        self.scheduler.make_room(reply, len(tokens))
        # Rows from the prompt's last on draw; those of a reply that runs again draw what they drew.
        quiet = max(0, reply.prompt_length - 1 - reply.filled)
        draws = max(0, len(tokens) - quiet)
        if not _draws_in_step(reply):
            draws = 0
        masks = [row.mask for row in rules] if draws else ()
        return Part(reply, Span(reply.lane, reply.filled, tokens, draws, masks), drafts, rules)

    def _run(self, parts: Sequence[Part]) -> list[list[Draw]]:
        """Run the step; what was drawn for each part."""
        scheduler = self.scheduler
        for source, target in scheduler.copies:
            self.runner.copy_page(source, target)
        scheduler.copies.clear()
        for source, target in scheduler.lane_copies:
            self.runner.copy_lane(source, target)
        scheduler.lane_copies.clear()
        answers = self.runner.run(
            [part.span for part in parts], scheduler.block_table, scheduler.settings
        )
        return self._draws(parts, answers)

    def _draws(self, parts: Sequence[Part], answers: Sequence[Drawn]) -> list[list[Draw]]:
        """What was drawn for each part: in the step, or by the head for all others together."""
        asked: list[list[HeadRow]] = []
        start = 0
        for part in parts:
            asked.append([] if _draws_in_step(part.reply) else _head_rows(part, start))
            start += len(part.span.tokens)
        rows = [row for each in asked for row in each]
        drawn = iter(self.runner.draw(rows) if rows else [])
        return [
            [Draw(*pair) for pair in zip(answer.tokens, answer.digests, strict=True)]
            if _draws_in_step(part.reply)
            else _head_draws(part, own, list(islice(drawn, len(own))))
            for part, answer, own in zip(parts, answers, asked, strict=True)
        ]

    def _take(self, part: Part, draws: Sequence[Draw]) -> int:
        """Deliver what stands of a part's draws; how many tokens are new."""
        reply, span = part.reply, part.span
        self.scheduler.advance(reply, span.position + len(span.tokens) - len(part.drafts))
        position = span.position + len(span.tokens) - len(draws) + 1
        new: list[Draw] = []
        for draw in draws:
            if draw.token == NO_TOKEN:
                self._end(reply, "error", "the model's logits are not finite numbers")
                return 0
            if position < len(reply.known):
                if reply.known[position] != draw.token:
                    self._end(reply, "error", "a token came out otherwise when it was replayed")
                    return 0
                position += 1
                continue
            new.append(draw)
            kept = len(new) <= len(part.drafts) and part.drafts[len(new) - 1] == draw.token
            if not kept or draw.token in reply.request.end_ids:
                break
        if new:
            self._append(reply, part.drafts, new[: reply.request.max_tokens - reply.drawn])
        return len(new)

    def _tell(self, parts: Sequence[Part]) -> None:
        """Tell the drafts of the hidden vectors of rows that stand."""
        hidden, row = self.runner.hidden(), 0
        for reply, span in ((part.reply, part.span) for part in parts):
            if reply.holding is not None:
                standing = min(len(span.tokens), len(reply.known) - 1 - span.position)
                self._drafting.saw(reply, span.position, hidden[row : row + standing])
            row += len(span.tokens)

    def _append(self, reply: Reply, drafts: Sequence[int], new: Sequence[Draw]) -> None:
        tokens = tuple(draw.token for draw in new)
        accepted = sum(draft == token for draft, token in zip(drafts, tokens, strict=False))
        reply.rounds += 1
        reply.drafted += len(drafts)
        reply.accepted += accepted
        self._drafted += len(drafts)
        self._accepted += accepted
        self._drafting.observe(reply, tokens, len(drafts))
        first = not reply.drawn
        if first:
            self._cached += reply.cached
        reason = None
        for token in tokens:
            reason = reply.append(token)
        self.scheduler.advance(reply, len(reply.known) - 1)
        if reply.rules:
            try:
                reply.forced = reply.rules.accept(tokens)
            except Exception as error:
                self._fail(reply, error)
                return
        if first and reply.request.prompt_logprobs is not None:
            self._deliver(reply, PromptLogprobs(tuple(reply.prompt_logprobs)))
        told = tuple(draw.logprobs for draw in new if draw.logprobs)
        digests = tuple(draw.digest for draw in new)
        if not self._deliver(reply, NewTokens(tokens, digests, told)):
            self._end(reply, "cancelled")
        elif reason:
            self._end(reply, reason)

    def _time(self, parts: Sequence[Part], seconds: float) -> None:
        """Let the scheduler and the drafts know what a step of this kind takes: the model's part
        took `seconds`, and what came before it, drafting above all, replies wait for as well."""
        decoding = sum(part.reply.decoding for part in parts)
        chunk = decoding < len(parts)
        whole = time.monotonic() - self._step_started
        self.scheduler.took(whole, chunk=chunk, decoding=decoding > 0)
        if not chunk:
            rows = sum(len(part.span.tokens) for part in parts)
            self._drafting.times.observe(rows, seconds)

    def _count(self, read: int, drawn: int) -> None:
        self._steps += 1
        self._prompt_tokens += read
        self._generated += drawn
        now = time.monotonic()
        self._recent.append((now, read, drawn))
        while self._recent[0][0] < now - _RATE_SECONDS:
            self._recent.popleft()

    def _fail(self, reply: Reply, error: Exception) -> None:
        """End a reply whose own rules failed."""
        _log.error("request %s: its rules failed", reply.request.id, exc_info=error)
        self._end(reply, "error", f"the reply's rules failed: {error}")

    def _end(self, reply: Reply, reason: FinishReason, error: str | None = None) -> None:
        self._drafting.release(reply)
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


def _draws_in_step(reply: Reply) -> bool:
    """Whether the step itself draws for the reply; if not, the head does by itself."""
    return not reply.rules or reply.rules.masks_only


def _head_rows(part: Part, start: int) -> list[HeadRow]:
    """What the head is to do of the part's rows, which stand at `start` in the step: log
    probabilities of the prompt, if they are asked for, and then draws under the part's rules."""
    reply, span = part.reply, part.span
    length, request = len(span.tokens), reply.request
    rows = []
    if request.prompt_logprobs is not None and not reply.drawn:
        targets = reply.known[span.position + 1 : span.position + length + 1]
        rows = [
            HeadRow(start + i, span.lane, span.position + i + 1, asked=True, given=target)
            for i, target in enumerate(targets)
        ]
    first, asked = length - len(part.rules), request.logprobs is not None
    return rows + [
        HeadRow(start + first + i, span.lane, span.position + first + i + 1, rules, asked)
        for i, rules in enumerate(part.rules)
    ]


def _head_draws(part: Part, rows: Sequence[HeadRow], drawn: Sequence[HeadDrawn]) -> list[Draw]:
    """The part's draws; log probabilities of its prompt go to the reply."""
    reply, most = part.reply, part.reply.request.logprobs
    told = len(rows) - len(part.rules)
    for row, each in zip(rows[:told], drawn[:told], strict=True):
        reply.prompt_logprobs.append(_logprobs(each, row.given, reply.request.prompt_logprobs or 0))
    return [
        Draw(d.token, d.digest, None if most is None else _logprobs(d, d.token, most))
        for d in drawn[told:]
    ]


def _logprobs(drawn: HeadDrawn, token: int, most: int) -> TokenLogprobs:
    return TokenLogprobs(token, drawn.logprob, drawn.rank, drawn.top[:most])
