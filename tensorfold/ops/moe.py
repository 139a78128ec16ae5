"""Mixtures of experts: the choice of experts for each row, and their products."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from tensorfold.ops import matmul
from tensorfold.ops.matmul import Weight
from tensorfold.ops.rows import ROW_TILE
from tensorfold.ops.sums import rounded, row_sum


def softmax_router(
    logits: Float[Array, "R E"], count: int, *, normalised: bool
) -> tuple[Int[Array, "R k"], Float[Array, "R k"]]:
    """The `count` likeliest experts of each row, best first and equals by id, and their
    probabilities, `normalised` to a sum of 1 or not (Shazeer et al. 2017, arXiv:1701.06538)."""
    odds = jnp.exp(logits - jnp.max(logits, axis=1, keepdims=True))
    weights, ids = lax.top_k(odds / row_sum(odds), count)
    return ids, weights / _total(weights) if normalised else weights


def chosen_softmax_router(
    logits: Float[Array, "R E"], count: int
) -> tuple[Int[Array, "R k"], Float[Array, "R k"]]:
    """The `count` experts of the highest logits of each row, best first and equals by id, and the
    softmax of those logits alone."""
    best, ids = lax.top_k(logits, count)
    odds = jnp.exp(best - best[:, :1])
    return ids, odds / _total(odds)


def sigmoid_router(
    logits: Float[Array, "R E"],
    bias: Float[Array, " E"],
    count: int,
    *,
    groups: int,
    kept_groups: int,
    normalised: bool,
    scale: float,
) -> tuple[Int[Array, "R k"], Float[Array, "R k"]]:
    """The `count` experts of the highest `sigmoid(logit) + bias`, from the `kept_groups` groups
    whose best two add up to most; their sigmoids, without the bias, times `scale` (DeepSeek-AI
    2024, arXiv:2412.19437). Equals go by id."""
    scores = jax.nn.sigmoid(logits)
    choice = scores + bias
    if groups > 1:
        by_group = choice.reshape(len(logits), groups, -1)
        best = _total(lax.top_k(by_group, min(2, by_group.shape[2]))[0])[..., 0]
        _, kept = lax.top_k(best, kept_groups)
        stays = jnp.any(kept[:, :, None] == jnp.arange(groups), axis=1)
        choice = jnp.where(stays[:, :, None], by_group, -jnp.inf).reshape(choice.shape)
    _, ids = lax.top_k(choice, count)
    weights = jnp.take_along_axis(scores, ids, axis=1)
    if normalised:
        weights = weights / (_total(weights) + 1e-20)
    return ids, weights * scale


def experts(
    x: Float[Array, "R D"],
    ids: Int[Array, "R k"],
    weights: Float[Array, "R k"],
    real: Bool[Array, " R"],
    up: Weight,
    down: Weight,
    activation: Callable[[Array], Array],
    biases: tuple[Float[Array, " EX"], Float[Array, " ED"]] | None = None,
) -> Float[Array, "R D"]:
    """`sum_r weights[:, r] * (activation(x @ up_e^T) @ down_e^T)` for e = ids[:, r], in order of r.

    up, down: the experts' matrices below one another, [E * X, D] and [E * D, F]
    biases: what is added to the two products, [E * X] and [E * D]
    real: rows that count; the others get zeros

    Pairs of a row and an expert are brought together by expert and multiplied in tiles of rows,
    each one dot of a fixed shape as in `matmul`. An expert that no row asks for is not read.
    """
    rows, count = ids.shape
    width = x.shape[1]
    total = down.shape[0] // width
    up_bias, down_bias = biases or (None, None)
    tile = min(ROW_TILE, rows)
    pairs = rows * count

    expert = jnp.where(real[:, None], ids, total).reshape(-1)
    order = jnp.argsort(expert, stable=True)
    expert = expert[order]
    place = jnp.arange(pairs)
    begins = jnp.concatenate([jnp.ones(1, bool), expert[1:] != expert[:-1]])
    within = place - lax.cummax(jnp.where(begins, place, 0))
    starts = (within % tile == 0) & (expert < total)
    tile_start = jnp.nonzero(starts, size=pairs, fill_value=0)[0]

    def run(t: Array, out: Array) -> Array:
        start = tile_start[t]
        taken = jnp.minimum(start + jnp.arange(tile), pairs - 1)
        own = (expert[taken] == expert[start]) & (start + jnp.arange(tile) < pairs)
        pair = order[taken]
        hidden = activation(_product(x[pair // count], up, up_bias, expert[start], total))
        y = _product(hidden, down, down_bias, expert[start], total)
        return out.at[jnp.where(own, pair, pairs)].set(y, mode="drop")

    out = lax.fori_loop(0, jnp.sum(starts), run, jnp.zeros((pairs, width)))
    by_rank = out.reshape(rows, count, width)
    mixed = rounded(by_rank[:, 0] * weights[:, :1])
    for rank in range(1, count):
        mixed = mixed + rounded(by_rank[:, rank] * weights[:, rank : rank + 1])
    return mixed


def _product(x: Array, stack: Weight, biases: Array | None, expert: Array, total: int) -> Array:
    """Rows times one expert's matrix, plus its bias."""
    bias = None
    if biases is not None:
        size = biases.shape[0] // total
        bias = lax.dynamic_slice_in_dim(biases, expert * size, size)
    return matmul.matmul(x, matmul.take_part(stack, expert, total), bias=bias)


def _total(weights: Float[Array, "*R k"]) -> Float[Array, "*R 1"]:
    """The sum over the last axis, in order."""
    total = weights[..., :1]
    for rank in range(1, weights.shape[-1]):
        total = total + weights[..., rank : rank + 1]
    return total
