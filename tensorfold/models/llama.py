"""Llama 2 and 3, Mistral, SmolLM2 and Qwen2: pre-norm blocks of attention and a gated MLP.

Touvron et al. 2023 (arXiv:2307.09288), Grattafiori et al. 2024 (arXiv:2407.21783), Jiang et al.
2023 (arXiv:2310.06825), Yang et al. 2024 (arXiv:2407.10671).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
        if shape.heads % shape.kv_heads:
            raise ValueError(f"{heads} attention heads do not share {shape.kv_heads} kv heads")
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


class Block(nnx.Module):
    """One layer."""

    def __init__(self, config: LlamaConfig, shape: AttentionShape):
        self.input_layernorm = RMSNorm(shape.width, config.epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.width, config.epsilon)
        self.mlp = GatedMLP(shape.width, config.mlp_width, bias=config.mlp_bias)

    def __call__(
        self, x: Float[Array, "R D"], kv: KV, rows: Rows, angles: Angles
    ) -> tuple[Float[Array, "R D"], KV]:
        """Attention, then the MLP, each added to the rows."""
        x, kv = self.self_attn(x, self.input_layernorm, kv, rows, angles)
        return self.mlp(x, self.post_attention_layernorm), kv


@jax.jit
def _run(block: Block, x: Array, kv: KV, rows: Rows, angles: Angles) -> tuple[Array, KV]:
    """A block as a function of its own, so that layers of one shape are traced once."""
    return block(x, kv, rows, angles)


class Llama(nnx.Module):
    """The model."""

    def __init__(self, config: LlamaConfig):
        width = config.attention[0].width
        self.embed_tokens = Embedding(config.vocab_size, width)
        self.layers = nnx.List([Block(config, shape) for shape in config.attention])
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


def leaves(config: LlamaConfig) -> dict[str, Leaf]:
    """Where each parameter comes from, by Hugging Face's tensor names."""
    out = outer_leaves(tied=config.tied)
    for i, shape in enumerate(config.attention):
        out |= layer_leaves(
            i, qkv_bias=shape.qkv_bias, output_bias=shape.output_bias, mlp_bias=config.mlp_bias
        )
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
