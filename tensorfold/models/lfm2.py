"""LFM2: gated short convolutions with grouped-query attention layers among them.

Liquid AI 2025 (arXiv:2511.23404). A convolution layer keeps nothing but its last inputs; queries
and keys of attention are normalised by head.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from tensorfold.models.blocks import Attention, AttentionShape, Filters, GatedMLP, Linear, RMSNorm
from tensorfold.models.config import need, only, read_rope
from tensorfold.models.decoder import Decoder, outer_leaves
from tensorfold.models.family import Convolution, Family, Leaf, Spec
from tensorfold.ops.conv import causal_conv
from tensorfold.ops.rope import Angles, Rope
from tensorfold.ops.rows import Rows

_ATTENTION, _CONVOLUTION = "full_attention", "conv"
_THETA = 1e6


@dataclass(frozen=True)
class ConvShape:
    """The fixed numbers of a convolution layer: filters of `taps` positions on every column."""

    width: int
    taps: int
    bias: bool

    @property
    def state(self) -> Convolution:
        """What the layer keeps."""
        return Convolution(self.width)


Shape = AttentionShape | ConvShape


@dataclass(frozen=True)
class Lfm2Config:
    """What the family reads of config.json."""

    vocab_size: int
    mlp_width: int
    mixers: tuple[Shape, ...]
    """One a layer."""
    epsilon: float
    rope: Rope
    tied: bool
    context: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Lfm2Config":
        """Raises ValueError naming a value that this family can't run."""
        only(config, "hidden_act", "silu")
        width, heads = need(config, "hidden_size"), need(config, "num_attention_heads")
        head_dim = config.get("head_dim") or width // heads
        epsilon = need(config, "norm_eps", float)
        attention = AttentionShape(
            width=width,
            heads=heads,
            kv_heads=need(config, "num_key_value_heads"),
            head_dim=head_dim,
            qk_norm_epsilon=epsilon,
        )
        bias = bool(config.get("conv_bias", False))
        shapes: dict[str, Shape] = {
            _ATTENTION: attention,
            _CONVOLUTION: ConvShape(width, need(config, "conv_L_cache"), bias),
        }
        return cls(
            vocab_size=need(config, "vocab_size"),
            mlp_width=_mlp_width(config),
            mixers=tuple(shapes[kind] for kind in _layers(config)),
            epsilon=epsilon,
            rope=read_rope({"rope_theta": _THETA, **config}, head_dim),
            tied=bool(config.get("tie_embedding", config.get("tie_word_embeddings", True))),
            context=need(config, "max_position_embeddings"),
        )


def _layers(config: Mapping[str, Any]) -> list[str]:
    """The kind of each layer, from a list or from the numbers of the attention layers."""
    kinds = config.get("layer_types")
    if kinds is None:
        layers = range(need(config, "num_hidden_layers"))
        full = config.get("full_attn_idxs")
        return [_ATTENTION if full is None or i in full else _CONVOLUTION for i in layers]
    for kind in kinds:
        if kind not in (_ATTENTION, _CONVOLUTION):
            raise ValueError(f"layer type {kind!r} is not supported")
    return list(kinds)


