"""Log probabilities of a row's raw distribution: before penalties, masks, temperature and cuts."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int

MOST = 20
"""Likeliest tokens that are reported."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Logprobs:
    """One token each of D rows, and the likeliest tokens beside it, natural logarithms.

    logprob: [D] float32; rank: [D] int32, tokens at least as likely, itself included
    top_ids: [D, T] int32, likeliest first, lower ids first among equals; top: [D, T] float32
    """

    logprob: Float[Array, "*D"]
    rank: Int[Array, "*D"]
    top_ids: Int[Array, "*D T"]
    top: Float[Array, "*D T"]


def logprobs(
    logits: Float[Array, "D V"],
    token: Int[Array, " D"],
    count: Int[Array, ""],
    asked: Bool[Array, ""],
) -> Logprobs:
    """Of the first `count` rows, one after another, each in the same shape; zeros for the others,
    and for all of them if nobody `asked`.

    `token` says which token of each row is meant.
    """
    rows, vocabulary = logits.shape
    most = min(MOST, vocabulary)
    none = Logprobs(
        jnp.zeros(rows, jnp.float32),
        jnp.zeros(rows, jnp.int32),
        jnp.zeros((rows, most), jnp.int32),
        jnp.zeros((rows, most), jnp.float32),
    )

    def row(i: Array, found: Logprobs) -> Logprobs:
        one = _row(logits[i], token[i])
        return jax.tree.map(lambda all_rows, value: all_rows.at[i].set(value), found, one)

    def found() -> Logprobs:
        return lax.fori_loop(0, jnp.minimum(count, rows), row, none)

    # A condition, not a loop of no rounds: of a single row XLA takes the body out of the loop.
    return lax.cond(asked, found, lambda: none)


@jax.jit
def _row(logits: Float[Array, " V"], token: Int[Array, ""]) -> Logprobs:
    # Equal logits go by their ids, but top_k would put 0.0 before -0.0.
    logits = jnp.where(logits == 0, 0.0, logits)
    top, top_ids = lax.top_k(logits, min(MOST, logits.shape[0]))
    norm = top[0] + jnp.log(jnp.sum(jnp.exp(logits - top[0])))
    own = logits[token]
    rank = jnp.sum(logits >= own, dtype=jnp.int32)
    return Logprobs(own - norm, rank, top_ids, top - norm)
