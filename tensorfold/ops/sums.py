"""Sums and products whose bits the compiler can't change with the number of rows."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

_WIDTH = 64
_LARGEST = np.finfo(np.float32).max


def rounded(product: Float[Array, "*A"]) -> Float[Array, "*A"]:
    """A product that is about to be added to something, in float32 whatever is made of the two.

    LLVM may turn a product and an addition into one fused multiply-add, which rounds once instead
    of twice, and does so for some numbers of rows and not for others. A minimum in between, with
    the largest float32, keeps them apart.
    """
    return jnp.minimum(product, _LARGEST)


def row_sum(x: Float[Array, "... K"]) -> Float[Array, "... 1"]:
    """The sum over the last axis, by halving with elementwise adds.

    XLA may order a reduction over the last axis differently for another number of rows, but it
    never reorders elementwise adds. Zero padding up to a multiple of 64 adds nothing.
    """
    columns = x.shape[-1]
    pad = -columns % _WIDTH
    if pad:
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, pad)])
    parts = [x[..., i : i + _WIDTH] for i in range(0, columns + pad, _WIDTH)]
    total = _halve(parts)
    width = _WIDTH
    while width > 1:
        width //= 2
        total = total[..., :width] + total[..., width:]
    return total


def _halve(parts: list[Array]) -> Array:
    """The elementwise sum of `parts`, pairwise."""
    while len(parts) > 1:
        odd = parts[-1:] if len(parts) % 2 else []
        parts = [a + b for a, b in zip(parts[:-1:2], parts[1::2], strict=False)] + odd
    return parts[0]
