"""From a validated request to its HTTP answer, the same way for every generating route."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from quart import Response, request

from tensorfold.serving.errors import ApiError, server_error
from tensorfold.serving.generation import ReplyOptions, plan_request
from tensorfold.serving.reply import Reply
from tensorfold.serving.report import runtime, usage
from tensorfold.serving.service import Service
from tensorfold.serving.sse import DONE, event, json_response, stream_response

CONNECTION = "tensorfold.connection"
"""The `Connection` in the state of a request's scope."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shape(ABC):
    """How one API writes a reply. Every object of a reply carries the same id, time and model."""

    id: str
    model: str
    created: int

    def envelope(self, object_name: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """The fields around a reply's or chunk's choices."""
        return {
            "id": self.id,
            "object": object_name,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    @abstractmethod
    def opening(self) -> dict[str, Any] | None:
        """The chunk sent before any text, if the API has one."""

    @abstractmethod
    def chunk(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        """A chunk of text, or the last one, which has a finish reason and no text."""

    @abstractmethod
    def usage_chunk(self) -> dict[str, Any]:
        """The chunk without choices that carries the usage."""

    @abstractmethod
    def whole(self, text: str, finish_reason: str) -> dict[str, Any]:
        """The reply in one piece."""


async def answer(
    service: Service,
    options: ReplyOptions,
    prompt: list[int],
    shape: Shape,
    *,
    param: str,
    arrived: float,
) -> Response:
    """Run one reply and send it, streamed or whole. Raises `ApiError` before anything is sent."""
    planned = plan_request(service, options, prompt, reply_id=shape.id, param=param)
    reply = Reply(service, planned, options.stops)
    reply.start(arrived)
    request.scope["state"][CONNECTION].add(reply)
    headers = {"x-request-id": shape.id}
    if options.stream:
        return stream_response(_events(reply, shape, options.include_usage), headers)
    text = "".join([piece async for piece in reply.pieces()])
    body = shape.whole(text, reply.end.finish_reason)
    body["usage"] = usage(planned, reply.end)
    body["tensorfold"] = runtime(planned, reply.end)
    return json_response(body, headers=headers)


async def _events(reply: Reply, shape: Shape, include_usage: bool) -> AsyncIterator[bytes]:
    try:
        if (opening := shape.opening()) is not None:
            yield event(opening)
        async for piece in reply.pieces():
            yield event(shape.chunk(piece, None))
        last = shape.chunk("", reply.end.finish_reason)
        last["tensorfold"] = runtime(reply.request, reply.end)
        counted = usage(reply.request, reply.end)
        if not include_usage:
            last["usage"] = counted
        yield event(last)
        if include_usage:
            yield event(shape.usage_chunk() | {"usage": counted})
    except ApiError as error:
        yield event(error.envelope())
    except Exception:
        _log.exception("reply %s failed", shape.id)
        yield event(server_error("the reply could not be sent").envelope())
    finally:
        reply.cancel()
    yield DONE


def now() -> int:
    """The time a reply says it was created."""
    return int(time.time())
