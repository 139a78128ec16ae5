"""`tensorfold verify`: the same replies, made in different ways, compared token by token.

A reply's tokens come with a digest of the logits that each was drawn from, so two replies are equal
here only if they were computed bit for bit alike.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tensorfold.engine.drafts.copies import CopySource
from tensorfold.engine.drafts.drafting import Drafting
from tensorfold.engine.drafts.source import DraftSource
from tensorfold.engine.drafts.steps import DraftSteps
from tensorfold.engine.drafts.widths import StepTimes
from tensorfold.engine.interface import Event, Request, Sampling
from tensorfold.engine.scheduler import RowLimits, Scheduler
from tensorfold.engine.start import make_pool
from tensorfold.engine.stress import Guesses
from tensorfold.engine.thread import make_reply
from tensorfold.engine.trace import Traced, trace
from tensorfold.engine.worker import Worker
from tensorfold.runtime.packed import pages_for
from tensorfold.runtime.probe import probe_ops, probe_step
from tensorfold.runtime.step import StepFunction

OTHERS = (2, 4, 8)
CHUNKS = (1, 3, 8, 16, 50, 64, 128)
LANES = 1 + max(OTHERS)
"""Lanes that the step function must have."""


@dataclass(frozen=True)
class Comparison:
    """One line of the report; `difference` is empty when both sides are equal."""

    name: str
    compared: int
    """Tokens, or rows of an op."""
    difference: str = ""


def make_cases(prompts: Sequence[Sequence[int]], tokens: int) -> list[Request]:
    """Each prompt greedy and sampled."""
    sampled = Sampling(temperature=1.0, top_p=0.95, seed=7)
    cases = []
    for index, prompt in enumerate(prompts):
        for kind, sampling in (("greedy", Sampling()), ("sampled", sampled)):
            cases.append(Request(f"{kind} {index}", tuple(prompt), sampling, tokens))
    return cases


def verify(
    step: StepFunction, cases: Sequence[Request], draft_steps: DraftSteps = DraftSteps()
) -> Iterator[Comparison]:
    """Compare, yielding a line for each comparison as it is made.

    `step` needs LANES lanes and pages for all of them at the length of the cases; `draft_steps`
    are compared as well.
    """
    broken = probe_step(step).broken
    for bucket in step.buckets:
        yield Comparison(f"step in {bucket} rows", 7, "other logits" if bucket in broken else "")
    plain: dict[str, Traced] = {}
    for case in cases:
        (reply,) = run_together(step, [replace(case, draft=False)]).values()
        plain[case.id] = reply.or_raise()

    def compare(name: str, got: dict[str, Traced]) -> Iterator[Comparison]:
        for case in cases:
            if case.id in got:
                wanted = plain[case.id]
                difference = wanted.difference(got[case.id])
                yield Comparison(f"{case.id}, {name}", len(wanted.tokens), difference)

    for others in OTHERS:
        for group in _groups(cases, others + 1):
            yield from compare(f"among {others} others", run_together(step, group, stagger=3))
    for chunk in CHUNKS:
        limits = RowLimits(chunk=chunk)
        yield from compare(f"prompt in chunks of {chunk}", run_together(step, cases, limits))
    for case in cases:
        guesses = Guesses(lambda request: plain[request.id], seed=0)
        yield from compare("drafted", _drafted(step, case, [CopySource(), guesses]))
        for source in draft_steps.sources(step):
            yield from compare(f"drafted by {source.name}", _drafted(step, case, [source]))
        for name, got in _again(step, case):
            yield from compare(name, got)
        yield from compare("preempted and replayed", _preempted(step, case))
    for check in probe_ops(step):
        broken_rows = f"{check.different} rows differ" if check.different else ""
        yield Comparison(f"{check.op} in {check.bucket} rows", check.rows, broken_rows)


def run_together(
    step: StepFunction,
    requests: Sequence[Request],
    limits: RowLimits = RowLimits(),
    stagger: int = 0,
) -> dict[str, Traced]:
    """The replies to `requests` on an empty pool, all at once or each `stagger` steps after the
    one before."""
    worker = Worker(step, Scheduler(step.shape, limits, make_pool(step)))
    return run(worker, step, requests, stagger)


def run(
    worker: Worker, step: StepFunction, requests: Sequence[Request], stagger: int = 0
) -> dict[str, Traced]:
    """As `run_together`, on what the worker has kept."""
    events: dict[str, list[Event]] = {request.id: [] for request in requests}
    vocabulary = step.model.spec.vocab_size
    for request in requests:
        worker.add(make_reply(request, events[request.id].append, vocabulary))
        for _ in range(stagger):
            worker.step()
    while not worker.idle:
        worker.step()
    return {request_id: trace(found) for request_id, found in events.items()}


def _drafted(
    step: StepFunction, case: Request, sources: Sequence[DraftSource]
) -> dict[str, Traced]:
    """With as many drafts as there can be."""
    times = StepTimes(step.buckets, learns=False)
    drafting = Drafting(step.buckets, sources, times)
    worker = Worker(step, Scheduler(step.shape, RowLimits(), make_pool(step)), drafting)
    return run(worker, step, [case])


def _again(step: StepFunction, case: Request) -> Iterator[tuple[str, dict[str, Traced]]]:
    """From what earlier requests left: a part of the prompt, all of it, a cancelled reply."""
    worker = Worker(step, Scheduler(step.shape, RowLimits(), make_pool(step)))
    part = replace(case, id="part", prompt=case.prompt[: len(case.prompt) * 2 // 3 + 1])
    run(worker, step, [part])
    yield "partly warm", run(worker, step, [case])
    yield "warm", run(worker, step, [case])
    worker = Worker(step, Scheduler(step.shape, RowLimits(), make_pool(step)))
    worker.add(make_reply(case, lambda event: None, step.model.spec.vocab_size))
    for _ in range(3):
        worker.step()
    worker.cancel(case.id)
    yield "cancelled and asked again", run(worker, step, [case])


def _preempted(step: StepFunction, case: Request) -> dict[str, Traced]:
    """In the background of a foreground request that needs its pages: it yields and comes again."""
    needed = pages_for(len(case.prompt) + case.max_tokens)
    worker = Worker(step, Scheduler(step.shape, RowLimits(), make_pool(step, needed)))
    events: list[Event] = []
    behind = replace(case, background=True)
    worker.add(make_reply(behind, events.append, step.model.spec.vocab_size))
    for _ in range(4):
        worker.step()
    run(worker, step, [replace(case, id="foreground", max_tokens=1)])
    return {case.id: trace(events)}


def _groups(cases: Sequence[Request], size: int) -> Iterator[list[Request]]:
    """Groups of `size` that hold every case once; fillers of another seed complete the last."""
    for start in range(0, len(cases), size):
        group = list(cases[start : start + size])
        for index in range(size - len(group)):
            filler = cases[index % len(cases)]
            sampling = Sampling(temperature=1.3, seed=1000 + index)
            group.append(replace(filler, id=f"other {index}", sampling=sampling))
        yield group
