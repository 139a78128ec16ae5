"""Attention of rows over the pages of their lanes."""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from tensorfold.kernels_cpu import attention as kernel
from tensorfold.ops.implementation import implementation
from tensorfold.ops.norm import rms_norm
from tensorfold.ops.rope import Angles, rotate
from tensorfold.ops.rows import PAGE, ROW_TILE, Rows, page_places
from tensorfold.ops.sums import row_sum

_NO_SCORE = -1e30
"""The running maximum before the first key; finite, so that it never meets inf - inf."""


def attention(
    qkv: Float[Array, "R X"],
    angles: Angles,
    k_pages: Float[Array, "P K H S"],
    v_pages: Float[Array, "P K S H"],
    rows: Rows,
    *,
    scale: float,
    window: int | None = None,
    qk_norm: tuple[Float[Array, " H"], Float[Array, " H"], float] | None = None,
    sinks: Float[Array, " N"] | None = None,
) -> tuple[Float[Array, "R N H"], Float[Array, "P K H S"], Float[Array, "P K S H"]]:
    """The heads of every row, and the pages with its keys and values written.

    qkv: [R, (N + 2 K) H], a row's queries, keys and values as the fused projection gives them
    angles: cosine and sine [R, H / 2] of the rotation (`rope.rotate`)
    qk_norm: `rms_norm` of each query and key head before the rotation: two weights, an epsilon
    window: a row at position p sees positions p - window + 1 to p instead of all up to p
    sinks: of each head a score that takes its part of the softmax and adds no value (OpenAI 2025,
        arXiv:2508.10925)

    Head n reads key head n // (N / K). A page holds keys with its 64 positions last, so that
    neither product has to turn it over.
    """
    kv_heads, head_dim = k_pages.shape[1:3]
    if implementation() == "cpu" and kernel.can_attend(head_dim):
        places = rows.lane, rows.position, rows.block_table
        return kernel.attention(
            qkv,
            *angles,
            k_pages,
            v_pages,
            *places,
            scale=scale,
            window=window,
            qk_norm=qk_norm,
            sinks=sinks,
        )
    heads = qkv.reshape(qkv.shape[0], -1, head_dim)
    q_end = heads.shape[1] - 2 * kv_heads
    q, k, v = jnp.split(heads, [q_end, q_end + kv_heads], axis=1)
    if qk_norm is not None:
        q_norm, k_norm, epsilon = qk_norm
        q, k = rms_norm(q, q_norm, epsilon), rms_norm(k, k_norm, epsilon)
    q, k = rotate(q, angles), rotate(k, angles)
    page, place = page_places(rows, k_pages.shape[0])
    k_pages = k_pages.at[page, :, :, place].set(k, mode="drop")
    v_pages = v_pages.at[page, :, place].set(v, mode="drop")
    return attend(q * scale, k_pages, v_pages, rows, window, sinks), k_pages, v_pages


def attend(
    q_RNH: Float[Array, "R N H"],
    k_pages: Float[Array, "P K H S"],
    v_pages: Float[Array, "P K S H"],
    rows: Rows,
    window: int | None,
    sinks: Float[Array, " N"] | None,
) -> Float[Array, "R N H"]:
    """Scaled queries over the written pages.

    Keys are taken page by page in order with a running maximum and sum (Milakov and Gimelshein
    2018, arXiv:1805.02867); a masked page changes no bit, so how many pages a tile of rows happens
    to visit does not matter.
    """
    padded = jnp.pad(q_RNH, ((0, ROW_TILE), (0, 0), (0, 0)))
    positions = jnp.pad(rows.position, (0, ROW_TILE))

    def tile(t: Array, out: Array) -> Array:
        start = rows.tile_start[t]
        q = lax.dynamic_slice_in_dim(padded, start, ROW_TILE)
        position = lax.dynamic_slice_in_dim(positions, start, ROW_TILE)
        table = rows.block_table[rows.lane[start]]
        last = rows.tile_last[t]
        attended = _attend(q, position, last, table, k_pages, v_pages, window, sinks)
        # A tile shorter than ROW_TILE also writes rows of the next one, which then writes its own:
        # tiles are in row order.
        return lax.dynamic_update_slice_in_dim(out, attended, start, 0)

    return lax.fori_loop(0, rows.tiles, tile, jnp.zeros_like(padded))[: q_RNH.shape[0]]


def _attend(
    q_TNH: Float[Array, "T N H"],
    position: Array,
    last: Array,
    table: Array,
    k_pages: Float[Array, "P K H S"],
    v_pages: Float[Array, "P K S H"],
    window: int | None,
    sinks: Float[Array, " N"] | None,
) -> Float[Array, "T N H"]:
    """One tile of rows of one lane over its pages up to position `last`."""
    tile, heads, head_dim = q_TNH.shape
    kv_heads = k_pages.shape[1]
    group = heads // kv_heads
    q = q_TNH.reshape(tile, kv_heads, group, head_dim).transpose(1, 0, 2, 3)
    q = q.reshape(kv_heads, tile * group, head_dim)
    row_position = jnp.repeat(position, group)[None, :, None]

    def page(p: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        peak, total, mixed = carry
        key_position = p * PAGE + jnp.arange(PAGE)
        k = lax.dynamic_index_in_dim(k_pages, table[p], 0, keepdims=False)
        v = lax.dynamic_index_in_dim(v_pages, table[p], 0, keepdims=False)
        # A place not written yet may hold another lane's inf or NaN, which 0 would not silence.
        v = jnp.where((key_position <= last)[None, :, None], v, 0.0)
        scores = jnp.einsum("kqh,khs->kqs", q, k)
        seen = key_position[None, None, :] <= row_position
        if window is not None:
            seen &= key_position[None, None, :] > row_position - window
        scores = jnp.where(seen, scores, -jnp.inf)
        new_peak = jnp.maximum(peak, jnp.max(scores, axis=-1, keepdims=True))
        kept = jnp.exp(peak - new_peak)
        weights = jnp.exp(scores - new_peak)
        mixed = mixed * kept + jnp.einsum("kqs,ksh->kqh", weights, v)
        return new_peak, total * kept + row_sum(weights), mixed

    first = 0 if window is None else jnp.maximum(position[0] - window + 1, 0) // PAGE
    if sinks is None:
        peak = jnp.full((kv_heads, tile * group, 1), _NO_SCORE)
        total = jnp.zeros_like(peak)
    else:  # What comes before the first page: a score of weight e^0 and no value.
        peak = jnp.tile(sinks.reshape(kv_heads, group), (1, tile))[..., None]
        total = jnp.ones_like(peak)
    state = (peak, total, jnp.zeros_like(q))
    _, total, mixed = lax.fori_loop(first, last // PAGE + 1, page, state)
    mixed = (mixed / total).reshape(kv_heads, tile, group, head_dim)
    return mixed.transpose(1, 0, 2, 3).reshape(tile, heads, head_dim)
