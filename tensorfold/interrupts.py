"""Ctrl-C, which must end a command wherever it comes.

Python's own handler raises KeyboardInterrupt at whatever runs. In a callback of the garbage
collector, such as JAX has one, that is dropped, and in the middle of an import it can crash a
library. So a command just exits, but for the places that have something to clean up or to tell.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""The exit status of a command that Ctrl-C ended."""

_AGAIN_SECONDS = 0.01


@contextmanager
def interrupts_exit() -> Iterator[None]:
    """Inside, Ctrl-C ends the process at once, whatever its threads do."""
    with _handled_by(_exit):
        yield


@contextmanager
def interrupts_raise() -> Iterator[None]:
    """Inside, Ctrl-C raises KeyboardInterrupt; one that is dropped comes again."""
    before = sys.unraisablehook

    def again() -> None:
        # A signal, as only that wakes a thread that waits.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # Later, as it would be raised in this very hook.
            threading.Timer(_AGAIN_SECONDS, again).start()
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        with _handled_by(signal.default_int_handler):
            yield
    finally:
        sys.unraisablehook = before


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:  # as of a command that a script runs in the background
        signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _exit(_number: int, _frame: FrameType | None) -> NoReturn:
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), b"\x1b[?25h\n")  # Progress hides the cursor.
    os._exit(INTERRUPTED)
