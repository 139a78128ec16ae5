"""Random traffic, compared reply by reply with plain decoding: `tensorfold verify --stress`.

Every round is made from numbers: which requests arrive when, which are cancelled or yield, how
large chunks and pools are, and what is drafted. So a round that fails can be run again, and is,
with fewer and fewer requests, until the fewest that still fail are left.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from tensorfold.engine.drafts.copies import CopySource
from tensorfold.engine.drafts.drafting import Drafting
from tensorfold.engine.drafts.source import DraftSource
from tensorfold.engine.drafts.steps import DraftSteps
from tensorfold.engine.drafts.widths import StepTimes
from tensorfold.engine.interface import Event, Request, Sampling
from tensorfold.engine.reply import Reply
from tensorfold.engine.scheduler import RowLimits, Scheduler
from tensorfold.engine.start import make_pool
from tensorfold.engine.thread import make_reply
from tensorfold.engine.trace import Traced, trace
from tensorfold.engine.worker import Worker
from tensorfold.runtime.packed import pages_for
from tensorfold.runtime.step import StepFunction

T = TypeVar("T")

_BASES = 16
"""Requests whose plain replies are made first. Every round mixes them anew."""
_ARRIVALS = 12
"""Requests of a round, at the most."""


@dataclass(frozen=True)
class Arrival:
    """A request of a round: the step at which it arrives, and the one at which it is cancelled."""

    request: Request
    step: int
    cancelled: int | None = None


@dataclass(frozen=True)
class Round:
    """Everything that makes a round, to the last choice."""

    seed: int
    arrivals: tuple[Arrival, ...]
    limits: RowLimits
    pages: int

    def lines(self) -> Iterator[str]:
        """The round for a reader, in full."""
        yield f"{self.limits}, {self.pages} pages, seed {self.seed}"
        for arrival in self.arrivals:
            ends = "" if arrival.cancelled is None else f", cancelled at {arrival.cancelled}"
            yield f"at step {arrival.step}{ends}: {arrival.request}"


@dataclass(frozen=True)
class Outcome:
    """A round's replies: how many were compared, what the traffic came to, and the first
    difference, or none."""

    replies: int
    drafted: int
    accepted: int
    cached: int
    preempted: int
    difference: str = ""


class Guesses(DraftSource):
    """A draft source that knows the plain replies and lies now and then, by a seed."""

    seconds = 0.0
    name = "guesses"
    takes_hidden = False

    def __init__(self, plain: Callable[[Request], Traced], seed: int):
        self._plain = plain
        self._rng = np.random.default_rng(seed)

    def chances(self, reply: Reply, most: int) -> list[float]:
        """See `DraftSource`."""
        return [0.9] * int(self._rng.integers(0, most + 1))

    def propose(self, wanted: Sequence[tuple[Reply, int]]) -> list[list[int]]:
        """See `DraftSource`."""
        proposals = []
        for reply, count in wanted:
            right = self._plain(reply.request).tokens[reply.drawn : reply.drawn + count]
            wrong = self._rng.random(len(right)) < 0.15
            proposals.append([0 if lie else t for t, lie in zip(right, wrong, strict=True)])
        return proposals


class Stress:
    """Random rounds on one step function."""

    def __init__(
        self,
        step: StepFunction,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        draft_steps: DraftSteps = DraftSteps(),
    ):
        """`draft_steps` draft too."""
        self._step = step
        self._draft_steps = draft_steps
        self._prompts = prompts
        self._tokens = tokens
        self._plain: dict[Request, Traced] = {}
        self._limits = RowLimits.of_buckets(step.buckets)

    def run(self, seconds: float, seed: int) -> Iterator[tuple[Round, Outcome]]:
        """Rounds until the time is up, one at the least, and no further than the first difference,
        which is shrunk: its round is the smallest found that still fails. The plain replies that
        all rounds share come before that time."""
        rng = np.random.default_rng(seed)
        bases = [self._base(rng) for _ in range(_BASES)]
        for base in bases:
            self.plain(base)
        end = time.monotonic() + seconds
        while True:
            case = self._round(rng, bases)
            outcome = self.outcome(case)
            if outcome.difference:
                case, outcome = self._shrink(case, outcome)
            yield case, outcome
            if outcome.difference or time.monotonic() >= end:
                return

    def plain(self, request: Request) -> Traced:
        """The request's reply by itself, one token at a time, from an empty pool."""
        key = replace(request, id="", draft=False, background=False, cache_salt="")
        if key not in self._plain:
            scheduler = Scheduler(self._step.shape, self._limits, make_pool(self._step))
            worker = Worker(self._step, scheduler)
            self._plain[key] = self._finish(worker, (Arrival(key, 0),))[""].or_raise()
        return self._plain[key]

    def outcome(self, case: Round) -> Outcome:
        """Run a round and compare every reply; a cancelled one as far as it came."""
        pool = make_pool(self._step, case.pages)
        scheduler = Scheduler(self._step.shape, case.limits, pool)
        times = StepTimes(self._step.buckets, learns=False)
        sources: list[DraftSource] = [CopySource(), Guesses(self.plain, case.seed)]
        sources += self._draft_steps.sources(self._step)
        worker = Worker(self._step, scheduler, Drafting(self._step.buckets, sources, times))
        replies = self._finish(worker, case.arrivals)
        stats = worker.stats()
        differences = (
            self._difference(arrival, replies[arrival.request.id]) for arrival in case.arrivals
        )
        leaked = f"{stats.pages_used} pages leaked" if stats.pages_used else ""
        return Outcome(
            replies=len(replies),
            drafted=stats.drafted,
            accepted=stats.accepted,
            cached=stats.cached_tokens,
            preempted=stats.preempted,
            difference=next(filter(None, differences), leaked),
        )

    def _base(self, rng: np.random.Generator) -> Request:
        """A request that shares a beginning with others, and sometimes all of their prompt."""
        prompt = list(_any(rng, self._prompts))
        prompt = prompt[: int(rng.integers(1, len(prompt) + 1))]
        if rng.random() < 0.5:
            prompt += _any(rng, self._prompts)[: int(rng.integers(1, 20))]
        prompt = prompt[: self._step.shape.context - self._tokens]
        sampling = Sampling(
            temperature=float(rng.choice([0.0, 0.0, 0.8, 1.2])),
            top_p=float(rng.choice([1.0, 0.9])),
            seed=int(rng.integers(0, 5)),
            repetition_penalty=float(rng.choice([1.0, 1.0, 1.0, 1.1])),
            presence_penalty=float(rng.choice([0.0, 0.0, 0.0, 0.5])),
            min_tokens=int(rng.choice([0, 0, 4])),
        )
        return Request("", tuple(prompt), sampling, int(rng.integers(1, self._tokens + 1)))

    def _round(self, rng: np.random.Generator, bases: Sequence[Request]) -> Round:
        arrivals = []
        for index in range(int(rng.integers(2, _ARRIVALS + 1))):
            base = _any(rng, bases)
            request = replace(
                base,
                id=str(index),
                draft=bool(rng.random() < 0.8),
                background=bool(rng.random() < 0.3),
                cache_salt=str(rng.choice(["", "", "", "other"])),
            )
            step = int(rng.integers(0, 30))
            arrivals.append(Arrival(request, step))
            if rng.random() < 0.2:  # cancelled, and asked again later
                arrivals[-1] = replace(arrivals[-1], cancelled=step + int(rng.integers(1, 12)))
                again = replace(request, id=f"{index} again")
                arrivals.append(Arrival(again, step + int(rng.integers(1, 20))))
        most = self._step.buckets[-1]
        limits = RowLimits(
            alone=most,
            beside=min(most, int(rng.choice([8, 16, 64]))),
            chunk=int(rng.choice([1, 7, 16, 64, most])),
            decode_share=0.0,  # which goes by the clock, so that no round could be run again
        )
        largest = max(pages_for(len(b.prompt) + b.max_tokens) for b in bases)
        # Half the rounds are short of pages, so that background replies yield.
        most = self._step.shape.pages if rng.random() < 0.5 else largest * 3 // 2
        pages = int(rng.integers(largest, min(most, self._step.shape.pages) + 1))
        ordered = tuple(sorted(arrivals, key=lambda arrival: arrival.step))
        return Round(int(rng.integers(2**31)), ordered, limits, pages)

    def _shrink(self, case: Round, outcome: Outcome) -> tuple[Round, Outcome]:
        """Leave out requests for as long as the round still fails."""
        smaller = True
        while smaller:
            smaller = False
            for arrival in case.arrivals:
                fewer = tuple(other for other in case.arrivals if other is not arrival)
                tried = replace(case, arrivals=fewer)
                found = self.outcome(tried) if fewer else outcome
                if fewer and found.difference:
                    case, outcome, smaller = tried, found, True
                    break
        return case, outcome

    def _finish(self, worker: Worker, arrivals: Sequence[Arrival]) -> dict[str, Traced]:
        """Let the requests arrive and go; the replies by id."""
        events: dict[str, list[Event]] = {arrival.request.id: [] for arrival in arrivals}
        vocabulary = self._step.model.spec.vocab_size
        left, step = list(arrivals), 0
        while left or not worker.idle:
            while left and left[0].step <= step:
                request = left.pop(0).request
                worker.add(make_reply(request, events[request.id].append, vocabulary))
            for arrival in arrivals:
                if arrival.cancelled == step:
                    worker.cancel(arrival.request.id)
            worker.step()
            step += 1
        return {name: trace(found) for name, found in events.items()}

    def _difference(self, arrival: Arrival, got: Traced) -> str:
        """What is otherwise in a reply than in the plain one, as far as it was let come."""
        wanted = self.plain(arrival.request)
        if arrival.cancelled is not None:
            wanted = wanted.first(len(got.tokens))
        difference = wanted.difference(got)
        return f"request {arrival.request.id}: {difference}" if difference else ""


def _any(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]
