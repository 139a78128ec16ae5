"""Weights in the order the matmul kernel reads them, and its calls.

Quantised weights are read as codes: for one row the kernel is bound by reading and unpacking them,
from four rows up by its multiply-adds. src/matmul.h has the layout and the order of every sum;
docs/performance.md the share of the floor reached.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, UInt32

from tensorfold.checkpoints.interface import Quantised, Tensor
from tensorfold.kernels_cpu.layout import packed_codes, written, zero_code

_TILE = 8
_PANEL_TILES = 6
_PANELS_AT_ONCE = 64

_FLOATS = {"float32": 2, "float16": 3, "bfloat16": 4}
_FORMATS = {"q4": 0, "q8": 1, **_FLOATS, "q5": 5, "q6": 6, "e4m3": 7}
_SCALES = {"half": 0, "float": 1, "steps": 2}

Gate = Literal["swiglu", "geglu"]
"""What joins the halves of a row before it is multiplied."""

_GATES = {None: 0, "swiglu": 1, "geglu": 2}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PackedMatrix:
    """A weight [N, K] in panels of 48 outputs, N padded to whole tiles of 8 (see src/matmul.h).

    data: [W] uint32, group after group of each panel's codes, scales and offsets, or its values
    format: "q4", "q5", "q6", "q8", "e4m3" or the floats' name
    scales: how scales and offsets are written: "half", "float" or in "steps"
    zero: the code that means 0 in every group; 0 if the groups have offsets, and for "e4m3"
    int8: rows are rounded to int8, in blocks of up to 32 inputs, before they meet the codes
    """

    data: UInt32[Array, " W"]
    format: str = field(metadata={"static": True})
    group: int = field(metadata={"static": True})
    shape: tuple[int, int] = field(metadata={"static": True})
    scales: str = field(default="half", metadata={"static": True})
    zero: int = field(default=0, metadata={"static": True})
    int8: bool = field(default=False, metadata={"static": True})

    @property
    def ndim(self) -> int:
        """A matrix has two axes."""
        return 2


def can_pack(tensor: Tensor, parts: int = 1) -> bool:
    """Whether the kernel takes a matrix of this shape and format, and its `parts` one by one."""
    if parts > 1 and tensor.shape[0] // parts % _TILE:
        return False
    if isinstance(tensor, Quantised):
        return tensor.group % 8 == 0 and tensor.shape[1] % 8 == 0
    return tensor.dtype.name in _FLOATS


def pack(tensor: Tensor, parts: int = 1) -> PackedMatrix:
    """Lay a matrix out for the kernel. Codes and values are moved, never changed.

    parts: how many matrices of one size it has below one another. More than one are laid out each
    by itself, for `take_part`, and can't be multiplied as a whole.
    """
    if not isinstance(tensor, Quantised):
        columns = tensor.shape[1]
        data = _stacked([], [tensor], 1, parts)
        return PackedMatrix(data, tensor.dtype.name, columns, tensor.shape)
    format, codes = packed_codes(tensor)
    zero = zero_code(tensor)
    arrays = [tensor.scale] if zero or tensor.floats else [tensor.scale, tensor.offset]
    found = written(arrays, tensor.group)
    groups = tensor.shape[1] // tensor.group
    data = _stacked(found.steps, [codes, *found.values], groups, parts)
    return PackedMatrix(data, format, tensor.group, tensor.shape, found.kind, zero)


def matmul(
    x: Float[Array, "R X"],
    weight: PackedMatrix,
    *,
    bias: Float[Array, " N"] | None = None,
    norm: tuple[Float[Array, " K"], float] | None = None,
    gated: Gate | None = None,
    residual: Float[Array, "R N"] | None = None,
) -> Float[Array, "R N"]:
    """As `ops.matmul.matmul`."""
    none = jnp.zeros((0,), jnp.float32)
    norm_weight, epsilon = norm or (none, 0.0)
    call = jax.ffi.ffi_call(
        "tensorfold_matmul", jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), jnp.float32)
    )
    return call(
        x,
        weight.data,
        norm_weight,
        none if bias is None else bias,
        none if residual is None else residual,
        epsilon=np.float32(epsilon),
        gate=np.int64(_GATES[gated]),
        int8=weight.int8,
        **_attributes(weight),
    )


def take_rows(index: Int[Array, " R"], weight: PackedMatrix) -> Float[Array, "R K"]:
    """The weight's rows at `index`, dequantised; zeros where it is out of range."""
    outputs, inputs = weight.shape
    call = jax.ffi.ffi_call(
        "tensorfold_take_rows", jax.ShapeDtypeStruct((index.shape[0], inputs), jnp.float32)
    )
    return call(index, weight.data, outputs=np.int64(outputs), **_attributes(weight))


