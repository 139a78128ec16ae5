"""GGUF's blocks of quantised weights, rearranged into `Quantised` without changing a value.

A row is a run of blocks: 32 weights (Q4_0 to Q8_0) or 256 in sub-blocks (the K types), each with
its own 16-bit scale. Every function below takes the blocks as uint8 [rows, blocks, bytes]; field
offsets are ggml's. `code * scale + offset` then equals ggml's own value: the products fit 24 bits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .fp4 import mxfp4
from .interface import Quantised


@dataclass(frozen=True)
class BlockFormat:
    """One GGUF block type: weights and bytes a block, and how to take it apart."""

    weights: int
    size: int
    unpack: Callable[[np.ndarray], Quantised]


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of each block, as float32 [rows, blocks]."""
    return (
        np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0].astype(np.float32)
    )


def _flat(array: np.ndarray) -> np.ndarray:
    """[rows, ...] as contiguous [rows, columns]."""
    return np.ascontiguousarray(array.reshape(array.shape[0], -1))


def _pack_pairs(codes: np.ndarray) -> np.ndarray:
    """4-bit codes, one a byte, to two a byte: the even column in the low four bits."""
    packed: np.ndarray = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return packed


def _halves(nibbles: np.ndarray) -> np.ndarray:
    """ggml's order within a block: all low nibbles, then all high ones. Stacked on axis -2."""
    return np.stack([nibbles & 15, nibbles >> 4], axis=-2)


def _result(
    codes: np.ndarray, scale: np.ndarray, offset: np.ndarray, bits: int, group: int
) -> Quantised:
    return Quantised(_flat(codes), _flat(scale), _flat(offset), bits, group)


def _q4_0(blocks: np.ndarray) -> Quantised:
    scale = _half(blocks, 0)
    return _result(_pack_pairs(_halves(blocks[..., 2:])), scale, -8 * scale, 4, 32)


def _q4_1(blocks: np.ndarray) -> Quantised:
    codes = _pack_pairs(_halves(blocks[..., 4:]))
    return _result(codes, _half(blocks, 0), _half(blocks, 2), 4, 32)


def _fifth_bits(blocks: np.ndarray, at: int) -> np.ndarray:
    """The fifth bit of each of 32 codes (four bytes at `at`, weight 0 lowest), moved to bit 4."""
    bits = np.unpackbits(blocks[..., at : at + 4], axis=-1, bitorder="little")
    return (bits << 4).reshape(*bits.shape[:-1], 2, 16)


def _q5_0(blocks: np.ndarray) -> Quantised:
    scale = _half(blocks, 0)
    codes = _halves(blocks[..., 6:]) | _fifth_bits(blocks, 2)
    return _result(codes, scale, -16 * scale, 8, 32)


def _q5_1(blocks: np.ndarray) -> Quantised:
    codes = _halves(blocks[..., 8:]) | _fifth_bits(blocks, 4)
    return _result(codes, _half(blocks, 0), _half(blocks, 2), 8, 32)


def _q8_0(blocks: np.ndarray) -> Quantised:
    scale = _half(blocks, 0)
    # Flipping the sign bit of an int8 is adding 128 to it as uint8.
    return _result(blocks[..., 2:] ^ 0x80, scale, -128 * scale, 8, 32)


def _mxfp4(blocks: np.ndarray) -> Quantised:
    return mxfp4(_halves(blocks[..., 1:]).reshape(*blocks.shape[:2], -1), blocks[..., 0])


def _k_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale and offset [rows, blocks, 8] of Q4_K and Q5_K: 6-bit multiples of the block's two."""
    low, high, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scale = np.concatenate([low & 63, (rest & 15) | ((low >> 6) << 4)], axis=-1)
    least = np.concatenate([high & 63, (rest >> 4) | ((high >> 6) << 4)], axis=-1)
    return (
        _half(blocks, 0)[..., None] * scale.astype(np.float32),
        -(_half(blocks, 2)[..., None] * least.astype(np.float32)),
    )


def _q4_k(blocks: np.ndarray) -> Quantised:
    scale, offset = _k_scales(blocks)
    codes = _halves(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32))
    return _result(_pack_pairs(codes), scale, offset, 4, 32)


def _q5_k(blocks: np.ndarray) -> Quantised:
    scale, offset = _k_scales(blocks)
    codes = _halves(blocks[..., 48:].reshape(*blocks.shape[:2], 4, 32))
    codes = codes.reshape(*blocks.shape[:2], 8, 32)
    # Bit g of byte i is the fifth bit of weight i in group g.
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    fifth = ((blocks[..., None, 16:48] >> shifts) & 1) << 4
    return _result(codes | fifth, scale, offset, 8, 32)


def _q6_k(blocks: np.ndarray) -> Quantised:
    shape = blocks.shape[:2]
    # Each half of the block holds four runs of 32 weights: 64 bytes of low nibbles (two runs in
    # the low ones, then two in the high ones) and 32 bytes with two upper bits for each run.
    low = _halves(blocks[..., :128].reshape(*shape, 2, 64)).reshape(*shape, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = (blocks[..., 128:192].reshape(*shape, 2, 1, 32) >> shifts) & 3
    multiples = blocks[..., 192:208].view(np.int8).astype(np.float32)
    scale = _half(blocks, 208)[..., None] * multiples
    return _result(low | (high << 4), scale, -32 * scale, 8, 16)


FORMATS = {
    "Q4_0": BlockFormat(32, 18, _q4_0),
    "Q4_1": BlockFormat(32, 20, _q4_1),
    "Q5_0": BlockFormat(32, 22, _q5_0),
    "Q5_1": BlockFormat(32, 24, _q5_1),
    "Q8_0": BlockFormat(32, 34, _q8_0),
    "MXFP4": BlockFormat(32, 17, _mxfp4),
    "Q4_K": BlockFormat(256, 144, _q4_k),
    "Q5_K": BlockFormat(256, 176, _q5_k),
    "Q6_K": BlockFormat(256, 210, _q6_k),
}
"""The quantised types that can be read, by GGUF's names."""


def unpack(data: np.ndarray, name: str) -> Quantised:
    """uint8 [rows, bytes] of the block type `name` (a key of `FORMATS`) as `Quantised`."""
    form = FORMATS[name]
    return form.unpack(data.reshape(data.shape[0], -1, form.size))
