"""A served model over HTTP: start-up, prompt and decode rate, time to the first token.

Starts `tensorfold serve` on a free port, once with no compiled programs and once with them, and
asks it as clients do. Prompts are new text in every run. `make bench` runs it.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from benchmarks import machine
from tensorfold.checkpoints.hub import resolve

_START_SECONDS = 600
_ADDRESS = re.compile(r"(http://\S+)/v1")
_WORDS = (
    "river",
    "stone",
    "market",
    "winter",
    "engine",
    "garden",
    "letter",
    "morning",
    "paper",
    "window",
    "number",
    "music",
    "island",
    "mountain",
    "silver",
    "doctor",
)


@dataclass(frozen=True)
class Answer:
    """One streamed reply as its client saw it; times are seconds on one clock."""

    sent: float
    first: float
    last: float


class Server:
    """A `tensorfold serve` process that answers."""

    def __init__(self, model: Path, home: Path, streams: int, flags: Sequence[str] = ()):
        environment = os.environ | {"TENSORFOLD_HOME": str(home)}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        command = [sys.executable, "-m", "tensorfold.cli", "serve", str(model), "--port", "0"]
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [*command, "--parallel", str(streams), *flags],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._said: list[str] = []
        self.address: str | None = None
        """Of the server, without a path; None until it is ready."""
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        self._ready.wait(_START_SECONDS)
        if self.address is None:
            self.stop()
            raise RuntimeError("the server did not start: " + "".join(self._said[-5:]).strip())
        self.ask("GET", "/health")
        self.start_seconds = time.perf_counter() - started

    def _read(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            self._said.append(line)
            if found := _ADDRESS.search(line):
                self.address = found[1]
                self._ready.set()
        self._ready.set()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def resident_bytes(self) -> int | None:
        """The most memory the server has had resident."""
        return machine.resident_bytes(self._process.pid)[1]

    def connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.address or "")
        return http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=600)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, None if body is None else json.dumps(body))
            found: dict[str, Any] = json.loads(connection.getresponse().read())
        return found

    def prompt(self, tokens: int) -> list[int]:
        """A prompt of so many tokens that nobody has sent before."""
        text = " ".join(random.choices(_WORDS, k=2 * tokens))
        ids: list[int] = self.ask("POST", "/tokenize", {"prompt": text})["tokens"]
        return ids[:tokens]

    def complete(self, prompt: list[int], tokens: int) -> Answer:
        """Stream one completion."""
        body = {
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "draft": False,  # Replies to random words repeat themselves.
        }
        with contextlib.closing(self.connect()) as connection:
            sent = time.perf_counter()
            connection.request("POST", "/v1/completions", json.dumps(body))
            times = []
            for line in connection.getresponse():
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[len(b"data: ") :])
                if event.get("error"):
                    raise RuntimeError(event["error"]["message"])
                times.append(time.perf_counter())
        if not times:
            raise RuntimeError("the server sent no event")
        return Answer(sent, times[0], times[-1])

    def complete_together(self, prompts: list[list[int]], tokens: int) -> list[Answer]:
        """Stream one completion of every prompt at once."""
        with ThreadPoolExecutor(len(prompts)) as threads:
            return list(threads.map(lambda prompt: self.complete(prompt, tokens), prompts))


@contextlib.contextmanager
def serving(model: Path, home: Path, streams: int, flags: Sequence[str] = ()) -> Iterator[Server]:
    server = Server(model, home, streams, flags)
    try:
        yield server
    finally:
        server.stop()


def measure_streams(server: Server, streams: int, prompt: int, tokens: int) -> dict[str, float]:
    """One run: long prompts to their first token, then short ones and long replies."""
    asked = [server.prompt(prompt) for _ in range(streams)]
    answers = server.complete_together(asked, 1)
    reading = max(a.first for a in answers) - min(a.sent for a in answers)
    replies = server.complete_together([server.prompt(16) for _ in range(streams)], tokens)
    # The first tokens are the prompts' doing, and the streams start one after another.
    writing = max(a.last for a in replies) - min(a.first for a in replies)
    return {
        "prompt_tokens_per_second": streams * prompt / reading,
        "decode_tokens_per_second": streams * (tokens - 1) / writing,
        "time_to_first_token": median(a.first - a.sent for a in answers),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    model = resolve(options.model)
    most = max(options.streams)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with serving(model, home, most) as server:
            cold = server.start_seconds
        with serving(model, home, most) as server:
            warm = server.start_seconds
            measure_streams(server, 1, 32, 4)
            for streams in options.streams:
                found = [
                    measure_streams(server, streams, options.prompt, options.tokens)
                    for _ in range(options.runs)
                ]
                middle = {key: median(run[key] for run in found) for key in found[0]}
                results.append({"streams": streams, **middle})
            peak = server.resident_bytes()
    return {
        "machine": machine.describe(),
        "model": model.name,
        "prompt": options.prompt,
        "tokens": options.tokens,
        "runs": options.runs,
        "start_seconds_cold": cold,
        "start_seconds_warm": warm,
        "streams": results,
        "peak_memory_mib": None if peak is None else peak / 2**20,
    }


def table(report: dict[str, Any]) -> str:
    lines = [
        machine.heading(report["machine"]),
        f"{report['model']}: {report['prompt']} prompt tokens, {report['tokens']} reply tokens, "
        f"medians of {report['runs']} runs",
        f"start {report['start_seconds_cold']:.1f} s without compiled programs, "
        f"{report['start_seconds_warm']:.1f} s with them",
    ]
    if report["peak_memory_mib"] is not None:
        lines.append(f"at most {report['peak_memory_mib']:.0f} MiB resident")
    lines.append(f"{'streams':>7} {'prompt tokens/s':>16} {'decode tokens/s':>16} {'first':>9}")
    for row in report["streams"]:
        lines.append(
            f"{row['streams']:7} {row['prompt_tokens_per_second']:16.1f} "
            f"{row['decode_tokens_per_second']:16.1f} {row['time_to_first_token']:7.3f} s"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.serving", description=__doc__)
    parser.add_argument("model", nargs="?", help="as for tensorfold serve")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--prompt", type=int, default=512, metavar="N")
    parser.add_argument("--tokens", type=int, default=128, metavar="N")
    parser.add_argument("--runs", type=int, default=5, metavar="N")
    parser.add_argument(
        "--streams",
        type=lambda text: [int(part) for part in text.split(",")],
        default=[1, 8],
        metavar="N,N",
    )
    options = parser.parse_args(arguments)
    report = measure(options)
    print(json.dumps(report) if options.json else table(report))


if __name__ == "__main__":
    main()
