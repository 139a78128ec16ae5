"""Nemotron-H and Nemotron 3: Mamba-2, attention, MLP and expert layers in the config's order.

NVIDIA 2025 (arXiv:2504.03624); Mamba-2 is Dao and Gu 2024 (arXiv:2405.21060). A layer is a norm and
one mixer. Attention has no rotation; MLPs and experts are `relu(x)^2` without a gate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from tensorfold.models.blocks import Attention, AttentionShape, Filters, Linear, RMSNorm
from tensorfold.models.config import need, only
from tensorfold.models.decoder import Decoder
from tensorfold.models.family import (
    Family,
    Leaf,
    NextToken,
    Recurrent,
    Spec,
    State,
    Stateless,
)
from tensorfold.ops import moe
from tensorfold.ops.activation import squared_relu
from tensorfold.ops.conv import causal_conv
from tensorfold.ops.linear_attention import Kept, linear_attention
from tensorfold.ops.norm import rms_norm
from tensorfold.ops.rope import Angles, Rope
from tensorfold.ops.rows import Rows
from tensorfold.ops.sums import rounded

_KINDS = {"M": "linear_attention", "*": "full_attention", "E": "moe", "-": "mlp"}
_OLD_KINDS = {"mamba": "linear_attention", "attention": "full_attention"}
_NEXT_TOKEN = "*E"


@dataclass(frozen=True)
class MambaShape:
    """The fixed numbers of a Mamba-2 layer; its `groups` share inputs and outputs of the state."""

    width: int
    heads: int
    head_dim: int
    groups: int
    state_dim: int
    conv_width: int
    conv_bias: bool
    bias: bool
    least_step: float

    @property
    def values(self) -> int:
        """All heads side by side."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """What goes through the convolution: values, B and C side by side."""
        return self.values + 2 * self.groups * self.state_dim

    @property
    def state(self) -> Recurrent:
        """What the layer keeps."""
        return Recurrent(self.channels, self.groups, self.state_dim, self.heads, self.head_dim)


@dataclass(frozen=True)
class MLPShape:
    """A plain MLP."""

    width: int
    hidden: int
    bias: bool

    @property
    def state(self) -> Stateless:
        """Nothing is kept."""
        return Stateless()


@dataclass(frozen=True)
class ExpertShape:
    """`count` experts of width `hidden`, `chosen` of them for a row, beside a shared MLP. Experts
    work on `latent` columns if this is given."""

    width: int
    count: int
    chosen: int
    hidden: int
    shared: int
    latent: int | None
    bias: bool
    groups: int
    kept_groups: int
    normalised: bool
    scale: float

    @property
    def state(self) -> Stateless:
        """Nothing is kept."""
        return Stateless()


Shape = MambaShape | AttentionShape | MLPShape | ExpertShape


@dataclass(frozen=True)
class NemotronHConfig:
    """What the family reads of config.json."""

    vocab_size: int
    width: int
    mixers: tuple[Shape, ...]
    """One a layer."""
    next_token: tuple[Shape, ...]
    """One a next-token layer."""
    epsilon: float
    context: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "NemotronHConfig":
        """Raises ValueError naming a value that this family can't run."""
        only(config, "mlp_hidden_act", "relu2")
        only(config, "mamba_hidden_act", "silu")
        only(config, "attention_bias", False)
        only(config, "sliding_window", None)
        only(config, "tie_word_embeddings", False)
        readers: dict[str, Callable[[Mapping[str, Any]], Shape]] = {
            "linear_attention": _mamba,
            "full_attention": _attention,
            "moe": _experts,
            "mlp": _mlp,
        }
        kinds, following = _layers(config), _next_token_layers(config)
        shapes = {kind: readers[kind](config) for kind in dict.fromkeys(kinds + following)}
        return cls(
            vocab_size=need(config, "vocab_size"),
            width=need(config, "hidden_size"),
            mixers=tuple(shapes[kind] for kind in kinds),
            next_token=tuple(shapes[kind] for kind in following),
            epsilon=need(config, "layer_norm_epsilon", float),
            context=need(config, "max_position_embeddings"),
        )


