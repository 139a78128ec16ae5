"""Short causal convolutions, one filter a channel."""

from jax import Array
from jaxtyping import Float

from tensorfold.ops.chunks import read_before, write_rows
from tensorfold.ops.rows import Rows


def causal_conv(
    x: Float[Array, "R C"],
    weight: Float[Array, "C W"],
    kept: Float[Array, "L 2 S C"],
    rows: Rows,
    bias: Float[Array, " C"] | None = None,
) -> tuple[Float[Array, "R C"], Float[Array, "L 2 S C"]]:
    """`bias + sum_w weight[:, w] * x_{p - W + 1 + w}` at each row's position p in its lane, oldest
    tap first, and `kept` with the inputs of the rows (ops/chunks.py)."""
    width = weight.shape[1]
    total = x * 0.0 if bias is None else x * 0.0 + bias
    for tap in range(width):
        distance = width - 1 - tap
        inputs = read_before(kept, x, rows, distance) if distance else x
        total = total + inputs * weight[:, tap]
    return total, write_rows(kept, x, rows)
