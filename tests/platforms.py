"""The implementations of the ops that run here."""

from tensorfold import kernels_cpu

IMPLEMENTATIONS = ("xla", "cpu") if kernels_cpu.available() else ("xla",)
