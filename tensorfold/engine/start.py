"""From a checkpoint to a running engine."""

from collections.abc import Callable

from tensorfold.checkpoints.interface import Checkpoint, Progress
from tensorfold.engine.interface import Limits
from tensorfold.engine.scheduler import RowLimits, Scheduler
from tensorfold.engine.thread import ThreadEngine
from tensorfold.engine.worker import Worker
from tensorfold.runtime.load import load
from tensorfold.runtime.memory import fit_state
from tensorfold.runtime.step import StepFunction


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


def start_engine(step: StepFunction, limits: RowLimits = RowLimits()) -> ThreadEngine:
    """An engine over a compiled step function, which it owns from here on."""
    worker = Worker(step, Scheduler(step.shape, limits))
    capacity = Limits(step.shape.context, step.model.spec.vocab_size, step.shape.lanes)
    return ThreadEngine(worker, capacity)
