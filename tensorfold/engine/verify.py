"""`tensorfold verify`: the same replies, made in different ways, compared token by token.

A reply's tokens come with a digest of the logits that each was drawn from, so two replies are equal
here only if they were computed bit for bit alike.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tensorfold.engine.interface import Event, Finished, NewTokens, Request, Sampling
from tensorfold.engine.scheduler import RowLimits, Scheduler
from tensorfold.engine.start import make_pool
from tensorfold.engine.thread import make_reply
from tensorfold.engine.worker import Worker
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


@dataclass(frozen=True)
class Traced:
    """A reply: its tokens and the digests of their logits."""

    tokens: tuple[int, ...]
    digests: tuple[int, ...]


def make_cases(prompts: Sequence[Sequence[int]], tokens: int) -> list[Request]:
    """Each prompt greedy and sampled."""
    sampled = Sampling(temperature=1.0, top_p=0.95, seed=7)
    cases = []
    for index, prompt in enumerate(prompts):
        for kind, sampling in (("greedy", Sampling()), ("sampled", sampled)):
            cases.append(Request(f"{kind} {index}", tuple(prompt), sampling, tokens))
    return cases


def verify(step: StepFunction, cases: Sequence[Request]) -> Iterator[Comparison]:
    """Compare, yielding a line for each comparison as it is made.

    `step` needs LANES lanes and pages for all of them at the length of the cases.
    """
    broken = probe_step(step)
    for bucket in step.buckets:
        yield Comparison(f"step in {bucket} rows", 7, "other logits" if bucket in broken else "")
    alone: dict[str, Traced] = {}
    for case in cases:
        alone |= run_together(step, [replace(case, draft=False)])

    def compare(name: str, got: dict[str, Traced]) -> Iterator[Comparison]:
        for case in cases:
            if case.id in got:
                yield _compare(f"{case.id}, {name}", alone[case.id], got[case.id])

    for others in OTHERS:
        for group in _groups(cases, others + 1):
            yield from compare(f"among {others} others", run_together(step, group, stagger=3))
    for chunk in CHUNKS:
        limits = RowLimits(chunk=chunk)
        yield from compare(f"prompt in chunks of {chunk}", run_together(step, cases, limits))
    for case in cases:
        yield from compare("drafted", run_together(step, [case]))
    for check in probe_ops(step):
        broken_rows = f"{check.different} rows differ" if check.different else ""
        yield Comparison(f"{check.op} in {check.bucket} rows", check.rows, broken_rows)


def run_together(
    step: StepFunction,
    requests: Sequence[Request],
    limits: RowLimits = RowLimits(),
    stagger: int = 0,
) -> dict[str, Traced]:
    """The replies to `requests`, all at once or each `stagger` steps after the one before.

    Raises RuntimeError if one of them fails.
    """
    worker = Worker(step, Scheduler(step.shape, limits, make_pool(step)))
    events: dict[str, list[Event]] = {request.id: [] for request in requests}
    for request in requests:
        worker.add(make_reply(request, events[request.id].append, step.model.spec.vocab_size))
        for _ in range(stagger):
            worker.step()
    while not worker.idle:
        worker.step()
    return {request_id: _trace(found) for request_id, found in events.items()}


def _trace(events: list[Event]) -> Traced:
    pieces = [event for event in events if isinstance(event, NewTokens)]
    end = events[-1]
    if isinstance(end, Finished) and end.error:
        raise RuntimeError(end.error)
    return Traced(
        tuple(token for piece in pieces for token in piece.ids),
        tuple(digest for piece in pieces for digest in piece.digests),
    )


def _groups(cases: Sequence[Request], size: int) -> Iterator[list[Request]]:
    """Groups of `size` that hold every case once; fillers of another seed complete the last."""
    for start in range(0, len(cases), size):
        group = list(cases[start : start + size])
        for index in range(size - len(group)):
            filler = cases[index % len(cases)]
            sampling = Sampling(temperature=1.3, seed=1000 + index)
            group.append(replace(filler, id=f"other {index}", sampling=sampling))
        yield group


def _compare(name: str, wanted: Traced, got: Traced) -> Comparison:
    count = len(wanted.tokens)
    for index, (a, b) in enumerate(zip(wanted.tokens, got.tokens, strict=False)):
        if a != b:
            return Comparison(name, count, f"token {index} is {b}, alone it is {a}")
        if wanted.digests[index] != got.digests[index]:
            return Comparison(name, count, f"token {index} has other logits than alone")
    if len(got.tokens) != count:
        return Comparison(name, count, f"{len(got.tokens)} tokens, alone {count}")
    return Comparison(name, count)
