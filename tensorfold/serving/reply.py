"""Replies of the engine as text: from its thread to the event loop, and cancelled in time."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from tensorfold.chat.pieces import CallPiece, Part, Piece, Stage, Stages, Token, join
from tensorfold.chat.text_stream import ReplyText
from tensorfold.chat.thinking import ThinkingRules
from tensorfold.engine.interface import (
    EngineClosed,
    EngineFull,
    Event,
    Finished,
    NewTokens,
    PromptLogprobs,
    ReplyStats,
    Request,
    TokenLogprobs,
)
from tensorfold.serving.errors import ApiError, cancelled, server_error, timed_out
from tensorfold.serving.service import Service


@dataclass(frozen=True)
class Asked:
    """A reply to generate, and how its text is read: up to a stop string, then through stages."""

    request: Request
    stops: tuple[str, ...] = ()
    stages: Callable[[], Sequence[Stage]] = tuple
    thinking: ThinkingRules | None = None


@dataclass(frozen=True)
class ReplyEnd:
    """How a reply ended. `tokens` goes through the one that ended it, and no further."""

    finish_reason: Literal["stop", "length", "tool_calls"]
    tokens: tuple[int, ...]
    stats: ReplyStats
    seconds_before: float
    """From the request's arrival to its place in the engine's queue."""
    reasoning_tokens: int = 0
    stop_string: str | None = None


@dataclass(frozen=True)
class Update:
    """What is new in one reply of a request; the reply's last update has its end.

    The parts are joined where they may be, and only an end's own may be without text.
    """

    index: int
    parts: list[Part]
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    end: ReplyEnd | None = None


class Reply:
    """One reply while it is generated, read an event of the engine at a time."""

    def __init__(self, service: Service, asked: Asked) -> None:
        self.asked = asked
        self.end: ReplyEnd | None = None
        self._engine = service.engine
        self._counts = service.counts
        request = asked.request
        self._text = ReplyText(
            service.tokenizer,
            end_ids=request.end_ids,
            stops=asked.stops,
            min_tokens=request.sampling.min_tokens,
        )
        self._stages = Stages(asked.stages())
        self._tokens: list[int] = []
        self._reasoning_tokens = 0
        self._called = False
        self._finished = False
        self._why: ApiError | None = None

    def start(self, arrived: float, deliver: Callable[[Event], None], *, joins: bool) -> None:
        """Queue the reply (see `Engine.submit`). Raises `ApiError` when it is not taken."""
        self._arrived = arrived
        self._seconds_before = time.monotonic() - arrived
        try:
            self._engine.submit(self.asked.request, deliver, joins=joins)
        except EngineClosed:
            self._finished = True
            raise server_error("the server is stopping", status=503) from None
        except EngineFull as error:
            self._finished = True
            raise server_error(str(error) or "the server is busy", 503, retry_after=1) from None
        except ValueError as error:
            self._finished = True
            raise ApiError(str(error)) from error

    def take(self, event: NewTokens | Finished) -> list[Part]:
        """The parts that an event decides; sets `end` with the last. Raises `ApiError`."""
        if isinstance(event, NewTokens):
            parts = self._read(event)
        else:
            self._finished = True
            reason = self._finish_reason(event)
            parts = [] if self._stopped else self._finish(cut=reason == "length")
        self._called |= any(isinstance(part, CallPiece) for part in parts)
        self._reasoning_tokens += sum(
            len(part.tokens)
            for part in parts
            if isinstance(part, Piece) and part.kind == "reasoning"
        )
        if isinstance(event, Finished):
            self.end = ReplyEnd(
                "tool_calls" if self._called and reason == "stop" else reason,
                tuple(self._tokens),
                event.stats,
                self._seconds_before,
                self._reasoning_tokens,
                self._text.stop_string,
            )
            seconds = time.monotonic() - self._arrived
            self._counts.reply_ended(event.stats, self._seconds_before, seconds)
        return parts

    @property
    def open(self) -> bool:
        """Whether the engine may still be at it."""
        return not self._finished

    def cancel(self, why: ApiError | None = None) -> None:
        """Stop generating, and end with the error `why`; nothing happens when the engine has
        finished already."""
        if not self._finished:
            self._finished, self._why = True, why
            self._engine.cancel(self.asked.request.id)

    @property
    def _stopped(self) -> bool:
        return self._text.stop_string is not None

    def _read(self, event: NewTokens) -> list[Part]:
        """The parts of an event's tokens, up to a stop string."""
        parts: list[Part] = []
        logprobs = event.logprobs or (None,) * len(event.ids)
        for token in map(Token, event.ids, logprobs):
            if self._stopped:
                break
            self._tokens.append(token.id)
            parts += self._stages.push(self._text.push(token))
            if self._stopped:
                parts += self._finish(cut=False)
                self.cancel()
        return parts

    def _finish(self, cut: bool) -> list[Part]:
        return [*self._stages.push(self._text.finish()), *self._stages.finish(cut)]

    def _finish_reason(self, event: Finished) -> Literal["stop", "length"]:
        if self._stopped:
            return "stop"
        if event.reason == "error":
            raise server_error(event.error or "the reply could not be generated")
        if event.reason == "cancelled":
            raise self._why or server_error("the server stopped the reply", status=503)
        return event.reason


