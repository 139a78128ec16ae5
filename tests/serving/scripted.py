"""An engine that says what a test tells it to, and a tokenizer whose tokens are bytes."""

import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from tensorfold.chat.prompt import ChatEncoder
from tensorfold.chat.template import ChatTemplate
from tensorfold.engine.interface import (
    Constraint,
    EngineClosed,
    EngineStats,
    Event,
    Finished,
    FinishReason,
    Limits,
    NewTokens,
    PromptLogprobs,
    ReplyStats,
    Request,
    TokenLogprobs,
)
from tensorfold.engine.masks import allows
from tensorfold.serving.service import ReplyDefaults, Service

CONTROLS = ("<|im_start|>", "<|im_end|>", "<bos>", "<think>", "</think>", "<｜end｜>")
IM_START, IM_END, BOS = 256, 257, 258
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class ByteTokenizer:
    """Ids 0 to 255 are bytes, control tokens follow."""

    vocab_size = 256 + len(CONTROLS)
    bos_id = BOS
    end_ids = frozenset({IM_END})
    control_ids = frozenset(range(256, 256 + len(CONTROLS)))
    _split = re.compile("(" + "|".join(map(re.escape, CONTROLS)) + ")")

    def encode(
        self, text: str, *, add_special_tokens: bool = False, control: bool = True
    ) -> list[int]:
        tokens = [BOS] if add_special_tokens else []
        for piece in self._split.split(text) if control else [text]:
            if control and piece in CONTROLS:
                tokens.append(256 + CONTROLS.index(piece))
            else:
                tokens += piece.encode()
        return tokens

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else CONTROLS[token - 256].encode()

    def token_text(self, token: int) -> str:
        return chr(token) if token < 256 else CONTROLS[token - 256]


@dataclass(frozen=True)
class Script:
    """What the engine does with a request: events of tokens, and how they come."""

    events: tuple[tuple[int, ...], ...]
    wait: float = 0.0
    """Seconds before the first event, as a queue or a long prompt takes."""
    delay: float = 0.0
    """Seconds before each further event."""
    error: str | None = None
    """Ends the reply as failed after its events."""


def say(text: str | bytes, *, end: bool = True, size: int = 1, **how: float) -> Script:
    """A script whose reply is `text`, `size` tokens an event."""
    data = text.encode() if isinstance(text, str) else text
    tokens = [*data, IM_END] if end else list(data)
    return Script(
        tuple(tuple(tokens[i : i + size]) for i in range(0, len(tokens), size)),
        **how,  # type: ignore[arg-type]
    )