def _layers(config: Mapping[str, Any]) -> list[str]:
    """The kind of each layer, from a list or from a pattern of letters."""
    named = config.get("layers_block_type") or config.get("layer_types")
    kinds = _kinds(named or need(config, "hybrid_override_pattern", str))
    for kind in kinds:
        if kind not in _KINDS.values():
            raise ValueError(f"layer type {kind!r} is not supported")
    return kinds


def _next_token_layers(config: Mapping[str, Any]) -> list[str]:
    """The kinds of the layers that predict the token after next, none where they are of a form that
    no public model has: they only draft, and the model does without."""
    if config.get("num_nextn_predict_layers") != 1:
        return []
    named = config.get("mtp_layers_block_type")
    kinds = _kinds(named or config.get("mtp_hybrid_override_pattern") or _NEXT_TOKEN)
    return kinds if set(kinds) <= {"full_attention", "moe"} else []


def _kinds(named: Sequence[str]) -> list[str]:
    """Kinds by any of their names; a letter is one too."""
    return [_OLD_KINDS.get(kind, _KINDS.get(kind, kind)) for kind in named]


def _mamba(config: Mapping[str, Any]) -> MambaShape:
    heads, groups = need(config, "mamba_num_heads"), need(config, "n_groups")
    if heads % groups:
        raise ValueError(f"{heads} mamba heads do not share {groups} groups")
    return MambaShape(
        width=need(config, "hidden_size"),
        heads=heads,
        head_dim=need(config, "mamba_head_dim"),
        groups=groups,
        state_dim=need(config, "ssm_state_size"),
        conv_width=need(config, "conv_kernel"),
        conv_bias=bool(config.get("use_conv_bias", True)),
        bias=bool(config.get("use_bias", False)),
        least_step=float(config.get("time_step_min", 0.0)),
    )


def _attention(config: Mapping[str, Any]) -> AttentionShape:
    return AttentionShape(
        width=need(config, "hidden_size"),
        heads=need(config, "num_attention_heads"),
        kv_heads=need(config, "num_key_value_heads"),
        head_dim=need(config, "head_dim"),
    )


def _mlp(config: Mapping[str, Any]) -> MLPShape:
    bias = bool(config.get("mlp_bias", False))
    return MLPShape(need(config, "hidden_size"), need(config, "intermediate_size"), bias)


def _experts(config: Mapping[str, Any]) -> ExpertShape:
    return ExpertShape(
        width=need(config, "hidden_size"),
        count=need(config, "n_routed_experts"),
        chosen=need(config, "num_experts_per_tok"),
        hidden=need(config, "moe_intermediate_size"),
        shared=need(config, "moe_shared_expert_intermediate_size"),
        latent=config.get("moe_latent_size"),
        bias=bool(config.get("mlp_bias", False)),
        groups=config.get("n_group") or 1,
        kept_groups=config.get("topk_group") or 1,
        normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("routed_scaling_factor", 1.0)),
    )


