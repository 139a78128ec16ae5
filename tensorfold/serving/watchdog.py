"""Says where the process stands when a step of the engine takes far too long."""

import faulthandler
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from tensorfold.engine.interface import Engine

STUCK_SECONDS = 120.0
_LOOK_SECONDS = 5.0

_log = logging.getLogger(__name__)


@contextmanager
def watching(
    engine: Engine,
    *,
    stuck_seconds: float = STUCK_SECONDS,
    look_seconds: float = _LOOK_SECONDS,
    file: TextIO | None = None,
) -> Iterator[None]:
    """While the context is open, write the Python stacks of all threads to `file` (standard error)
    when a step has taken longer than `stuck_seconds`, once for each such step."""
    done = threading.Event()

    def watch() -> None:
        told = False
        while not done.wait(look_seconds):
            seconds = engine.stats().step_seconds
            stuck = seconds > stuck_seconds
            if stuck and not told:
                _log.error("a step has taken %.0f s: the stacks of all threads follow", seconds)
                faulthandler.dump_traceback(file or sys.stderr, all_threads=True)
            told = stuck

    thread = threading.Thread(target=watch, name="tensorfold-watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