@dataclass
class ScriptedEngine:
    """Implements the engine's protocol, a thread for each reply."""

    script: Callable[[Request], Script] = field(default=lambda request: say("Hello"))
    limits: Limits = field(
        default=Limits(context=4096, vocab_size=ByteTokenizer.vocab_size, lanes=8)
    )
    requests: list[Request] = field(default_factory=list)
    finished: dict[str, FinishReason] = field(default_factory=dict)
    closed: bool = False

    def __post_init__(self) -> None:
        self._stops: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def submit(
        self, request: Request, deliver: Callable[[Event], None], *, joins: bool = False
    ) -> None:
        if self.closed:
            raise EngineClosed("closed")
        if len(request.prompt) + request.max_tokens > self.limits.context:
            raise ValueError("the request is longer than the context")
        stop = threading.Event()
        thread = threading.Thread(
            target=self._run, args=(request, deliver, stop, time.monotonic()), daemon=True
        )
        with self._lock:
            self.requests.append(request)
            self._stops[request.id] = stop
            self._threads.append(thread)
        thread.start()

    def cancel(self, request_id: str) -> None:
        with self._lock:
            stop = self._stops.get(request_id)
        if stop is not None:
            stop.set()

    def stats(self) -> EngineStats:
        running = len(self.requests) - len(self.finished)
        return EngineStats(running=running, waiting=0, decode_tokens_per_second=12.34)

    def close(self) -> None:
        self.closed = True
        for stop in list(self._stops.values()):
            stop.set()
        for thread in self._threads:
            thread.join()

    def _run(
        self,
        request: Request,
        deliver: Callable[[Event], None],
        stop: threading.Event,
        started: float,
    ) -> None:
        script = self.script(request)
        sent = 0
        if (count := request.prompt_logprobs) is not None:
            deliver(PromptLogprobs(tuple(row(token, count) for token in request.prompt[1:])))
        reason: FinishReason = "error" if script.error is not None else "length"
        wait = script.wait
        events = script.events
        if request.constraint is not None:
            events = held(script, request, request.constraint())
        for tokens in events:
            if stop.wait(wait) if wait else stop.is_set():
                reason = "cancelled"
                break
            wait = script.delay
            kept = _through_end(tokens, request)[: request.max_tokens - sent]
            rows = [] if request.logprobs is None else [row(t, request.logprobs) for t in kept]
            deliver(NewTokens(tuple(kept), logprobs=tuple(rows)))
            sent += len(kept)
            if kept[-1] in request.end_ids:
                reason = "stop"
            if reason == "stop" or sent == request.max_tokens:
                break
        self.finished[request.id] = reason
        stats = ReplyStats(
            prompt_tokens=len(request.prompt),
            cached_tokens=3,
            completion_tokens=sent,
            time_to_first_token=script.wait,
            prefill_seconds=0.25,
            decode_seconds=time.monotonic() - started,
            rounds=2,
            drafted=4,
            accepted=3,
        )
        deliver(Finished(reason, stats, script.error if reason == "error" else None))


def held(script: Script, request: Request, constraint: Constraint) -> tuple[tuple[int, ...], ...]:
    """A script as a constraint lets it be said, a token an event.

    Where the next token is not allowed, the end or else the least that is comes in its place.
    Drafts are tried as an engine would, and the masks after them must be those found a token at a
    time.
    """
    wanted = [token for tokens in script.events for token in tokens]
    said: list[tuple[int, ...]] = []
    expected: list[np.ndarray | None] = []
    while len(said) < request.max_tokens:
        masks = list(constraint.masks(wanted[:4] if len(said) % 3 == 0 else ()))
        if expected:
            assert same_mask(expected[0], masks[0])
        expected = expected[1:] if len(said) % 3 else masks[1:]
        token = wanted[0] if wanted else IM_END
        if not allows(masks[0], token):
            others = (IM_END, *range(ByteTokenizer.vocab_size))
            token = next(other for other in others if allows(masks[0], other))
            expected = []
        else:
            wanted = wanted[1:]
        constraint.accept(token)
        said.append((token,))
        if token in request.end_ids:
            break
    return tuple(said)


def same_mask(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return all(allows(a, token) == allows(b, token) for token in range(ByteTokenizer.vocab_size))


def row(token: int, count: int) -> TokenLogprobs:
    """What the engine says of a token: its `count` likeliest are the ids below it and itself."""
    first = max(token - 2, 0)
    top = tuple(((first + i) % ByteTokenizer.vocab_size, -0.5 - i) for i in range(count))
    return TokenLogprobs(token, -0.5 - (token - first), token - first + 1, top)


def _through_end(tokens: Iterable[int], request: Request) -> list[int]:
    kept: list[int] = []
    for token in tokens:
        kept.append(token)
        if token in request.end_ids:
            break
    return kept


def make_service(engine: ScriptedEngine, **changes: object) -> Service:
    """A service around a scripted engine."""
    tokenizer = ByteTokenizer()
    fields: dict[str, object] = {
        "engine": engine,
        "tokenizer": tokenizer,
        "chat": ChatEncoder(ChatTemplate(TEMPLATE, {"bos_token": "<bos>"}), tokenizer),
        "name": "scripted",
        "created": 1700000000,
        "aliases": ("nickname",),
        "end_ids": frozenset({IM_END}),
        "defaults": ReplyDefaults(),
    }
    return Service(**(fields | changes))  # type: ignore[arg-type]
