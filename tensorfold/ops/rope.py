"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from tensorfold.ops.sums import rounded

Angles = tuple[Float[Array, "R C"], Float[Array, "R C"]]
"""Cosine and sine of every row's rotary angles, C = H / 2 of them."""


@dataclass(frozen=True)
class Rope:
    """The rotation of one kind of layer: `frequencies` [H / 2] in radians a position, and the
    factor on cosine and sine (1 except for YaRN)."""

    frequencies: tuple[float, ...]
    factor: float = 1.0

    def angles(self, position: Int[Array, " R"]) -> Angles:
        """Cosine and sine for each row."""
        angle = position.astype(jnp.float32)[:, None] * np.asarray(self.frequencies, np.float32)
        return jnp.cos(angle) * self.factor, jnp.sin(angle) * self.factor


def rotate(x: Float[Array, "R N H"], angles: Angles) -> Float[Array, "R N H"]:
    """Rotate the two halves of each head against one another."""
    cos, sin = (each[:, None] for each in angles)
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    turned = rounded(a * cos) - rounded(b * sin), rounded(b * cos) + rounded(a * sin)
    return jnp.concatenate(turned, axis=-1)


def make_rope(head_dim: int, theta: float, scaling: Mapping[str, Any] | None = None) -> Rope:
    """The rotation that a config's `rope_theta` and `rope_scaling` describe.

    Types: default, linear, llama3 and yarn (Peng et al. 2023, arXiv:2309.00071), and `factors`, the
    per-frequency divisors that GGUF files store. Raises ValueError for any other.
    """
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    frequencies = 1.0 / theta ** (np.arange(0, head_dim, 2) / head_dim)
    if kind == "default":
        return Rope(tuple(frequencies))
    if kind == "linear":
        return Rope(tuple(frequencies / scaling["factor"]))
    if kind == "factors":
        return Rope(tuple(frequencies / np.asarray(scaling["factors"], np.float64)))
    if kind == "llama3":
        return Rope(tuple(_llama3(frequencies, scaling)))
    if kind == "yarn":
        return _yarn(frequencies, theta, scaling)
    raise ValueError(f"rope_scaling type {kind!r} is not supported")


def _llama3(frequencies: np.ndarray, scaling: Mapping[str, Any]) -> np.ndarray:
    """Llama 3.1's rule: long waves are slowed by `factor`, short ones kept, a ramp between."""
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = original * frequencies / (2 * math.pi)
    ramp = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - ramp) * frequencies / factor + ramp * frequencies


def _yarn(frequencies: np.ndarray, theta: float, scaling: Mapping[str, Any]) -> Rope:
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    half = len(frequencies)

    def index(turns: float) -> float:
        """The (fractional) index of the frequency that makes `turns` turns in the original span."""
        return half * math.log(original / (turns * 2 * math.pi)) / math.log(theta)

    low = index(float(scaling.get("beta_fast") or 32))
    high = index(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    ramp = np.clip((np.arange(half) - low) / max(high - low, 0.001), 0.0, 1.0)
    blended = ramp * frequencies / factor + (1 - ramp) * frequencies
    attention = scaling.get("attention_factor")
    if attention is None:
        attention = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return Rope(tuple(blended), float(attention))
