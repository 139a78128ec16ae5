"""From a checkpoint to a running engine."""

import logging
import time
from collections.abc import Callable

import jax
import numpy as np

from tensorfold.checkpoints.interface import Checkpoint, Progress
from tensorfold.engine.drafts.copies import CopySource
from tensorfold.engine.drafts.drafting import Drafting
from tensorfold.engine.drafts.forced import ForcedSource
from tensorfold.engine.drafts.source import DraftSource
from tensorfold.engine.drafts.steps import DraftSteps
from tensorfold.engine.drafts.widths import StepTimes
from tensorfold.engine.interface import Limits
from tensorfold.engine.pages import PagePool
from tensorfold.engine.scheduler import RowLimits, Scheduler
from tensorfold.engine.thread import ThreadEngine
from tensorfold.engine.worker import Worker
from tensorfold.models.family import Spec
from tensorfold.ops.rows import PAGE
from tensorfold.runtime.kept import KeptFiles
from tensorfold.runtime.load import (
    Activations,
    LoadedModel,
    check_activations,
    describe,
    load,
    with_activations,
)
from tensorfold.runtime.memory import fit_state, free_bytes
from tensorfold.runtime.packed import Span
from tensorfold.runtime.probe import keep_probed, probe_step, read_probed, run_alone
from tensorfold.runtime.step import StateShape, StepFunction

_log = logging.getLogger(__name__)

_TIMED_ROWS = 16


def open_step_function(
    checkpoint: Checkpoint,
    *,
    lanes: int,
    context: int | None,
    prompt_cache_gib: float | None = None,
    activations: Activations = "float32",
    draft_model: LoadedModel | None = None,
    progress: Callable[[Progress], None] | None = None,
    kept: KeptFiles | None = None,
) -> StepFunction:
    """Load, make the state and compile every program, or take from `kept` what is there. Room is
    left for the state of `draft_model` and of next-token layers (`open_draft_steps`).

    Raises CheckpointError for a checkpoint and ValueError for settings that can't be served.
    """

    def fit(spec: Spec, mapped_bytes: int = 0) -> StateShape:
        mapped_bytes += draft_model.mapped_bytes if draft_model else 0
        return fit_state(
            spec.state
            + (spec.next_token.state if spec.next_token else ())
            + (draft_model.spec.state if draft_model else ()),
            model_context=spec.context,
            lanes=lanes,
            context=context,
            prompt_cache_gib=prompt_cache_gib,
            free=max(0, free_bytes() - mapped_bytes),
        )

    def opened(kept: KeptFiles | None) -> StepFunction:
        model = with_activations(load(checkpoint, progress, kept), activations)
        step = StepFunction(model, fit(model.spec, model.mapped_bytes))
        step.compile(progress, kept)
        return step

    check_activations(activations)
    if context is not None:
        fit(describe(checkpoint))  # A context too long must not cost a load.
    step = opened(kept)
    if kept and not _works(step):
        _log.warning("what an earlier start left in %s gives other bits: not used", kept.folder)
        kept.clear()
        del step  # Its state must not count as taken when the next one is sized.
        return opened(None)
    return step


def _works(step: StepFunction) -> bool:
    """Whether kept weights and programs do what they did when they were probed, if they were."""
    probed = read_probed(step)
    try:
        return probed is None or run_alone(step) == probed.alone
    except jax.errors.JaxRuntimeError:
        return False


def start_engine(
    step: StepFunction,
    *,
    drafts: bool = True,
    draft_steps: DraftSteps = DraftSteps(),
    decode_share: float = 0.25,
    queue: int | None = None,
) -> ThreadEngine:
    """An engine over a compiled step function, which it owns from here on.

    drafts: False decodes every reply one token at a time
    draft_steps: what drafts beside the copies
    decode_share: see `RowLimits`; queue: see `Limits`

    Buckets in which a row gets other bits than in the smallest are not used. Raises RuntimeError if
    the smallest does not agree with itself, or too few rows are left for a step of every lane.
    """
    probed = read_probed(step)
    if probed is None:
        probed = probe_step(step)
        keep_probed(step, probed)
    for bucket in probed.broken:
        if bucket == step.buckets[0]:
            raise RuntimeError("a row's bits depend on its neighbours here: run tensorfold verify")
        _log.warning("steps of %d rows are not exact here and stay unused", bucket)
        step.drop_bucket(bucket)
    most = step.buckets[-1]
    if step.shape.lanes >= most:
        raise RuntimeError(f"{step.shape.lanes} lanes do not fit a step of {most} rows")
    limits = RowLimits.of_buckets(step.buckets, decode_share)
    scheduler = Scheduler(step.shape, limits, make_pool(step))
    sources: list[DraftSource] = []
    if drafts:
        sources = [ForcedSource(), CopySource(), *draft_steps.sources(step)]
    drafting = Drafting(step.buckets, sources)
    time_steps(step, drafting.times)
    capacity = Limits(step.shape.context, step.model.spec.vocab_size, step.shape.lanes, queue)
    return ThreadEngine(Worker(step, scheduler, drafting), capacity)


def make_pool(step: StepFunction, pages: int | None = None) -> PagePool:
    """The pages of a step function's state, and the slots for lanes' own state if there is such;
    `pages` of them if not all."""
    shape = step.shape
    return PagePool(pages or shape.pages, shape.kept, None if step.paged else shape.snapshots)


def time_steps(step: StepFunction, times: StepTimes) -> None:
    """Run a step of every small bucket, so that the first drafts have times to go by."""
    table = np.zeros((step.shape.lanes, step.shape.pages_per_lane), np.int32)
    settings = np.zeros((step.shape.lanes, 6), np.int32)
    most = min(_TIMED_ROWS, PAGE, step.shape.context)
    for rows in (bucket for bucket in step.buckets if bucket <= most):
        span = Span(0, 0, [0] * rows, rows)
        started = time.perf_counter()
        step.run([span], table, settings)
        times.observe(rows, time.perf_counter() - started)
