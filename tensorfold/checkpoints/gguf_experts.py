"""Experts whose gates and ups GGUF keeps apart, and Hugging Face in one tensor, in turn."""

from collections.abc import Iterable

import numpy as np

from .interface import Tensor
from .joining import join, merge_axes, take_rows

_GATES, _UPS, _BOTH = (f".experts.{kind}_proj" for kind in ("gate", "up", "gate_up"))


def find_pairs(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The names of gates and of ups, by the name of the tensor that is made of them."""
    known = set(names)
    pairs = {
        name.replace(_GATES, _BOTH): (name, name.replace(_GATES, _UPS))
        for name in known
        if _GATES in name
    }
    return {whole: pair for whole, pair in pairs.items() if pair[1] in known}


def alternate(gates: Tensor, ups: Tensor) -> Tensor:
    """Rows (of a bias: values) of both in turn, the experts' below one another: [E * 2 F, D]."""
    axes = max(1, len(gates.shape) - 1)
    both = join([merge_axes(each, axes) for each in (gates, ups)])
    half = both.shape[0] // 2
    return take_rows(both, np.arange(2 * half).reshape(2, half).T.reshape(-1))
