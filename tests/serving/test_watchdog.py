"""The stacks of a step that takes too long."""

import logging
import time
from pathlib import Path

import pytest
from scripted import ScriptedEngine
from test_sockets import wait_until

from tensorfold.engine.interface import EngineStats
from tensorfold.serving.watchdog import watching


def test_a_stuck_step_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine()
    seconds = 0.0
    looks = 0

    def stats() -> EngineStats:
        nonlocal looks
        looks += 1
        return EngineStats(step_seconds=seconds)

    def look_again() -> None:
        seen = looks
        wait_until(lambda: looks >= seen + 3, 2)

    engine.stats = stats  # type: ignore[method-assign]
    path = tmp_path / "stacks"
    with (
        caplog.at_level(logging.ERROR),
        path.open("w") as file,
        watching(engine, look_seconds=0.01, file=file),
    ):
        seconds = 120.0
        look_again()
        assert path.read_text() == "" and not caplog.records
        seconds = 121.0
        look_again()
        assert "test_a_stuck_step_is_told_once" in path.read_text()
        assert "a step has taken 121 s" in caplog.text
        assert len(caplog.records) == 1
        seconds = 1.0
        look_again()
        seconds = 130.0
        look_again()
        assert len(caplog.records) == 2
    seen = looks
    time.sleep(0.05)
    assert looks == seen
