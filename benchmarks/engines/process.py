"""An engine's process, as the program that compares them sees it."""

import json
import subprocess
import tempfile
from typing import Any

_STOP_SECONDS = 10


class EngineProcess:
    """A driver (see `driver`) behind pipes. Its first line says that the model is loaded."""

    def __init__(self, command: list[str]):
        self._noise = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._noise,
                text=True,
            )
        except OSError as error:
            raise RuntimeError(f"not installed ({error})") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Send an order and wait for the answer. Raises RuntimeError if the engine fails."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # It has died; what it left is read below.
        return self.receive()

    def receive(self) -> dict[str, Any]:
        """The next answer."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def stop(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_words(self) -> str:
        """Why the process ended: the last line it wrote."""
        status = self._process.wait()
        self._noise.seek(0)
        lines = [line.strip() for line in self._noise if line.strip()]
        return lines[-1] if lines else f"ended with status {status}"
