"""Gemma 3, text: sliding and global layers with a norm before and after each part.

Gemma Team 2025 (arXiv:2503.19786). Norms scale by `1 + weight`; every sixth layer, or as
`layer_types` says, sees all positions and has a rotary base of its own. The text part of the
multimodal checkpoints is read, the rest is left.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from tensorfold.models.blocks import KV, Attention, AttentionShape, Linear, RMSNorm
from tensorfold.models.config import need, only, read_rope
from tensorfold.models.decoder import Decoder, layer_leaves, outer_leaves
from tensorfold.models.family import Family, Leaf, Spec, State
from tensorfold.ops.activation import softcap
from tensorfold.ops.rope import Angles, Rope
from tensorfold.ops.rows import Rows

_SLIDING = "sliding_attention"
_PATTERN = 6
_LOCAL_BASE = 10000.0
_TEXT_CONFIG = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "max_position_embeddings": 131072,
    "hidden_activation": "gelu_pytorch_tanh",
}
"""What published multimodal configs leave out of their text part."""


@dataclass(frozen=True)
class Gemma3Config:
    """What the family reads of config.json."""

    vocab_size: int
    mlp_width: int
    attention: tuple[AttentionShape, ...]
    """One a layer; a layer with a window rotates by `local_rope`."""
    epsilon: float
    global_rope: Rope
    local_rope: Rope
    softcap: float | None
    tied: bool
    context: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Gemma3Config":
        """Raises ValueError naming a value that this family can't run."""
        only(config, "hidden_activation", "gelu_pytorch_tanh")
        only(config, "attn_logit_softcapping", None)
        only(config, "use_bidirectional_attention", False)
        epsilon = need(config, "rms_norm_eps", float)
        head_dim = config.get("head_dim") or 256
        bias = bool(config.get("attention_bias", False))
        shape = AttentionShape(
            width=need(config, "hidden_size"),
            heads=need(config, "num_attention_heads"),
            kv_heads=need(config, "num_key_value_heads"),
            head_dim=head_dim,
            qkv_bias=bias,
            output_bias=bias,
            qk_norm_epsilon=epsilon,
            scale=float(config.get("query_pre_attn_scalar") or head_dim) ** -0.5,
        )
        local = replace(shape, window=need(config, "sliding_window"))
        return cls(
            vocab_size=need(config, "vocab_size"),
            mlp_width=need(config, "intermediate_size"),
            attention=tuple(local if slides else shape for slides in _sliding(config)),
            epsilon=epsilon,
            global_rope=_rope(config, "full_attention", head_dim),
            local_rope=_rope(config, _SLIDING, head_dim),
            softcap=config.get("final_logit_softcapping"),
            tied=bool(config.get("tie_word_embeddings", True)),
            context=need(config, "max_position_embeddings"),
        )


def _sliding(config: Mapping[str, Any]) -> list[bool]:
    """Whether each layer has a window."""
    layers = need(config, "num_hidden_layers")
    kinds = config.get("layer_types")
    if kinds is not None:
        return [kind == _SLIDING for kind in kinds]
    pattern = config.get("sliding_window_pattern") or _PATTERN
    return [(i + 1) % pattern != 0 for i in range(layers)]


def _rope(config: Mapping[str, Any], kind: str, head_dim: int) -> Rope:
    """`rope_parameters` has an entry a layer type; before transformers 5, `rope_theta` and
    `rope_scaling` were the global layers' and `rope_local_base_freq` the local ones'."""
    parameters = config.get("rope_parameters")
    if parameters is not None:
        parameters = parameters[kind]
    elif kind == _SLIDING:
        parameters = {"rope_theta": config.get("rope_local_base_freq", _LOCAL_BASE)}
    else:
        scaling = config.get("rope_scaling") or {}
        parameters = {"rope_theta": config.get("rope_theta", 1e6), **scaling}
    return read_rope({**config, "rope_parameters": parameters}, head_dim)


class MLP(nnx.Module):
    """GeGLU with gate and up fused into one projection."""

    def __init__(self, width: int, hidden: int):
        self.gate_up_proj = Linear(width, 2 * hidden)
        self.down_proj = Linear(hidden, width)

    def __call__(self, x: Float[Array, "R D"], norm: RMSNorm) -> Float[Array, "R D"]:
        """The MLP of the normalised rows."""
        return self.down_proj(self.gate_up_proj(x, norm=norm), gated="geglu")