class Replies:
    """All replies of one request. Read `updates` to its end; `cancel` at any time."""

    def __init__(self, service: Service, asked: Sequence[Asked]) -> None:
        self._replies = [Reply(service, one) for one in asked]
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._timeout = service.request_timeout
        self._timer: asyncio.TimerHandle | None = None
        self.id = asked[0].request.id
        """As the client is told it."""

    def start(self, arrived: float) -> None:
        """Queue every reply, or none. Raises `ApiError` when the engine does not take them."""
        if self._timeout is not None:
            left = arrived + self._timeout - time.monotonic()
            self._timer = self._loop.call_later(left, self.cancel, timed_out(self._timeout))
        for index, reply in enumerate(self._replies):
            try:
                reply.start(arrived, partial(self._deliver, index), joins=index > 0)
            except ApiError:
                self.cancel()
                raise

    async def updates(self) -> AsyncIterator[Update]:
        """What is decided, in order for each reply. Raises `ApiError` if a reply fails."""
        gathered: dict[int, list[Part]] = {}
        open_replies = len(self._replies)
        while open_replies:
            index, event = await self._events.get()
            if isinstance(event, PromptLogprobs):
                yield Update(index, [], event.tokens)
                continue
            reply = self._replies[index]
            try:
                parts = reply.take(event)
            except ApiError:
                # What was said before a failure is sent all the same.
                for update in _decided(gathered):
                    yield update
                raise
            gathered[index] = join([*gathered.get(index, []), *parts])
            if reply.end is not None:
                open_replies -= 1
                yield Update(index, gathered.pop(index), end=reply.end)
            # A client that reads slowly gets what has gathered meanwhile in one piece.
            if self._events.empty():
                for update in _decided(gathered):
                    yield update

    @property
    def open(self) -> bool:
        """Whether any of them may still be generated."""
        return any(reply.open for reply in self._replies)

    def cancel(self, why: ApiError | None = None) -> None:
        """Stop every reply, and end with the error `why`."""
        if self._timer is not None:
            self._timer.cancel()
        for reply in self._replies:
            reply.cancel(why)

    def _deliver(self, index: int, event: Event) -> None:
        # The loop is closed when the server has stopped before the engine: nobody reads any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._events.put_nowait, (index, event))


def _decided(gathered: dict[int, list[Part]]) -> list[Update]:
    """The gathered parts as updates; one without text waits for the next text or the end."""
    updates = []
    for index in sorted(gathered):
        parts = gathered[index]
        waits = bool(parts) and isinstance(parts[-1], Piece) and not parts[-1].text
        edge = len(parts) - waits
        if parts[:edge]:
            updates.append(Update(index, parts[:edge]))
        gathered[index] = parts[edge:]
    return updates


class Connection:
    """A client's connection, for as long as it is there to read."""

    def __init__(self, name: str = "") -> None:
        """`name` is the client's own for the request."""
        self._name = name
        self._replies: list[Replies] = []
        self._ended = False

    def add(self, replies: Replies) -> None:
        """Tie started replies to the connection."""
        self._replies.append(replies)
        if self._ended:
            replies.cancel()

    def cancel(self, reply_id: str) -> bool:
        """Stop the replies of the request with this id or name; False if there are none to stop."""
        found = [each for each in self._replies if reply_id in (each.id, self._name) and each.open]
        for replies in found:
            replies.cancel(cancelled())
        return bool(found)

    def end(self) -> bool:
        """Stop the connection's replies, now and later; whether there was one to stop."""
        self._ended = True
        were_open = any(replies.open for replies in self._replies)
        for replies in self._replies:
            replies.cancel()
        return were_open
