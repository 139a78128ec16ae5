"""Weights in the order the matmul kernel reads them, and its calls.

Quantised weights are read as codes: for one row the kernel is bound by unpacking them (about the
bandwidth of two cores at 4 bits), from four rows up by its multiply-adds. src/matmul.h has the
layout and the order of every sum; docs/performance.md the share of the floor reached.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from tensorfold.checkpoints.interface import Quantised, Tensor

_TILE = 8

_FORMATS = {"q4": 0, "q8": 1, "float32": 2, "float16": 3, "bfloat16": 4}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PackedMatrix:
    """A weight [N, K] in tiles of 8 outputs, N padded to whole tiles.

    codes: [tiles, words, 8] uint32, or [tiles, K, 8] in the checkpoint's float
    scale, offset: [tiles, K / group, 8], float16 where exact, else float32; empty for floats
    """

    codes: Array
    scale: Array
    offset: Array
    format: str = field(metadata={"static": True})
    group: int = field(metadata={"static": True})
    shape: tuple[int, int] = field(metadata={"static": True})

    @property
    def ndim(self) -> int:
        """A matrix has two axes."""
        return 2


def can_pack(tensor: Tensor) -> bool:
    """Whether the kernel takes a matrix of this shape and format."""
    if isinstance(tensor, Quantised):
        return tensor.group % 8 == 0 and tensor.shape[1] % 8 == 0
    return tensor.dtype.name in _FORMATS


def pack(tensor: Tensor) -> PackedMatrix:
    """Lay a matrix out for the kernel. Codes and values are moved, never changed."""
    if not isinstance(tensor, Quantised):
        none = np.zeros((0,), np.float32)
        tiles = _tiles(tensor).transpose(0, 2, 1)
        return _to_device(tiles, none, none, tensor.dtype.name, tensor.shape[1], tensor.shape)
    words = np.ascontiguousarray(tensor.codes).view("<u4")
    scale, offset = (_tiles(each).transpose(0, 2, 1) for each in (tensor.scale, tensor.offset))
    halves = scale.astype(np.float16), offset.astype(np.float16)
    if all((half == full).all() for half, full in zip(halves, (scale, offset), strict=True)):
        scale, offset = halves
    name = f"q{tensor.bits}"
    tiles = _tiles(words).transpose(0, 2, 1)
    return _to_device(tiles, scale, offset, name, tensor.group, tensor.shape)


def matmul(x: Float[Array, "R K"], weight: PackedMatrix) -> Float[Array, "R N"]:
    """`x @ weight.T` in float32."""
    shape = jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), jnp.float32)
    call = jax.ffi.ffi_call("tensorfold_matmul", shape)
    return call(x, weight.codes, weight.scale, weight.offset, **_attributes(weight))


def take_rows(index: Int[Array, " R"], weight: PackedMatrix) -> Float[Array, "R K"]:
    """The weight's rows at `index`, dequantised; zeros where it is out of range."""
    shape = jax.ShapeDtypeStruct((index.shape[0], weight.shape[1]), jnp.float32)
    call = jax.ffi.ffi_call("tensorfold_take_rows", shape)
    outputs = np.int64(weight.shape[0])
    parts = weight.codes, weight.scale, weight.offset
    return call(index, *parts, outputs=outputs, **_attributes(weight))


def _attributes(weight: PackedMatrix) -> dict[str, Any]:
    return {"format": np.int64(_FORMATS[weight.format]), "group": np.int64(weight.group)}


def _tiles(rows: np.ndarray) -> np.ndarray:
    """[N, X] as [tiles, 8, X], zeros added."""
    padded = np.pad(rows, ((0, -rows.shape[0] % _TILE), (0, 0)))
    return padded.reshape(-1, _TILE, rows.shape[1])


def _to_device(
    codes: np.ndarray,
    scale: np.ndarray,
    offset: np.ndarray,
    name: str,
    group: int,
    shape: tuple[int, ...],
) -> PackedMatrix:
    return PackedMatrix(
        codes=jnp.asarray(np.ascontiguousarray(codes)),
        scale=jnp.asarray(np.ascontiguousarray(scale)),
        offset=jnp.asarray(np.ascontiguousarray(offset)),
        format=name,
        group=group,
        shape=(shape[0], shape[1]),
    )
