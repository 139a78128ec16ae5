"""How much state fits in memory, asked before it is taken."""

import math
import os
from pathlib import Path

from tensorfold.models.family import LayerState, state_bytes
from tensorfold.ops.rows import PAGE
from tensorfold.runtime.step import StateShape

_GIB = 2**30


def fit_state(
    layers: tuple[LayerState, ...],
    *,
    model_context: int,
    lanes: int,
    context: int | None = None,
    prompt_cache_gib: float | None = None,
    free: int | None = None,
) -> StateShape:
    """The state to make: `lanes` lanes over a shared pool of pages.

    The pool holds every lane at its longest if that takes at most half of what is free, else as
    much as half holds, one lane at the least. `context` None takes the model's, cut to what one
    lane can have. `prompt_cache_gib` more are for prefixes that no reply holds; None takes a
    quarter of what is left and lets prefixes stay on every page that is not needed, 0 keeps none.
    Where lanes have state of their own, some of it is for snapshots of that: four a lane, if they
    take at most half of it.

    Raises ValueError, naming the figures and the flag, for a `context` or a cache that does not
    fit, for a `context` that the model was not made for, for more lanes than their own state leaves
    room for, and where there is no room for anything.
    """
    if context is not None and context > model_context:
        raise ValueError(f"--context {context} is more than the model's {model_context}")
    page_bytes, lane_bytes = state_bytes(layers)
    free = free_bytes() if free is None else free
    if lane_bytes + page_bytes > free:
        raise ValueError(_told_too_little(lane_bytes + page_bytes))
    if lanes * lane_bytes + page_bytes > free:
        raise ValueError(
            f"{lanes} lanes need {lanes * lane_bytes / _GIB:.2f} GiB for their recurrent state and "
            f"{free / _GIB:.2f} GiB are free: "
            f"use --parallel {(free - page_bytes) // lane_bytes} or less"
        )
    free -= lanes * lane_bytes
    most = free // page_bytes
    wanted = -(-(context or model_context) // PAGE)
    if wanted > most:
        if context is not None:
            raise ValueError(
                f"a context of {context or model_context} tokens needs "
                f"{wanted * page_bytes / _GIB:.2f} GiB for one reply's keys and values and "
                f"{free / _GIB:.2f} GiB are free: use --context {most * PAGE} or less"
            )
        wanted = _rounded(most)
    # In steps: compiled programs are of one number of pages, and free memory differs at each start.
    pages = max(wanted, min(lanes * wanted, _rounded(most // 2)))
    left = free - pages * page_bytes
    budget = left // 4 if prompt_cache_gib is None else int(prompt_cache_gib * _GIB)
    if budget > left:
        raise ValueError(
            f"a prompt cache of {prompt_cache_gib:g} GiB is more than the {left / _GIB:.2f} GiB "
            f"left beside {lanes} replies: use a smaller --prompt-cache-gib, --context or "
            "--parallel"
        )
    snapshots = min(4 * lanes, _rounded(budget // 2 // lane_bytes)) if lane_bytes else 0
    cache = (budget - snapshots * lane_bytes) // page_bytes if page_bytes else 0
    if prompt_cache_gib is None:
        cache = max(0, _rounded(pages + cache) - pages)
    kept = None if prompt_cache_gib is None else cache
    tokens = min(context or model_context, wanted * PAGE)
    return StateShape(lanes, tokens, pages + cache, kept, snapshots)


def _rounded(count: int) -> int:
    """`count` or somewhat less, a multiple of the power of two that has an eighth to a quarter of
    it."""
    step = 2 ** max(0, count.bit_length() - 3)
    return count // step * step


def free_bytes() -> int:
    """Memory that may be taken: what the system and this process's control groups leave, less
    a reserve (TENSORFOLD_MEMORY_RESERVE_GIB; else a tenth of the machine, at least 1 GiB)."""
    available, reserve = _available_and_reserve()
    return max(0, int(available - reserve))


def _told_too_little(needed: int) -> str:
    available, reserve = (count / _GIB for count in _available_and_reserve())
    return (
        f"a reply of {PAGE} tokens needs {needed / 2**20:.1f} MiB: {available:.2f} GiB are free, "
        f"and {reserve:.2f} GiB must stay so: free some, or set "
        "TENSORFOLD_MEMORY_RESERVE_GIB to less"
    )


def _available_and_reserve() -> tuple[int, float]:
    total, available = _system_memory()
    for limit, used in _cgroup_memory():
        total, available = min(total, limit), min(available, limit - used)
    text = os.environ.get("TENSORFOLD_MEMORY_RESERVE_GIB")
    try:
        reserve = float(text) * _GIB if text else max(total / 10, _GIB)
    except ValueError:
        reserve = math.nan
    if not 0 <= reserve < math.inf:
        raise ValueError(
            f"TENSORFOLD_MEMORY_RESERVE_GIB must be a finite number of at least 0, not {text!r}"
        )
    return available, reserve


def _system_memory() -> tuple[int, int]:
    """(total, available) bytes."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        return fields["MemTotal"], fields["MemAvailable"]
    except (OSError, KeyError):  # Not Linux: count what is installed.
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return total, total // 2


_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""The limit, what is used, and what of that can be dropped (of memory.stat), by controller: version
2 of control groups names none."""


def _cgroup_memory(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> list[tuple[int, int]]:
    """(limit, used without the page cache that can be dropped) of this process's control group and
    of those around it, each of which may have a limit of its own."""
    found = []
    for controller, group in _groups(own):
        limit, used, cache = _FILES[controller]
        # In a container the group may be named as the host does; its own files are at the root.
        for folder in [root / controller / part for part in (group, *group.parents)]:
            try:
                stats = dict(
                    line.split() for line in (folder / "memory.stat").read_text().splitlines()
                )
                bound, taken = (int((folder / file).read_text()) for file in (limit, used))
                found.append((bound, max(0, taken - int(stats.get(cache, 0)))))
            except (OSError, ValueError):  # "max", for one, is no limit.
                continue
    return found


def _groups(own: Path) -> list[tuple[str, Path]]:
    """(controller, group below its root) of this process that may limit memory."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    entries = (line.split(":", 2) for line in lines)
    return [
        (controller, Path(group.lstrip("/")))
        for _, controllers, group in entries
        for controller in controllers.split(",")
        if controller in _FILES
    ]
