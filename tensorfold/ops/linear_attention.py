"""Linear attention with decay in a form aligned to chunks: Gated DeltaNet (Yang et al. 2024,
arXiv:2412.06464), Kimi Delta Attention (arXiv:2510.26692) and Mamba-2 (Dao and Gu 2024,
arXiv:2405.21060).

Step by step, a head's state S [dk, dv] and output are

    S = e^g S;  u = b (v - k S);  S = S + k u^T;  o = q S

with a log-decay g <= 0, of the head or of each of its dk channels, and u = v without b (Mamba-2).
Here S is kept at the start of each chunk of 64 positions only. At place i of a chunk, with
G_i = g_0 + ... + g_i,

    u_i = b_i (v_i - (e^{G_i} k_i) S - sum_{j < i} ((e^{G_i - G_j} k_i) . k_j) u_j)
    o_i = (e^{G_i} q_i) S + sum_{j <= i} ((e^{G_i - G_j} q_i) . k_j) u_j
    S'  = e^{G_63} S + sum_j (e^{G_63 - G_j} k_j) u_j^T

which is the same with every exponent at most 0. A row reads S and the k, u and G of its chunk, and
writes its own; S' is written by the last row of a chunk. Nothing has to be undone when a lane is
taken back by fewer than 64 rows.

Rows are taken one after another in one shape, with sums over all 64 places of the chunk in one
order, those at or after the row exactly zero. So a row's bits do not depend on the rows beside it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from tensorfold.kernels_cpu import linear_attention as kernel
from tensorfold.ops.chunks import CHUNK, chunk_place, write_rows
from tensorfold.ops.implementation import implementation
from tensorfold.ops.rows import Rows
from tensorfold.ops.sums import rounded, row_sum


class Kept(NamedTuple):
    """What the lanes keep of their last two chunks (`models.family.Recurrent`).

    Of a chunk's rows k, u and G, in each head's 64 places; of its start, S. A log-decay has D
    entries: 1, or dk where every channel has its own.
    """

    k: Float[Array, "L 2 K S dk"]
    u: Float[Array, "L 2 N S dv"]
    G: Float[Array, "L 2 N S D"]
    S: Float[Array, "L 2 N dk dv"]


class _Chunk(NamedTuple):
    """What a row sees of its chunk: the places before it, zeros in the others, and the start."""

    k: Float[Array, "K S dk"]
    u: Float[Array, "N S dv"]
    G: Float[Array, "N S D"]
    S: Float[Array, "N dk dv"]


class _Row(NamedTuple):
    """What a layer gives for one row; b is None where u is v."""

    q: Float[Array, "K dk"]
    k: Float[Array, "K dk"]
    v: Float[Array, "N dv"]
    g: Float[Array, "N D"]
    b: Float[Array, " N"] | None


def linear_attention(
    q: Float[Array, "R K dk"],
    k: Float[Array, "R K dk"],
    v: Float[Array, "R N dv"],
    g: Float[Array, "R N D"],
    b: Float[Array, "R N"] | None,
    kept: Kept,
    rows: Rows,
) -> tuple[Float[Array, "R N dv"], Kept]:
    """The output of every row, and the state with the rows written.

    N heads share K keys and queries, N / K consecutive ones each. Rows of a lane must follow on one
    another's positions; at position 0 a lane's state is empty, whatever it held.
    """
    if implementation() == "cpu" and kernel.can_attend(q.shape[2], v.shape[2]):
        out, *written = kernel.linear_attention(q, k, v, g, b, kept, rows.lane, rows.position)
        return out, Kept(*written)
    return _attend_rows(q, k, v, g, b, kept, rows)


def _attend_rows(
    q: Float[Array, "R K dk"],
    k: Float[Array, "R K dk"],
    v: Float[Array, "R N dv"],
    g: Float[Array, "R N D"],
    b: Float[Array, "R N"] | None,
    kept: Kept,
    rows: Rows,
) -> tuple[Float[Array, "R N dv"], Kept]:
    """The plain op."""
    count = q.shape[0]
    row = jnp.arange(count)
    used = jnp.max(jnp.where(rows.lane >= 0, row + 1, 0))
    starts = jnp.concatenate([jnp.ones(1, bool), rows.lane[1:] != rows.lane[:-1]])
    first = lax.cummax(jnp.where(starts, row, 0))
    k_KRd = _by_head(k)

    def step(r: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        out, u_NRv, G_NRD, S = carry
        lane, position = jnp.maximum(rows.lane[r], 0), rows.position[r]
        at, place = chunk_place(position)

        def view(stepped: Array, array: Array) -> Array:
            """The chunk's places from this step's rows or, before its first one, from the state."""
            here = lax.dynamic_slice_in_dim(stepped, r - place + CHUNK, CHUNK, axis=1)
            stored = lax.dynamic_slice(array, (lane, at, 0, 0, 0), (1, 1, *array.shape[2:]))[0, 0]
            places = jnp.arange(CHUNK)
            in_step = (r - place + places >= first[r])[None, :, None]
            # A place that is not the row's past may hold anything, NaN too.
            before = (places < place)[None, :, None]
            return jnp.where(before, jnp.where(in_step, here, stored), 0.0)

        start = lax.dynamic_slice(S, (lane, at, 0, 0, 0), (1, 1, *S.shape[2:]))[0, 0]
        seen = _Chunk(
            view(k_KRd, kept.k),
            view(u_NRv, kept.u),
            view(G_NRD, kept.G),
            jnp.where(position < CHUNK, 0.0, start),
        )
        # What comes in and what goes out is cut off, so that the arithmetic between is compiled
        # the same however many rows a step has.
        one = jax.tree.map(lambda each: each[r], _Row(q, k, v, g, b))
        one, seen = lax.optimization_barrier((one, seen))
        o, u, G = lax.optimization_barrier(_attend(one, seen, place))

        def close(_: Array, S: Array) -> Array:
            whole = seen._replace(
                k=seen.k.at[:, -1].set(one.k), u=seen.u.at[:, -1].set(u), G=seen.G.at[:, -1].set(G)
            )
            following = lax.optimization_barrier(_following(lax.optimization_barrier(whole)))
            return lax.dynamic_update_slice(S, following[None, None], (lane, 1 - at, 0, 0, 0))

        # A loop of no or one round: unlike a condition, it leaves S where it is.
        closes = (rows.lane[r] >= 0) & (place == CHUNK - 1)
        S = lax.fori_loop(0, closes.astype(jnp.int32), close, S)
        u_NRv = lax.dynamic_update_slice(u_NRv, u[:, None], (0, r + CHUNK, 0))
        G_NRD = lax.dynamic_update_slice(G_NRD, G[:, None], (0, r + CHUNK, 0))
        return out.at[r].set(o), u_NRv, G_NRD, S

    out = jnp.zeros_like(v)
    out, u_NRv, G_NRD, S = lax.fori_loop(0, used, step, (out, _by_head(out), _by_head(g), kept.S))
    u, G = (each[:, CHUNK : CHUNK + count].swapaxes(0, 1) for each in (u_NRv, G_NRD))
    k, u, G = (
        write_rows(old, new, rows, axis=3) for old, new in ((kept.k, k), (kept.u, u), (kept.G, G))
    )
    return out, Kept(k, u, G, S)


def _by_head(x: Float[Array, "R N d"]) -> Float[Array, "N R_2S d"]:
    """Heads first, with room for a chunk before and after the rows."""
    return jnp.pad(x.swapaxes(0, 1), ((0, 0), (CHUNK, CHUNK), (0, 0)))


def _attend(row: _Row, chunk: _Chunk, place: Array) -> tuple[Array, Array, Array]:
    """(o [N, dv], u [N, dv], G [N, D]) of the row at `place`."""
    group = row.v.shape[0] // row.k.shape[0]
    last = lax.dynamic_index_in_dim(chunk.G, jnp.maximum(place - 1, 0), 1, keepdims=False)
    G = jnp.where(place > 0, last, 0.0) + row.g
    # Queries, and keys where u is corrected, side by side: both meet the same S, k and u.
    asked_KAd = row.q[:, None] if row.b is None else jnp.stack([row.q, row.k], axis=1)
    scores = _scores(asked_KAd, chunk.k, jnp.exp(G[:, None] - chunk.G))
    asked_NAd = jnp.repeat(asked_KAd, group, axis=0) * jnp.exp(G)[:, None]
    seen = jnp.einsum("nad,ndv->nav", asked_NAd, chunk.S)
    seen = seen + jnp.einsum("nas,nsv->nav", scores, chunk.u)
    u = row.v if row.b is None else row.b[:, None] * (row.v - seen[:, 1])
    own = row_sum(rounded(row.q * row.k))
    return seen[:, 0] + rounded(jnp.repeat(own, group, axis=0) * u), u, G


def _scores(
    asked_KAd: Float[Array, "K A dk"], k_KSd: Float[Array, "K S dk"], decay: Float[Array, "N S D"]
) -> Float[Array, "N A S"]:
    """Decayed products with every key of the chunk."""
    group = decay.shape[0] // k_KSd.shape[0]
    if decay.shape[2] == 1:
        scores = jnp.einsum("kad,ksd->kas", asked_KAd, k_KSd)
        return jnp.repeat(scores, group, axis=0) * decay[:, None, :, 0]
    asked_NAd, k_NSd = (jnp.repeat(each, group, axis=0) for each in (asked_KAd, k_KSd))
    return jnp.einsum("nad,nsd->nas", asked_NAd, k_NSd * decay)


def _following(chunk: _Chunk) -> Float[Array, "N dk dv"]:
    """The state after a whole chunk."""
    group = chunk.u.shape[0] // chunk.k.shape[0]
    k_NSd = jnp.repeat(chunk.k, group, axis=0)
    decayed = k_NSd * jnp.exp(chunk.G[:, -1:] - chunk.G)
    added = jnp.einsum("nsd,nsv->ndv", decayed, chunk.u)
    return rounded(jnp.exp(chunk.G[:, -1])[:, :, None] * chunk.S) + added
