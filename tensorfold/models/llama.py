"""Llama 2 and 3, Mistral, SmolLM2 and Qwen2: pre-norm blocks of attention and a gated MLP.

Touvron et al. 2023 (arXiv:2307.09288), Grattafiori et al. 2024 (arXiv:2407.21783), Jiang et al.
2023 (arXiv:2310.06825), Yang et al. 2024 (arXiv:2407.10671).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorfold.models.blocks import AttentionShape
from tensorfold.models.config import need, only, read_rope
from tensorfold.models.decoder import Decoder, DenseBlock, layer_leaves, outer_leaves
from tensorfold.models.family import Family, Leaf, Spec
from tensorfold.ops.rope import Rope


@dataclass(frozen=True)
class LlamaConfig:
    """What the family reads of config.json."""

    vocab_size: int
    mlp_width: int
    mlp_bias: bool
    attention: tuple[AttentionShape, ...]
    """One a layer: Qwen2 gives some of them a window."""
    epsilon: float
    rope: Rope
    tied: bool
    context: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "LlamaConfig":
        """Raises ValueError naming a value that this family can't run."""
        only(config, "hidden_act", "silu")
        qwen2 = "Qwen2ForCausalLM" in config.get("architectures", ())
        width, heads = need(config, "hidden_size"), need(config, "num_attention_heads")
        head_dim = config.get("head_dim") or width // heads
        layers = need(config, "num_hidden_layers")
        bias = bool(config.get("attention_bias", False))
        shape = AttentionShape(
            width=width,
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=head_dim,
            qkv_bias=bias or qwen2,
            output_bias=bias and not qwen2,
        )
        windows = _windows(config, layers, qwen2)
        return cls(
            vocab_size=need(config, "vocab_size"),
            mlp_width=need(config, "intermediate_size"),
            mlp_bias=bool(config.get("mlp_bias", False)),
            attention=tuple(replace(shape, window=window) for window in windows),
            epsilon=need(config, "rms_norm_eps", float),
            rope=read_rope(config, head_dim),
            tied=bool(config.get("tie_word_embeddings", False)),
            context=need(config, "max_position_embeddings"),
        )


class Llama(Decoder):
    """The model."""

    def __init__(self, config: LlamaConfig):
        super().__init__(
            [
                DenseBlock(shape, config.mlp_width, config.epsilon, mlp_bias=config.mlp_bias)
                for shape in config.attention
            ],
            vocab_size=config.vocab_size,
            width=config.attention[0].width,
            epsilon=config.epsilon,
            rope=config.rope,
            tied=config.tied,
        )


def leaves(config: LlamaConfig) -> dict[str, Leaf]:
    """Where each parameter comes from, by Hugging Face's tensor names."""
    out = outer_leaves(tied=config.tied)
    for i, shape in enumerate(config.attention):
        out |= layer_leaves(i, shape, mlp_bias=config.mlp_bias)
    return out


def _windows(config: Mapping[str, Any], layers: int, qwen2: bool) -> list[int | None]:
    """Each layer's sliding window: Mistral's on all, Qwen2's only where it is switched on."""
    window = config.get("sliding_window")
    if window is None or (qwen2 and not config.get("use_sliding_window", False)):
        return [None] * layers
    kinds = config.get("layer_types")
    if kinds is not None:
        return [window if kind == "sliding_attention" else None for kind in kinds]
    first = config.get("max_window_layers", 0) if qwen2 else 0
    return [window if i >= first else None for i in range(layers)]


def spec(config: Mapping[str, Any]) -> Spec:
    """The model that `config` describes."""
    read = LlamaConfig.read(config)
    return Spec(
        build=lambda: Llama(read),
        leaves=leaves(read),
        state=tuple(shape.state for shape in read.attention),
        vocab_size=read.vocab_size,
        context=read.context,
        # Old Llama files store the rotary frequencies; tied ones may repeat the table as a head.
        ignored=lambda name: (
            name.endswith("rotary_emb.inv_freq") or (read.tied and name == "lm_head.weight")
        ),
    )


FAMILY = Family(
    architectures=("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"), spec=spec
)