def _mlp_width(config: Mapping[str, Any]) -> int:
    """`intermediate_size`, in older files `block_ff_dim`; with `block_auto_adjust_ff_dim` two
    thirds of it times a factor, rounded up to whole multiples."""
    width: int = need(config, "block_ff_dim" if "block_ff_dim" in config else "intermediate_size")
    if not config.get("block_auto_adjust_ff_dim", True):
        return width
    rule = {"block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, **config}
    factor, multiple = (
        need(rule, "block_ffn_dim_multiplier", float),
        need(rule, "block_multiple_of"),
    )
    adjusted = int(factor * (2 * width // 3))
    return int(-(-adjusted // multiple) * multiple)


class ShortConv(nnx.Module):
    """`C * conv(B * x)` between two projections: B, C and x are of the row itself."""

    def __init__(self, shape: ConvShape):
        self.in_proj = Linear(shape.width, 3 * shape.width, bias=shape.bias)
        self.conv = Filters(shape.width, shape.taps, bias=shape.bias)
        self.out_proj = Linear(shape.width, shape.width, bias=shape.bias)

    def __call__(
        self, x: Float[Array, "R D"], norm: RMSNorm, kept: tuple[Array], rows: Rows
    ) -> tuple[Float[Array, "R D"], tuple[Array]]:
        """`x` plus the layer of the normalised rows, and the written state."""
        before, after, inputs = jnp.split(self.in_proj(x, norm=norm), 3, axis=1)
        bias = None if self.conv.bias is None else self.conv.bias[...]
        mixed, written = causal_conv(before * inputs, self.conv.weight[:, 0], kept[0], rows, bias)
        return self.out_proj(after * mixed, residual=x), (written,)


class Block(nnx.Module):
    """One layer."""

    def __init__(self, config: Lfm2Config, shape: Shape):
        self.operator_norm = RMSNorm(shape.width, config.epsilon)
        if isinstance(shape, ConvShape):
            self.conv = ShortConv(shape)
        else:
            self.self_attn = Attention(shape)
        self.ffn_norm = RMSNorm(shape.width, config.epsilon)
        self.feed_forward = GatedMLP(shape.width, config.mlp_width)
        self.convolves = isinstance(shape, ConvShape)

    def __call__(
        self, x: Float[Array, "R D"], kept: Any, rows: Rows, angles: Angles
    ) -> tuple[Float[Array, "R D"], Any]:
        """The mixer, then the MLP, each added to the rows."""
        if self.convolves:
            x, kept = self.conv(x, self.operator_norm, kept, rows)
        else:
            x, kept = self.self_attn(x, self.operator_norm, kept, rows, angles)
        return self.feed_forward(x, self.ffn_norm), kept


class Lfm2(Decoder):
    """The model."""

    def __init__(self, config: Lfm2Config):
        super().__init__(
            [Block(config, shape) for shape in config.mixers],
            vocab_size=config.vocab_size,
            width=config.mixers[0].width,
            epsilon=config.epsilon,
            rope=config.rope,
            tied=config.tied,
        )


def leaves(config: Lfm2Config) -> dict[str, Leaf]:
    """Where each parameter comes from, by Hugging Face's tensor names."""
    out = outer_leaves(tied=config.tied)
    out["norm.weight"] = Leaf(("model.embedding_norm.weight",))
    for i, shape in enumerate(config.mixers):
        for path, sources in _block_sources(shape).items():
            # MLX has filters as [channels, taps, 1].
            turned = None if path == "conv.conv.weight" else False
            out[f"layers.{i}.{path}"] = Leaf(sources, turned=turned).under(f"model.layers.{i}.")
    return out


def _block_sources(shape: Shape) -> dict[str, tuple[str, ...]]:
    """The tensors of each parameter of a layer."""
    out: dict[str, tuple[str, ...]] = {
        "operator_norm.weight": ("operator_norm.weight",),
        "ffn_norm.weight": ("ffn_norm.weight",),
        "feed_forward.gate_up_proj.weight": ("feed_forward.w1.weight", "feed_forward.w3.weight"),
        "feed_forward.down_proj.weight": ("feed_forward.w2.weight",),
    }
    if isinstance(shape, ConvShape):
        kinds = ("weight", "bias") if shape.bias else ("weight",)
        names = [
            f"conv.{part}.{kind}" for part in ("in_proj", "conv", "out_proj") for kind in kinds
        ]
        return out | {name: (name,) for name in names}
    return out | {
        "self_attn.qkv_proj.weight": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
        "self_attn.o_proj.weight": ("self_attn.out_proj.weight",),
        "self_attn.q_norm.weight": ("self_attn.q_layernorm.weight",),
        "self_attn.k_norm.weight": ("self_attn.k_layernorm.weight",),
    }


def spec(config: Mapping[str, Any]) -> Spec:
    """The model that `config` describes."""
    read = Lfm2Config.read(config)
    return Spec(
        build=lambda: Lfm2(read),
        leaves=leaves(read),
        state=tuple(shape.state for shape in read.mixers),
        vocab_size=read.vocab_size,
        context=read.context,
        ignored=lambda name: read.tied and name == "lm_head.weight",
    )


FAMILY = Family(architectures=("Lfm2ForCausalLM",), spec=spec)
