"""Elementwise activations."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tensorfold.ops.sums import rounded


def swiglu(gate_up: Float[Array, "R FF"]) -> Float[Array, "R FF//2"]:
    """`silu(gate) * up` of a fused gate and up projection (Shazeer 2020, arXiv:2002.05202)."""
    width = gate_up.shape[1] // 2
    return jax.nn.silu(gate_up[:, :width]) * gate_up[:, width:]


def geglu(gate_up: Float[Array, "R FF"]) -> Float[Array, "R FF//2"]:
    """`gelu(gate) * up` with GELU's tanh form (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""
    width = gate_up.shape[1] // 2
    return jax.nn.gelu(gate_up[:, :width], approximate=True) * gate_up[:, width:]


def clamped_swiglu(gate_up: Float[Array, "R FF"], alpha: float, limit: float) -> Array:
    """`(up + 1) * gate * sigmoid(alpha * gate)` of a projection whose even columns are gates and
    whose odd ones ups, gates at most `limit` and ups within it on both sides (OpenAI 2025,
    arXiv:2508.10925)."""
    gate = jnp.minimum(gate_up[:, ::2], limit)
    up = jnp.clip(gate_up[:, 1::2], -limit, limit)
    # Neither `up + 1` nor `alpha * gate` may end up inside a fused multiply-add.
    return rounded(up + 1) * (gate * jax.nn.sigmoid(rounded(alpha * gate)))


def softcap(x: Float[Array, "..."], cap: float | None) -> Float[Array, "..."]:
    """`x` bent to stay within `cap` on both sides; None leaves it as it is."""
    return x if cap is None else jnp.tanh(x / cap) * cap


def squared_relu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """`max(x, 0)^2` (So et al. 2021, arXiv:2109.08668)."""
    return jnp.square(jnp.maximum(x, 0.0))
