"""Sequences in lanes, run through an op in steps that are cut in any way."""

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from tensorfold.ops.rows import Rows, make_rows

LANES = 3

_make_rows = jax.jit(make_rows)

Run = tuple[int, int, int]
"""(lane, first position, rows)"""


def place_rows(runs: Sequence[Run], size: int) -> Rows:
    """A step of `size` rows, padding last."""
    lane, position = np.full(size, -1, np.int32), np.zeros(size, np.int32)
    at = 0
    for number, first, count in runs:
        lane[at : at + count] = number
        position[at : at + count] = np.arange(first, first + count)
        at += count
    table = jnp.zeros((LANES, 1), jnp.int32)
    return _make_rows(jnp.zeros(size, jnp.int32), lane, position, table)


def cut_steps(
    rng: np.random.Generator, length: int, sizes: Sequence[int]
) -> Iterator[tuple[int, list[Run]]]:
    """(size, runs) of steps that take every lane to `length`, in pieces and order of any kind."""
    reached = [0] * LANES
    while min(reached) < length:
        size = int(rng.choice(sizes))
        runs, room = [], size
        for lane in rng.permutation(LANES).tolist():
            most = min(room, length - reached[lane])
            count = int(rng.integers(0, most + 1))
            if count:
                runs.append((lane, reached[lane], count))
                reached[lane] += count
                room -= count
        if runs:
            yield size, runs


def gather(x: np.ndarray, runs: Sequence[Run], size: int) -> np.ndarray:
    """The rows of `x` [lanes, positions, ...] that a step takes, NaN where it has none."""
    out = np.full((size, *x.shape[2:]), np.nan, np.float32)
    at = 0
    for lane, first, count in runs:
        out[at : at + count] = x[lane, first : first + count]
        at += count
    return out


def scatter(out: np.ndarray, rows: np.ndarray, runs: Sequence[Run]) -> None:
    """Put a step's rows where they belong in `out` [lanes, positions, ...]."""
    at = 0
    for lane, first, count in runs:
        out[lane, first : first + count] = rows[at : at + count]
        at += count
