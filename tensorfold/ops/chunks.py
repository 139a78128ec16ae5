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


def write_rows(
    kept: Float[Array, "L 2 ..."], x: Float[Array, "R ..."], rows: Rows, axis: int = 2
) -> Float[Array, "L 2 ..."]:
    """`kept`, whose `axis` is the place in a chunk, with the rows written: of a lane with more than
    two chunks of them the last two."""
    lanes = kept.shape[0]
    chunk = rows.position // CHUNK
    last = jnp.zeros(lanes, jnp.int32).at[_known(rows.lane, lanes)].max(chunk, mode="drop")
    stays = (rows.lane >= 0) & (chunk > last[jnp.maximum(rows.lane, 0)] - 2)
    lane = jnp.where(stays, rows.lane, lanes)
    between = (slice(None),) * (axis - 2)
    return kept.at[lane, chunk % 2, *between, rows.position % CHUNK].set(x, mode="drop")


def read_before(
    kept: Float[Array, "L 2 S C"], x: Float[Array, "R C"], rows: Rows, distance: int
) -> Float[Array, "R C"]:
    """For each row, the one `distance` (less than 64) positions before it in its lane: from this
    step's rows `x` or, as `kept` was before them, from the state. Zeros before position 0."""
    row = jnp.arange(x.shape[0])
    here = jnp.maximum(row - distance, 0)
    in_step = (row >= distance) & (rows.lane[here] == rows.lane)
    position = rows.position - distance
    place = jnp.maximum(position, 0)
    stored = kept[jnp.maximum(rows.lane, 0), place // CHUNK % 2, place % CHUNK]
    found = jnp.where(in_step[:, None], x[here], stored)
    return jnp.where((position >= 0)[:, None], found, 0.0)


def _known(lane: Int[Array, " R"], lanes: int) -> Int[Array, " R"]:
    """Lanes as indices that drop padding: a negative one would count from the end."""
    return jnp.where(lane < 0, lanes, lane)