class Block(nnx.Module):
    """One layer."""

    def __init__(self, config: Gemma3Config, shape: AttentionShape):
        self.input_layernorm = RMSNorm(shape.width, config.epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.width, config.epsilon)
        self.pre_feedforward_layernorm = RMSNorm(shape.width, config.epsilon)
        self.mlp = MLP(shape.width, config.mlp_width)
        self.post_feedforward_layernorm = RMSNorm(shape.width, config.epsilon)

    def __call__(
        self, x: Float[Array, "R D"], kv: KV, rows: Rows, angles: Angles
    ) -> tuple[Float[Array, "R D"], KV]:
        """Attention, then the MLP, each normalised again before it is added to the rows."""
        mixed, kv = self.self_attn.mix(x, self.input_layernorm, kv, rows, angles)
        x = x + self.post_attention_layernorm(self.self_attn.o_proj(mixed))
        hidden = self.mlp(x, self.pre_feedforward_layernorm)
        return x + self.post_feedforward_layernorm(hidden), kv


class Gemma3(Decoder):
    """The model: the table's rows are scaled, and layers with a window have angles of their own."""

    def __init__(self, config: Gemma3Config):
        super().__init__(
            [Block(config, shape) for shape in config.attention],
            vocab_size=config.vocab_size,
            width=config.attention[0].width,
            epsilon=config.epsilon,
            rope=config.global_rope,
            tied=config.tied,
        )
        self.config = config

    def __call__(self, rows: Rows, state: State) -> tuple[Float[Array, "R D"], State]:
        """Hidden rows after the last norm, and the written state."""
        x = self.embed_tokens(rows.token)
        x = x * jnp.sqrt(jnp.float32(x.shape[1]))
        global_angles = self.config.global_rope.angles(rows.position)
        local_angles = self.config.local_rope.angles(rows.position)
        angles = [
            global_angles if shape.window is None else local_angles
            for shape in self.config.attention
        ]
        return self.run(x, rows, state, angles)

    def logits(self, hidden: Float[Array, "D_ D"]) -> Float[Array, "D_ V"]:
        """The head, its logits capped."""
        return softcap(super().logits(hidden), self.config.softcap)


def leaves(config: Gemma3Config) -> dict[str, Leaf]:
    """Where each parameter comes from, by Hugging Face's tensor names."""
    out = outer_leaves(tied=config.tied)
    for i, shape in enumerate(config.attention):
        out |= layer_leaves(i, shape)
        for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
            out[f"layers.{i}.{name}.weight"] = Leaf((f"model.layers.{i}.{name}.weight",))
    return {path: replace(leaf, add=1.0) if "norm" in path else leaf for path, leaf in out.items()}


def _multimodal_leaves(config: Gemma3Config) -> dict[str, Leaf]:
    """The names of multimodal checkpoints: the published ones, which MLX keeps, and those that
    transformers has written since."""
    return {
        path: leaf.under("language_model.").or_else(leaf.moved("model.", "model.language_model."))
        for path, leaf in leaves(config).items()
    }


def _ignored(name: str, *, tied: bool) -> bool:
    """The head that is the table, and what sees."""
    sees = name.removeprefix("model.").startswith(("vision_tower.", "multi_modal_projector."))
    return sees or (tied and name.removeprefix("language_model.") == "lm_head.weight")


def spec(config: Mapping[str, Any]) -> Spec:
    """The model that `config` describes: of a multimodal one its text part."""
    text = config.get("text_config")
    if text is not None:
        tied = {"tie_word_embeddings": config.get("tie_word_embeddings", True)}
        config = {**_TEXT_CONFIG, **text, **tied}
    read = Gemma3Config.read(config)
    return Spec(
        build=lambda: Gemma3(read),
        leaves=leaves(read) if text is None else _multimodal_leaves(read),
        state=tuple(shape.state for shape in read.attention),
        vocab_size=read.vocab_size,
        context=read.context,
        ignored=partial(_ignored, tied=read.tied),
    )


FAMILY = Family(
    architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    spec=spec,
)
