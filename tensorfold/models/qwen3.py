"""Qwen3 dense: Llama's blocks with a norm on every query and key head (arXiv:2505.09388)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorfold.models.blocks import AttentionShape
from tensorfold.models.config import need, only, read_rope
from tensorfold.models.decoder import Decoder, DenseBlock, layer_leaves, outer_leaves
from tensorfold.models.family import Family, Leaf, Spec
from tensorfold.ops.rope import Rope


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
        epsilon = need(config, "rms_norm_eps", float)
        head_dim = config.get("head_dim") or 128
        bias = bool(config.get("attention_bias", False))
        return cls(
            vocab_size=need(config, "vocab_size"),
            layers=need(config, "num_hidden_layers"),
            mlp_width=need(config, "intermediate_size"),
            attention=AttentionShape(
                width=need(config, "hidden_size"),
                heads=need(config, "num_attention_heads"),
                kv_heads=need(config, "num_key_value_heads"),
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


class Qwen3(Decoder):
    """The model."""

    def __init__(self, config: Qwen3Config):
        super().__init__(
            [
                DenseBlock(config.attention, config.mlp_width, config.epsilon)
                for _ in range(config.layers)
            ],
            vocab_size=config.vocab_size,
            width=config.attention.width,
            epsilon=config.epsilon,
            rope=config.rope,
            tied=config.tied,
        )


def leaves(config: Qwen3Config) -> dict[str, Leaf]:
    """Where each parameter comes from, by Hugging Face's tensor names."""
    out = outer_leaves(tied=config.tied)
    for i in range(config.layers):
        out |= layer_leaves(i, config.attention)
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
