"""The calls of the draw's kernels and of log probabilities': nothing sorted needlessly, no noise
for tokens that can't win.

A program with the plain draw takes seconds to compile and a tenth of one to load; this is one call
of it.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, UInt32


def draw(
    logits: Float[Array, "D V"],
    temperature: Float[Array, " D"],
    top_k: Int[Array, " D"],
    top_p: Float[Array, " D"],
    min_p: Float[Array, " D"],
    seed: UInt32[Array, "D 2"],
    position: Int[Array, " D"],
    count: Int[Array, ""],
) -> Int[Array, " D"]:
    """As `ops.sample.draw`."""
    call = jax.ffi.ffi_call("tensorfold_draw", jax.ShapeDtypeStruct((logits.shape[0],), jnp.int32))
    return call(logits, temperature, top_k, top_p, min_p, seed, position, count)


def logprobs(
    logits: Float[Array, "D V"], token: Int[Array, " D"], asked: Bool[Array, " D"], most: int
) -> tuple[Float[Array, " D"], Int[Array, " D"], Int[Array, "D T"], Float[Array, "D T"]]:
    """As `ops.logprobs.logprobs`, of `most` likeliest tokens: its fields in their order."""
    rows = logits.shape[0]
    call = jax.ffi.ffi_call(
        "tensorfold_logprobs",
        (
            jax.ShapeDtypeStruct((rows,), jnp.float32),
            jax.ShapeDtypeStruct((rows,), jnp.int32),
            jax.ShapeDtypeStruct((rows, most), jnp.int32),
            jax.ShapeDtypeStruct((rows, most), jnp.float32),
        ),
    )
    logprob, rank, top_ids, top = call(logits, token, asked.astype(jnp.int32))
    return logprob, rank, top_ids, top


def digest(logits: Float[Array, "D V"]) -> Int[Array, " D"]:
    """As `ops.sample.digest`."""
    call = jax.ffi.ffi_call(
        "tensorfold_digest", jax.ShapeDtypeStruct((logits.shape[0],), jnp.int32)
    )
    return call(logits)
