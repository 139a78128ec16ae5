"""Which implementation of the ops runs on this machine."""

import os
from typing import Literal

import jax

from tensorfold import kernels_cpu

Implementation = Literal["cpu", "xla"]


def implementation() -> Implementation:
    """The C++ kernels ("cpu"), or the plain ops ("xla"), which run anywhere and define the meaning.

    TENSORFOLD_KERNELS=xla asks for the plain ops. Read when a model is loaded and traced, so it
    must not change in between. Raises ValueError for another value.
    """
    asked = os.environ.get("TENSORFOLD_KERNELS", "")
    if asked not in ("", "cpu", "xla"):
        raise ValueError(f"TENSORFOLD_KERNELS must be cpu or xla, not {asked!r}")
    built = jax.default_backend() == "cpu" and kernels_cpu.available()
    if asked == "cpu" and not built:
        raise ValueError("TENSORFOLD_KERNELS=cpu, but the CPU kernels were not built")
    return "xla" if asked == "xla" or not built else "cpu"


def describe(activations: str = "float32") -> str:
    """The implementation in words, for people."""
    if implementation() == "cpu":
        rounded = f", {activations} activations" if activations != "float32" else ""
        return f"C++ kernels ({kernels_cpu.level()}){rounded}"
    return "plain XLA ops"
