"""Blocks that several families share. Attribute names follow Hugging Face's."""

from dataclasses import dataclass

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from tensorfold.models.family import Leaf, PagedKV
from tensorfold.ops import activation, attention, matmul, norm, rope
from tensorfold.ops.rows import Rows

KV = tuple[Array, Array]
"""A layer's keys [P, K, H, 64] and values [P, K, 64, H]."""

Angles = tuple[Array, Array]
"""Cosine and sine of every row's rotary angles."""


class Linear(nnx.Module):
    """`x @ weight.T + bias`; weight [outputs, inputs], as checkpoints store it."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False):
        self.weight = nnx.Param(jnp.zeros((outputs, inputs)))
        self.bias = nnx.Param(jnp.zeros((outputs,))) if bias else None

    def __call__(self, x: Float[Array, "R I"]) -> Float[Array, "R O"]:
        """Apply to every row."""
        y = matmul.matmul(x, self.weight.get_value())
        return y if self.bias is None else y + self.bias[...]


class RMSNorm(nnx.Module):
    """RMS normalisation over the last axis."""

    def __init__(self, width: int, epsilon: float):
        self.weight = nnx.Param(jnp.zeros((width,)))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """Normalise every row."""
        return norm.rms_norm(x, self.weight[...], self.epsilon)


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
    """The fixed numbers of an attention layer: N query heads, K key heads, head dim H."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm_epsilon: float | None = None
    """Normalise every query and key head with this epsilon before the rotation."""
    window: int | None = None

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
        self.shape = shape

    def __call__(
        self, x: Float[Array, "R D"], kv: KV, rows: Rows, angles: Angles
    ) -> tuple[Float[Array, "R D"], KV]:
        """The rows' output, and the pages with their keys and values written."""
        shape, rows_n = self.shape, x.shape[0]
        q_end = shape.heads * shape.head_dim
        k_end = q_end + shape.kv_heads * shape.head_dim
        q, k, v = jnp.split(self.qkv_proj(x), [q_end, k_end], axis=1)
        q = q.reshape(rows_n, shape.heads, shape.head_dim)
        k = k.reshape(rows_n, shape.kv_heads, shape.head_dim)
        v = v.reshape(rows_n, shape.kv_heads, shape.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rope.rotate(q, angles), rope.rotate(k, angles)
        mixed, *pages = attention.attention(
            q, k, v, *kv, rows, scale=shape.head_dim**-0.5, window=shape.window
        )
        return self.o_proj(mixed.reshape(rows_n, q_end)), (pages[0], pages[1])


class GatedMLP(nnx.Module):
    """SwiGLU with gate and up fused into one projection."""

    def __init__(self, width: int, hidden: int, *, bias: bool = False):
        self.gate_up_proj = Linear(width, 2 * hidden, bias=bias)
        self.down_proj = Linear(hidden, width, bias=bias)

    def __call__(self, x: Float[Array, "R D"]) -> Float[Array, "R D"]:
        """Apply to every row."""
        return self.down_proj(activation.swiglu(self.gate_up_proj(x)))


def outer_leaves(*, tied: bool) -> dict[str, Leaf]:
    """The table, the last norm and the head."""
    out = {
        "embed_tokens.weight": Leaf(("model.embed_tokens.weight",)),
        "norm.weight": Leaf(("model.norm.weight",)),
    }
    if not tied:
        out["lm_head.weight"] = Leaf(("lm_head.weight",))
    return out


def layer_leaves(
    layer: int, *, qkv_bias: bool = False, output_bias: bool = False, mlp_bias: bool = False
) -> dict[str, Leaf]:
    """A layer of `Attention` as `self_attn`, `GatedMLP` as `mlp` and a norm before each."""
    out: dict[str, Leaf] = {}

    def add(name: str, *parts: str, kinds: tuple[str, ...] = ("weight",)) -> None:
        for kind in kinds:
            sources = tuple(f"model.layers.{layer}.{part}.{kind}" for part in parts or (name,))
            out[f"layers.{layer}.{name}.{kind}"] = Leaf(sources)

    def kinds(bias: bool) -> tuple[str, ...]:
        return ("weight", "bias") if bias else ("weight",)

    qkv = tuple(f"self_attn.{part}_proj" for part in "qkv")
    add("self_attn.qkv_proj", *qkv, kinds=kinds(qkv_bias))
    add("self_attn.o_proj", kinds=kinds(output_bias))
    add("mlp.gate_up_proj", "mlp.gate_proj", "mlp.up_proj", kinds=kinds(mlp_bias))
    add("mlp.down_proj", kinds=kinds(mlp_bias))
    add("input_layernorm")
    add("post_attention_layernorm")
    return out
