"""Qwen3.5, dense and with experts: Gated DeltaNet layers with a full-attention layer among them.

Gated DeltaNet is Yang et al. 2024 (arXiv:2412.06464). Attention has an output gate and rotates a
part of each head. The text part of the multimodal checkpoints is read, the rest is left.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from tensorfold.models.blocks import (
    KV,
    Attention,
    AttentionShape,
    Filters,
    GatedMLP,
    Linear,
    RMSNorm,
)
from tensorfold.models.config import need, only, read_rope, rotary_dim
from tensorfold.models.decoder import Decoder, outer_leaves
from tensorfold.models.family import Family, Leaf, NextToken, Recurrent, Spec, State
from tensorfold.models.stacked import paired_rows
from tensorfold.ops import moe
from tensorfold.ops.activation import swiglu
from tensorfold.ops.conv import causal_conv
from tensorfold.ops.linear_attention import Kept, linear_attention
from tensorfold.ops.norm import l2_norm
from tensorfold.ops.rope import Angles, Rope
from tensorfold.ops.rows import Rows
from tensorfold.ops.sums import rounded

_INTERVAL = 4
_PARTIAL = 0.25


@dataclass(frozen=True)
class DeltaShape:
    """The fixed numbers of a Gated DeltaNet layer."""

    width: int
    key_heads: int
    key_dim: int
    heads: int
    value_dim: int
    conv_width: int

    @property
    def channels(self) -> int:
        """Queries, keys and values side by side."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim

    @property
    def state(self) -> Recurrent:
        """What the layer keeps."""
        return Recurrent(self.channels, self.key_heads, self.key_dim, self.heads, self.value_dim)


@dataclass(frozen=True)
class ExpertShape:
    """`count` experts of width `hidden`, `chosen` of them for a row, beside a shared one."""

    count: int
    chosen: int
    hidden: int
    shared: int


@dataclass(frozen=True)
class Qwen35Config:
    """What the family reads of config.json."""

    vocab_size: int
    mixers: tuple[AttentionShape | DeltaShape, ...]
    """One a layer."""
    next_token: tuple[AttentionShape, ...]
    """One a next-token layer."""
    mlp_width: int | None
    experts: ExpertShape | None
    """One of the two."""
    epsilon: float
    rope: Rope
    rotary: int
    tied: bool
    context: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Qwen35Config":
        """Raises ValueError naming a value that this family can't run."""
        only(config, "hidden_act", "silu")
        width = need(config, "hidden_size")
        key_heads, value_heads = (
            need(config, f"linear_num_{kind}_heads") for kind in ("key", "value")
        )
        if value_heads % key_heads:
            raise ValueError(f"{value_heads} attention heads do not share {key_heads} key heads")
        head_dim = config.get("head_dim") or 256
        epsilon = need(config, "rms_norm_eps", float)
        bias = bool(config.get("attention_bias", False))
        attention = AttentionShape(
            width=width,
            heads=need(config, "num_attention_heads"),
            kv_heads=need(config, "num_key_value_heads"),
            head_dim=head_dim,
            qkv_bias=bias,
            output_bias=bias,
            qk_norm_epsilon=epsilon,
        )
        delta = DeltaShape(
            width=width,
            key_heads=key_heads,
            key_dim=need(config, "linear_key_head_dim"),
            heads=value_heads,
            value_dim=need(config, "linear_value_head_dim"),
            conv_width=need(config, "linear_conv_kernel_dim"),
        )
        partial = {"partial_rotary_factor": _PARTIAL, **config}
        sparse = "num_experts" in config
        return cls(
            vocab_size=need(config, "vocab_size"),
            mixers=tuple(attention if full else delta for full in _full(config)),
            next_token=(attention,) * config.get("mtp_num_hidden_layers", 0),
            mlp_width=None if sparse else need(config, "intermediate_size"),
            experts=_experts(config) if sparse else None,
            epsilon=epsilon,
            rope=read_rope(partial, head_dim, partial=True),
            rotary=rotary_dim(partial, head_dim),
            tied=bool(config.get("tie_word_embeddings", False)),
            context=need(config, "max_position_embeddings"),
        )


