"""gpt-oss: attention with sinks, every other layer through a window, and experts in each layer.

OpenAI 2025 (arXiv:2508.10925). Every projection has a bias, experts too; an expert's gates and ups
alternate. Checkpoints have the experts in MXFP4, plain, or as MLX stacks them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flax import nnx
from jax import Array
from jaxtyping import Float

from tensorfold.models.blocks import KV, Attention, AttentionShape, Linear, RMSNorm
from tensorfold.models.config import need, only, read_rope
from tensorfold.models.decoder import Decoder, attention_leaves, outer_leaves
from tensorfold.models.family import Family, Leaf, Spec
from tensorfold.models.stacked import alternating_rows
from tensorfold.ops import moe
from tensorfold.ops.activation import clamped_swiglu
from tensorfold.ops.rope import Angles, Rope
from tensorfold.ops.rows import Rows

_SLIDING, _FULL = "sliding_attention", "full_attention"
_THETA = 150000.0
_SCALING = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""The rotation of a config that has none."""


@dataclass(frozen=True)
class ExpertShape:
    """`count` experts of width `hidden`, `chosen` of them for a row."""

    width: int
    count: int
    chosen: int
    hidden: int
    alpha: float
    limit: float
    turned: bool
    """Plain folders have the matrices as [inputs, outputs], MXFP4 ones and GGUF as [outputs,
    inputs]. In a width where one of the two tensors fits both ways, the other does not: a wrong
    guess ends the load."""


@dataclass(frozen=True)
class GptOssConfig:
    """What the family reads of config.json."""

    vocab_size: int
    attention: tuple[AttentionShape, ...]
    """One a layer."""
    experts: ExpertShape
    epsilon: float
    rope: Rope
    tied: bool
    context: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "GptOssConfig":
        """Raises ValueError naming a value that this family can't run."""
        only(config, "hidden_act", "silu")
        bias = bool(config.get("attention_bias", True))
        shape = AttentionShape(
            width=need(config, "hidden_size"),
            heads=need(config, "num_attention_heads"),
            kv_heads=need(config, "num_key_value_heads"),
            head_dim=need(config, "head_dim"),
            qkv_bias=bias,
            output_bias=bias,
            sinks=True,
        )
        return cls(
            vocab_size=need(config, "vocab_size"),
            attention=tuple(replace(shape, window=window) for window in _windows(config)),
            experts=_experts(config),
            epsilon=need(config, "rms_norm_eps", float),
            rope=_rope(config),
            tied=bool(config.get("tie_word_embeddings", False)),
            context=need(config, "max_position_embeddings"),
        )


def _windows(config: Mapping[str, Any]) -> list[int | None]:
    """Each layer's window; the first and every other one has one if the config names none."""
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = [(_SLIDING, _FULL)[i % 2] for i in range(need(config, "num_hidden_layers"))]
    for kind in kinds:
        if kind not in (_SLIDING, _FULL):
            raise ValueError(f"layer type {kind!r} is not supported")
    return [need(config, "sliding_window") if kind == _SLIDING else None for kind in kinds]


def _experts(config: Mapping[str, Any]) -> ExpertShape:
    count, chosen = need(config, "num_local_experts"), need(config, "num_experts_per_tok")
    if chosen > count:
        raise ValueError(f"{chosen} experts a token, and only {count} in all")
    rule = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0, **config}
    quantised = config.get("quantization_config") or {}
    return ExpertShape(
        width=need(config, "hidden_size"),
        count=count,
        chosen=chosen,
        hidden=need(config, "intermediate_size"),
        alpha=need(rule, "swiglu_alpha", float),
        limit=need(rule, "swiglu_limit", float),
        turned=quantised.get("quant_method") not in ("mxfp4", "gguf"),
    )


def _rope(config: Mapping[str, Any]) -> Rope:
    given = config.get("rope_parameters") or config.get("rope_scaling") or _SCALING
    named = {"rope_theta": _THETA, **config, "rope_parameters": given}
    return read_rope(named, need(config, "head_dim"))


