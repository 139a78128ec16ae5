"""Running the application: a listening socket, Hypercorn, and a graceful stop."""

import asyncio
import contextlib
import gc
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import hypercorn.asyncio.run
from hypercorn.asyncio import serve as hypercorn_serve
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.config import Config
from hypercorn.events import Event, Updated

from tensorfold.serving.app import App
from tensorfold.serving.listener import BACKLOG, address_of, listen

GRACE_SECONDS = 10.0
_LAST_SECONDS = 1.0
"""For the last words of replies that were ended."""


@dataclass(frozen=True)
class RunningServer:
    """A server in a thread of its own."""

    url: str
    """Its address without /v1."""


def serve(
    app: App,
    host: str,
    port: int,
    *,
    grace_seconds: float = GRACE_SECONDS,
    ready: Callable[[str], None] | None = None,
    stopping: Callable[[], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then let replies finish for `grace_seconds`, or until the
    signal comes again.

    `ready` is called with the server's address once it accepts connections (port 0 takes a free
    one), `stopping` at the first signal. Raises OSError when the address can't be had. Must run in
    the main thread.
    """
    listener = listen(host, port)

    async def run() -> None:
        stop, hurry = asyncio.Event(), asyncio.Event()

        def on_signal() -> None:
            if stop.is_set():
                hurry.set()
                return
            stop.set()
            if stopping is not None:
                stopping()

        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, on_signal)
        if ready is not None:
            ready(address_of(listener))
        await _run(app, listener, stop, hurry, grace_seconds)

    # Modules and weights stay: looking through them again would be a pause of a tenth of a second.
    gc.collect()
    gc.freeze()
    try:
        asyncio.run(run())
    finally:
        gc.unfreeze()


class _Connection(TCPServer):
    """Hypercorn's connection, closed when its client has closed it.

    Hypercorn 0.18 holds on to it until the keep-alive time has passed, and clients that open one
    for each request would have the server run out of file descriptors.
    """

    _gone = False

    async def _read_data(self) -> None:
        await super()._read_data()
        self._gone = True
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        # Nor may a reply that ends later start the keep-alive time.
        if not (self._gone and isinstance(event, Updated)):
            await super().protocol_send(event)


hypercorn.asyncio.run.TCPServer = _Connection  # type: ignore[attr-defined]


@contextlib.contextmanager
def serve_in_background(
    app: App, host: str = "127.0.0.1", port: int = 0, *, grace_seconds: float = 1.0
) -> Iterator[RunningServer]:
    """Serve in a thread while the context is open."""
    listener = listen(host, port)
    url = address_of(listener)
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(_run(app, listener, stop, asyncio.Event(), grace_seconds))

    thread = threading.Thread(target=run, name="tensorfold-http", daemon=True)
    thread.start()
    try:
        yield RunningServer(url)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


async def _run(
    app: App,
    listener: socket.socket,
    stop: asyncio.Event,
    hurry: asyncio.Event,
    grace_seconds: float,
) -> None:
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.backlog = BACKLOG
    config.errorlog = None
    config.accesslog = None
    config.include_server_header = False
    # Longer than clients keep their idle connections, so that none is closed as it is reused.
    config.keep_alive_timeout = 75
    # Hypercorn only waits: what happens to replies that take too long is decided below.
    config.graceful_timeout = grace_seconds + 2 * _LAST_SECONDS
    serving = asyncio.create_task(hypercorn_serve(app, config, shutdown_trigger=stop.wait))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    hurried = asyncio.create_task(hurry.wait())
    await asyncio.wait(
        {serving, hurried}, timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED
    )
    hurried.cancel()
    if not serving.done():
        app.end_replies()
        await asyncio.wait({serving}, timeout=_LAST_SECONDS)
    if not serving.done():
        serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
