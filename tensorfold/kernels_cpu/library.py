"""Finds the compiled kernels and makes them known to XLA."""

import ctypes
import functools
from pathlib import Path

import jax

_TARGETS = {
    "tensorfold_matmul": "TensorfoldMatMul",
    "tensorfold_take_rows": "TensorfoldTakeRows",
    "tensorfold_attention": "TensorfoldAttention",
    "tensorfold_linear_attention": "TensorfoldLinearAttention",
    "tensorfold_conv": "TensorfoldConv",
    "tensorfold_draw": "TensorfoldDraw",
    "tensorfold_logprobs": "TensorfoldLogprobs",
    "tensorfold_digest": "TensorfoldDigest",
    "tensorfold_untouched": "TensorfoldUntouched",
}

_VERSION = 10
"""Of the packed matrices and calls; src/ffi.cc has it too."""

LEVELS = ("portable", "avx2", "avx512")
"""Instruction sets, the plainest first."""


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The shared library with its targets registered, None if it was not built.

    Raises RuntimeError if it was built from other sources than these.
    """
    built = sorted(Path(__file__).parent.glob("_kernels*.so"))
    if not built:
        return None
    library = ctypes.CDLL(str(built[0]))
    version = library.TensorfoldVersion() if hasattr(library, "TensorfoldVersion") else 1
    if version != _VERSION:
        raise RuntimeError(
            f"{built[0].name} was built from other sources: run `python setup.py build_ext -i` in "
            "the checkout, or install TensorFold again"
        )
    for target, symbol in _TARGETS.items():
        capsule = jax.ffi.pycapsule(getattr(library, symbol))
        jax.ffi.register_ffi_target(target, capsule, platform="cpu")
    return library


def available() -> bool:
    """Whether the kernels were built."""
    return _library() is not None


def level() -> str:
    """The one of LEVELS in use (TENSORFOLD_CPU_LEVEL lowers it)."""
    library = _library()
    return "none" if library is None else LEVELS[library.TensorfoldLevel()]


def set_level(name: str) -> bool:
    """Use the instruction set `name` from here on; False if this machine lacks it."""
    library = _library()
    return library is not None and bool(library.TensorfoldSetLevel(LEVELS.index(name)))