class Experts(nnx.Module):
    """Experts chosen by a router."""

    def __init__(self, shape: ExpertShape):
        self.router = Linear(shape.width, shape.count, bias=True)
        self.experts_up = Linear(shape.width, shape.count * 2 * shape.hidden, bias=True)
        self.experts_down = Linear(shape.hidden, shape.count * shape.width, bias=True)
        self.shape = shape

    def __call__(self, x: Float[Array, "R D"], norm: RMSNorm, rows: Rows) -> Float[Array, "R D"]:
        """`x` plus the experts of the normalised rows."""
        shape, up, down = self.shape, self.experts_up, self.experts_down
        assert up.bias is not None and down.bias is not None
        ids, weights = moe.chosen_softmax_router(self.router(x, norm=norm), shape.chosen)
        return x + moe.experts(
            norm(x),
            ids,
            weights,
            rows.lane >= 0,
            up.weight.get_value(),
            down.weight.get_value(),
            partial(clamped_swiglu, alpha=shape.alpha, limit=shape.limit),
            biases=(up.bias[...], down.bias[...]),
        )


class Block(nnx.Module):
    """One layer."""

    def __init__(self, config: GptOssConfig, shape: AttentionShape):
        self.input_layernorm = RMSNorm(shape.width, config.epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.width, config.epsilon)
        self.mlp = Experts(config.experts)

    def __call__(
        self, x: Float[Array, "R D"], kv: KV, rows: Rows, angles: Angles
    ) -> tuple[Float[Array, "R D"], KV]:
        """Attention, then the experts, each added to the rows."""
        x, kv = self.self_attn(x, self.input_layernorm, kv, rows, angles)
        return self.mlp(x, self.post_attention_layernorm, rows), kv


class GptOss(Decoder):
    """The model."""

    def __init__(self, config: GptOssConfig):
        super().__init__(
            [Block(config, shape) for shape in config.attention],
            vocab_size=config.vocab_size,
            width=config.experts.width,
            epsilon=config.epsilon,
            rope=config.rope,
            tied=config.tied,
        )


def leaves(config: GptOssConfig) -> dict[str, Leaf]:
    """Where each parameter comes from, by Hugging Face's tensor names."""
    out = outer_leaves(tied=config.tied)
    for i, shape in enumerate(config.attention):
        out |= attention_leaves(i, shape)
        for path, leaf in _expert_leaves(config.experts).items():
            out[f"layers.{i}.mlp.{path}"] = leaf.under(f"model.layers.{i}.mlp.")
    return out


def _expert_leaves(shape: ExpertShape) -> dict[str, Leaf]:
    """Gates and ups are in one tensor, in turn; MLX has them apart, as [outputs, inputs]."""
    out = {f"router.{kind}": Leaf((f"router.{kind}",)) for kind in ("weight", "bias")}
    rows = alternating_rows(shape.count, shape.hidden)
    for ours, theirs, kinds, order in (
        ("up", "gate_up", ("gate", "up"), rows),
        ("down", "down", ("down",), None),
    ):
        weights, biases = (
            Leaf(tuple(f"experts.{each}_proj.{kind}" for each in kinds), order, parts=shape.count)
            for kind in ("weight", "bias")
        )
        whole = Leaf((f"experts.{theirs}_proj",), parts=shape.count, turned=shape.turned)
        out[f"experts_{ours}.weight"] = whole.or_else(weights)
        out[f"experts_{ours}.bias"] = Leaf((f"experts.{theirs}_proj_bias",)).or_else(biases)
    return out


def spec(config: Mapping[str, Any]) -> Spec:
    """The model that `config` describes."""
    read = GptOssConfig.read(config)
    return Spec(
        build=lambda: GptOss(read),
        leaves=leaves(read),
        state=tuple(shape.state for shape in read.attention),
        vocab_size=read.vocab_size,
        context=read.context,
        ignored=lambda name: read.tied and name == "lm_head.weight",
    )


FAMILY = Family(architectures=("GptOssForCausalLM",), spec=spec)
