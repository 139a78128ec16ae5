"""Compiled programs: where they are kept, and proof that serving makes no new ones."""

import os
import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache
from jax.stages import Compiled

from tensorfold.runtime.kept import KeptFiles

_COMPILED = "/jax/core/compile/backend_compile_duration"


class CompileCounter:
    """Counts the programs that JAX compiles, by the thread that asked for them."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def of_thread(self, ident: int | None) -> int:
        """Programs compiled by a thread since this counter was made."""
        return self._counts[ident or 0]

    def close(self) -> None:
        """Stop counting."""
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED:
            self._counts[threading.get_ident()] += 1


def keep_compiled_programs(folder: Path) -> None:
    """Keep compiled programs in `folder` for the next start, unless JAX is told otherwise."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


@contextmanager
def without_jax_cache() -> Iterator[None]:
    """Inside, JAX compiles and reads nothing from its own cache: a program for a CPU that was read
    there can't be written to a file again."""
    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def read_program(kept: KeptFiles, name: str) -> Compiled | None:
    """The program kept under `name`, neither traced nor compiled; None if there is none."""
    data = kept.read(name)
    if data is None:
        return None
    try:
        serialized, in_tree, out_tree = pickle.loads(data)
        return serialize_executable.deserialize_and_load(
            serialized, in_tree, out_tree, execution_devices=jax.devices()[:1]
        )
    except Exception:  # Whatever a library makes of its own bytes: they are of no use.
        kept.remove(name)
        return None


def keep_program(kept: KeptFiles, name: str, program: Compiled) -> Compiled | None:
    """Keep `program` under `name`. Returns the one in the file: what runs now, and is probed, then
    is what the next start runs. None where that does not work."""
    try:
        serialized = serialize_executable.serialize(program)
    except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError):  # Not on this device.
        return None
    kept.write(name, [pickle.dumps(serialized)])
    return read_program(kept, name)
