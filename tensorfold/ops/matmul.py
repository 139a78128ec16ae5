"""Rows times a weight matrix."""

from jax import Array, lax
from jaxtyping import Float

from tensorfold.ops.rows import ROW_TILE


def matmul(x: Float[Array, "R K"], weight: Float[Array, "N K"]) -> Float[Array, "R N"]:
    """`x @ weight.T` in float32, R a multiple of ROW_TILE.

    One dot of a fixed shape [ROW_TILE, K] x [N, K] per tile of rows: XLA orders a dot's sum over K
    by its shape, so a row's bits are the same whatever R is.
    """

    def tile(x_TK: Array) -> Array:
        return lax.dot_general(x_TK, weight, (((1,), (1,)), ((), ())))

    rows, columns = x.shape
    if rows == ROW_TILE:
        return tile(x)
    tiles = x.reshape(rows // ROW_TILE, ROW_TILE, columns)
    return lax.map(tile, tiles).reshape(rows, weight.shape[0])