def take_part(stack: PackedMatrix, index: Int[Array, ""], parts: int) -> PackedMatrix:
    """One of the matrices that `pack` laid out as `parts`."""
    rows, columns = stack.shape
    words = stack.data.shape[0] // parts
    data = jax.lax.dynamic_slice_in_dim(stack.data, index * words, words)
    return replace(stack, data=data, shape=(rows // parts, columns))


def with_int8(weight: PackedMatrix) -> PackedMatrix:
    """The matrix, if it is of integer codes, for rows in int8."""
    return replace(weight, int8=weight.format in ("q4", "q5", "q6", "q8"))


def _attributes(weight: PackedMatrix) -> dict[str, Any]:
    return {
        "format": np.int64(_FORMATS[weight.format]),
        "group": np.int64(weight.group),
        "scales": np.int64(_SCALES[weight.scales]),
        "zero": np.int64(weight.zero),
    }


def _stacked(heads: list[np.ndarray], arrays: list[np.ndarray], groups: int, parts: int) -> Array:
    """The panels of each of the matrices that `heads` and `arrays` hold below one another."""
    rows = arrays[0].shape[0] // parts
    padded = -(-rows // _TILE) * _TILE
    row_bytes = sum(each.shape[1] * each.itemsize for each in (*heads, *arrays))
    words = np.empty((parts, padded * row_bytes // 4), np.uint32)
    for part, out in enumerate(words):
        cut = slice(part * rows, (part + 1) * rows)
        _lay([head[cut] for head in heads], [array[cut] for array in arrays], groups, out)
    return jnp.asarray(words.reshape(-1))


def _lay(heads: list[np.ndarray], parts: list[np.ndarray], groups: int, out: np.ndarray) -> None:
    """Parts [N, groups * X] to words [W]: panel by panel, group by group, each part's [X, outputs].
    Before a panel's groups come its `heads` [N, Y], which alternate along Y: [Y, heads, outputs].

    X may differ from part to part. Zeros fill the last tile. A few panels at a time, since a head
    may be most of a model.
    """
    outputs = parts[0].shape[0]
    padded = -(-outputs // _TILE) * _TILE
    width = _PANEL_TILES * _TILE
    first = at = 0
    while first < padded:
        panels = min((padded - first) // width, _PANELS_AT_ONCE)
        end = first + panels * width if panels else padded
        missing = (0, max(0, end - outputs)), (0, 0)
        laid = [
            _interleaved(
                [np.pad(part[first:end], missing) for part in each], min(width, end - first), runs
            )
            for each, runs in ((heads, heads[0].shape[1] if heads else 0), (parts, groups))
            if each
        ]
        block = np.concatenate(laid, axis=1).reshape(-1)
        out[at : at + len(block)] = block
        first, at = end, at + len(block)


def _interleaved(parts: list[np.ndarray], width: int, runs: int) -> np.ndarray:
    """Parts [panels * width, runs * X] as words [panels, W]: run by run each part's [X, width]."""
    words = []
    for part in parts:
        laid = part.reshape(-1, width, runs, part.shape[1] // runs).transpose(0, 2, 3, 1)
        words.append(np.ascontiguousarray(laid).reshape(*laid.shape[:2], -1).view(np.uint32))
    found: np.ndarray = np.concatenate(words, axis=2)
    return found.reshape(len(found), -1)
