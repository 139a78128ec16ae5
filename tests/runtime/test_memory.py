from pathlib import Path

import pytest

from tensorfold.models.family import PagedKV, Recurrent, Stateless
from tensorfold.runtime import memory
from tensorfold.runtime.memory import fit_state, free_bytes
from tensorfold.runtime.step import StateShape

LAYERS = (PagedKV(kv_heads=2, head_dim=16, heads=4), PagedKV(1, 32, 4, window=64))
PAGE_BYTES = 2 * 4 * 64 * (2 * 16 + 1 * 32)
GIB = 2**30


def test_every_lane_gets_its_longest_when_that_is_less_than_half() -> None:
    shape = fit_state(LAYERS, model_context=200, lanes=3, free=24 * PAGE_BYTES)
    assert shape == StateShape(lanes=3, context=200, pages=14)
    assert shape.pages_per_lane == 4


def test_else_the_pool_is_about_half_of_what_is_free() -> None:
    free = 23 * PAGE_BYTES + PAGE_BYTES - 1
    assert fit_state(LAYERS, model_context=200, lanes=3, free=free) == StateShape(3, 200, 12)


def test_free_memory_makes_few_shapes() -> None:
    # A program is of one shape, and every start finds other memory free.
    for lanes, context in ((2, 4096), (8, 10**6)):
        shapes = {
            fit_state(LAYERS, model_context=context, lanes=lanes, free=pages * PAGE_BYTES)
            for pages in range(1000, 2000)
        }
        assert len(shapes) <= 16


def test_one_lane_fits_whole_whatever_half_is() -> None:
    free = 5 * PAGE_BYTES
    assert fit_state(LAYERS, model_context=256, lanes=8, free=free) == StateShape(8, 256, 4)


def test_the_models_context_is_cut_to_what_fits() -> None:
    free = 3 * PAGE_BYTES
    assert fit_state(LAYERS, model_context=10**6, lanes=2, free=free) == StateShape(2, 192, 3)


def test_a_context_that_was_asked_for_is_kept() -> None:
    free = 1000 * PAGE_BYTES
    shape = fit_state(LAYERS, model_context=4096, lanes=2, context=100, free=free)
    assert shape == StateShape(2, 100, 224)


