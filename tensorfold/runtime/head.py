"""The head alone: draws for rows of a step that take more than sampling settings.

A row under penalties, biases or a mask, and a row whose log probabilities are asked for, leaves the
step as its hidden vector. The head and the draw then run here, a few rows at a time, with the same
ops and therefore the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tensorfold.ops import sample
from tensorfold.ops.implementation import implementation
from tensorfold.ops.logprobs import Logprobs, logprobs
from tensorfold.ops.rows import ROW_TILE
from tensorfold.ops.rules import apply_rules, words_of
from tensorfold.runtime.load import Leaves, LoadedModel
from tensorfold.runtime.packed import ALL, SETTINGS, unpack_settings


@dataclass(frozen=True)
class RowRules:
    """What acts on one row's logits, each None for no effect: `factor` and `shift` float32 [V],
    `mask` uint32 [ceil(V / 32)] (see ops/rules.py)."""

    factor: np.ndarray | None = None
    shift: np.ndarray | None = None
    mask: np.ndarray | None = None


NO_RULES = RowRules()


@dataclass(frozen=True)
class HeadRow:
    """A row to draw from: its place among the step's rows, its lane, and the position of the token
    being chosen. Log probabilities, if they are `asked` for, are of the drawn token, or of `given`
    if that is not -1."""

    row: int
    lane: int
    position: int
    rules: RowRules = NO_RULES
    asked: bool = False
    given: int = -1


@dataclass(frozen=True)
class HeadDrawn:
    """A drawn token, the digest of its raw logits, and the log probabilities, `top` as (id, log
    probability) pairs; zeros if they were not asked for."""

    token: int
    digest: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class Head:
    """The compiled head, for one row and for a tile of rows."""

    def __init__(self, model: LoadedModel):
        self._model = model
        spec = model.spec
        self.sizes = (1, ROW_TILE) if implementation() == "cpu" else (ROW_TILE,)
        self.programs: dict[int, Any] = {}
        self._words = words_of(spec.vocab_size)
        # Made by NumPy: jnp.ones and the like are programs, and a warm start compiles none.
        self._neutral = {
            size: (
                jax.device_put(np.ones((size, spec.vocab_size), np.float32)),
                jax.device_put(np.zeros((size, spec.vocab_size), np.float32)),
                jax.device_put(np.full((size, self._words), ALL)),
            )
            for size in self.sizes
        }

    def lower(self, size: int, hidden_size: int) -> Any:
        """One of `sizes`, to be compiled into `programs`."""

        def shape(*axes: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(axes, dtype)

        def head(leaves: Leaves, *arguments: Array) -> tuple[Array, Array, Logprobs]:
            return _head(self._model, leaves, *arguments)

        return jax.jit(head).lower(
            self._model.leaves,
            shape(size, hidden_size, dtype=jnp.float32),
            shape(size, SETTINGS),
            shape(4, size),
            *self._neutral[size],
        )

    def run(
        self, hidden: np.ndarray, settings: np.ndarray, rows: Sequence[HeadRow]
    ) -> list[HeadDrawn]:
        """Draw from `rows` of a step's `hidden` [R, D], with `settings` [L, 6] as the step's."""
        drawn: list[HeadDrawn] = []
        while len(drawn) < len(rows):
            left = len(rows) - len(drawn)
            size = next((size for size in self.sizes if size >= left), self.sizes[-1])
            drawn += self._run(size, hidden, settings, rows[len(drawn) : len(drawn) + size])
        return drawn

    def _run(
        self, size: int, hidden: np.ndarray, settings: np.ndarray, rows: Sequence[HeadRow]
    ) -> list[HeadDrawn]:
        count = len(rows)
        padded = list(rows) + [rows[0]] * (size - count)
        columns = [
            (r.position, r.given, count, r.asked and i < count) for i, r in enumerate(padded)
        ]
        numbers = np.array(columns, np.int32).T
        rules = [self._stack(padded, size, index) for index in range(3)]
        tokens, digests, found = self.programs[size](
            self._model.leaves,
            hidden[[r.row for r in padded]],
            settings[[r.lane for r in padded]],
            numbers,
            *rules,
        )
        top_ids, top = np.asarray(found.top_ids).tolist(), np.asarray(found.top).tolist()
        drawn = np.asarray(tokens).tolist(), np.asarray(digests).tolist()
        chances = np.asarray(found.logprob).tolist(), np.asarray(found.rank).tolist()
        return [
            HeadDrawn(token, digest, logprob, rank, tuple(zip(top_ids[i], top[i], strict=True)))
            for i, (token, digest, logprob, rank) in enumerate(zip(*drawn, *chances, strict=True))
        ][:count]

    def _stack(self, rows: Sequence[HeadRow], size: int, index: int) -> Any:
        """One of the three rules of every row, from the device's own if no row has it."""
        parts = [(r.rules.factor, r.rules.shift, r.rules.mask)[index] for r in rows]
        neutral = self._neutral[size][index]
        if all(part is None for part in parts):
            return neutral
        out = np.empty(neutral.shape, neutral.dtype)
        for row, part in zip(out, parts, strict=True):
            row[:] = (1, 0, ALL)[index] if part is None else part
        return out


def _head(
    model: LoadedModel,
    leaves: Leaves,
    hidden: Array,
    settings: Array,
    numbers: Array,
    factor: Array,
    shift: Array,
    mask: Array,
) -> tuple[Array, Array, Logprobs]:
    """(tokens, digests of the raw logits, log probabilities of the tokens or the given ones)."""
    position, given, count, asked = numbers[0], numbers[1], numbers[2, 0], numbers[3] > 0
    logits = model.bind(leaves).logits(hidden)
    each = unpack_settings(settings, jnp.arange(hidden.shape[0]))
    tokens = sample.draw(apply_rules(logits, factor, shift, mask), each, position, count)
    meant = jnp.where(given < 0, jnp.maximum(tokens, 0), given)
    return tokens, sample.digest(logits), logprobs(logits, meant, asked)
