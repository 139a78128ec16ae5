"""`tensorfold bench`: how fast a model runs on this machine, without HTTP."""

import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from tensorfold.engine.interface import Event, Finished, Request, Sampling
from tensorfold.engine.scheduler import RowLimits, Scheduler
from tensorfold.engine.thread import make_reply
from tensorfold.engine.worker import Worker
from tensorfold.ops.implementation import describe
from tensorfold.runtime.packed import Span, pack_settings, pages_for
from tensorfold.runtime.step import StepFunction

STEP_ROWS = (1, 2, 4, 8)
"""Rows of the steps that are timed one by one."""


@dataclass(frozen=True)
class Load:
    """What is measured: `streams` replies at once of `tokens` tokens each to `prompt` tokens."""

    streams: int
    prompt: int
    tokens: int

    @property
    def context(self) -> int:
        """Tokens of a sequence that decodes until the others have done so for `tokens` steps."""
        room = max(1, RowLimits.beside - self.streams)
        reading = self.streams * -(-self.prompt // room)
        return self.prompt + reading + self.streams + self.tokens


@dataclass(frozen=True)
class Rates:
    """One load's rates: of all streams together, and the median stream's first token."""

    streams: int
    prompt_tokens_per_second: float
    decode_tokens_per_second: float
    time_to_first_token: float


@dataclass(frozen=True)
class Report:
    """What `tensorfold bench` prints. A step's rows are one sequence's, all of them drawn."""

    model: str
    kernels: str
    ready_seconds: float
    prompt: int
    tokens: int
    runs: int
    streams: tuple[Rates, ...]
    step_milliseconds: dict[int, float]
    peak_memory_mib: float

    def as_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The report as text."""
        out = [
            f"{self.model}, {self.kernels}, ready after {self.ready_seconds:.1f} s, "
            f"at most {self.peak_memory_mib:.0f} MiB; medians of {self.runs} runs",
            f"{'streams':>7} {'prompt tokens/s':>16} {'decode tokens/s':>16} {'first token':>12}",
        ]
        for rates in self.streams:
            out.append(
                f"{rates.streams:7} {rates.prompt_tokens_per_second:16.1f} "
                f"{rates.decode_tokens_per_second:16.1f} {rates.time_to_first_token:10.3f} s"
            )
        one = self.step_milliseconds[min(self.step_milliseconds)]
        for rows, milliseconds in self.step_milliseconds.items():
            out.append(f"a step of {rows} rows: {milliseconds:.2f} ms, {milliseconds / one:.2f} x")
        return out


def measure(
    step: StepFunction,
    loads: Sequence[Load],
    *,
    name: str,
    ready_seconds: float,
    runs: int = 3,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Run every load `runs` times after a short one that is not counted.

    Prompts are random token ids, new in every run. `step` needs lanes and pages for the loads.
    """
    rng = np.random.default_rng()
    run_load(step, Load(1, loads[0].prompt, 4), rng)
    streams = []
    for load in loads:
        found = []
        for run in range(runs):
            if progress:
                progress(f"{load.streams} streams, run {run + 1} of {runs}")
            found.append(run_load(step, load, rng))
        streams.append(_median(found))
    position = loads[0].prompt
    return Report(
        model=name,
        kernels=describe(step.model.activations),
        ready_seconds=ready_seconds,
        prompt=loads[0].prompt,
        tokens=loads[0].tokens,
        runs=runs,
        streams=tuple(streams),
        step_milliseconds={
            rows: 1000 * step_seconds(step, rows, position, rng) for rows in STEP_ROWS
        },
        peak_memory_mib=peak_memory_bytes() / 2**20,
    )


def run_load(step: StepFunction, load: Load, rng: np.random.Generator) -> Rates:
    """One run. Decoding counts from when every stream decodes, for `load.tokens` steps.

    Raises ValueError if the state can't hold all streams at once, RuntimeError if a step fails.
    """
    if load.streams > step.shape.lanes or (
        load.streams * pages_for(load.context) > step.shape.pages
    ):
        raise ValueError(f"{load.streams} streams of {load.context} tokens do not fit in memory")
    limits = RowLimits.of_buckets(step.buckets, decode_share=0)
    worker = Worker(step, Scheduler(step.shape, limits))
    firsts: list[float] = []

    def deliver(event: Event) -> None:
        if isinstance(event, Finished):
            firsts.append(event.stats.time_to_first_token)

    vocabulary = step.model.spec.vocab_size
    for stream in range(load.streams):
        prompt = tuple(rng.integers(0, vocabulary, load.prompt).tolist())
        most = load.context - load.prompt
        request = Request(str(stream), prompt, Sampling(), most, draft=False)
        worker.add(make_reply(request, deliver, vocabulary))
    reading = decoding = 0.0
    steps = 0
    while steps < load.tokens:
        before, started = worker.stats().steps, time.perf_counter()
        all_decode = len(worker.scheduler.decoding()) == load.streams
        worker.step()
        seconds = time.perf_counter() - started
        if worker.stats().steps == before:
            raise RuntimeError("a step failed")
        if not all_decode:
            reading += seconds
        else:
            decoding += seconds
            steps += 1
    worker.end_all("cancelled")
    return Rates(
        streams=load.streams,
        prompt_tokens_per_second=load.streams * load.prompt / reading,
        decode_tokens_per_second=load.streams * load.tokens / decoding,
        time_to_first_token=median(firsts),
    )


def step_seconds(
    step: StepFunction, rows: int, position: int, rng: np.random.Generator, runs: int = 20
) -> float:
    """The median time of a step of `rows` rows of one sequence at `position`, all drawn."""
    table = np.zeros((step.shape.lanes, step.shape.pages_per_lane), np.int32)
    table[0] = np.arange(step.shape.pages_per_lane)
    settings = np.tile(pack_settings(0.0, 0, 1.0, 0.0, 0), (step.shape.lanes, 1))
    seconds = []
    for _ in range(runs):
        tokens = rng.integers(0, step.model.spec.vocab_size, rows).tolist()
        started = time.perf_counter()
        step.run([Span(0, position, tokens, rows)], table, settings)
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def peak_memory_bytes() -> int:
    """The most memory this process has had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _median(found: Sequence[Rates]) -> Rates:
    return Rates(
        streams=found[0].streams,
        prompt_tokens_per_second=median(r.prompt_tokens_per_second for r in found),
        decode_tokens_per_second=median(r.decode_tokens_per_second for r in found),
        time_to_first_token=median(r.time_to_first_token for r in found),
    )
