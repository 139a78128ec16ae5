"""Sums along a row in an order that the compiler can't change."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

_WIDTH = 64


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
