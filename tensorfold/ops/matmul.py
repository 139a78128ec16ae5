"""Rows times a weight matrix, and rows of one."""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int

from tensorfold.checkpoints.interface import Quantised, Tensor
from tensorfold.kernels_cpu import matmul as kernel
from tensorfold.kernels_cpu.matmul import PackedMatrix
from tensorfold.ops.activation import geglu, swiglu
from tensorfold.ops.implementation import implementation
from tensorfold.ops.norm import rms_norm
from tensorfold.ops.rows import ROW_TILE

Weight = Array | PackedMatrix
"""A matrix [N, K] as it is multiplied: float32, or packed for the CPU kernels."""

Gate = kernel.Gate
"""What joins the halves of a row before it is multiplied."""


def prepare(tensor: Tensor, parts: int = 1) -> Weight:
    """A checkpoint's matrix for the device: codes for the CPU kernels, else dequantised float32.

    parts: how many matrices of one size it has below one another, for `take_part`
    """
    if implementation() == "cpu" and kernel.can_pack(tensor, parts):
        return kernel.pack(tensor, parts)
    dense = tensor.dequantise() if isinstance(tensor, Quantised) else tensor
    return jnp.asarray(np.asarray(dense, np.float32))


def with_int8_rows(weight: Weight) -> Weight:
    """The weight, if it is of integer codes, for rows that `matmul` rounds to int8 first."""
    return kernel.with_int8(weight) if isinstance(weight, PackedMatrix) else weight


def take_part(stack: Weight, index: Int[Array, ""], parts: int) -> Weight:
    """One of the `parts` matrices that stand below one another in `stack`."""
    if isinstance(stack, PackedMatrix):
        return kernel.take_part(stack, index, parts)
    size = stack.shape[0] // parts
    return lax.dynamic_slice_in_dim(stack, index * size, size)


def take_rows(table: Weight, index: Int[Array, " R"]) -> Float[Array, "R K"]:
    """The rows of `table` at `index`."""
    if isinstance(table, PackedMatrix):
        return kernel.take_rows(index, table)
    return table[index]


def matmul(
    x: Float[Array, "R X"],
    weight: Weight,
    *,
    bias: Float[Array, " N"] | None = None,
    norm: tuple[Float[Array, " K"], float] | None = None,
    gated: Gate | None = None,
    residual: Float[Array, "R N"] | None = None,
) -> Float[Array, "R N"]:
    """`residual + (x' @ weight.T + bias)` in float32; with a plain weight R is whole ROW_TILEs.

    x' is x [R, K]; with `norm`, a weight and an epsilon, `rms_norm` of it; with `gated`, what the
    function of this name makes of x [R, 2 K] (ops/activation.py). They belong to the op because a
    kernel does them while it reads and writes rows.
    """
    if isinstance(weight, PackedMatrix):
        return kernel.matmul(x, weight, bias=bias, norm=norm, gated=gated, residual=residual)
    if gated is not None:
        x = swiglu(x) if gated == "swiglu" else geglu(x)
    if norm is not None:
        x = rms_norm(x, *norm)
    y = dot(x, weight)
    if bias is not None:
        y = y + bias
    return y if residual is None else residual + y


def dot(x: Float[Array, "R K"], weight: Float[Array, "N K"]) -> Float[Array, "R N"]:
    """`x @ weight.T` by one dot of a fixed shape [ROW_TILE, K] x [N, K] per tile of rows.

    XLA orders a dot's sum over K by its shape, so a row's bits are the same whatever R is.
    """

    def tile(x_TK: Array) -> Array:
        return lax.dot_general(x_TK, weight, (((1,), (1,)), ((), ())))

    rows, columns = x.shape
    if rows == ROW_TILE:
        return tile(x)
    tiles = x.reshape(rows // ROW_TILE, ROW_TILE, columns)
    return lax.map(tile, tiles).reshape(rows, weight.shape[0])
