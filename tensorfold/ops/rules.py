"""What acts on a row's logits before the draw: penalties, biases and masks.

Each is a function of the tokens before, worked out by the host (engine/rules.py).
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, UInt32

from tensorfold.ops.sums import rounded


def words_of(vocab_size: int) -> int:
    """How many uint32 words a mask has: one for every 32 tokens, begun ones included."""
    return -(-vocab_size // 32)


def apply_rules(
    logits: Float[Array, "D V"],
    factor: Float[Array, "D V"],
    shift: Float[Array, "D V"],
    mask: UInt32[Array, "D W"],
) -> Float[Array, "D V"]:
    """The logits that the draw sees.

    factor: divides a positive logit and multiplies any other; shift: is added; mask: the bit of
    token t is bit t % 32 of word t // 32, and a token whose bit is not set gets minus infinity.
    """
    scaled = jnp.where(logits > 0, logits / factor, rounded(logits * factor)) + shift
    return apply_mask(scaled, mask)


def apply_mask(logits: Float[Array, "D V"], mask: UInt32[Array, "D W"]) -> Float[Array, "D V"]:
    """The logits with minus infinity where the mask (see `apply_rules`) has no bit."""
    bits = (mask[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    allowed = bits.reshape(len(mask), -1)[:, : logits.shape[1]] == 1
    return jnp.where(allowed, logits, -jnp.inf)
