"""What a measurement ran on."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("tensorfold", "jax", "jaxlib", "flax", "numpy")


def describe() -> dict[str, Any]:
    """Cores, processor, memory, system and versions, as plain values."""
    return {
        "cores": cores(),
        "cpu": cpu_model(),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in _PACKAGES},
    }


def heading(machine: dict[str, Any]) -> str:
    """One line of `describe`."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['cores']} cores, {machine['cpu']}, {machine['memory_gib']} GiB; "
        f"Python {machine['python']}, {versions}"
    )


def cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int) -> tuple[int | None, int | None]:
    """(now, at most so far) of a process; None where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None, None
    fields = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
    if "VmRSS" not in fields:  # It has ended.
        return None, None
    return int(fields["VmRSS"]) * 1024, int(fields["VmHWM"]) * 1024
