"""Elementwise activations."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def swiglu(gate_up: Float[Array, "R FF"]) -> Float[Array, "R FF//2"]:
    """`silu(gate) * up` of a fused gate and up projection (Shazeer 2020, arXiv:2002.05202)."""
    width = gate_up.shape[1] // 2
    return jax.nn.silu(gate_up[:, :width]) * gate_up[:, width:]


def geglu(gate_up: Float[Array, "R FF"]) -> Float[Array, "R FF//2"]:
    """`gelu(gate) * up` with GELU's tanh form (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""
    width = gate_up.shape[1] // 2
    return jax.nn.gelu(gate_up[:, :width], approximate=True) * gate_up[:, width:]


def softcap(x: Float[Array, "..."], cap: float | None) -> Float[Array, "..."]:
    """`x` bent to stay within `cap` on both sides; None leaves it as it is."""
    return x if cap is None else jnp.tanh(x / cap) * cap


def squared_relu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """`max(x, 0)^2` (So et al. 2021, arXiv:2109.08668)."""
    return jnp.square(jnp.maximum(x, 0.0))
