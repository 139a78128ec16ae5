"""TensorFold beside other engines on one GGUF file, in turns, each in a process of its own.

Only one engine works at a time. Every prompt is random token ids that no cache has seen, every
figure a median over the runs, and every ratio is taken within one run of this program. `make peers`
installs the others in their own virtual environment and runs it.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.engines.process import EngineProcess
from benchmarks.peers_table import table
from tensorfold.checkpoints.hub import open_checkpoint, resolve

_OWN = "TensorFold"
_PEERS_PYTHON = Path(".venv-peers/bin/python")
_PAUSE_SECONDS = 0.5
"""After an engine's turn: some threads go on spinning for a while when their work is done."""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    runs: int
    loads: int
    prompt: int
    tokens: int
    shallow: int
    streams: int

    @property
    def depths(self) -> tuple[int, int]:
        """Where decoding begins."""
        return self.shallow, self.prompt

    @property
    def context(self) -> int:
        """Tokens that the deepest measurement needs."""
        return self.prompt + self.tokens + 64


FULL = Plan(runs=5, loads=3, prompt=512, tokens=128, shallow=16, streams=8)
QUICK = Plan(runs=1, loads=1, prompt=128, tokens=16, shallow=16, streams=8)


@dataclass
class Row:
    """One engine's figures: every run's in `found`, the medians in `figures`."""

    name: str
    about: str = ""
    error: str = ""
    found: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float | None) -> None:
        """Note a run's figure, if the engine has one."""
        if value is not None:
            self.found.setdefault(name, []).append(value)

    @property
    def figures(self) -> dict[str, float]:
        """The median of every figure."""
        return {name: median(values) for name, values in self.found.items()}