def _experts(config: Mapping[str, Any]) -> ExpertShape:
    return ExpertShape(
        count=need(config, "num_experts"),
        chosen=need(config, "num_experts_per_tok"),
        hidden=need(config, "moe_intermediate_size"),
        shared=need(config, "shared_expert_intermediate_size"),
    )


def _full(config: Mapping[str, Any]) -> list[bool]:
    """Whether each layer is full attention."""
    kinds = config.get("layer_types")
    if kinds is not None:
        return [kind == "full_attention" for kind in kinds]
    interval = config.get("full_attention_interval") or _INTERVAL
    return [(i + 1) % interval == 0 for i in range(need(config, "num_hidden_layers"))]


class GatedDeltaNet(nnx.Module):
    """A recurrent layer: convolution, delta rule, gated norm."""

    def __init__(self, shape: DeltaShape, epsilon: float):
        values = shape.heads * shape.value_dim
        self.in_proj_qkvz = Linear(shape.width, shape.channels + values)
        self.in_proj_ba = Linear(shape.width, 2 * shape.heads)
        self.conv1d = Filters(shape.channels, shape.conv_width)
        self.A_log = nnx.Param(jnp.zeros((shape.heads,)))
        self.dt_bias = nnx.Param(jnp.zeros((shape.heads,)))
        self.norm = RMSNorm(shape.value_dim, epsilon)
        self.out_proj = Linear(values, shape.width)
        self.shape = shape

    def __call__(
        self, x: Float[Array, "R D"], norm: RMSNorm, kept: tuple[Array, ...], rows: Rows
    ) -> tuple[Float[Array, "R D"], tuple[Array, ...]]:
        """`x` plus the layer of the normalised rows, and the written state."""
        shape, count = self.shape, x.shape[0]
        qkvz = self.in_proj_qkvz(x, norm=norm)
        mixed, inputs = causal_conv(
            qkvz[:, : shape.channels], self.conv1d.weight[:, 0], kept[0], rows
        )
        keys = shape.key_heads * shape.key_dim
        q, k, v = jnp.split(jax.nn.silu(mixed), [keys, 2 * keys], axis=1)
        q, k = (l2_norm(each.reshape(count, -1, shape.key_dim), 1e-6) for each in (q, k))
        v, z = (each.reshape(count, -1, shape.value_dim) for each in (v, qkvz[:, shape.channels :]))
        b, a = jnp.split(self.in_proj_ba(x, norm=norm), 2, axis=1)
        g = -jnp.exp(self.A_log[...]) * jax.nn.softplus(a + self.dt_bias[...])
        out, written = linear_attention(
            q * shape.key_dim**-0.5, k, v, g[..., None], jax.nn.sigmoid(b), Kept(*kept[1:]), rows
        )
        out = (self.norm(out) * jax.nn.silu(z)).reshape(count, -1)
        return self.out_proj(out, residual=x), (inputs, *written)


class GatedAttention(Attention):
    """Attention whose heads are gated before the output projection."""

    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        self.gate_proj = Linear(shape.width, shape.heads * shape.head_dim, bias=shape.qkv_bias)

    def __call__(
        self, x: Float[Array, "R D"], norm: RMSNorm, kv: KV, rows: Rows, angles: Angles
    ) -> tuple[Float[Array, "R D"], KV]:
        """`x` plus gated attention of the normalised rows, and the pages with them written."""
        mixed, kv = self.mix(x, norm, kv, rows, angles)
        gate = jax.nn.sigmoid(self.gate_proj(x, norm=norm))
        return self.o_proj(mixed * gate, residual=x), kv


