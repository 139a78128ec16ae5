"""Four-bit floats (E2M1) in groups that share a scale: MXFP4 and NVFP4.

OCP Microscaling Formats 1.0. A value is one of sixteen small multiples of a half, so doubled it is
an integer, and groups of them fit `Quantised`.
"""

import numpy as np

from .interface import Quantised

_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_VALUES = np.concatenate([_FP4, -_FP4])
"""By code: a sign, two bits of exponent, one of mantissa."""

_ZERO = 12
_CODES = (2 * _VALUES + _ZERO).astype(np.uint8)

MXFP4_GROUP = 32

MXFP4_LARGEST = 251
"""The largest exponent whose products with `_CODES` are finite in float32."""


def mxfp4(codes: np.ndarray, exponents: np.ndarray) -> Quantised:
    """E2M1 codes [rows, groups, 32] and exponents plus 127 [rows, groups], up to `MXFP4_LARGEST`:
    no value changes, except that -0 becomes 0."""
    return fp4(codes, np.ldexp(np.float32(1), exponents.astype(np.int32) - 127))


def fp4(codes: np.ndarray, scale: np.ndarray) -> Quantised:
    """E2M1 codes [rows, groups, group] and float32 scales [rows, groups].

    The CPU kernels pack the 25 codes in 5 or 6 bits and, as one of them is always zero, no offsets.
    """
    half = scale * np.float32(0.5)
    flat = np.ascontiguousarray(_CODES[codes].reshape(len(codes), -1))
    return Quantised(flat, half, -_ZERO * half, 8, codes.shape[-1])
