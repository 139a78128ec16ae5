"""A start with what an earlier one kept: nothing traced, nothing packed, the same bits."""

import logging
import shutil
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tiny import open_step, save_folder, tiny_checkpoint

from tensorfold.checkpoints.folder import FolderCheckpoint
from tensorfold.checkpoints.interface import Progress
from tensorfold.engine import start
from tensorfold.engine.start import open_step_function, start_engine
from tensorfold.runtime import build
from tensorfold.runtime.kept import KeptFiles
from tensorfold.runtime.memory import fit_state
from tensorfold.runtime.probe import run_alone
from tensorfold.runtime.step import StateShape, StepFunction

ONE_BUCKET = (8,)
FREE = 10**9
"""Bytes. Programs are of a number of pages, which the memory that is free decides."""


def make_starts_alike(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tensorfold.runtime.step.BUCKETS", ONE_BUCKET)
    patch.setattr(start, "free_bytes", lambda: FREE)


@pytest.fixture(autouse=True)
def starts_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    make_starts_alike(monkeypatch)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[list[int]]]:
    """(a checkpoint's folder, what a first start kept, the answers of its probe)."""
    root = tmp_path_factory.mktemp("warm")
    folder = save_folder(root / "model")
    with pytest.MonkeyPatch.context() as patch:
        make_starts_alike(patch)
        step = open_model(folder, root / "kept")
        start_engine(step).close()
        return folder, root / "kept", run_alone(step)


def open_model(
    folder: Path, kept: Path, progress: Callable[[Progress], None] | None = None
) -> StepFunction:
    return open_step_function(
        FolderCheckpoint(folder), lanes=2, context=128, progress=progress, kept=KeptFiles(kept)
    )


def copy_of(kept: Path, target: Path) -> Path:
    return Path(shutil.copytree(kept, target / "kept"))


def never(*arguments: object, **names: object) -> None:
    raise AssertionError("a warm start has no need of this")


