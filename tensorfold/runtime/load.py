"""From a checkpoint to a model on the device."""

import math
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import jax
import numpy as np

from tensorfold.checkpoints.interface import Checkpoint, CheckpointError, Progress
from tensorfold.checkpoints.joining import join, merge_axes, take_rows, turn
from tensorfold.kernels_cpu.matmul import PackedMatrix
from tensorfold.models.family import Leaf, Model, Spec
from tensorfold.ops import matmul
from tensorfold.ops.implementation import implementation
from tensorfold.ops.matmul import Weight
from tensorfold.runtime.build import build_key, key
from tensorfold.runtime.kept import BORDER, KeptFiles

# Flax and the families are imported where they are used: with kept weights a start needs neither.

_OF_THE_FAMILY = ("build", "leaves", "ignored", "otherwise")
"""What a `Spec` says to a load and a trace only; the rest is kept with the weights."""

Activations = Literal["float32", "int8"]
"""What rows are when they meet quantised weights."""

Leaves = tuple[Weight, ...]
"""The flat weights of a model."""


@dataclass(frozen=True)
class LoadedModel:
    """A model's structure and its weights, apart: the step function takes `leaves` as arguments.

    config: the checkpoint's, from which the structure follows
    activations: see `with_activations`
    weights_key: equal for equal weights of one build; None if nobody can tell
    mapped_bytes: of the leaves that are a file's pages, which the system takes for free memory
    """

    spec: Spec
    leaves: Leaves
    config: Mapping[str, Any]
    weights_key: str | None = None
    activations: Activations = "float32"
    mapped_bytes: int = 0

    def bind(self, leaves: Leaves) -> Model:
        """The module with `leaves`, for use inside a traced function."""
        from flax import nnx

        graph, tree, _ = self._structure
        model: Model = nnx.merge(graph, jax.tree.unflatten(tree, leaves))
        return model

    @property
    def paths(self) -> tuple[str, ...]:
        """Each leaf's name in the module, dots between."""
        return tuple(self._structure[2])

    @cached_property
    def _structure(self) -> tuple[Any, Any, dict[str, tuple[int, ...]]]:
        return _structure(self.spec)


def describe(checkpoint: Checkpoint) -> Spec:
    """What the checkpoint's config describes, before any weight is read.

    Raises CheckpointError, one line, for an unsupported config.
    """
    from tensorfold.models import registry

    try:
        spec = registry.find(checkpoint.config)
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.name}: {error}") from None
    if spec.otherwise and any(
        source not in checkpoint.tensors
        for leaf in spec.leaves.values()
        for source in _found(checkpoint, leaf).sources
    ):
        return spec.otherwise
    return spec


def load(
    checkpoint: Checkpoint,
    progress: Callable[[Progress], None] | None = None,
    kept: KeptFiles | None = None,
) -> LoadedModel:
    """Read every weight of `checkpoint`, leaf by leaf, or all of them from `kept`.

    Raises CheckpointError, one line, for an unsupported config, and for tensors that are missing,
    of a wrong shape, or not known to the family.
    """
    weights_key = None
    if checkpoint.files:
        weights_key = key(build_key(), checkpoint.config, [vars(file) for file in checkpoint.files])
    if kept and weights_key and (model := _from_kept(checkpoint, kept, weights_key)):
        return model
    spec = describe(checkpoint)
    _, _, shapes = _structure(spec)
    _check_names(checkpoint, spec, list(shapes))
    leaves = []
    for done, (path, shape) in enumerate(shapes.items()):
        if progress:
            progress(Progress("load", done, len(shapes), "tensors"))
        leaves.append(_read(checkpoint, path, spec.leaves[path], shape))
    if progress:
        progress(Progress("load", len(shapes), len(shapes), "tensors"))
    if not all(file.unchanged() for file in checkpoint.files):
        weights_key = None  # Overwritten meanwhile: what was read may be neither file.
    model = LoadedModel(spec, tuple(leaves), checkpoint.config, weights_key)
    if kept and weights_key and _keep(model, kept, weights_key):
        # The arrays in the file take the place of those in memory: the system may drop and read
        # their pages again, and the next start runs on the very same.
        return _from_kept(checkpoint, kept, weights_key) or model
    return model


def turned_tensors(checkpoint: Checkpoint) -> frozenset[str]:
    """The tensors that the checkpoint has as [..., inputs, outputs].

    Raises CheckpointError, one line, for an unsupported config.
    """
    leaves = [_found(checkpoint, leaf) for leaf in describe(checkpoint).leaves.values()]
    return frozenset(source for leaf in leaves if leaf.turned for source in leaf.sources)


def with_activations(model: LoadedModel, activations: Activations) -> LoadedModel:
    """The model for rows of this kind; it comes as "float32" from `load`.

    A head stays as it is: it runs for drawn rows only, and a third of the difference would be its.
    Raises ValueError where the kind can make no difference: see `check_activations`, and without
    weights of integer codes.
    """
    check_activations(activations)
    if activations == "float32":
        return model
    leaves = tuple(
        leaf if leaf.shape[0] == model.spec.vocab_size else matmul.with_int8_rows(leaf)
        for leaf in model.leaves
    )
    if not any(isinstance(leaf, PackedMatrix) and leaf.int8 for leaf in leaves):
        raise ValueError(
            "int8 activations are for weights of integer codes, and this model has none: "
            "`tensorfold convert MODEL OUT --quantize q8` makes them"
        )
    return replace(model, leaves=leaves, activations=activations)


