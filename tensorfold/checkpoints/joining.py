"""Tensors joined along their rows and cut by them, as fused projections need it."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tensorfold.checkpoints.interface import Quantised, Tensor


def join(parts: Sequence[Tensor]) -> Tensor:
    """`parts` below one another.

    Values are kept exactly: quantised parts of different forms get the wider codes and the finer
    groups, mixed float precisions the widest, and codes beside floats are floats.
    """
    if len(parts) == 1:
        return parts[0]
    quantised = [part for part in parts if isinstance(part, Quantised)]
    if len(quantised) < len(parts) or len({part.floats for part in quantised}) > 1:
        return np.concatenate(
            [part.dequantise() if isinstance(part, Quantised) else part for part in parts]
        )
    bits = max(part.bits for part in quantised)
    group = math.gcd(*(part.group for part in quantised))
    same = [_refine(part, bits, group) for part in quantised]
    return Quantised(
        codes=np.concatenate([part.codes for part in same]),
        scale=np.concatenate([part.scale for part in same]),
        offset=np.concatenate([part.offset for part in same]),
        bits=bits,
        group=group,
        floats=quantised[0].floats,
    )


def take_rows(tensor: Tensor, order: np.ndarray) -> Tensor:
    """The rows at `order`."""
    if isinstance(tensor, Quantised):
        return replace(
            tensor,
            codes=tensor.codes[order],
            scale=tensor.scale[order],
            offset=tensor.offset[order],
        )
    return tensor[order]


def turn(tensor: Tensor) -> Tensor:
    """A tensor with its last two axes in each other's place; a quantised one as it is."""
    return tensor if isinstance(tensor, Quantised) else np.swapaxes(tensor, -1, -2)


def merge_axes(tensor: Tensor, axes: int) -> Tensor:
    """A tensor of more than `axes` axes with its first ones merged, others as they are."""
    if isinstance(tensor, Quantised) or len(tensor.shape) <= axes:
        return tensor
    return tensor.reshape(-1, *tensor.shape[len(tensor.shape) - axes + 1 :])


def _refine(tensor: Quantised, bits: int, group: int) -> Quantised:
    codes = tensor.codes
    if tensor.bits < bits:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[0], -1)
    times = tensor.group // group
    scale, offset = (np.repeat(each, times, axis=1) for each in (tensor.scale, tensor.offset))
    return Quantised(codes, scale, offset, bits, group, tensor.floats)