def test_a_warm_start_neither_traces_nor_reads_nor_probes(
    first: tuple[Path, Path, list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kept, answers = first
    names = {path.name.split("-")[0] for path in kept.iterdir()}
    assert names == {"weights", "program", "probe"}
    monkeypatch.setattr("jax.stages.Lowered.compile", never)
    monkeypatch.setattr(StepFunction, "_lower", never)
    monkeypatch.setattr(StepFunction, "_lower_head", never)
    monkeypatch.setattr(StepFunction, "_lower_copy", never)
    monkeypatch.setattr(FolderCheckpoint, "read", never)
    monkeypatch.setattr(start, "probe_step", never)
    events: list[object] = []
    step = open_model(folder, kept, events.append)
    assert events == []
    start_engine(step).close()
    assert run_alone(step) == answers


@pytest.mark.parametrize("kind", ["weights", "program", "probe"])
def test_a_damaged_file_is_made_anew(
    first: tuple[Path, Path, list[list[int]]], tmp_path: Path, kind: str
) -> None:
    folder, kept, answers = first
    kept = copy_of(kept, tmp_path)
    path = sorted(kept.glob(f"{kind}-*"))[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    step = open_model(folder, kept)
    start_engine(step).close()
    assert run_alone(step) == answers
    assert KeptFiles(kept).read(path.name) is not None


def test_a_program_that_cannot_be_loaded_is_compiled(
    first: tuple[Path, Path, list[list[int]]], tmp_path: Path
) -> None:
    folder, kept, answers = first
    kept = copy_of(kept, tmp_path)
    path = sorted(kept.glob("program-*"))[0]
    KeptFiles(kept).write(path.name, [b"whole, but not a program"])
    assert run_alone(open_model(folder, kept)) == answers


def test_weights_that_give_other_bits_are_read_again(
    first: tuple[Path, Path, list[list[int]]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, kept, answers = first
    kept = copy_of(kept, tmp_path)
    [path] = kept.glob("weights-*")
    content = bytearray(KeptFiles(kept).read(path.name) or b"")
    content[-4:] = np.float32(3.0).tobytes()
    KeptFiles(kept).write(path.name, [content])
    with caplog.at_level(logging.WARNING):
        step = open_model(folder, kept)
    assert "gives other bits: not used" in caplog.text
    start_engine(step).close()
    assert run_alone(step) == answers
    assert list(kept.iterdir()) == []


def test_another_state_is_sized_without_the_one_given_up(
    first: tuple[Path, Path, list[list[int]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kept, _ = first
    given_up: list[weakref.ref[StepFunction]] = []
    alive = []

    def fails(step: StepFunction) -> bool:
        given_up.append(weakref.ref(step))
        return False

    def fit(*arguments: object, **named: object) -> StateShape:
        alive.append(any(step() for step in given_up))
        return fit_state(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(start, "_works", fails)
    monkeypatch.setattr(start, "fit_state", fit)
    open_model(folder, copy_of(kept, tmp_path))
    assert given_up and alive[-1] is False


def test_a_checkpoint_that_was_rewritten_is_read_again(
    first: tuple[Path, Path, list[list[int]]], tmp_path: Path
) -> None:
    folder, kept, answers = first
    changed = Path(shutil.copytree(folder, tmp_path / "model"))
    kept = copy_of(kept, tmp_path)
    step = open_model(changed, kept)
    assert run_alone(step) == answers
    weights = changed / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-400:] = bytes(400)
    weights.write_bytes(content)
    assert run_alone(open_model(changed, kept)) != answers


def test_nothing_is_kept_of_a_checkpoint_in_no_file(tmp_path: Path) -> None:
    kept = KeptFiles(tmp_path)
    checkpoint = tiny_checkpoint(num_hidden_layers=1)
    step = open_step_function(checkpoint, lanes=2, context=64, kept=kept)
    start_engine(step).close()
    assert {path.name.split("-")[0] for path in tmp_path.iterdir()} == {"program"}


def test_a_program_s_name_tells_apart_all_that_could_change_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = tiny_checkpoint(num_hidden_layers=1)
    step = open_step(checkpoint, buckets=ONE_BUCKET)
    names = [step.kept_names()]

    def named(model: object = step.model, shape: StateShape = step.shape) -> None:
        other = object.__new__(StepFunction)
        other.model, other.shape, other.buckets = model, shape, ONE_BUCKET
        other._head, other._layers, other.width = step._head, step._layers, step.width
        names.append(other.kept_names())

    named(replace(step.model, config=step.model.config | {"rope_theta": 5000.0}))
    named(replace(step.model, leaves=step.model.leaves[::-1]))
    named(shape=replace(step.shape, lanes=3))
    named(shape=replace(step.shape, context=320))
    named(shape=replace(step.shape, pages=17))
    named(shape=replace(step.shape, snapshots=5))
    with monkeypatch.context() as patch:
        patch.setenv("TENSORFOLD_KERNELS", "xla")
        named()
    with monkeypatch.context() as patch:
        patch.setattr("tensorfold.kernels_cpu.level", lambda: "another level")
        named()
    with monkeypatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
        named()
    with monkeypatch.context() as patch:
        patch.setattr(build, "_processor", lambda: ["another processor"])
        named()
    with monkeypatch.context() as patch:
        patch.setattr(build, "_sources", lambda: "another source")
        named()
    assert len({name for each in names for name in each.values()}) == len(names[0]) * len(names)
    named()
    assert names[-1] == names[0]


def test_a_context_too_long_costs_no_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tiny_checkpoint()
    monkeypatch.setattr(type(checkpoint), "read", never)
    with pytest.raises(ValueError, match="--context 513 is more than the model's 512"):
        open_step_function(checkpoint, lanes=1, context=513, kept=KeptFiles(tmp_path))


def test_mapped_weights_are_not_taken_for_free_memory(
    first: tuple[Path, Path, list[list[int]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kept, _ = first
    free: list[int] = []

    def fit(*layers: object, **given: Any) -> StateShape:
        free.append(given["free"])
        return fit_state(*layers, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(start, "fit_state", fit)
    step = open_model(folder, copy_of(kept, tmp_path))
    weights = sum(array.nbytes for array in jax.tree.leaves(step.model.leaves))
    assert weights > 10_000
    assert free == [FREE, FREE - weights]
