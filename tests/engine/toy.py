"""A model without arrays: each token is a hash of the sequence that its pages really hold."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tensorfold.engine.interface import (
    Event,
    Finished,
    NewTokens,
    PromptLogprobs,
    Request,
    Sampling,
)
from tensorfold.engine.masks import allows
from tensorfold.engine.reply import Reply
from tensorfold.engine.scheduler import RowLimits, Scheduler
from tensorfold.engine.thread import make_reply
from tensorfold.engine.worker import Worker
from tensorfold.ops.rows import PAGE
from tensorfold.ops.sample import NO_TOKEN
from tensorfold.runtime.head import NO_RULES, HeadDrawn, HeadRow, RowRules
from tensorfold.runtime.packed import Span
from tensorfold.runtime.step import Drawn, StateShape

VOCABULARY = 97
BROKEN = 96
"""A token after which the toy's logits are no numbers."""
LOOPING = 50
"""A sequence that starts with this token or a higher one soon repeats itself."""

SHAPE = StateShape(lanes=3, context=256, pages=7)


class ToyRunner:
    """Implements `Runner` on fake paged memory.

    A token depends on the lane's settings and on everything before it as the pages hold it: a wrong
    block table, a wrong position or a page that another reply wrote to gives another token.
    """

    buckets = (1, 2, 4, 8, 16, 32, 64, 256)

    def __init__(self, shape: StateShape):
        self.shape = shape
        self.fail_on: set[int] = set()
        """Numbers of the steps that raise, after they wrote."""
        self.steps: list[list[Span]] = []
        self.resets = 0
        self.reset()

    def reset(self) -> None:
        self.memory = np.full((self.shape.pages, PAGE), -1)
        self.resets += 1

    def run(
        self, spans: Sequence[Span], block_table: np.ndarray, settings: np.ndarray
    ) -> list[Drawn]:
        assert len({span.lane for span in spans}) == len(spans)
        assert all(span.tokens for span in spans)
        self.steps.append(list(spans))
        self.table, self.settings = block_table.copy(), settings.copy()
        for span in spans:
            for position, token in enumerate(span.tokens, span.position):
                page = block_table[span.lane, position // PAGE]
                self.memory[page, position % PAGE] = token
        if len(self.steps) - 1 in self.fail_on:
            raise RuntimeError("the toy broke")
        return [self._draw(span, block_table[span.lane], settings[span.lane]) for span in spans]

    def draw(self, rows: Sequence[HeadRow]) -> list[HeadDrawn]:
        lanes = [span.lane for span in self.steps[-1] for _ in span.tokens]
        drawn = []
        for row in rows:
            assert lanes[row.row] == row.lane
            history = self._history(self.table[row.lane], row.position)
            token, digest = next_token(history, self.settings[row.lane], row.rules)
            about = token if row.given < 0 else row.given
            drawn.append(HeadDrawn(token, digest, -float(about), 1 + about, ((about, 0.0),) * 20))
        return drawn

    def copy_page(self, source: int, target: int) -> None:
        self.memory[target] = self.memory[source]

    def copy_lane(self, source: int, target: int) -> None:
        raise AssertionError("its lanes have no state of their own")

    def _draw(self, span: Span, table: np.ndarray, settings: np.ndarray) -> Drawn:
        end = span.position + len(span.tokens)
        lengths = range(end - span.draws + 1, end + 1)
        pairs = [
            next_token(self._history(table, length), settings, RowRules(mask=mask))
            for length, mask in zip(lengths, span.masks or [None] * span.draws, strict=True)
        ]
        return Drawn(tuple(token for token, _ in pairs), tuple(digest for _, digest in pairs))

    def _history(self, table: np.ndarray, length: int) -> list[int]:
        pages = table[: -(-length // PAGE)]
        history: list[int] = self.memory[pages].ravel()[:length].tolist()
        return history


class RecurrentToy(ToyRunner):
    """Whose lanes know what they have run, and can go on from the start of their last chunk but one
    for as long as no row has been written over its convolution's inputs."""

    def reset(self) -> None:
        super().reset()
        places = self.shape.lanes + self.shape.snapshots
        self.lanes: list[list[int]] = [[] for _ in range(places)]

    def run(
        self, spans: Sequence[Span], block_table: np.ndarray, settings: np.ndarray
    ) -> list[Drawn]:
        for span in spans:
            run = self.lanes[span.lane]
            # At position 0 a lane's state is empty, whatever it held.
            overwritten = (span.position // PAGE + 2) * PAGE - 3
            assert span.position == 0 or span.position <= len(run) <= overwritten
            self.lanes[span.lane] = [*run[: span.position], *span.tokens]
        return super().run(spans, block_table, settings)

    def copy_lane(self, source: int, target: int) -> None:
        self.lanes[target] = list(self.lanes[source])

    def _draw(self, span: Span, table: np.ndarray, settings: np.ndarray) -> Drawn:
        run = self.lanes[span.lane]
        assert self._history(table, len(run)) == run
        return super()._draw(span, table, settings)


def next_token(
    history: Sequence[int], settings: np.ndarray, rules: RowRules = NO_RULES
) -> tuple[int, int]:
    """(token, digest) after `history`."""
    text = repr((list(history), settings.tolist())).encode()
    value = int.from_bytes(hashlib.sha256(text).digest()[:4], "little")
    if history[-1] == BROKEN:
        return NO_TOKEN, value >> 8
    choice = value
    if history[0] >= LOOPING:
        choice = sum(history[-2:]) + len(history) // 9
    changed = [None if each is None else each.tobytes() for each in (rules.factor, rules.shift)]
    if any(changed):
        choice += int.from_bytes(hashlib.sha256(repr(changed).encode()).digest()[:4], "little")
    allowed = [t for t in range(BROKEN) if allows(rules.mask, t)]
    return allowed[choice % len(allowed)], value >> 8


def solo(request: Request) -> list[int]:
    """The tokens of a request by itself, without an engine."""
    return [token for token, _ in solo_pairs(request)]


def solo_pairs(request: Request) -> list[tuple[int, int]]:
    """The tokens and digests of a request by itself, drawn one by one."""
    reply = make_reply(request, lambda event: None, VOCABULARY)
    sequence, pairs = list(request.prompt), []
    while len(pairs) < request.max_tokens:
        rules = reply.rules.rows(())[0] if reply.rules else NO_RULES
        token, digest = next_token(sequence, reply.settings, rules)
        if token == NO_TOKEN:
            break
        pairs.append((token, digest))
        sequence.append(token)
        if reply.rules:
            reply.rules.accept([token])
        if token in request.end_ids:
            break
    return pairs


@dataclass
class Listener:
    """Collects a reply's events."""

    events: list[Event] = field(default_factory=list)
    on_event: Callable[[Event], None] = lambda event: None

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.on_event(event)

    @property
    def end(self) -> Finished:
        """The last event: the only one of its kind, after pieces that are never empty."""
        *pieces, end = self.events
        if pieces and isinstance(pieces[0], PromptLogprobs):
            pieces = pieces[1:]
        assert all(isinstance(piece, NewTokens) and piece.ids for piece in pieces)
        assert isinstance(end, Finished)
        return end

    @property
    def digests(self) -> list[int]:
        pieces = [event for event in self.events if isinstance(event, NewTokens)]
        return [digest for piece in pieces for digest in piece.digests]

    @property
    def tokens(self) -> list[int]:
        pieces = [event for event in self.events if isinstance(event, NewTokens)]
        return [token for piece in pieces for token in piece.ids]


def ask(
    id: str, prompt: Sequence[int] = (1, 2, 3), max_tokens: int = 5, **fields: object
) -> Request:
    sampling = Sampling(temperature=1.0, seed=5)
    return Request(id, tuple(prompt), sampling, max_tokens, **fields)  # type: ignore[arg-type]


def queue(request: Request) -> tuple[Reply, Listener]:
    listener = Listener()
    return make_reply(request, listener, VOCABULARY), listener


def make_worker(
    shape: StateShape = SHAPE, limits: RowLimits | None = None
) -> tuple[Worker, ToyRunner]:
    runner = ToyRunner(shape)
    return Worker(runner, Scheduler(shape, limits or RowLimits())), runner


def finish(worker: Worker, most: int = 5000) -> None:
    for _ in range(most):
        if worker.idle:
            return
        worker.step()
    raise AssertionError("the worker does not come to an end")
