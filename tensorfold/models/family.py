"""What a model family is to the rest of the system."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from jax import Array
from jaxtyping import Float

from tensorfold.ops.rows import Rows

State = tuple[Any, ...]
"""One pytree of device arrays a layer."""


class Model(Protocol):
    """A Flax module that runs rows."""

    def __call__(self, rows: Rows, state: State) -> tuple[Float[Array, "R D"], State]:
        """Hidden rows before the output head, and the state with the rows written."""
        ...

    def logits(self, hidden: Float[Array, "D_ D"]) -> Float[Array, "D_ V"]:
        """The output head."""
        ...


@dataclass(frozen=True)
class Leaf:
    """How one parameter is made: `sources`, checkpoint tensors, joined along their first axis."""

    sources: tuple[str, ...]


@dataclass(frozen=True)
class PagedKV:
    """State of an attention layer: keys [pages, kv_heads, head_dim, 64] and values [pages,
    kv_heads, 64, head_dim], read by `heads` query heads through `window` (None: all positions)."""

    kv_heads: int
    head_dim: int
    heads: int
    window: int | None = None


@dataclass(frozen=True)
class Spec:
    """A model that a checkpoint's config describes, before any weight is read.

    build: makes the module (called under `nnx.eval_shape`, so it costs nothing)
    leaves: parameter path, dots between, -> how to fill it; every parameter exactly once
    state: one entry a layer
    ignored: checkpoint tensors that are known and not needed
    """

    build: Callable[[], Any]
    leaves: Mapping[str, Leaf]
    state: tuple[PagedKV, ...]
    vocab_size: int
    context: int
    ignored: Callable[[str], bool] = lambda name: False


@dataclass(frozen=True)
class Family:
    """One model family: the `architectures` it serves and how a config becomes a `Spec`.

    `spec` raises ValueError, one line naming the config value, for what the family can't run.
    """

    architectures: tuple[str, ...]
    spec: Callable[[Mapping[str, Any]], Spec]