class SparseMLP(nnx.Module):
    """Experts chosen by a router, and a gated one that every row goes through."""

    def __init__(self, width: int, shape: ExpertShape):
        self.gate = Linear(width, shape.count)
        self.experts_up = Linear(width, shape.count * 2 * shape.hidden)
        self.experts_down = Linear(shape.hidden, shape.count * width)
        self.shared_up = Linear(width, 2 * shape.shared)
        self.shared_down = Linear(shape.shared, width)
        self.shared_gate = Linear(width, 1)
        self.chosen = shape.chosen

    def __call__(self, x: Float[Array, "R D"], norm: RMSNorm, rows: Rows) -> Float[Array, "R D"]:
        """`x` plus the experts of the normalised rows."""
        ids, weights = moe.softmax_router(self.gate(x, norm=norm), self.chosen, normalised=True)
        routed = moe.experts(
            norm(x),
            ids,
            weights,
            rows.lane >= 0,
            self.experts_up.weight.get_value(),
            self.experts_down.weight.get_value(),
            swiglu,
        )
        shared = self.shared_down(self.shared_up(x, norm=norm), gated="swiglu")
        return x + (routed + rounded(jax.nn.sigmoid(self.shared_gate(x, norm=norm)) * shared))


class Block(nnx.Module):
    """One layer."""

    def __init__(self, config: Qwen35Config, shape: AttentionShape | DeltaShape):
        self.input_layernorm = RMSNorm(shape.width, config.epsilon)
        if isinstance(shape, DeltaShape):
            self.linear_attn = GatedDeltaNet(shape, config.epsilon)
        else:
            self.self_attn = GatedAttention(shape)
        self.post_attention_layernorm = RMSNorm(shape.width, config.epsilon)
        if config.experts is None:
            assert config.mlp_width is not None
            self.mlp: GatedMLP | SparseMLP = GatedMLP(shape.width, config.mlp_width)
        else:
            self.mlp = SparseMLP(shape.width, config.experts)
        self.recurrent = isinstance(shape, DeltaShape)

    def __call__(
        self, x: Float[Array, "R D"], kept: Any, rows: Rows, angles: Angles
    ) -> tuple[Float[Array, "R D"], Any]:
        """The mixer, then the MLP, each added to the rows."""
        if self.recurrent:
            x, kept = self.linear_attn(x, self.input_layernorm, kept, rows)
        else:
            x, kept = self.self_attn(x, self.input_layernorm, kept, rows, angles)
        if isinstance(self.mlp, SparseMLP):
            return self.mlp(x, self.post_attention_layernorm, rows), kept
        return self.mlp(x, self.post_attention_layernorm), kept


class NextTokenLayers(nnx.Module):
    """What predicts the token after next: the next one's embedding and a hidden vector, each
    normalised, through a projection of the two and full-attention layers."""

    def __init__(self, config: Qwen35Config):
        width = config.mixers[0].width
        self.pre_fc_norm_embedding = RMSNorm(width, config.epsilon)
        self.pre_fc_norm_hidden = RMSNorm(width, config.epsilon)
        self.fc = Linear(2 * width, width)
        self.layers = nnx.List([Block(config, shape) for shape in config.next_token])
        self.norm = RMSNorm(width, config.epsilon)

    def __call__(
        self,
        embedded: Float[Array, "R D"],
        hidden: Float[Array, "R D"],
        rows: Rows,
        state: State,
        angles: Angles,
    ) -> tuple[Float[Array, "R D"], State]:
        """Hidden rows after the last norm, and the written state."""
        both = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        x = self.fc(jnp.concatenate(both, axis=1))
        written = []
        for layer, kept in zip(self.layers, state, strict=True):
            x, kept = layer(x, kept, rows, angles)
            written.append(kept)
        return self.norm(x), tuple(written)


class Qwen35(Decoder):
    """The model."""

    def __init__(self, config: Qwen35Config):
        super().__init__(
            [Block(config, shape) for shape in config.mixers],
            vocab_size=config.vocab_size,
            width=config.mixers[0].width,
            epsilon=config.epsilon,
            rope=config.rope,
            tied=config.tied,
            mtp=NextTokenLayers(config) if config.next_token else None,
        )


