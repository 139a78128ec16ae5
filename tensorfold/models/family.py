"""What a model family is to the rest of the system."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from jax import Array
from jaxtyping import Float

from tensorfold.ops.rows import PAGE, Rows

State = tuple[Any, ...]
"""One tuple of device arrays a layer, as its `LayerState` says."""

_FLOAT_BYTES = 4


class Model(Protocol):
    """A Flax module that runs rows."""

    def __call__(self, rows: Rows, state: State) -> tuple[Float[Array, "R D"], State]:
        """Hidden rows before the output head, and the state with the rows written."""
        ...

    def logits(self, hidden: Float[Array, "D_ D"]) -> Float[Array, "D_ V"]:
        """The output head."""
        ...

    def next_token(
        self, rows: Rows, hidden: Float[Array, "R D"], state: State
    ) -> tuple[Float[Array, "R D"], State]:
        """Hidden rows of the next-token layers, for the same output head, and their state with the
        rows written. A row has the token after the one whose hidden vector it comes with. Only of
        models whose `Spec` has `next_token`."""
        ...


@dataclass(frozen=True)
class Leaf:
    """How one parameter is made: `sources`, checkpoint tensors, joined along their first axis.

    Tensors of more axes than the parameter have their first ones merged.

    rows: those of the joined rows to take, in order; None for all
    add: added to every value (of a vector)
    parts: how many matrices of one size the rows are, for `ops.matmul.take_part`
    turned: the last two axes of the tensors change places first: [..., inputs, outputs]; None if
        they only do where the one tensor doesn't fit as it is
    otherwise: how the parameter is made if the checkpoint has none of `sources`
    """

    sources: tuple[str, ...]
    rows: tuple[int, ...] | None = None
    add: float = 0.0
    parts: int = 1
    turned: bool | None = False
    otherwise: "Leaf | None" = None

    def under(self, prefix: str) -> "Leaf":
        """The leaf with every name below `prefix`."""
        return self._named(lambda name: prefix + name)

    def moved(self, old: str, new: str) -> "Leaf":
        """The leaf with the names that begin with `old` beginning with `new`."""
        return self._named(
            lambda name: new + name.removeprefix(old) if name.startswith(old) else name
        )

    def or_else(self, other: "Leaf") -> "Leaf":
        """The leaf, made as `other` if the checkpoint has none of the names it knows so far."""
        return replace(self, otherwise=self.otherwise.or_else(other) if self.otherwise else other)

    def _named(self, rename: Callable[[str], str]) -> "Leaf":
        sources = tuple(rename(name) for name in self.sources)
        otherwise = self.otherwise and self.otherwise._named(rename)
        return replace(self, sources=sources, otherwise=otherwise)


@dataclass(frozen=True)
class PagedKV:
    """State of an attention layer: keys [pages, kv_heads, head_dim, 64] and values [pages,
    kv_heads, 64, head_dim], read by `heads` query heads through `window` (None: all positions)."""

    kv_heads: int
    head_dim: int
    heads: int
    window: int | None = None

    def shapes(self, lanes: int, pages: int) -> tuple[tuple[int, ...], ...]:
        """The shapes of the arrays, float32."""
        return (
            (pages, self.kv_heads, self.head_dim, PAGE),
            (pages, self.kv_heads, PAGE, self.head_dim),
        )


@dataclass(frozen=True)
class Recurrent:
    """State of a linear-attention layer, by lane: what its last two chunks of 64 positions need.

    Chunk c is at index c % 2. Of a chunk's rows: the inputs of the convolution [lanes, 2, 64,
    channels], k [lanes, 2, key_heads, 64, key_dim], u [lanes, 2, heads, 64, value_dim] and the
    summed log-decays [lanes, 2, heads, 64, decays] (`decays` is 1, or key_dim if every channel has
    its own). Of its start: S [lanes, 2, heads, key_dim, value_dim]. See ops/linear_attention.py.
    """

    channels: int
    key_heads: int
    key_dim: int
    heads: int
    value_dim: int
    decays: int = 1

    def shapes(self, lanes: int, pages: int) -> tuple[tuple[int, ...], ...]:
        """The shapes of the arrays, float32."""
        chunks = lanes, 2
        return (
            (*chunks, PAGE, self.channels),
            (*chunks, self.key_heads, PAGE, self.key_dim),
            (*chunks, self.heads, PAGE, self.value_dim),
            (*chunks, self.heads, PAGE, self.decays),
            (*chunks, self.heads, self.key_dim, self.value_dim),
        )


@dataclass(frozen=True)
class Convolution:
    """State of a layer that is a short convolution, by lane: the inputs of its last two chunks of
    64 positions, [lanes, 2, 64, channels]. Chunk c is at index c % 2. See ops/conv.py."""

    channels: int

    def shapes(self, lanes: int, pages: int) -> tuple[tuple[int, ...], ...]:
        """The shape of the one array, float32."""
        return ((lanes, 2, PAGE, self.channels),)


@dataclass(frozen=True)
class Stateless:
    """A layer that keeps nothing."""

    def shapes(self, lanes: int, pages: int) -> tuple[tuple[int, ...], ...]:
        """No arrays."""
        return ()


LayerState = PagedKV | Recurrent | Convolution | Stateless


def state_bytes(layers: tuple[LayerState, ...]) -> tuple[int, int]:
    """(bytes a page, bytes a lane) of a state."""

    def total(lanes: int, pages: int) -> int:
        shapes = (shape for layer in layers for shape in layer.shapes(lanes, pages))
        return _FLOAT_BYTES * sum(math.prod(shape) for shape in shapes)

    return total(0, 1), total(1, 0)


@dataclass(frozen=True)
class NextToken:
    """Layers that predict the token after the next one, from hidden vectors of `width`, with
    `state` of their own."""

    state: tuple[LayerState, ...]
    width: int


@dataclass(frozen=True)
class Spec:
    """A model that a checkpoint's config describes, before any weight is read.

    build: makes the module (called under `nnx.eval_shape`, so it costs nothing)
    leaves: parameter path, dots between, -> how to fill it; every parameter exactly once
    state: one entry a layer
    ignored: checkpoint tensors that are known and not needed
    next_token: the model's own draft layers, if it has some
    otherwise: the model without parts that some checkpoints leave out
    """

    build: Callable[[], Any]
    leaves: Mapping[str, Leaf]
    state: tuple[LayerState, ...]
    vocab_size: int
    context: int
    ignored: Callable[[str], bool] = lambda name: False
    next_token: NextToken | None = None
    otherwise: "Spec | None" = None


@dataclass(frozen=True)
class Family:
    """One model family: the `architectures` it serves and how a config becomes a `Spec`.

    `spec` raises ValueError, one line naming the config value, for what the family can't run.
    """

    architectures: tuple[str, ...]
    spec: Callable[[Mapping[str, Any]], Spec]
