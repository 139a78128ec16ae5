"""Places in the state that a lane keeps of its last two chunks of rows.

A chunk is 64 positions at absolute multiples of 64, and chunk c is kept at index c % 2. Taking a
lane back is moving its length: rows past it are written again before they are read, and as long as
fewer than 64 rows are taken back, the chunk before is still there.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from tensorfold.ops.rows import PAGE, Rows

CHUNK = PAGE
"""Positions in a chunk: those of a page, so that prefixes end where chunks do."""


_BITS = CHUNK.bit_length() - 1


def chunk_place(position: Int[Array, "..."]) -> tuple[Int[Array, "..."], Int[Array, "..."]]:
    """The index, 0 or 1, at which a position's chunk is kept, and its place in the chunk."""
    return (position >> _BITS) & 1, position & (CHUNK - 1)


def write_rows(
    kept: Float[Array, "L 2 ..."], x: Float[Array, "R ..."], rows: Rows, axis: int = 2
) -> Float[Array, "L 2 ..."]:
    """`kept`, whose `axis` is the place in a chunk, with the rows written: of a lane with more than
    two chunks of them the last two."""
    lanes = kept.shape[0]
    chunk = rows.position >> _BITS
    # Past the last lane, so that padding is dropped: a negative index would count from the end.
    lane = jnp.where(rows.lane < 0, lanes, rows.lane)
    last = jnp.zeros(lanes + 1, jnp.int32).at[lane].max(chunk)
    lane = jnp.where(chunk > last[lane] - 2, lane, lanes)
    at, place = chunk_place(rows.position)
    return kept.at[lane, at, *(slice(None),) * (axis - 2), place].set(x, mode="drop")


def rows_before(
    kept: Float[Array, "L 2 S C"], x: Float[Array, "R C"], rows: Rows, count: int
) -> Float[Array, "R B C"]:
    """For each row, the `count` (fewer than 64) before it in its lane, oldest first: from this
    step's rows `x` or, as `kept` was before them, from the state. Zeros before position 0."""
    distance = jnp.arange(count, 0, -1)
    row = jnp.arange(x.shape[0])[:, None] - distance
    position = rows.position[:, None] - distance
    here = jnp.maximum(row, 0)
    in_step = (row >= 0) & (rows.lane[here] == rows.lane[:, None])
    at, place = chunk_place(jnp.maximum(position, 0))
    stored = kept[jnp.maximum(rows.lane, 0)[:, None], at, place]
    found = jnp.where(in_step[..., None], x[here], stored)
    return jnp.where((position >= 0)[..., None], found, 0.0)
