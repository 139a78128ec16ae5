"""TensorFold in-process, without HTTP: the scheduler, the worker and the step function."""

import sys
from pathlib import Path

import numpy as np

from benchmarks.engines.driver import Clock, Driver, Generated, run
from tensorfold import __version__
from tensorfold.benchmark import Load, run_load, step_seconds
from tensorfold.checkpoints.hub import open_checkpoint
from tensorfold.engine.interface import Event, NewTokens, Request, Sampling
from tensorfold.engine.scheduler import RowLimits, Scheduler
from tensorfold.engine.start import open_step_function
from tensorfold.engine.thread import make_reply
from tensorfold.engine.worker import Worker
from tensorfold.models.family import state_bytes
from tensorfold.ops.implementation import describe
from tensorfold.runtime.compilation import keep_compiled_programs
from tensorfold.runtime.load import Activations

LANES = 8


class TensorFold(Driver):
    """Compiled programs are kept in the folder given third, so an empty one is a cold start."""

    def __init__(self, model: str, context: str, compiled: str, activations: Activations):
        keep_compiled_programs(Path(compiled))
        checkpoint = open_checkpoint(Path(model))
        self._step = open_step_function(
            checkpoint, lanes=LANES, context=int(context), activations=activations
        )
        self._rng = np.random.default_rng()
        self.about = f"TensorFold {__version__}, {describe(activations)}"

    def generate(self, prompt: list[int], tokens: int) -> Generated:
        worker = Worker(self._step, Scheduler(self._step.shape, RowLimits()))
        clock = Clock()

        def deliver(event: Event) -> None:
            if isinstance(event, NewTokens):
                for _ in event.ids:
                    clock.tick()

        # Replies to random tokens repeat themselves, and copies of that would be no decoding.
        request = Request("one", tuple(prompt), Sampling(), tokens, draft=False)
        worker.add(make_reply(request, deliver, self._step.model.spec.vocab_size))
        while not worker.idle:
            worker.step()
        return clock.generated()

    def step(self, rows: int, depth: int) -> float:
        return step_seconds(self._step, rows, depth, self._rng, runs=9)

    def streams(self, count: int, prompt: int, tokens: int) -> float:
        return run_load(self._step, Load(count, prompt, tokens), self._rng).decode_tokens_per_second

    def sizes(self) -> dict[str, int]:
        shape = self._step.shape
        page, lane = state_bytes(self._step.model.spec.state)
        return {"state": page * shape.pages + lane * shape.lanes}


if __name__ == "__main__":
    sys.exit(run(TensorFold))
