"""What decides a program's bits and form besides the model: this build on this machine."""

import functools
import hashlib
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

import tensorfold
from tensorfold import kernels_cpu
from tensorfold.ops.implementation import implementation

_ARITHMETIC = ("jax_enable_x64", "jax_default_matmul_precision")
_NOT_OF_PROGRAMS = (
    "JAX_COMPILATION_CACHE_DIR",
    "TENSORFOLD_HOME",
    "TENSORFOLD_MEMORY_RESERVE_GIB",
    "TENSORFOLD_SEED_SALT",
)


def build_key() -> str:
    """A digest of the sources, the kernels, the libraries, the processor and the settings that
    programs are compiled under: where it is equal, equal programs give equal bits."""
    device = jax.devices()[0]
    settings = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("JAX_", "TENSORFOLD_", "XLA_")) and name not in _NOT_OF_PROGRAMS
    }
    return key(
        _sources(),
        _processor(),
        [version(name) for name in ("jax", "jaxlib", "flax", "numpy")],
        [platform.python_version(), device.platform, device.device_kind, len(jax.devices())],
        [implementation(), kernels_cpu.level()],
        [str(jax.config.values[name]) for name in _ARITHMETIC],
        settings,
    )


def key(*parts: Any) -> str:
    """A digest of JSON values, NumPy's numbers and arrays among them."""
    text = json.dumps(parts, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"no key can be made of {value!r}")


@functools.cache
def _sources() -> str:
    """A digest of every file of the package, the built kernels included."""
    digest = hashlib.sha256()
    root = Path(tensorfold.__file__).parent
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".so"):
            digest.update(f"{path.relative_to(root)}\n".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@functools.cache
def _processor() -> list[str | None]:
    """The processor's name and features, and how many there are: XLA compiles for them."""
    found = [platform.machine(), platform.processor(), str(os.cpu_count())]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # Not Linux.
        return [*found]
    kinds = ("model name", "flags", "Features", "CPU part", "CPU implementer")
    return [*found, *sorted({line for line in lines if line.startswith(kinds)})]
