"""The engine: one thread that owns the device, fed from any other."""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable

from tensorfold.engine.interface import (
    EngineClosed,
    EngineFull,
    EngineStats,
    Event,
    Limits,
    Request,
)
from tensorfold.engine.reply import Reply
from tensorfold.engine.rules import Rules
from tensorfold.engine.seeds import derive_seed, salt_from_environment
from tensorfold.engine.worker import Worker
from tensorfold.runtime.compilation import CompileCounter
from tensorfold.runtime.packed import pack_settings

_log = logging.getLogger(__name__)


class ThreadEngine:
    """An `Engine` (see `interface`) around a `Worker`."""

    def __init__(self, worker: Worker, limits: Limits):
        self._worker = worker
        self._limits = limits
        self._salt = salt_from_environment()
        self._commands: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._arriving = [0, 0]
        """Replies among the commands, foreground and background."""
        self._compiles = CompileCounter()
        self._thread = threading.Thread(target=self._run, name="tensorfold-engine", daemon=True)
        self._thread.start()

    @property
    def limits(self) -> Limits:
        """The engine's fixed capacity."""
        return self._limits

    def submit(
        self, request: Request, deliver: Callable[[Event], None], *, joins: bool = False
    ) -> None:
        """Queue `request` (see `Engine.submit`)."""
        check(request, self._limits)
        reply = make_reply(request, deliver, self._limits.vocab_size, self._salt)

        def add() -> None:
            with self._changed:  # Others find it arriving or waiting, not neither.
                self._arriving[request.background] -= 1
                self._worker.add(reply)

        self._command(add, queues=request, joins=joins)

    def cancel(self, request_id: str) -> None:
        """End a reply at the next step, or before it starts."""
        with contextlib.suppress(EngineClosed):  # which has cancelled everything
            self._command(lambda: self._worker.cancel(request_id))

    def stats(self) -> EngineStats:
        """Counters and gauges."""
        return self._worker.stats(self._compiles.of_thread(self._thread.ident))

    def close(self) -> None:
        """End every reply as cancelled and stop. Again, it only waits."""
        with self._changed:
            first = not self._closing
            self._closing = True
            self._changed.notify()
        self._thread.join()
        if first:
            self._compiles.close()

    def _command(
        self, action: Callable[[], None], queues: Request | None = None, joins: bool = False
    ) -> None:
        """Have the engine's thread do something, which may be to queue a reply."""
        with self._changed:
            if self._closing:
                raise EngineClosed("the engine has stopped")
            if queues:
                if not joins:
                    self._refuse_if_full(queues.background)
                self._arriving[queues.background] += 1
            self._commands.append(action)
            self._changed.notify()

    def _refuse_if_full(self, background: bool) -> None:
        """Raises EngineFull. Replies that have only arrived count as waiting, and those that wait
        behind this one do not count."""
        scheduler, queue = self._worker.scheduler, self._limits.queue
        ahead = scheduler.waiting if background else scheduler.waiting_in_foreground
        waiting = len(ahead) + (sum(self._arriving) if background else self._arriving[False])
        if queue is not None and waiting >= queue + scheduler.places(background):
            raise EngineFull(f"{waiting} replies wait already, and {queue} may (--max-queue)")

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._worker.idle and not self._commands and not self._closing:
                    self._changed.wait()
                closing = self._closing
            try:
                # One that fails must not take those after it along.
                for _ in range(len(self._commands)):
                    self._commands.popleft()()
                if closing:
                    self._worker.end_all("cancelled")
                    return
                self._worker.step()
            except Exception as error:
                # Not a step that failed, which the worker answers, but a fault of the engine's own.
                _log.exception("the engine failed")
                self._worker.end_all("error", f"the engine failed: {error}")


def check(request: Request, limits: Limits) -> None:
    """Raise ValueError for a request that can never run."""
    if not request.prompt:
        raise ValueError("the prompt is empty")
    if request.max_tokens < 1:
        raise ValueError("max_tokens must be at least 1")
    if min(request.prompt) < 0 or max(request.prompt) >= limits.vocab_size:
        raise ValueError(f"prompt token ids {_between(limits)}")
    outside = [
        token for token, _ in request.sampling.logit_bias if not 0 <= token < limits.vocab_size
    ]
    if outside:
        raise ValueError(f"logit_bias has token {outside[0]}: ids {_between(limits)}")
    total = len(request.prompt) + request.max_tokens
    if total > limits.context:
        raise ValueError(f"{total} tokens do not fit the context of {limits.context}")


def _between(limits: Limits) -> str:
    return f"must be between 0 and {limits.vocab_size - 1}"


def make_reply(
    request: Request, deliver: Callable[[Event], None], vocab_size: int, salt: int = 0
) -> Reply:
    """A reply to queue, with its sampling settings packed for the device."""
    sampling = request.sampling
    seed = sampling.seed if sampling.seed is not None else derive_seed(request.prompt, salt)
    settings = pack_settings(
        sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, seed
    )
    rules = Rules(request, vocab_size) if Rules.needed(request) else None
    return Reply(request, deliver, settings, rules)
