"""Short causal convolutions, one filter a channel."""

from jax import Array
from jaxtyping import Float

from tensorfold.kernels_cpu import conv as kernel
from tensorfold.ops.chunks import rows_before, write_rows
from tensorfold.ops.implementation import implementation
from tensorfold.ops.rows import Rows
from tensorfold.ops.sums import rounded


def causal_conv(
    x: Float[Array, "R C"],
    weight: Float[Array, "C W"],
    kept: Float[Array, "L 2 S C"],
    rows: Rows,
    bias: Float[Array, " C"] | None = None,
) -> tuple[Float[Array, "R C"], Float[Array, "L 2 S C"]]:
    """`bias + sum_w weight[:, w] * x_{p - W + 1 + w}` at each row's position p in its lane, and
    `kept` with the inputs of the rows (ops/chunks.py). The row's own tap first, then the oldest."""
    if implementation() == "cpu":
        return kernel.causal_conv(x, weight, kept, rows.lane, rows.position, bias)
    before = rows_before(kept, x, rows, weight.shape[1] - 1)
    total = rounded(x * weight[:, -1])
    if bias is not None:
        total = total + bias
    for tap in range(weight.shape[1] - 1):
        total = total + rounded(before[:, tap] * weight[:, tap])
    return total, write_rows(kept, x, rows)
