"""Matrices of floats as codes of 8 or 4 bits."""

import numpy as np

from .interface import Quantised


def quantise(matrix: np.ndarray, bits: int, group: int) -> Quantised:
    """`matrix` [rows, columns] of floats, each value within half its group's scale.

    bits is 4 or 8, group even and a divisor of the columns. Raises ValueError for a value that is
    not finite.

    Scales and offsets that fit are float16 values, which the CPU kernels keep in two bytes.
    """
    rows, columns = matrix.shape
    values = np.asarray(matrix, np.float32).reshape(rows, columns // group, group)
    if not np.isfinite(values).all():
        raise ValueError("a value is not finite")
    levels = 2**bits - 1
    least, most = values.min(axis=2), values.max(axis=2)
    halves = np.abs(values).max(initial=0) <= np.finfo(np.float16).max
    offset, scale = _cover(least, most, levels, np.float16 if halves else np.float32)
    steps = (values - offset[..., None]) / np.where(scale > 0, scale, 1)[..., None]
    codes = np.clip(np.rint(steps), 0, levels).astype(np.uint8).reshape(rows, columns)
    if bits == 4:
        codes = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return Quantised(codes, scale, offset, bits, group)


def _cover(
    least: np.ndarray, most: np.ndarray, levels: int, kind: type[np.floating]
) -> tuple[np.ndarray, np.ndarray]:
    """(offset, scale), float32 with values of `kind`, rounded outwards: `levels` steps up from
    `offset` reach from `least` to `most`."""
    offset = least.astype(kind)
    with np.errstate(over="ignore"):  # what is next to the least half is computed, not taken
        offset = np.where(offset > least, np.nextafter(offset, kind(-np.inf)), offset)
    offset = offset.astype(np.float32)
    exact = (most - offset) / np.float32(levels)
    scale = exact.astype(kind)
    scale = np.where(scale < exact, np.nextafter(scale, kind(np.inf)), scale)
    return offset, scale.astype(np.float32)
