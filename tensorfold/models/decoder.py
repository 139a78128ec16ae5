"""The model around a family's layers, and the layer that dense families share.

Attribute names follow Hugging Face's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx
from jax import Array
from jaxtyping import Float

from tensorfold.models.blocks import (
    KV,
    Attention,
    AttentionShape,
    Embedding,
    GatedMLP,
    Linear,
    RMSNorm,
)
from tensorfold.models.family import Leaf, State
from tensorfold.ops.rope import Angles, Rope
from tensorfold.ops.rows import Rows


class DenseBlock(nnx.Module):
    """A pre-norm layer of attention and a gated MLP."""

    def __init__(
        self, shape: AttentionShape, mlp_width: int, epsilon: float, *, mlp_bias: bool = False
    ):
        self.input_layernorm = RMSNorm(shape.width, epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.width, epsilon)
        self.mlp = GatedMLP(shape.width, mlp_width, bias=mlp_bias)

    def __call__(
        self, x: Float[Array, "R D"], kv: KV, rows: Rows, angles: Angles
    ) -> tuple[Float[Array, "R D"], KV]:
        """Attention, then the MLP, each added to the rows."""
        x, kv = self.self_attn(x, self.input_layernorm, kv, rows, angles)
        return self.mlp(x, self.post_attention_layernorm), kv


class Decoder(nnx.Module):
    """A token table, the layers, a norm and the head; implements `Model`.

    layers: each takes and returns as `DenseBlock` does, with its own state in the place of `kv`
    tied: the table is also the head
    """

    def __init__(
        self,
        layers: Sequence[nnx.Module],
        *,
        vocab_size: int,
        width: int,
        epsilon: float,
        rope: Rope,
        tied: bool,
        mtp: Callable[..., tuple[Array, State]] | None = None,
    ):
        """`mtp`: a module, the next-token layers of (embedded rows, hidden rows, rows, state,
        angles)."""
        self.embed_tokens = Embedding(vocab_size, width)
        self.layers = nnx.List(layers)
        self.norm = RMSNorm(width, epsilon)
        self.lm_head = None if tied else Linear(width, vocab_size)
        self.rope = rope
        self.mtp = mtp

    def __call__(self, rows: Rows, state: State) -> tuple[Float[Array, "R D"], State]:
        """Hidden rows after the last norm, and the written state."""
        angles = self.rope.angles(rows.position)
        return self.run(self.embed_tokens(rows.token), rows, state, [angles] * len(self.layers))

    def run(
        self, x: Float[Array, "R D"], rows: Rows, state: State, angles: Sequence[Angles]
    ) -> tuple[Float[Array, "R D"], State]:
        """Embedded rows through every layer, each with its own angles, and the last norm."""
        written = []
        for layer, kept, turned in zip(self.layers, state, angles, strict=True):
            x, kept = _run(layer, x, kept, rows, turned)
            written.append(kept)
        return self.norm(x), tuple(written)

    def next_token(
        self, rows: Rows, hidden: Float[Array, "R D"], state: State
    ) -> tuple[Float[Array, "R D"], State]:
        """See `Model.next_token`."""
        assert self.mtp is not None
        embedded, angles = self.embed_tokens(rows.token), self.rope.angles(rows.position)
        return self.mtp(embedded, hidden, rows, state, angles)

    def logits(self, hidden: Float[Array, "D_ D"]) -> Float[Array, "D_ V"]:
        """The head, or the embedding table where they are tied."""
        return self.embed_tokens.attend(hidden) if self.lm_head is None else self.lm_head(hidden)


@jax.jit
def _run(layer: Any, x: Array, kept: Any, rows: Rows, angles: Angles) -> tuple[Array, Any]:
    """A layer as a function of its own, so that layers of one shape are traced once."""
    return layer(x, kept, rows, angles)


def outer_leaves(*, tied: bool) -> dict[str, Leaf]:
    """The table, the last norm and the head."""
    out = {
        "embed_tokens.weight": Leaf(("model.embed_tokens.weight",)),
        "norm.weight": Leaf(("model.norm.weight",)),
    }
    if not tied:
        out["lm_head.weight"] = Leaf(("lm_head.weight",))
    return out


def attention_leaves(layer: int, shape: AttentionShape) -> dict[str, Leaf]:
    """What a layer has of `Attention` and of a norm before each of its halves."""
    qkv = tuple(f"self_attn.{part}_proj" for part in "qkv")
    out = _linear_leaves(layer, "self_attn.qkv_proj", *qkv, bias=shape.qkv_bias)
    out |= _linear_leaves(layer, "self_attn.o_proj", bias=shape.output_bias)
    if shape.qk_norm_epsilon is not None:
        out |= _linear_leaves(layer, "self_attn.q_norm") | _linear_leaves(layer, "self_attn.k_norm")
    if shape.sinks:
        out[f"layers.{layer}.self_attn.sinks"] = Leaf((f"model.layers.{layer}.self_attn.sinks",))
    out |= _linear_leaves(layer, "input_layernorm")
    return out | _linear_leaves(layer, "post_attention_layernorm")


def layer_leaves(layer: int, shape: AttentionShape, *, mlp_bias: bool = False) -> dict[str, Leaf]:
    """What a `DenseBlock` has."""
    gate_up = "mlp.gate_proj", "mlp.up_proj"
    out = attention_leaves(layer, shape)
    out |= _linear_leaves(layer, "mlp.gate_up_proj", *gate_up, bias=mlp_bias)
    return out | _linear_leaves(layer, "mlp.down_proj", bias=mlp_bias)


def _linear_leaves(layer: int, name: str, *parts: str, bias: bool = False) -> dict[str, Leaf]:
    """The weight, and the bias, of a part of a layer: of `parts` joined if it has another name."""
    return {
        f"layers.{layer}.{name}.{kind}": Leaf(
            tuple(f"model.layers.{layer}.{part}.{kind}" for part in parts or (name,))
        )
        for kind in (("weight", "bias") if bias else ("weight",))
    }
