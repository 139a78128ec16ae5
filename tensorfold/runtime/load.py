"""From a checkpoint to a model on the device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tensorfold.checkpoints.interface import Checkpoint, CheckpointError, Progress
from tensorfold.checkpoints.joining import join, merge_axes, take_rows
from tensorfold.models import registry
from tensorfold.models.family import Leaf, Model, Spec
from tensorfold.ops import matmul
from tensorfold.ops.matmul import Weight

Leaves = tuple[Weight, ...]
"""The flat weights of a model."""


@dataclass(frozen=True)
class LoadedModel:
    """A model's structure and its weights, apart: the step function takes `leaves` as arguments."""

    spec: Spec
    leaves: Leaves
    graph: Any
    tree: Any

    def bind(self, leaves: Leaves) -> Model:
        """The module with `leaves`, for use inside a traced function."""
        model: Model = nnx.merge(self.graph, jax.tree.unflatten(self.tree, leaves))
        return model


def load(checkpoint: Checkpoint, progress: Callable[[Progress], None] | None = None) -> LoadedModel:
    """Read every weight of `checkpoint`, leaf by leaf.

    Raises CheckpointError, one line, for an unsupported config, and for tensors that are missing,
    of a wrong shape, or not known to the family.
    """
    try:
        spec = registry.find(checkpoint.config)
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.name}: {error}") from None
    graph, state = nnx.split(nnx.eval_shape(spec.build))
    flat, tree = jax.tree.flatten(state)
    paths = [_dotted(path) for path, _ in nnx.to_flat_state(state)]
    _check_names(checkpoint, spec, paths)
    leaves = []
    for done, (path, shape) in enumerate(zip(paths, flat, strict=True)):
        if progress:
            progress(Progress("load", done, len(paths), "tensors"))
        leaves.append(_read(checkpoint, path, spec.leaves[path], shape.shape))
    if progress:
        progress(Progress("load", len(paths), len(paths), "tensors"))
    return LoadedModel(spec, tuple(leaves), graph, tree)


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in path)


def _check_names(checkpoint: Checkpoint, spec: Spec, paths: list[str]) -> None:
    """Every parameter has its tensors, and every tensor its parameter."""
    unfilled = set(paths) ^ set(spec.leaves)
    assert not unfilled, f"family bug: {sorted(unfilled)[:3]}"
    wanted = {source for leaf in spec.leaves.values() for source in _sources(checkpoint, leaf)}
    missing = sorted(wanted - set(checkpoint.tensors))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{checkpoint.name}: tensor {missing[0]}{more} is missing")
    extra = sorted(n for n in checkpoint.tensors if n not in wanted and not spec.ignored(n))
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise CheckpointError(f"{checkpoint.name}: no place for tensor {extra[0]}{more}")


def _sources(checkpoint: Checkpoint, leaf: Leaf) -> tuple[str, ...]:
    """The tensors of a leaf under the names that this checkpoint uses."""
    found = any(name in checkpoint.tensors for name in leaf.sources)
    return leaf.sources if found or not leaf.otherwise else leaf.otherwise


def _read(checkpoint: Checkpoint, path: str, leaf: Leaf, shape: tuple[int, ...]) -> Weight:
    """One leaf: matrices as the matmul op wants them, everything else in float32."""
    sources = _sources(checkpoint, leaf)
    joined = join([merge_axes(checkpoint.read(source), len(shape)) for source in sources])
    if leaf.rows is not None and joined.shape[0] > max(leaf.rows):
        joined = take_rows(joined, np.asarray(leaf.rows))
    if joined.shape != shape:
        found, wanted = list(joined.shape), list(shape)
        raise CheckpointError(
            f"{checkpoint.name}: {' + '.join(sources)} is {found}, the config says {wanted}"
        )
    if len(shape) == 2:
        return matmul.prepare(joined, leaf.parts)
    return jnp.asarray(np.asarray(joined, np.float32) + np.float32(leaf.add))
