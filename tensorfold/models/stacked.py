"""Experts whose gates come in one tensor and whose ups in another, as MLX stacks them.

Both are [E, F, D]. Joined, all gates are above all ups; the rows below put each expert's together.
"""

from functools import cache

import numpy as np


@cache
def paired_rows(experts: int, width: int) -> tuple[int, ...]:
    """Each expert's `width` gates, then its ups."""
    return _rows(experts, width, (1, 0, 2))


@cache
def alternating_rows(experts: int, width: int) -> tuple[int, ...]:
    """Each expert's `width` gates and ups in turn."""
    return _rows(experts, width, (1, 2, 0))


def _rows(experts: int, width: int, axes: tuple[int, int, int]) -> tuple[int, ...]:
    kinds_EF = np.arange(2 * experts * width).reshape(2, experts, width)
    return tuple(kinds_EF.transpose(axes).reshape(-1).tolist())
