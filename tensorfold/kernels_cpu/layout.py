"""The fewest bytes that hold a matrix's codes, scales and offsets exactly: see src/matmul.h."""

from dataclasses import dataclass

import numpy as np

from tensorfold.checkpoints.interface import Quantised

STEP_INPUTS = 256
"""Inputs whose scales are multiples of one half, as the K types of GGUF have them."""

_MOST_TIMES = 128


@dataclass(frozen=True)
class Written:
    """Scales, and offsets if there are any, as the kernel reads them.

    kind: "half", "float" or "steps"
    values: each [N, groups], of the kind's type; of steps int8
    steps: float16 [N, K / STEP_INPUTS] for each of them, that the values multiply
    """

    kind: str
    values: list[np.ndarray]
    steps: list[np.ndarray]


def packed_codes(tensor: Quantised) -> tuple[str, np.ndarray]:
    """The narrowest format that takes the codes, and its words uint32 [N, words]; for floats they
    are uint16."""
    codes = np.ascontiguousarray(tensor.codes)
    if tensor.floats:
        return "e4m3", codes.view("<u2")
    if tensor.bits == 8:
        most = int(codes.max(initial=0))
        if most < 32 and tensor.group % 32 == 0:
            return "q5", _bundles(codes, 5, 32)
        if most < 64 and tensor.group % 16 == 0:
            return "q6", _bundles(codes, 6, 16)
    return f"q{tensor.bits}", codes.view("<u4")


def zero_code(tensor: Quantised) -> int:
    """The code that means 0 in every group, so that offsets need not be written; 0 if none does."""
    scaled = np.flatnonzero(tensor.scale)
    if not len(scaled):
        return 0
    code = np.rint(-tensor.offset.flat[scaled[0]] / tensor.scale.flat[scaled[0]])
    if not 0 < code < 256:
        return 0
    # The kernel multiplies in float32 too.
    return int(code) if (tensor.offset == -code * tensor.scale).all() else 0


def _bundles(codes: np.ndarray, bits: int, size: int) -> np.ndarray:
    """Bundles of `size` codes: their lower four bits, two words of bytes in one, then the rest."""
    rows, columns = codes.shape
    spread = codes.reshape(rows, columns // size, size // 4, 4)
    low = spread & 15
    nibbles = low[:, :, 0::2] | (low[:, :, 1::2] << 4)
    shifts = np.arange(0, size // 4 * (bits - 4), bits - 4, dtype=np.uint8)[:, None]
    rest = np.bitwise_or.reduce((spread >> 4) << shifts, axis=2, keepdims=True)
    return np.concatenate([nibbles, rest], axis=2).reshape(rows, -1).view("<u4")


def written(arrays: list[np.ndarray], group: int) -> Written:
    """Float32 arrays [N, groups] in the shortest way that loses nothing."""
    halves = [_as_halves(array) for array in arrays]
    if all((half == full).all() for half, full in zip(halves, arrays, strict=True)):
        return Written("half", halves, [])
    if STEP_INPUTS % group == 0 and arrays[0].shape[1] * group % STEP_INPUTS == 0:
        found = [_steps(array, STEP_INPUTS // group) for array in arrays]
        whole = [each for each in found if each is not None]
        if len(whole) == len(arrays):
            values, steps = zip(*whole, strict=True)
            return Written("steps", list(values), list(steps))
    return Written("float", arrays, [])


def _as_halves(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return array.astype(np.float16)


def _steps(array: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray] | None:
    """(multiples int8 like `array`, steps float16 [N, groups / size]) with
    `multiples * steps == array` for every `size` values, or None.

    The greatest common divisor of such values is their step times a small number, which is found by
    trying.
    """
    runs = array.astype(np.float64).reshape(-1, size)
    zeros = runs == 0
    exponents = np.frexp(runs)[1]
    # All values of a run as integers times one power of two; float32 has 24 bits.
    lowest = np.where(zeros, np.iinfo(np.int32).max, exponents).min(axis=1, keepdims=True) - 24
    lowest[zeros.all(axis=1)] = 0
    if (np.where(zeros, lowest, exponents) - lowest > 60).any():
        return None
    whole = np.ldexp(runs, -lowest).astype(np.int64)
    divisor = np.gcd.reduce(whole, axis=1)
    steps = np.zeros(len(runs), np.float16)
    found = divisor == 0
    for times in range(1, _MOST_TIMES + 1):
        left = np.flatnonzero(~found)
        exact = np.ldexp(divisor[left] / times, lowest[left, 0])
        half = _as_halves(exact)
        steps[left], found[left] = half, half == exact
    if not found.all():
        return None
    # One more goes down than up: llama.cpp's largest scale of Q6_K is -128 steps.
    steps[runs.max(axis=1) > np.abs(runs.min(axis=1))] *= -1
    wide = steps.astype(np.float64)[:, None]
    multiples = np.divide(runs, wide, out=np.zeros_like(runs), where=wide != 0)
    if not ((multiples >= -128) & (multiples <= 127)).all():
        return None
    small = multiples.astype(np.int8)
    if not (small * wide == runs).all():
        return None
    return small.reshape(array.shape), steps.reshape(array.shape[0], -1)
