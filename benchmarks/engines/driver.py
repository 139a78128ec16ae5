"""What every engine's process does: read one JSON object a line, run it, answer in one line.

This file and the drivers' top levels import nothing but the standard library, NumPy and their own
engine: they run in the peers' virtual environment, where TensorFold is not installed.
"""

import json
import os
import sys
import time
import traceback
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Generated:
    """One greedy reply: seconds to its first token, and from there to its last."""

    first: float
    rest: float
    tokens: int


class Driver(ABC):
    """An engine that has a model loaded. Token ids in, times out; end tokens are ignored."""

    about: str = ""
    """How the engine was set up: its version, its threads, its precision."""

    def prepare(self) -> str:
        """Try out settings once the model is loaded, outside the time to load; returns `about`."""
        return self.about

    @abstractmethod
    def generate(self, prompt: list[int], tokens: int) -> Generated:
        """Read a prompt that shares nothing with earlier ones and write a reply."""

    def step(self, rows: int, depth: int) -> float | None:
        """Seconds to run `rows` tokens of one sequence after `depth` others, each with its logits.

        None if the engine can't be asked for that.
        """
        return None

    def streams(self, count: int, prompt: int, tokens: int) -> float | None:
        """Tokens a second of `count` replies together while all of them decode; None as above."""
        return None

    def sizes(self) -> dict[str, int]:
        """Bytes of things worth knowing beside the resident memory."""
        return {}


def random_ids(count: int) -> list[int]:
    """Token ids for a step, of no meaning."""
    return [1000 + int.from_bytes(os.urandom(2), "little") % 20000 for _ in range(count)]


def run(make: "type[Driver]") -> None:
    """Load the engine with the arguments on the command line and serve standard input."""
    # Engines print what they like: only this copy of standard output carries answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        driver = make(*sys.argv[1:])
    except Exception as error:
        traceback.print_exc()
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    answer({"loaded": True})
    for line in sys.stdin:
        try:
            answer(_obey(driver, json.loads(line)))
        except Exception as error:
            traceback.print_exc()
            answer({"error": f"{type(error).__name__}: {error}"})


def _obey(driver: Driver, order: dict[str, Any]) -> dict[str, Any]:
    kind = order.pop("do")
    if kind == "prepare":
        return {"about": driver.prepare()}
    if kind == "generate":
        return asdict(driver.generate(**order))
    if kind == "step":
        return {"seconds": driver.step(**order)}
    if kind == "streams":
        return {"tokens_per_second": driver.streams(**order)}
    if kind == "sizes":
        return driver.sizes()
    raise ValueError(f"no such order: {kind}")


class Clock:
    """Notes when each token came."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._times: list[float] = []

    def tick(self) -> None:
        """A token is there."""
        self._times.append(time.perf_counter())

    def generated(self) -> Generated:
        """The reply whose tokens were noted."""
        first, last = self._times[0], self._times[-1]
        return Generated(first - self._started, last - first, len(self._times))