class Mamba(nnx.Module):
    """A Mamba-2 mixer."""

    def __init__(self, shape: MambaShape, epsilon: float):
        self.in_proj = Linear(
            shape.width, shape.values + shape.channels + shape.heads, bias=shape.bias
        )
        self.conv1d = Filters(shape.channels, shape.conv_width, bias=shape.conv_bias)
        self.A_log = nnx.Param(jnp.zeros((shape.heads,)))
        self.D = nnx.Param(jnp.zeros((shape.heads,)))
        self.dt_bias = nnx.Param(jnp.zeros((shape.heads,)))
        self.norm = RMSNorm(shape.values, epsilon)
        self.out_proj = Linear(shape.values, shape.width, bias=shape.bias)
        self.shape = shape

    def __call__(
        self, x: Float[Array, "R D"], norm: RMSNorm, kept: tuple[Array, ...], rows: Rows
    ) -> tuple[Float[Array, "R D"], tuple[Array, ...]]:
        """`x` plus the mixer of the normalised rows, and the written state."""
        shape, count = self.shape, x.shape[0]
        projected = self.in_proj(x, norm=norm)
        gate, inputs, step = jnp.split(
            projected, [shape.values, shape.values + shape.channels], axis=1
        )
        bias = None if self.conv1d.bias is None else self.conv1d.bias[...]
        mixed, inputs = causal_conv(inputs, self.conv1d.weight[:, 0], kept[0], rows, bias)
        keys = shape.groups * shape.state_dim
        values, b, c = jnp.split(jax.nn.silu(mixed), [shape.values, shape.values + keys], axis=1)
        values = values.reshape(count, shape.heads, shape.head_dim)
        b, c = (each.reshape(count, shape.groups, shape.state_dim) for each in (b, c))
        # transformers bounds the step from below in prompts; here in every row.
        step = jnp.maximum(jax.nn.softplus(step + self.dt_bias[...]), shape.least_step)
        g = -jnp.exp(self.A_log[...]) * step
        out, written = linear_attention(
            c, b, values * step[..., None], g[..., None], None, Kept(*kept[1:]), rows
        )
        out = (out + rounded(values * self.D[...][:, None])).reshape(count, -1) * jax.nn.silu(gate)
        return self.out_proj(self._normed(out), residual=x), (inputs, *written)

    def _normed(self, x: Float[Array, "R X"]) -> Float[Array, "R X"]:
        """Each group's columns normalised by themselves."""
        grouped = x.reshape(x.shape[0], self.shape.groups, -1)
        ones = jnp.ones(grouped.shape[2])
        return rms_norm(grouped, ones, self.norm.epsilon).reshape(x.shape) * self.norm.weight[...]


class MLP(nnx.Module):
    """Up, squared ReLU, down."""

    def __init__(self, width: int, hidden: int, *, bias: bool):
        self.up_proj = Linear(width, hidden, bias=bias)
        self.down_proj = Linear(hidden, width, bias=bias)

    def __call__(self, x: Float[Array, "R D"], norm: RMSNorm) -> Float[Array, "R D"]:
        """`x` plus the MLP of the normalised rows."""
        return self.down_proj(squared_relu(self.up_proj(x, norm=norm)), residual=x)


class Experts(nnx.Module):
    """Experts chosen by a router, and an MLP that every row goes through."""

    def __init__(self, shape: ExpertShape):
        inner = shape.latent or shape.width
        self.gate = Linear(shape.width, shape.count)
        self.correction = nnx.Param(jnp.zeros((shape.count,)))
        self.experts_up = Linear(inner, shape.count * shape.hidden)
        self.experts_down = Linear(shape.hidden, shape.count * inner)
        self.shared_experts = MLP(shape.width, shape.shared, bias=shape.bias)
        if shape.latent is not None:
            self.fc1_latent_proj = Linear(shape.width, inner, bias=shape.bias)
            self.fc2_latent_proj = Linear(inner, shape.width, bias=shape.bias)
        self.shape = shape

    def __call__(self, x: Float[Array, "R D"], norm: RMSNorm, rows: Rows) -> Float[Array, "R D"]:
        """`x` plus the experts of the normalised rows."""
        shape = self.shape
        ids, weights = moe.sigmoid_router(
            self.gate(x, norm=norm),
            self.correction[...],
            shape.chosen,
            groups=shape.groups,
            kept_groups=shape.kept_groups,
            normalised=shape.normalised,
            scale=shape.scale,
        )
        routed = moe.experts(
            norm(x) if shape.latent is None else self.fc1_latent_proj(x, norm=norm),
            ids,
            weights,
            rows.lane >= 0,
            self.experts_up.weight.get_value(),
            self.experts_down.weight.get_value(),
            squared_relu,
        )
        if shape.latent is not None:
            routed = self.fc2_latent_proj(routed)
        return self.shared_experts(x, norm) + routed