def check_activations(activations: Activations) -> None:
    """Raises ValueError where int8 is asked for and the CPU kernels are not in use."""
    if activations == "int8" and implementation() != "cpu":
        raise ValueError(
            "int8 activations need the CPU kernels: do without TENSORFOLD_KERNELS=xla; or, if they "
            "were not built, install a C++17 compiler and then TensorFold again"
        )


def _structure(spec: Spec) -> tuple[Any, Any, dict[str, tuple[int, ...]]]:
    """(graph, tree of the leaves, shape of every leaf by its dotted path)."""
    from flax import nnx

    graph, state = nnx.split(nnx.eval_shape(spec.build))
    flat, tree = jax.tree.flatten(state)
    paths = [_dotted(path) for path, _ in nnx.to_flat_state(state)]
    return graph, tree, {path: leaf.shape for path, leaf in zip(paths, flat, strict=True)}


def _keep(model: LoadedModel, kept: KeptFiles, weights_key: str) -> bool:
    """Keep the arrays: a pickled description, padded to a border, then each array, padded."""
    flat, tree = jax.tree.flatten(model.leaves)
    arrays = [np.asarray(array) for array in flat]
    about = [(array.shape, array.dtype) for array in arrays]
    spec = {
        each.name: getattr(model.spec, each.name)
        for each in fields(Spec)
        if each.name not in _OF_THE_FAMILY
    }
    described = pickle.dumps((spec, tree, about))
    parts: list[bytes | memoryview] = [len(described).to_bytes(BORDER, "little")]
    parts += [described, bytes(-len(described) % BORDER)]
    for array in arrays:
        parts += [array.reshape(-1).view(np.uint8).data, bytes(-array.nbytes % BORDER)]
    return kept.write(_file(weights_key), parts)


def _from_kept(checkpoint: Checkpoint, kept: KeptFiles, weights_key: str) -> LoadedModel | None:
    data = kept.read(_file(weights_key))
    if data is None:
        return None
    length = int.from_bytes(data[:BORDER], "little")
    spec, tree, about = pickle.loads(data[BORDER : BORDER + length])
    at = BORDER + length
    arrays = []
    for shape, dtype in about:
        at += -at % BORDER
        array = np.frombuffer(data, dtype, count=math.prod(shape), offset=at).reshape(shape)
        at += array.nbytes
        arrays.append(jax.device_put(array))  # On a CPU the device's memory is the file's.
    return LoadedModel(
        Spec(build=lambda: describe(checkpoint).build(), leaves={}, **spec),
        jax.tree.unflatten(tree, arrays),
        checkpoint.config,
        weights_key,
        mapped_bytes=sum(array.nbytes for array in arrays),
    )


def _file(weights_key: str) -> str:
    return f"weights-{weights_key}"


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in path)


def _check_names(checkpoint: Checkpoint, spec: Spec, paths: list[str]) -> None:
    """Every parameter has its tensors, and every tensor its parameter."""
    unfilled = set(paths) ^ set(spec.leaves)
    assert not unfilled, f"family bug: {sorted(unfilled)[:3]}"
    found = [_found(checkpoint, leaf) for leaf in spec.leaves.values()]
    wanted = {source for leaf in found for source in leaf.sources}
    missing = sorted(wanted - set(checkpoint.tensors))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{checkpoint.name}: tensor {missing[0]}{more} is missing")
    extra = sorted(n for n in checkpoint.tensors if n not in wanted and not spec.ignored(n))
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise CheckpointError(f"{checkpoint.name}: no place for tensor {extra[0]}{more}")


def _found(checkpoint: Checkpoint, leaf: Leaf) -> Leaf:
    """The leaf as this checkpoint names its tensors: the first way that has one of them."""
    way: Leaf | None = leaf
    while way and not any(name in checkpoint.tensors for name in way.sources):
        way = way.otherwise
    return way or leaf


def _read(checkpoint: Checkpoint, path: str, leaf: Leaf, shape: tuple[int, ...]) -> Weight:
    """One leaf: matrices as the matmul op wants them, everything else in float32."""
    leaf = _found(checkpoint, leaf)
    tensors = [checkpoint.read(source) for source in leaf.sources]
    if leaf.turned or (leaf.turned is None and tensors[0].shape != shape):
        tensors = [turn(tensor) for tensor in tensors]
    tensors = [merge_axes(tensor, len(shape)) for tensor in tensors]
    odd = [each for each in tensors if (len(each.shape), each.shape[1:]) != (len(shape), shape[1:])]
    joined = odd[0] if odd else join(tensors)
    if leaf.rows is not None and not odd and joined.shape[0] > max(leaf.rows):
        joined = take_rows(joined, np.asarray(leaf.rows))
    if joined.shape != shape:
        found, wanted = list(joined.shape), list(shape)
        raise CheckpointError(
            f"{checkpoint.name}: {' + '.join(leaf.sources)} is {found}, the config says {wanted}"
        )
    if len(shape) == 2:
        return matmul.prepare(joined, leaf.parts)
    return jax.device_put(np.asarray(joined, np.float32) + np.float32(leaf.add))
