"""Memory for state."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tensorfold.kernels_cpu import memory as kernel
from tensorfold.ops.implementation import implementation


def empty(shape: tuple[int, ...]) -> Float[Array, "..."]:
    """An array whose values don't matter yet.

    The CPU kernels leave it untouched, so that the system gives out its memory page by page as it
    is written; elsewhere it is zeros.
    """
    return kernel.untouched(shape) if implementation() == "cpu" else jnp.zeros(shape)
