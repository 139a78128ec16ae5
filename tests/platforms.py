"""The implementations of the ops that run here."""

from tensorfold import kernels_cpu
from tensorfold.kernels_cpu import library

IMPLEMENTATIONS = ("xla", "cpu") if kernels_cpu.available() else ("xla",)


def _levels() -> list[str]:
    before = library.level()
    found = [level for level in library.LEVELS if library.set_level(level)]
    library.set_level(before)
    return found


LEVELS = _levels()
"""The instruction sets of the CPU kernels that this machine has, the plainest first."""
