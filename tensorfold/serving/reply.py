"""One reply of the engine as text: from its thread to the event loop, and cancelled in time."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tensorfold.chat.text_stream import ReplyText
from tensorfold.engine.interface import (
    EngineClosed,
    Event,
    Finished,
    NewTokens,
    ReplyStats,
    Request,
)
from tensorfold.serving.errors import ApiError, server_error
from tensorfold.serving.service import Service

_CANCEL_SECONDS = 5.0


@dataclass(frozen=True)
class ReplyEnd:
    """How a reply ended. `tokens` goes through the one that ended it, and no further."""

    finish_reason: Literal["stop", "length"]
    tokens: tuple[int, ...]
    stats: ReplyStats
    seconds_before: float
    """From the request's arrival to its place in the engine's queue."""
    stop_string: str | None = None


class Reply:
    """A reply being generated. Read `pieces` to its end, then `end`; `cancel` at any time."""

    def __init__(self, service: Service, request: Request, stops: Sequence[str]) -> None:
        self.request = request
        self._engine = service.engine
        self._text = ReplyText(service.tokenizer, end_ids=request.end_ids, stops=stops)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._end: ReplyEnd | None = None
        self._finished = False

    def start(self, arrived: float) -> None:
        """Queue the reply. Raises `ApiError` when the engine does not take it."""
        self._seconds_before = time.monotonic() - arrived
        try:
            self._engine.submit(self.request, self._deliver)
        except EngineClosed:
            self._finished = True
            raise server_error("the server is stopping", status=503) from None
        except ValueError as error:
            self._finished = True
            raise ApiError(str(error)) from error

    async def pieces(self) -> AsyncIterator[str]:
        """The text as it is decided, in non-empty pieces. Raises `ApiError` if it fails."""
        tokens: list[int] = []
        piece = ""
        while self._end is None:
            event = await self._next_event()
            if isinstance(event, Finished):
                # What was said before a failure is sent all the same.
                if piece:
                    yield piece
                self._end = self._ended(event, tokens)
                piece = self._text.finish()
            elif isinstance(event, NewTokens):
                piece += self._read(event, tokens)
            stopped = self._text.stop_string is not None
            # A client that reads slowly gets what has gathered meanwhile in one piece.
            if piece and (stopped or self._events.empty()):
                yield piece
                piece = ""
            if stopped:
                stats = await self._cancelled_stats()
                self._end = ReplyEnd(
                    "stop", tuple(tokens), stats, self._seconds_before, self._text.stop_string
                )

    def _read(self, event: NewTokens, tokens: list[int]) -> str:
        """The text of an event's tokens, up to a stop string; adds the tokens read to `tokens`."""
        text = ""
        for token in event.ids:
            tokens.append(token)
            text += self._text.push(token)
            if self._text.stop_string is not None:
                break
        return text

    @property
    def end(self) -> ReplyEnd:
        """How the reply ended, once `pieces` has."""
        if self._end is None:
            raise RuntimeError("the reply has not ended")
        return self._end

    def cancel(self) -> None:
        """Stop generating; nothing happens when the engine has finished already."""
        if not self._finished:
            self._finished = True
            self._engine.cancel(self.request.id)

    def _deliver(self, event: Event) -> None:
        # The loop is closed when the server has stopped before the engine: nobody reads any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def _next_event(self) -> Event:
        event = await self._events.get()
        if isinstance(event, Finished):
            self._finished = True
        return event

    def _ended(self, event: Finished, tokens: list[int]) -> ReplyEnd:
        if event.reason == "error":
            raise server_error(event.error or "the reply could not be generated")
        if event.reason == "cancelled":
            raise server_error("the server stopped the reply", status=503)
        return ReplyEnd(event.reason, tuple(tokens), event.stats, self._seconds_before)

    async def _cancelled_stats(self) -> ReplyStats:
        """Cancel the rest of the reply and wait for what it has cost."""
        self.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_SECONDS):
                while True:
                    event = await self._events.get()
                    if isinstance(event, Finished):
                        return event.stats
        return ReplyStats()


class Connection:
    """A client's connection, for as long as it is there to read."""

    def __init__(self) -> None:
        self._replies: list[Reply] = []
        self._ended = False

    def add(self, reply: Reply) -> None:
        """Tie a started reply to the connection."""
        self._replies.append(reply)
        if self._ended:
            reply.cancel()

    def end(self) -> None:
        """Stop the connection's replies, now and later."""
        self._ended = True
        for reply in self._replies:
            reply.cancel()
