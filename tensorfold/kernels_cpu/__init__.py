"""C++ kernels for the CPU behind XLA's foreign function interface.

They are optional: `available()` says whether they were built for this machine. The sources in
`src/` state the order of every sum; like all ops they keep the row-invariance rule.
"""

from tensorfold.kernels_cpu.library import available, level

__all__ = ["available", "level"]

available()  # A kernel must be known to XLA before a program that calls it can be compiled.
