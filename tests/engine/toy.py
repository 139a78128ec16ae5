"""A model without arrays: each token is a hash of the sequence that its pages really hold."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tensorfold.engine.interface import Event, Finished, NewTokens, Request, Sampling
from tensorfold.engine.reply import Reply
from tensorfold.engine.thread import make_reply
from tensorfold.ops.rows import PAGE
from tensorfold.ops.sample import NO_TOKEN
from tensorfold.runtime.packed import Span
from tensorfold.runtime.step import Drawn, StateShape

VOCABULARY = 97
BROKEN = 96
"""A token after which the toy's logits are no numbers."""


class ToyRunner:
    """Implements `Runner` on fake paged memory.

    A token depends on the lane's settings and on everything before it as the pages hold it: a wrong
    block table, a wrong position or a page that another reply wrote to gives another token.
    """

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
        for span in spans:
            for position, token in enumerate(span.tokens, span.position):
                page = block_table[span.lane, position // PAGE]
                self.memory[page, position % PAGE] = token
        if len(self.steps) - 1 in self.fail_on:
            raise RuntimeError("the toy broke")
        return [self._draw(span, block_table[span.lane], settings[span.lane]) for span in spans]

    def _draw(self, span: Span, table: np.ndarray, settings: np.ndarray) -> Drawn:
        tokens, digests = [], []
        end = span.position + len(span.tokens)
        for length in range(end - span.draws + 1, end + 1):
            pages = table[: -(-length // PAGE)]
            history = self.memory[pages].ravel()[:length]
            token, value = next_token(history.tolist(), settings)
            tokens.append(token)
            digests.append(value)
        return Drawn(tuple(tokens), tuple(digests))


def next_token(history: Sequence[int], settings: np.ndarray) -> tuple[int, int]:
    """(token, digest) after `history`."""
    text = repr((list(history), settings.tolist())).encode()
    value = int.from_bytes(hashlib.sha256(text).digest()[:4], "little")
    return (NO_TOKEN if history[-1] == BROKEN else value % BROKEN), value >> 8


def solo(request: Request) -> list[int]:
    """The tokens of a request by itself, without an engine."""
    settings = make_reply(request, lambda event: None).settings
    sequence, tokens = list(request.prompt), []
    while len(tokens) < request.max_tokens:
        token, _ = next_token(sequence, settings)
        if token == NO_TOKEN:
            break
        tokens.append(token)
        sequence.append(token)
        if token in request.end_ids:
            break
    return tokens


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
        assert all(isinstance(piece, NewTokens) and piece.ids for piece in pieces)
        assert isinstance(end, Finished)
        return end

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
    return make_reply(request, listener), listener
