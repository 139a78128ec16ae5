"""From a validated request to its HTTP answer, the same way for every generating route."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from quart import Response, request

from tensorfold.chat.pieces import CallPiece, Part, Piece, Token
from tensorfold.checkpoints.interface import Tokenizer
from tensorfold.engine.interface import TokenLogprobs
from tensorfold.serving.errors import ApiError, server_error
from tensorfold.serving.generation import Prompt, ReplyOptions, plan_replies
from tensorfold.serving.reply import Asked, Replies, ReplyEnd, Update
from tensorfold.serving.report import runtime, usage
from tensorfold.serving.service import Service
from tensorfold.serving.sse import DONE, event, json_response, stream_response

CONNECTION = "tensorfold.connection"
"""The `Connection` in the state of a request's scope."""

_log = logging.getLogger(__name__)


@dataclass
class Said:
    """A whole reply, as far as it has come."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallPiece] = field(default_factory=list)
    """A piece a call, with all of its arguments."""
    tokens: list[Token] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    end: ReplyEnd | None = None

    def add(self, update: Update) -> None:
        """Take what is new."""
        for part in update.parts:
            self.tokens += part.tokens
            if isinstance(part, CallPiece):
                self._add_call(part)
            elif part.kind == "reasoning":
                self.reasoning += part.text
            else:
                self.content += part.text
        if update.prompt_logprobs is not None:
            self.prompt_logprobs = update.prompt_logprobs
        self.end = update.end

    def _add_call(self, part: CallPiece) -> None:
        if part.index == len(self.calls):
            self.calls.append(CallPiece(part.index, part.arguments, part.id, part.name))
        else:
            call = self.calls[part.index]
            arguments = call.arguments + part.arguments
            self.calls[part.index] = CallPiece(call.index, arguments, call.id, call.name)

    @property
    def finish_reason(self) -> str:
        """Why the reply ended, once it has."""
        if self.end is None:
            raise RuntimeError("the reply has not ended")
        return self.end.finish_reason


@dataclass(frozen=True)
class Shape(ABC):
    """How one API writes a request's choices; everything carries the same id, time and model.

    A choice is a JSON object. A stream has one choice a chunk.
    """

    id: str
    model: str
    created: int
    tokenizer: Tokenizer
    options: ReplyOptions
    prompts: Sequence[Prompt]

    object: str
    chunk_object: str

    def envelope(self, object_name: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """The fields around a reply's or chunk's choices."""
        return {
            "id": self.id,
            "object": object_name,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def beside_choices(self) -> dict[str, Any]:
        """What the answer, or a stream's first chunk, has beside its choices."""
        return {}

    @abstractmethod
    def opening(self, index: int) -> dict[str, Any] | None:
        """The choice sent before the engine has said anything, if the API has one."""

    def prompt(self, index: int, found: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        """The choice sent when the prompt's log probabilities have come, if the API has one."""
        return None

    @abstractmethod
    def delta(self, index: int, part: Part) -> dict[str, Any] | None:
        """The choice that adds a part with text, if it is one to send."""

    @abstractmethod
    def last(self, index: int, tokens: Sequence[Token], finish_reason: str) -> dict[str, Any]:
        """The choice that ends a reply, with the tokens that came after all text."""

    @abstractmethod
    def whole(self, index: int, said: Said) -> dict[str, Any]:
        """A choice in one piece."""

    def token_ids(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """The field of a choice that has the ids of its tokens, if they were asked for."""
        if not self.options.return_token_ids:
            return {}
        return {"token_ids": [token.id for token in tokens]}


async def answer(service: Service, shape: Shape, *, param: str, arrived: float) -> Response:
    """Run a request's replies and send them. Raises `ApiError` before anything is sent."""
    options = shape.options
    asked = plan_replies(service, options, shape.prompts, reply_id=shape.id, param=param)
    replies = Replies(service, asked)
    replies.start(arrived)
    request.scope["state"][CONNECTION].add(replies)
    headers = {"x-request-id": shape.id}
    if options.stream:
        return stream_response(_events(replies, asked, shape), headers)
    said = [Said() for _ in asked]
    async for update in replies.updates():
        said[update.index].add(update)
    choices = [shape.whole(index, one) for index, one in enumerate(said)]
    ends = [one.end for one in said if one.end is not None]
    body = shape.envelope(shape.object, choices) | shape.beside_choices()
    body["usage"] = usage(asked, ends, options.n)
    for one, choice, end in zip(asked, choices, ends, strict=True):
        # One reply reports for the answer, and of several each for its choice.
        (body if len(asked) == 1 else choice)["tensorfold"] = runtime(one, end)
    return json_response(body, headers=headers)


async def _events(replies: Replies, asked: Sequence[Asked], shape: Shape) -> AsyncIterator[bytes]:
    options = shape.options
    ends: dict[int, ReplyEnd] = {}
    try:
        for index in range(len(asked)):
            if (opening := shape.opening(index)) is not None:
                chunk = shape.envelope(shape.chunk_object, [opening])
                yield event(chunk | shape.beside_choices() if index == 0 else chunk)
        async for update in replies.updates():
            for choice in _choices(shape, update):
                chunk = shape.envelope(shape.chunk_object, [choice])
                if choice["finish_reason"] is not None and update.end is not None:
                    ends[update.index] = update.end
                    report = runtime(asked[update.index], update.end)
                    (chunk if len(asked) == 1 else choice)["tensorfold"] = report
                    if len(ends) == len(asked) and not options.include_usage:
                        chunk["usage"] = _usage(asked, ends, options)
                yield event(chunk)
        if options.include_usage:
            chunk = shape.envelope(shape.chunk_object, [])
            yield event(chunk | {"usage": _usage(asked, ends, options)})
    except ApiError as error:
        yield event(error.envelope())
    except Exception:
        _log.exception("reply %s failed", shape.id)
        yield event(server_error("the reply could not be sent").envelope())
    finally:
        replies.cancel()
    yield DONE


def _choices(shape: Shape, update: Update) -> Iterator[dict[str, Any]]:
    """The choices of the chunks that an update is sent as."""
    tokens: tuple[Token, ...] = ()
    found = update.prompt_logprobs
    choices = [] if found is None else [shape.prompt(update.index, found)]
    for part in update.parts:
        if isinstance(part, Piece) and not part.text:
            tokens = part.tokens
        else:
            choices.append(shape.delta(update.index, part))
    if update.end is not None:
        choices.append(shape.last(update.index, tokens, update.end.finish_reason))
    return (choice for choice in choices if choice is not None)


def _usage(
    asked: Sequence[Asked], ends: dict[int, ReplyEnd], options: ReplyOptions
) -> dict[str, Any]:
    return usage(asked, [ends[index] for index in range(len(asked))], options.n)


def now() -> int:
    """The time a reply says it was created."""
    return int(time.time())