class Block(nnx.Module):
    """One layer."""

    def __init__(self, config: NemotronHConfig, shape: Shape):
        self.norm = RMSNorm(config.width, config.epsilon)
        match shape:
            case MambaShape():
                self.mixer: Any = Mamba(shape, config.epsilon)
            case AttentionShape():
                self.mixer = Attention(shape)
            case MLPShape():
                self.mixer = MLP(shape.width, shape.hidden, bias=shape.bias)
            case ExpertShape():
                self.mixer = Experts(shape)

    def __call__(
        self, x: Float[Array, "R D"], kept: Any, rows: Rows, angles: Angles
    ) -> tuple[Float[Array, "R D"], Any]:
        """`x` plus the mixer of the normalised rows."""
        match self.mixer:
            case Mamba():
                return self.mixer(x, self.norm, kept, rows)
            case Attention():
                return self.mixer(x, self.norm, kept, rows, angles)
            case Experts():
                return self.mixer(x, self.norm, rows), kept
        return self.mixer(x, self.norm), kept


class NextTokenLayers(nnx.Module):
    """What predicts the token after next: the next one's embedding and a hidden vector, each
    normalised, through a projection of the two and layers like the model's."""

    def __init__(self, config: NemotronHConfig):
        self.enorm = RMSNorm(config.width, config.epsilon)
        self.hnorm = RMSNorm(config.width, config.epsilon)
        self.eh_proj = Linear(2 * config.width, config.width)
        self.layers = nnx.List([Block(config, shape) for shape in config.next_token])
        self.final_layernorm = RMSNorm(config.width, config.epsilon)

    def __call__(
        self,
        embedded: Float[Array, "R D"],
        hidden: Float[Array, "R D"],
        rows: Rows,
        state: State,
        angles: Angles,
    ) -> tuple[Float[Array, "R D"], State]:
        """Hidden rows after the last norm, and the written state."""
        x = self.eh_proj(jnp.concatenate([self.enorm(embedded), self.hnorm(hidden)], axis=1))
        written = []
        for layer, kept in zip(self.layers, state, strict=True):
            x, kept = layer(x, kept, rows, angles)
            written.append(kept)
        return self.final_layernorm(x), tuple(written)


