"""The rows of one step: which token of which lane each row is, and where its keys live."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Int

PAGE = 64
"""Positions in a page; page p of a lane holds positions 64 p to 64 p + 63."""

ROW_TILE = 8
"""Rows that a plain-XLA op computes together. Every bucket is a multiple of it, so an op's inner
shapes, and with them its bits, are the same in every bucket (docs/exactness.md)."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """A block of R rows. Rows of one lane are contiguous and in order; padding has lane -1.

    token, lane, position: [R] int32
    block_table: [L, M] int32, the page that holds positions 64 m .. 64 m + 63 of lane l
    tile_start: [T] int32. Attention takes the rows of a lane in tiles of at most ROW_TILE; this is
        the first row of each, in order.
    tile_last: [T] int32, the position of each tile's last row
    tiles: [] int32, how many of the T tiles are in use
    """

    token: Int[Array, " R"]
    lane: Int[Array, " R"]
    position: Int[Array, " R"]
    block_table: Int[Array, "L M"]
    tile_start: Int[Array, " T"]
    tile_last: Int[Array, " T"]
    tiles: Int[Array, ""]


def make_rows(
    token: Int[Array, " R"],
    lane: Int[Array, " R"],
    position: Int[Array, " R"],
    block_table: Int[Array, "L M"],
) -> Rows:
    """Rows with their attention tiles worked out: each lane's run of rows cut in tiles."""
    rows, lanes = token.shape[0], block_table.shape[0]
    row = jnp.arange(rows, dtype=jnp.int32)
    run_starts = jnp.concatenate([jnp.ones((1,), bool), lane[1:] != lane[:-1]])
    within = row - lax.cummax(jnp.where(run_starts, row, 0))
    starts = (lane >= 0) & (within % ROW_TILE == 0)
    most = min(rows, lanes + rows // ROW_TILE)
    tile_start = jnp.nonzero(starts, size=most, fill_value=0)[0].astype(jnp.int32)
    # A tile ends with its ROW_TILE rows or with its lane's run, whichever comes first.
    reach = jnp.minimum(tile_start[:, None] + jnp.arange(ROW_TILE), rows - 1)
    same_lane = lane[reach] == lane[tile_start][:, None]
    tile_last = jnp.max(jnp.where(same_lane, position[reach], 0), axis=1)
    return Rows(token, lane, position, block_table, tile_start, tile_last, jnp.sum(starts))


def page_places(rows: Rows, pages: int) -> tuple[Int[Array, " R"], Int[Array, " R"]]:
    """Each row's page and place in it; padding rows get a page past the last of `pages`."""
    page = rows.block_table[rows.lane, rows.position // PAGE]
    return jnp.where(rows.lane < 0, pages, page), rows.position % PAGE
