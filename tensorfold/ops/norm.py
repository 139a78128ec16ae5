"""Normalisation of rows."""

from jax import Array, lax
from jaxtyping import Float

from tensorfold.ops.sums import rounded, row_sum


def rms_norm(
    x: Float[Array, "... D"], weight: Float[Array, " D"], epsilon: float
) -> Float[Array, "... D"]:
    """`x / sqrt(mean(x^2) + epsilon) * weight` (Zhang and Sennrich 2019, arXiv:1910.07467)."""
    mean_square = rounded(row_sum(rounded(x * x)) / x.shape[-1])
    return x * lax.rsqrt(mean_square + epsilon) * weight


def l2_norm(x: Float[Array, "... D"], epsilon: float) -> Float[Array, "... D"]:
    """`x / sqrt(sum(x^2) + epsilon)`."""
    return x * lax.rsqrt(row_sum(rounded(x * x)) + epsilon)