class NemotronH(Decoder):
    """The model; a rotation of frequency 0 turns nothing."""

    def __init__(self, config: NemotronHConfig):
        shapes = config.mixers + config.next_token
        head_dims = [each.head_dim for each in shapes if isinstance(each, AttentionShape)]
        super().__init__(
            [Block(config, shape) for shape in config.mixers],
            vocab_size=config.vocab_size,
            width=config.width,
            epsilon=config.epsilon,
            rope=Rope((0.0,) * (max(head_dims, default=2) // 2)),
            tied=False,
            mtp=NextTokenLayers(config) if config.next_token else None,
        )


def leaves(config: NemotronHConfig) -> dict[str, Leaf]:
    """Where each parameter comes from: transformers' names below `model`, the published files' and
    MLX's below `backbone`."""
    out = {"lm_head.weight": Leaf(("lm_head.weight",))}

    def add(path: str, leaf: Leaf, place: str = "") -> None:
        published = (leaf.otherwise or leaf).under(f"backbone.{place}")
        out[place + path] = replace(leaf.under(f"model.{place}"), otherwise=published)

    add("embed_tokens.weight", Leaf(("embeddings.weight",)))
    add("norm.weight", Leaf(("norm_f.weight",)))
    for i, shape in enumerate(config.mixers):
        add("norm.weight", Leaf(("norm.weight",)), f"layers.{i}.")
        for path, leaf in _mixer_leaves(shape).items():
            add(path, leaf, f"layers.{i}.mixer.")
    return out | _next_token_leaves(config)


def _next_token_leaves(config: NemotronHConfig) -> dict[str, Leaf]:
    """What comes before the layers is named as the first one's, what comes after as the last's."""
    out = {}
    for i, shape in enumerate(config.next_token):
        place = f"mtp.layers.{i}."
        out[f"{place}norm.weight"] = Leaf((f"{place}norm.weight",))
        for path, leaf in _mixer_leaves(shape).items():
            out[f"{place}mixer.{path}"] = leaf.under(f"{place}mixer.")
    if config.next_token:
        last = len(config.next_token) - 1
        for name, i in (("enorm", 0), ("hnorm", 0), ("eh_proj", 0), ("final_layernorm", last)):
            out[f"mtp.{name}.weight"] = Leaf((f"mtp.layers.{i}.{name}.weight",))
    return out


def _mixer_leaves(shape: Shape) -> dict[str, Leaf]:
    """A layer's leaves, by names below its mixer; `otherwise` where published files differ."""
    match shape:
        case MambaShape():
            names = ["A_log", "D", "dt_bias", "norm.weight"]
            names += ["conv1d.bias"] * shape.conv_bias
            names += _linear("in_proj", shape.bias) + _linear("out_proj", shape.bias)
            filters = Leaf(("conv1d.weight",), turned=None)  # MLX has them as [channels, width, 1].
            return {name: Leaf((name,)) for name in names} | {"conv1d.weight": filters}
        case AttentionShape():
            qkv = Leaf(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
            return {"qkv_proj.weight": qkv, "o_proj.weight": Leaf(("o_proj.weight",))}
        case MLPShape():
            names = _linear("up_proj", shape.bias) + _linear("down_proj", shape.bias)
        case ExpertShape():
            return _expert_leaves(shape)
    return {name: Leaf((name,)) for name in names}


def _expert_leaves(shape: ExpertShape) -> dict[str, Leaf]:
    names = [f"shared_experts.{name}" for name in ("up_proj", "down_proj")]
    if shape.latent is not None:
        names += ["fc1_latent_proj", "fc2_latent_proj"]
    out = {name: Leaf((name,)) for each in names for name in _linear(each, shape.bias)}
    for kind, mlx in (("up", "fc1"), ("down", "fc2")):
        single = tuple(f"experts.{e}.{kind}_proj.weight" for e in range(shape.count))
        ways = (f"experts.{kind}_proj",), single, (f"switch_mlp.{mlx}.weight",)
        whole, alone, stacked = (Leaf(sources, parts=shape.count) for sources in ways)
        out[f"experts_{kind}.weight"] = whole.or_else(alone).or_else(stacked)
    out["gate.weight"] = Leaf(("gate.weight",))
    out["correction"] = Leaf(("gate.e_score_correction_bias",))
    return out


def _linear(name: str, bias: bool) -> list[str]:
    return [f"{name}.weight"] + [f"{name}.bias"] * bias


def spec(config: Mapping[str, Any]) -> Spec:
    """The model that `config` describes."""
    read = NemotronHConfig.read(config)
    whole = _spec(read)
    if not read.next_token:
        return whole
    return replace(whole, otherwise=_spec(replace(read, next_token=())))


def _spec(read: NemotronHConfig) -> Spec:
    following = tuple(shape.state for shape in read.next_token)
    return Spec(
        build=lambda: NemotronH(read),
        leaves=leaves(read),
        state=tuple(shape.state for shape in read.mixers),
        vocab_size=read.vocab_size,
        context=read.context,
        next_token=NextToken(following, read.width) if following else None,
        # Next-token layers that are not used.
        ignored=lambda name: name.startswith("mtp."),
    )


FAMILY = Family(architectures=("NemotronHForCausalLM",), spec=spec)
