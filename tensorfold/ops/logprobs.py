"""Log probabilities of a row's raw distribution: before penalties, masks, temperature and cuts."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from tensorfold.kernels_cpu import sample as kernel
from tensorfold.ops.implementation import implementation

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
    logits: Float[Array, "D V"], token: Int[Array, " D"], asked: Bool[Array, " D"]
) -> Logprobs:
    """Of the rows that are `asked` for, one after another, each in the same shape; zeros for the
    others. `token` says which token of each row is meant."""
    rows, vocabulary = logits.shape
    most = min(MOST, vocabulary)
    if implementation() == "cpu":
        return Logprobs(*kernel.logprobs(logits, token, asked, most))
    none = Logprobs(
        jnp.zeros(rows, jnp.float32),
        jnp.zeros(rows, jnp.int32),
        jnp.zeros((rows, most), jnp.int32),
        jnp.zeros((rows, most), jnp.float32),
    )

    def row(i: Array, found: Logprobs) -> Logprobs:
        def one() -> Logprobs:
            each = _row(logits[i], token[i])
            return jax.tree.map(lambda rows, value: rows.at[i].set(value), found, each)

        return lax.cond(asked[i], one, lambda: found)

    # A condition, not a loop of no rounds: of a single row XLA takes the body out of the loop.
    return lax.cond(asked.any(), lambda: lax.fori_loop(0, rows, row, none), lambda: none)


@jax.jit
def _row(logits: Float[Array, " V"], token: Int[Array, ""]) -> Logprobs:
    # Equal logits go by their ids, but top_k would put 0.0 before -0.0.
    logits = jnp.where(logits == 0, 0.0, logits)
    top, top_ids = lax.top_k(logits, min(MOST, logits.shape[0]))
    norm = top[0] + jnp.log(jnp.sum(jnp.exp(logits - top[0])))
    own = logits[token]
    rank = jnp.sum(logits >= own, dtype=jnp.int32)
    return Logprobs(own - norm, rank, top_ids, top - norm)
