"""Blocks that several families share. Attribute names follow Hugging Face's."""

from dataclasses import dataclass

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from tensorfold.models.family import PagedKV
from tensorfold.ops import attention, matmul
from tensorfold.ops.matmul import Gate
from tensorfold.ops.norm import rms_norm
from tensorfold.ops.rope import Angles
from tensorfold.ops.rows import Rows

KV = tuple[Array, Array]
"""A layer's keys [P, K, H, 64] and values [P, K, 64, H]."""


class Linear(nnx.Module):
    """`x @ weight.T + bias`; weight [outputs, inputs], as checkpoints store it."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False):
        self.weight = nnx.Param(jnp.zeros((outputs, inputs)))
        self.bias = nnx.Param(jnp.zeros((outputs,))) if bias else None

    def __call__(
        self,
        x: Float[Array, "R I"],
        *,
        norm: "RMSNorm | None" = None,
        gated: Gate | None = None,
        residual: Float[Array, "R O"] | None = None,
    ) -> Float[Array, "R O"]:
        """Apply to every row: normalised before, or gated (x is [R, 2 I]); added to `residual`."""
        return matmul.matmul(
            x,
            self.weight.get_value(),
            bias=None if self.bias is None else self.bias[...],
            norm=None if norm is None else (norm.weight[...], norm.epsilon),
            gated=gated,
            residual=residual,
        )


class RMSNorm(nnx.Module):
    """RMS normalisation over the last axis."""

    def __init__(self, width: int, epsilon: float):
        self.weight = nnx.Param(jnp.zeros((width,)))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """Normalise every row."""
        return rms_norm(x, self.weight[...], self.epsilon)


class Filters(nnx.Module):
    """The weights [channels, 1, width] of a short convolution."""

    def __init__(self, channels: int, width: int, *, bias: bool = False):
        self.weight = nnx.Param(jnp.zeros((channels, 1, width)))
        self.bias = nnx.Param(jnp.zeros((channels,))) if bias else None


class Embedding(nnx.Module):
    """The token table [V, D]; also the output head where a checkpoint ties them."""

    def __init__(self, vocabulary: int, width: int):
        self.weight = nnx.Param(jnp.zeros((vocabulary, width)))

    def __call__(self, tokens: Array) -> Float[Array, "R D"]:
        """Each row's vector."""
        return matmul.take_rows(self.weight.get_value(), tokens)

    def attend(self, x: Float[Array, "R D"]) -> Float[Array, "R V"]:
        """Logits by the tied table."""
        return matmul.matmul(x, self.weight.get_value())


@dataclass(frozen=True)
class AttentionShape:
    """The fixed numbers of an attention layer: N query heads, K key heads, head dim H.

    Raises ValueError if the query heads can't share the key heads evenly.
    """

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm_epsilon: float | None = None
    """Normalise every query and key head with this epsilon before the rotation."""
    window: int | None = None
    scale: float | None = None
    """Of the scores; None for head_dim ** -0.5."""
    sinks: bool = False
    """Each head has a score that takes its part of the softmax and adds no value."""

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} attention heads do not share {self.kv_heads} kv heads")

    @property
    def state(self) -> PagedKV:
        """What the layer keeps."""
        return PagedKV(self.kv_heads, self.head_dim, self.heads, self.window)


class Attention(nnx.Module):
    """Grouped-query attention with a fused q, k, v projection."""

    def __init__(self, shape: AttentionShape):
        out = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.qkv_proj = Linear(shape.width, out, bias=shape.qkv_bias)
        self.o_proj = Linear(shape.heads * shape.head_dim, shape.width, bias=shape.output_bias)
        epsilon = shape.qk_norm_epsilon
        self.q_norm = None if epsilon is None else RMSNorm(shape.head_dim, epsilon)
        self.k_norm = None if epsilon is None else RMSNorm(shape.head_dim, epsilon)
        self.sinks = nnx.Param(jnp.zeros((shape.heads,))) if shape.sinks else None
        self.shape = shape

    def __call__(
        self, x: Float[Array, "R D"], norm: RMSNorm, kv: KV, rows: Rows, angles: Angles
    ) -> tuple[Float[Array, "R D"], KV]:
        """`x` plus attention of the normalised rows, and the pages with them written."""
        mixed, kv = self.mix(x, norm, kv, rows, angles)
        return self.o_proj(mixed, residual=x), kv

    def mix(
        self, x: Float[Array, "R D"], norm: RMSNorm, kv: KV, rows: Rows, angles: Angles
    ) -> tuple[Float[Array, "R X"], KV]:
        """The heads of the normalised rows side by side, before `o_proj`, and the pages."""
        shape, qk_norm = self.shape, None
        if self.q_norm is not None and self.k_norm is not None:
            qk_norm = self.q_norm.weight[...], self.k_norm.weight[...], self.q_norm.epsilon
        mixed, k_pages, v_pages = attention.attention(
            self.qkv_proj(x, norm=norm),
            angles,
            *kv,
            rows,
            scale=shape.head_dim**-0.5 if shape.scale is None else shape.scale,
            window=shape.window,
            qk_norm=qk_norm,
            sinks=None if self.sinks is None else self.sinks[...],
        )
        return mixed.reshape(x.shape[0], -1), (k_pages, v_pages)


class GatedMLP(nnx.Module):
    """SwiGLU with gate and up fused into one projection."""

    def __init__(self, width: int, hidden: int, *, bias: bool = False):
        self.gate_up_proj = Linear(width, 2 * hidden, bias=bias)
        self.down_proj = Linear(hidden, width, bias=bias)

    def __call__(self, x: Float[Array, "R D"], norm: RMSNorm) -> Float[Array, "R D"]:
        """`x` plus the MLP of the normalised rows."""
        return self.down_proj(self.gate_up_proj(x, norm=norm), gated="swiglu", residual=x)
