"""From a checkpoint to a running engine."""

import logging
from collections.abc import Callable

from tensorfold.checkpoints.interface import Checkpoint, Progress
from tensorfold.engine.interface import Limits
from tensorfold.engine.scheduler import RowLimits, Scheduler
from tensorfold.engine.thread import ThreadEngine
from tensorfold.engine.worker import Worker
from tensorfold.runtime.load import load
from tensorfold.runtime.memory import fit_state
from tensorfold.runtime.probe import probe_step
from tensorfold.runtime.step import StepFunction

_log = logging.getLogger(__name__)


def open_step_function(
    checkpoint: Checkpoint,
    *,
    lanes: int,
    context: int | None,
    progress: Callable[[Progress], None] | None = None,
) -> StepFunction:
    """Load, make the state and compile every program.

    Raises CheckpointError for a checkpoint and ValueError for settings that can't be served.
    """
    model = load(checkpoint, progress)
    shape = fit_state(
        model.spec.state, model_context=model.spec.context, lanes=lanes, context=context
    )
    step = StepFunction(model, shape)
    step.compile(progress)
    return step


def start_engine(step: StepFunction) -> ThreadEngine:
    """An engine over a compiled step function, which it owns from here on.

    Buckets in which a row gets other bits than in the smallest are not used. Raises RuntimeError if
    the smallest does not agree with itself, or too few rows are left for a step of every lane.
    """
    for bucket in probe_step(step):
        if bucket == step.buckets[0]:
            raise RuntimeError("a row's bits depend on its neighbours here: run tensorfold verify")
        _log.warning("steps of %d rows are not exact here and stay unused", bucket)
        step.drop_bucket(bucket)
    most = step.buckets[-1]
    if step.shape.lanes >= most:
        raise RuntimeError(f"{step.shape.lanes} lanes do not fit a step of {most} rows")
    limits = RowLimits.of_buckets(step.buckets)
    capacity = Limits(step.shape.context, step.model.spec.vocab_size, step.shape.lanes)
    return ThreadEngine(Worker(step, Scheduler(step.shape, limits)), capacity)