def leaves(config: Qwen35Config) -> dict[str, Leaf]:
    """Where each parameter comes from, by Hugging Face's tensor names."""
    out = outer_leaves(tied=config.tied)
    for i, shape in enumerate(config.mixers):
        for path, leaf in _block_leaves(config, shape).items():
            out[f"layers.{i}.{path}"] = leaf.under(f"model.layers.{i}.")
    for i, shape in enumerate(config.next_token):
        for path, leaf in _block_leaves(config, shape).items():
            out[f"mtp.layers.{i}.{path}"] = leaf.under(f"mtp.layers.{i}.")
    if config.next_token:
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"):
            out[f"mtp.{name}.weight"] = Leaf((f"mtp.{name}.weight",))
    # These norms scale by 1 + weight, the one inside Gated DeltaNet does not.
    whole = [path for path in out if "norm" in path and "linear_attn" not in path]
    return out | {path: replace(out[path], add=1.0) for path in whole}


def _block_leaves(config: Qwen35Config, shape: AttentionShape | DeltaShape) -> dict[str, Leaf]:
    norms = ("input_layernorm", "post_attention_layernorm")
    out = {f"{name}.weight": Leaf((f"{name}.weight",)) for name in norms}
    if isinstance(shape, DeltaShape):
        mixer, place = _delta_leaves(), "linear_attn"
    else:
        mixer, place = _attention_leaves(shape, config.rotary), "self_attn"
    mlp = _mlp_leaves() if config.experts is None else _expert_leaves(config.experts)
    for part, those in ((place, mixer), ("mlp", mlp)):
        out |= {f"{part}.{path}": leaf.under(f"{part}.") for path, leaf in those.items()}
    return out


def _delta_leaves() -> dict[str, Leaf]:
    same = ("conv1d.weight", "A_log", "dt_bias", "norm.weight", "out_proj.weight")
    return {name: Leaf((name,)) for name in same} | {
        "in_proj_qkvz.weight": Leaf(("in_proj_qkv.weight", "in_proj_z.weight")),
        "in_proj_ba.weight": Leaf(("in_proj_b.weight", "in_proj_a.weight")),
    }


def _attention_leaves(shape: AttentionShape, rotary: int) -> dict[str, Leaf]:
    """`q_proj` has each head's queries and then its gates. Heads of queries and keys are put in an
    order in which the rotation turns their first half against their second."""
    size, order = shape.head_dim, _halves(shape.head_dim, rotary)
    k_start, v_start = 2 * shape.heads * size, (2 * shape.heads + shape.kv_heads) * size
    queries = [2 * head * size + place for head in range(shape.heads) for place in order]
    keys = [k_start + head * size + place for head in range(shape.kv_heads) for place in order]
    values = list(range(v_start, v_start + shape.kv_heads * size))
    gates = [(2 * head + 1) * size + place for head in range(shape.heads) for place in range(size)]
    out = {f"{each}_norm.weight": Leaf((f"{each}_norm.weight",), rows=order) for each in "qk"}
    for kind in ("weight", "bias") if shape.qkv_bias else ("weight",):
        parts = tuple(f"{part}_proj.{kind}" for part in "qkv")
        out[f"qkv_proj.{kind}"] = Leaf(parts, rows=(*queries, *keys, *values))
        out[f"gate_proj.{kind}"] = Leaf(parts[:1], rows=tuple(gates))
        out[f"o_proj.{kind}"] = Leaf((f"o_proj.{kind}",))
    return out


