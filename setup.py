"""Builds the CPU kernels; without a compiler the package installs and runs without them."""

import sys

from jax import ffi
from setuptools import Extension, setup

SOURCES = (
    "attention",
    "attention_avx2",
    "attention_avx512",
    "conv",
    "dispatch",
    "ffi",
    "linear_attention",
    "linear_attention_avx2",
    "linear_attention_avx512",
    "linear_attention_portable",
    "matmul",
    "matmul_avx2",
    "matmul_avx512",
    "matmul_int8_avx2",
    "matmul_int8_vnni",
    "matmul_portable",
    "pool",
    "sample",
)
HEADERS = (
    "attention",
    "attention_tiles",
    "avx2",
    "avx512",
    "conv",
    "dispatch",
    "linear_attention",
    "linear_attention_tiles",
    "matmul",
    "matmul_avx2",
    "matmul_avx512",
    "matmul_codes_avx2",
    "pool",
    "sample",
)
FOLDER = "tensorfold/kernels_cpu/src"

kernels = Extension(
    "tensorfold.kernels_cpu._kernels",
    sources=[f"{FOLDER}/{name}.cc" for name in SOURCES],
    depends=[f"{FOLDER}/{name}.h" for name in HEADERS],
    # XLA's headers are not clean under our warnings: they are system headers.
    extra_compile_args=["-std=c++17", "-O3", "-isystem", ffi.include_dir()],
    extra_link_args=["-pthread"] if sys.platform.startswith("linux") else [],
    py_limited_api=True,
    optional=True,
)

setup(ext_modules=[kernels])
