"""Elementwise activations."""

import jax
from jax import Array
from jaxtyping import Float


def swiglu(gate_up: Float[Array, "R FF"]) -> Float[Array, "R FF//2"]:
    """`silu(gate) * up` of a fused gate and up projection (Shazeer 2020, arXiv:2002.05202)."""
    width = gate_up.shape[1] // 2
    return jax.nn.silu(gate_up[:, :width]) * gate_up[:, width:]