def _halves(head_dim: int, rotary: int) -> tuple[int, ...]:
    """The places of a head so that the first `rotary` of them, of which place i turns against
    place i + rotary / 2, come to lie in its two halves; the rest is not turned."""
    turned, rest = range(rotary), range(rotary, head_dim)
    first = [*turned[: rotary // 2], *rest[: len(rest) // 2]]
    return (*first, *turned[rotary // 2 :], *rest[len(rest) // 2 :])


def _mlp_leaves() -> dict[str, Leaf]:
    return {
        "gate_up_proj.weight": Leaf(("gate_proj.weight", "up_proj.weight")),
        "down_proj.weight": Leaf(("down_proj.weight",)),
    }


def _expert_leaves(shape: ExpertShape) -> dict[str, Leaf]:
    """Experts come in one tensor a kind, or in older files each in its own."""
    one_by_one = {
        kinds: tuple(
            f"experts.{expert}.{kind}_proj.weight"
            for expert in range(shape.count)
            for kind in kinds
        )
        for kinds in (("gate", "up"), ("down",))
    }
    return {
        "gate.weight": Leaf(("gate.weight",)),
        "experts_up.weight": Leaf(("experts.gate_up_proj",), parts=shape.count).or_else(
            Leaf(one_by_one["gate", "up"], parts=shape.count)
        ),
        "experts_down.weight": Leaf(("experts.down_proj",), parts=shape.count).or_else(
            Leaf(one_by_one["down",], parts=shape.count)
        ),
        "shared_up.weight": Leaf(
            ("shared_expert.gate_proj.weight", "shared_expert.up_proj.weight")
        ),
        "shared_down.weight": Leaf(("shared_expert.down_proj.weight",)),
        "shared_gate.weight": Leaf(("shared_expert_gate.weight",)),
    }


def _mlx_leaves(config: Qwen35Config) -> dict[str, Leaf]:
    """The names of MLX's folders, of which no other has one. Their norms are the whole scale, their
    filters are [channels, width, 1], experts are stacked by kind, and nothing predicts further
    tokens. Filters of another shape end the load, as such norms would be other ones too."""
    out = {}
    for path, leaf in leaves(replace(config, next_token=())).items():
        filters = path.endswith("conv1d.weight")
        out[path] = replace(leaf.under("language_model."), add=0.0, turned=filters)
    if config.experts is None:
        return out
    count, rows = config.experts.count, paired_rows(config.experts.count, config.experts.hidden)
    for i in range(len(config.mixers)):
        for ours, kinds, order in (("up", ("gate", "up"), rows), ("down", ("down",), None)):
            stacked = tuple(f"mlp.switch_mlp.{kind}_proj.weight" for kind in kinds)
            leaf = Leaf(stacked, order, parts=count).under(f"language_model.model.layers.{i}.")
            out[f"layers.{i}.mlp.experts_{ours}.weight"] = leaf
    return out


def spec(config: Mapping[str, Any]) -> Spec:
    """The model that `config` describes: of a multimodal one its text part."""
    text = config.get("text_config")
    if text is not None:
        config = {**text, "tie_word_embeddings": config.get("tie_word_embeddings", False)}
    read = Qwen35Config.read(config)
    whole = _spec(read, multimodal=text is not None)
    if not read.next_token:
        return whole
    return replace(whole, otherwise=_spec(replace(read, next_token=()), text is not None))


def _spec(read: Qwen35Config, multimodal: bool) -> Spec:
    found = leaves(read)
    if multimodal:
        found = {
            path: leaf.moved("model.", "model.language_model.") for path, leaf in found.items()
        }
    for path, leaf in _mlx_leaves(read).items():
        found[path] = found[path].or_else(leaf)
    return Spec(
        build=lambda: Qwen35(read),
        leaves=found,
        state=tuple(shape.state for shape in read.mixers),
        vocab_size=read.vocab_size,
        context=read.context,
        next_token=NextToken(tuple(shape.state for shape in read.next_token), read.mixers[0].width)
        if read.next_token
        else None,
        # The vision tower, and next-token layers that the config doesn't count.
        ignored=lambda name: (
            name.startswith(("model.visual.", "vision_tower.", "mtp."))
            or (read.tied and name.removeprefix("language_model.") == "lm_head.weight")
        ),
    )


FAMILY = Family(
    architectures=(
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    ),
    spec=spec,
)
