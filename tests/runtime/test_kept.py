"""Files kept for the next start: whole, checked, bounded."""

import os
import time
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tensorfold.runtime.kept import BORDER, KeptFiles

_SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_what_is_kept_comes_back_at_a_border(tmp_path: Path) -> None:
    kept = KeptFiles(tmp_path / "new" / "folder")
    assert kept.read("a") is None
    assert kept.write("a", [b"one ", memoryview(b"two")])
    found = kept.read("a")
    assert found is not None and bytes(found) == b"one two"
    assert np.frombuffer(found, np.uint8).ctypes.data % BORDER == 0
    assert kept.write("a", [b"another"])
    assert bytes(found) == b"one two"  # Who reads an old one keeps it.
    assert bytes(kept.read("a") or b"") == b"another"
    assert [path.name for path in kept.folder.iterdir()] == ["a"]
    kept.remove("a")
    kept.remove("a")
    assert kept.read("a") is None


@_SAME_FOLDER
@given(size=st.integers(0, 200), at=st.integers(0, 10**6), change=st.integers(1, 255))
def test_one_changed_byte_is_noticed(tmp_path: Path, size: int, at: int, change: int) -> None:
    kept = KeptFiles(tmp_path)
    kept.write("a", [os.urandom(size)])
    content = bytearray((tmp_path / "a").read_bytes())
    content[at % len(content)] ^= change
    (tmp_path / "a").write_bytes(content)
    assert kept.read("a") is None


@_SAME_FOLDER
@given(size=st.integers(0, 200), left=st.integers(0, 300))
def test_a_file_cut_or_drawn_out_is_noticed(tmp_path: Path, size: int, left: int) -> None:
    kept = KeptFiles(tmp_path)
    kept.write("a", [os.urandom(size)])
    content = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(content[:left].ljust(left, b"\0"))
    assert (kept.read("a") is None) == (left != len(content))


def test_the_longest_unused_goes_first(tmp_path: Path) -> None:
    kept = KeptFiles(tmp_path, limit_bytes=3 * (BORDER + 100))
    for age, name in enumerate("abc"):
        assert kept.write(name, [bytes(100)])
        os.utime(tmp_path / name, (1000 + age, 1000 + age))
    assert kept.read("a") is not None
    assert kept.write("d", [bytes(100)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c", "d"]
    assert not kept.write("e", [bytes(500)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c", "d"]


def test_a_folder_that_is_none_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    kept = KeptFiles(tmp_path / "file")
    assert not kept.write("a", [b"x"])
    assert kept.read("a") is None
    kept.clear()


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*paths: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    assert not KeptFiles(tmp_path).write("a", [b"x"])
    assert list(tmp_path.iterdir()) == []


def test_what_an_ended_process_left_half_written_goes(tmp_path: Path) -> None:
    kept = KeptFiles(tmp_path)
    for name, age in (("new-old", 4000), ("new-now", 0), ("old", 4000)):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    assert kept.write("a", [b"whole"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "new-now", "old"]