def test_a_context_that_does_not_fit_is_refused_with_the_figures() -> None:
    assert PAGE_BYTES == 32768
    with pytest.raises(ValueError) as error:
        fit_state(LAYERS, model_context=2**20, lanes=2, context=2**20, free=GIB // 4)
    assert str(error.value) == (
        "a context of 1048576 tokens needs 0.50 GiB for one reply's keys and values and "
        "0.25 GiB are free: use --context 524288 or less"
    )


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^--context 4097 is more than the model's 4096$"):
        fit_state(LAYERS, model_context=4096, lanes=2, context=4097, free=GIB)


def test_the_prompt_cache_takes_what_is_asked_for_and_keeps_no_more() -> None:
    def fit(gib: float) -> StateShape:
        free = 24 * PAGE_BYTES
        return fit_state(LAYERS, model_context=200, lanes=3, prompt_cache_gib=gib, free=free)

    assert fit(5 * PAGE_BYTES / GIB) == StateShape(3, 200, 12 + 5, kept=5)
    assert fit(0) == StateShape(3, 200, 12, kept=0)
    with pytest.raises(
        ValueError, match=r"a prompt cache of 2 GiB is more than the 0\.00 GiB left"
    ):
        fit(2)


RECURRENT = Recurrent(channels=32, key_heads=1, key_dim=16, heads=2, value_dim=8)
LANE_BYTES = 2 * 4 * (64 * (32 + 16 + 2 * 8 + 2) + 2 * 16 * 8)


def test_what_lanes_keep_is_taken_first() -> None:
    layers = (*LAYERS, RECURRENT, Stateless())
    free = 3 * LANE_BYTES + 22 * PAGE_BYTES
    shape = fit_state(layers, model_context=200, lanes=3, free=free)
    assert shape == StateShape(lanes=3, context=200, pages=10, snapshots=1)


def test_snapshots_take_at_most_half_of_the_prompt_cache() -> None:
    layers = (*LAYERS, RECURRENT)

    def fit(free: int, gib: float | None = None) -> tuple[int, int | None, int]:
        shape = fit_state(layers, model_context=200, lanes=3, prompt_cache_gib=gib, free=free)
        return shape.pages, shape.kept, shape.snapshots

    assert fit(GIB)[2] == 12
    free = 3 * LANE_BYTES + 40 * PAGE_BYTES
    assert fit(free, gib=0) == (12, 0, 0)
    gib = (2 * LANE_BYTES + 3 * PAGE_BYTES) / GIB
    pages, kept, snapshots = fit(free, gib)
    assert kept is not None and pages == 12 + kept and snapshots > 0
    assert snapshots * LANE_BYTES <= gib * GIB / 2
    assert kept * PAGE_BYTES + snapshots * LANE_BYTES <= gib * GIB


def test_more_lanes_than_their_state_leaves_room_for_are_refused() -> None:
    with pytest.raises(ValueError, match=r"5 lanes need .* GiB .*: use --parallel 4 or less"):
        fit_state((*LAYERS, RECURRENT), model_context=200, lanes=5, free=5 * LANE_BYTES - 1)


def test_no_memory_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_system_memory", lambda: (64 * GIB, 40 * GIB))
    monkeypatch.setattr(memory, "_cgroup_memory", lambda: [])
    monkeypatch.setenv("TENSORFOLD_MEMORY_RESERVE_GIB", "1000")
    message = (
        r"a reply of 64 tokens needs 0\.\d MiB: 40\.00 GiB are free, and 1000\.00 GiB must stay "
        "so: free some, or set TENSORFOLD_MEMORY_RESERVE_GIB to less"
    )
    for context in (None, 2048):
        with pytest.raises(ValueError, match=message):
            fit_state(LAYERS, model_context=4096, lanes=2, context=context)
    with pytest.raises(ValueError, match=message):
        fit_state((*LAYERS, RECURRENT), model_context=4096, lanes=2, free=LANE_BYTES)
    with pytest.raises(ValueError, match="use --parallel 1 or less"):
        fit_state((*LAYERS, RECURRENT), model_context=4096, lanes=2, free=2 * LANE_BYTES)


def test_what_is_free_leaves_a_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSORFOLD_MEMORY_RESERVE_GIB", raising=False)
    monkeypatch.setattr(memory, "_system_memory", lambda: (64 * GIB, 40 * GIB))
    monkeypatch.setattr(memory, "_cgroup_memory", lambda: [])
    assert free_bytes() == int(40 * GIB - 6.4 * GIB)
    monkeypatch.setenv("TENSORFOLD_MEMORY_RESERVE_GIB", "2.5")
    assert free_bytes() == int(37.5 * GIB)
    monkeypatch.setenv("TENSORFOLD_MEMORY_RESERVE_GIB", "100")
    assert free_bytes() == 0


@pytest.mark.parametrize("reserve", ["much", "inf", "nan", "-1"])
def test_a_reserve_that_is_none(reserve: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORFOLD_MEMORY_RESERVE_GIB", reserve)
    with pytest.raises(
        ValueError, match=f"^TENSORFOLD_MEMORY_RESERVE_GIB must be a finite number .*'{reserve}'$"
    ):
        free_bytes()


def test_a_control_group_bounds_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSORFOLD_MEMORY_RESERVE_GIB", raising=False)
    monkeypatch.setattr(memory, "_system_memory", lambda: (64 * GIB, 40 * GIB))
    monkeypatch.setattr(memory, "_cgroup_memory", lambda: [(8 * GIB, 3 * GIB)])
    assert free_bytes() == 4 * GIB


@pytest.mark.parametrize("controller", ["", "memory"])
def test_every_control_group_around_the_process_counts(controller: str, tmp_path: Path) -> None:
    limit, used, cache = memory._FILES[controller]
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text(
        f"3:cpu,cpuacct:/other\n{int(bool(controller))}:{controller}:/slice/unit.service\n"
    )

    def group(path: str, bound: str, taken: int, dropped: int) -> None:
        folder = root / controller / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / limit).write_text(f"{bound}\n")
        (folder / used).write_text(f"{taken}\n")
        (folder / "memory.stat").write_text(f"anon 5\n{cache} {dropped}\n")

    group("slice/unit.service", str(4 * GIB), GIB, GIB // 2)
    group("slice", str(8 * GIB), 7 * GIB, 0)
    group("", "max", 9 * GIB, 0)
    group("slice/other", str(GIB), 0, 0)
    assert memory._cgroup_memory(root, own) == [(4 * GIB, GIB // 2), (8 * GIB, 7 * GIB)]


def test_a_container_finds_its_own_limit_at_the_root(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/host/names/it/so\n")
    (tmp_path / "memory.max").write_text(f"{2 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB}\n")
    (tmp_path / "memory.stat").write_text("inactive_file 0\n")
    assert memory._cgroup_memory(tmp_path, own) == [(2 * GIB, GIB)]
    assert memory._cgroup_memory(tmp_path, tmp_path / "none") == []


def test_this_machine_has_memory() -> None:
    total, available = memory._system_memory()
    assert Path("/").exists() and 0 < available <= total
