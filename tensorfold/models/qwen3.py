"""Qwen3 dense: Llama's blocks with a norm on every query and key head (arXiv:2505.09388)."""

from collections.abc import Mapping
from dataclasses import dataclass
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
    layer_leaves,
    outer_leaves,
)
from tensorfold.models.config import need, only, read_rope
from tensorfold.models.family import Family, Leaf, Spec, State
from tensorfold.ops.rope import Angles, Rope
from tensorfold.ops.rows import Rows


@dataclass(frozen=True)
class Qwen3Config:
    """What the family reads of config.json."""

    vocab_size: int
    layers: int
    mlp_width: int
    attention: AttentionShape
    epsilon: float
    rope: Rope
    tied: bool
    context: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Qwen3Config":
        """Raises ValueError naming a value that this family can't run."""
        only(config, "hidden_act", "silu")
        only(config, "use_sliding_window", False)
        heads, kv_heads = need(config, "num_attention_heads"), need(config, "num_key_value_heads")
        if heads % kv_heads:
            raise ValueError(f"{heads} attention heads do not share {kv_heads} kv heads")
        epsilon = need(config, "rms_norm_eps", float)
        head_dim = config.get("head_dim") or 128
        bias = bool(config.get("attention_bias", False))
        return cls(
            vocab_size=need(config, "vocab_size"),
            layers=need(config, "num_hidden_layers"),
            mlp_width=need(config, "intermediate_size"),
            attention=AttentionShape(
                width=need(config, "hidden_size"),
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                qkv_bias=bias,
                output_bias=bias,
                qk_norm_epsilon=epsilon,
            ),
            epsilon=epsilon,
            rope=read_rope(config, head_dim),
            tied=bool(config.get("tie_word_embeddings", False)),
            context=need(config, "max_position_embeddings"),
        )


class Block(nnx.Module):
    """One layer."""

    def __init__(self, config: Qwen3Config):
        width = config.attention.width
        self.input_layernorm = RMSNorm(width, config.epsilon)
        self.self_attn = Attention(config.attention)
        self.post_attention_layernorm = RMSNorm(width, config.epsilon)
        self.mlp = GatedMLP(width, config.mlp_width)

    def __call__(
        self, x: Float[Array, "R D"], kv: KV, rows: Rows, angles: Angles
    ) -> tuple[Float[Array, "R D"], KV]:
        """Attention, then the MLP, each added to the rows."""
        x, kv = self.self_attn(x, self.input_layernorm, kv, rows, angles)
        return self.mlp(x, self.post_attention_layernorm), kv


@jax.jit
def _run(block: Block, x: Array, kv: KV, rows: Rows, angles: Angles) -> tuple[Array, KV]:
    """A block as a function of its own, so that the layers are traced once."""
    return block(x, kv, rows, angles)


class Qwen3(nnx.Module):
    """The model."""

    def __init__(self, config: Qwen3Config):
        width = config.attention.width
        self.embed_tokens = Embedding(config.vocab_size, width)
        self.layers = nnx.List([Block(config) for _ in range(config.layers)])
        self.norm = RMSNorm(width, config.epsilon)
        self.lm_head = None if config.tied else Linear(width, config.vocab_size)
        self.rope = config.rope

    def __call__(self, rows: Rows, state: State) -> tuple[Float[Array, "R D"], State]:
        """Hidden rows after the last norm, and the written state."""
        x = self.embed_tokens(rows.token)
        angles = self.rope.angles(rows.position)
        written = []
        for block, kv in zip(self.layers, state, strict=True):
            x, kv = _run(block, x, kv, rows, angles)
            written.append(kv)
        return self.norm(x), tuple(written)

    def logits(self, hidden: Float[Array, "D_ D"]) -> Float[Array, "D_ V"]:
        """The head, or the embedding table where they are tied."""
        return self.embed_tokens.attend(hidden) if self.lm_head is None else self.lm_head(hidden)


def leaves(config: Qwen3Config) -> dict[str, Leaf]:
    """Where each parameter comes from, by Hugging Face's tensor names."""
    out = outer_leaves(tied=config.tied)
    for i in range(config.layers):
        out |= layer_leaves(
            i, qkv_bias=config.attention.qkv_bias, output_bias=config.attention.output_bias
        )
        for name in ("q_norm", "k_norm"):
            out[f"layers.{i}.self_attn.{name}.weight"] = Leaf(
                (f"model.layers.{i}.self_attn.{name}.weight",)
            )
    return out


def spec(config: Mapping[str, Any]) -> Spec:
    """The model that `config` describes."""
    read = Qwen3Config.read(config)
    return Spec(
        build=lambda: Qwen3(read),
        leaves=leaves(read),
        state=(read.attention.state,) * read.layers,
        vocab_size=read.vocab_size,
        context=read.context,
        ignored=lambda name: read.tied and name == "lm_head.weight",
    )


FAMILY = Family(architectures=("Qwen3ForCausalLM",), spec=spec)
