"""Compiled programs: where they are kept, and proof that serving makes no new ones."""

import os
import threading
from collections import Counter
from pathlib import Path

import jax

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