class Contest:
    """The engines, started one after another and then asked in turns."""

    def __init__(self, plan: Plan, model: Path, vocabulary: int, python: Path):
        self._plan = plan
        self._model = model
        self._vocabulary = vocabulary
        self._python = python
        self._processes: dict[str, EngineProcess] = {}
        self.rows: dict[str, Row] = {}

    def commands(self, compiled: Path) -> dict[str, list[str]]:
        """Each engine's driver and its arguments."""
        common = [str(self._model), str(self._plan.context)]
        own, peers = [sys.executable, "-m"], [str(self._python), "-m"]
        engines = "benchmarks.engines"
        return {
            _OWN: [*own, f"{engines}.tensorfold_driver", *common, str(compiled), "float32"],
            f"{_OWN} int8": [*own, f"{engines}.tensorfold_driver", *common, str(compiled), "int8"],
            "llama.cpp": [*peers, f"{engines}.llama_cpp_driver", *common],
            "OpenVINO GenAI": [*peers, f"{engines}.openvino_driver", *common],
            "transformers f32": [*peers, f"{engines}.pytorch_driver", *common, "float32"],
            "transformers bf16": [*peers, f"{engines}.pytorch_driver", *common, "bfloat16"],
        }

    def start(self, name: str, command: list[str]) -> None:
        """Start an engine several times and keep the last: the first start may be a cold one."""
        row = self.rows[name] = Row(name)
        for attempt in range(1 + self._plan.loads):
            started = time.perf_counter()
            process = EngineProcess(command)
            try:
                process.receive()
            except RuntimeError as error:
                row.error = str(error)
                process.stop()
                return
            seconds = time.perf_counter() - started
            row.add("load_cold" if attempt == 0 else "load_warm", seconds)
            if attempt < self._plan.loads:
                process.stop()
        self._processes[name] = process

    def run_all(self) -> None:
        """One run of every engine in turn."""
        for name, process in self._processes.items():
            row = self.rows[name]
            if row.error:
                continue
            try:
                self._run(process, row)
            except RuntimeError as error:
                row.error = str(error)
            time.sleep(_PAUSE_SECONDS)

    def to_the_best_peer(self) -> dict[str, dict[str, float]]:
        """For TensorFold's engines, every rate over the best peer's of the same run, the median of
        the runs: a machine that changes its pace between runs changes both."""
        peers = [row for name, row in self.rows.items() if not name.startswith(_OWN)]
        found: dict[str, dict[str, float]] = {}
        for name, row in self.rows.items():
            if not name.startswith(_OWN):
                continue
            for key in ("prompt_rate", *(f"decode_at_{depth}" for depth in self._plan.depths)):
                beside = [peer.found[key] for peer in peers if key in peer.found]
                runs = zip(row.found.get(key, ()), *beside, strict=False)
                if ratios := [own / max(others) for own, *others in runs if others]:
                    found.setdefault(name, {})[key] = median(ratios)
        return found

    def finish(self) -> None:
        """Note what memory the engines took, and stop them."""
        for name, process in self._processes.items():
            now, most = machine.resident_bytes(process.pid)
            self.rows[name].add("resident_bytes", now)
            self.rows[name].add("peak_resident_bytes", most)
            if not self.rows[name].error:  # else it may be gone
                for what, size in process.ask({"do": "sizes"}).items():
                    self.rows[name].add(f"{what}_bytes", size)
            process.stop()

    def warm_up(self) -> None:
        """Settings and something short for every engine, not counted."""
        for name, process in self._processes.items():
            try:
                self.rows[name].about = process.ask({"do": "prepare"})["about"]
                process.ask({"do": "generate", "prompt": self._prompt(32), "tokens": 8})
            except RuntimeError as error:
                self.rows[name].error = str(error)

    def _prompt(self, tokens: int) -> list[int]:
        return [random.randrange(self._vocabulary) for _ in range(tokens)]

    def _run(self, process: EngineProcess, row: Row) -> None:
        plan = self._plan
        for depth in plan.depths:
            found = process.ask(
                {"do": "generate", "prompt": self._prompt(depth), "tokens": plan.tokens}
            )
            row.add(f"decode_at_{depth}", (found["tokens"] - 1) / found["rest"])
        row.add("first_token", found["first"])
        row.add("prompt_rate", plan.prompt / found["first"])
        steps = {}
        for rows in (1, 4, 8):
            steps[rows] = process.ask({"do": "step", "rows": rows, "depth": plan.shallow})[
                "seconds"
            ]
            row.add(f"step_{rows}", steps[rows])
        if steps[1]:
            row.add("step_4_to_1", steps[4] / steps[1])
            row.add("step_8_to_1", steps[8] / steps[1])
        order = {
            "do": "streams",
            "count": plan.streams,
            "prompt": plan.shallow,
            "tokens": plan.tokens,
        }
        row.add("streams_rate", process.ask(order)["tokens_per_second"])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    plan = QUICK if options.quick else FULL
    model = resolve(options.model)
    vocabulary = int(open_checkpoint(model).config["vocab_size"])
    contest = Contest(plan, model, vocabulary, options.python)
    with tempfile.TemporaryDirectory() as folder:
        commands = contest.commands(Path(folder))
        if unknown := set(options.only or ()) - set(commands):
            raise SystemExit(
                f"no engine is called {', '.join(sorted(unknown))}: --only takes one of "
                + ", ".join(map(repr, commands))
            )
        for name, command in commands.items():
            if options.only and name not in options.only:
                continue
            print(f"starting {name}", file=options.log, flush=True)
            contest.start(name, command)
        try:
            contest.warm_up()
            for run in range(plan.runs):
                print(f"run {run + 1} of {plan.runs}", file=options.log, flush=True)
                contest.run_all()
        finally:
            contest.finish()
    return {
        "machine": machine.describe(),
        "model": model.name,
        "file_bytes": model.stat().st_size,
        "plan": asdict(plan),
        "engines": [
            {"name": row.name, "about": row.about, "error": row.error, **row.figures}
            for row in contest.rows.values()
        ],
        "to_the_best_peer": contest.to_the_best_peer(),
        "every_run": {row.name: row.found for row in contest.rows.values()},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument("model", nargs="?", help="a GGUF file; the default model when left out")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--quick", action="store_true", help="one short run, to see that it works")
    parser.add_argument("--only", action="append", metavar="ENGINE", help="leave others out")
    parser.add_argument("--python", type=Path, default=_PEERS_PYTHON, help="the peers' Python")
    options = parser.parse_args(arguments)
    options.log = sys.stderr
    report = measure(options)
    print(json.dumps(report) if options.json else table(report))


if __name__ == "__main__":
    main()
