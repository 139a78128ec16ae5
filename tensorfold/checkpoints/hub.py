"""Where checkpoints live and how a name finds one.

A name is a folder or file on this machine, nothing (the default model), or on Hugging Face's hub
`ORG/REPO`, `ORG/REPO/FILE.gguf` or `ORG/REPO:QUANT`.
"""

import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .converted import ABOUT, ConvertedCheckpoint
from .default_model import DEFAULT_MODEL, fetch_default
from .folder import FolderCheckpoint
from .gguf_file import GgufCheckpoint
from .interface import Checkpoint, CheckpointError, Progress

# huggingface_hub is imported where it is used: most starts find their files here.

_FILES = [
    "config.json",
    "hf_quant_config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*.safetensors",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
]

_HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:/([\w./-]+\.gguf)|:([\w.-]+))?")

_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def ignore_progress(_event: Progress) -> None:
    """A `progress` callback that shows nothing."""


def home() -> Path:
    """The folder for everything TensorFold stores: TENSORFOLD_HOME or ~/.cache/tensorfold."""
    chosen = os.environ.get("TENSORFOLD_HOME")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "tensorfold"


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a `.gguf` file, a Hugging Face folder or one of `tensorfold convert`.

    Raises CheckpointError.
    """
    if (path / ABOUT).is_file():
        return ConvertedCheckpoint(path)
    if path.is_dir():
        found = sorted(path.glob("*.gguf"))
        if (path / "config.json").exists() or not found:
            return FolderCheckpoint(path)
        if len(_whole_files([each.name for each in found])) > 1:
            names = ", ".join(each.name for each in found)
            raise CheckpointError(f"{path}: several GGUF files, name one of: {names}")
        return GgufCheckpoint(found[0])
    if path.suffix == ".gguf":
        return GgufCheckpoint(path)
    raise CheckpointError(f"{path}: neither a folder nor a .gguf file")


def resolve(name: str | None, progress: Callable[[Progress], None] = ignore_progress) -> Path:
    """The path of the checkpoint `name`, fetched first if need be, for `open_checkpoint`.

    Raises CheckpointError, one line with what to do, if there is none or it can't be fetched.
    """
    if name is not None:
        path = Path(name).expanduser()
        if path.is_dir() or path.is_file():
            return path
    if name is None or name == DEFAULT_MODEL:
        return fetch_default(home() / "models", progress)
    match = _HUB_NAME.fullmatch(name)
    if match is None or name.startswith("."):
        raise CheckpointError(
            f"{name}: no such folder or file, and not a name on the hub (ORG/REPO)"
        )
    return _fetch(_HubName(match[1], match[2], match[3]), progress)


def pull(name: str | None, progress: Callable[[Progress], None] = ignore_progress) -> Path:
    """Fetch the checkpoint `name` now, so that a later `resolve` needs no network."""
    return resolve(name, progress)


@dataclass(frozen=True)
class _HubName:
    """A repository, and which of its GGUF files, if the name says."""

    repo: str
    file: str | None
    quant: str | None


def _whole_files(names: list[str]) -> list[str]:
    """GGUF files, of a split one only the first part."""
    return sorted(
        name
        for name in names
        if name.endswith(".gguf") and (not _PART.search(name) or "-00001-of-" in name)
    )


def _pick(name: _HubName, files: list[str]) -> str | None:
    """The GGUF file that `name` means; None for a repository with safetensors."""
    found = _whole_files(files)
    if name.file is not None:
        if name.file not in files:
            raise CheckpointError(f"{name.repo} has no file {name.file}")
        return name.file
    listed = ", ".join(found) or "none"
    if name.quant is not None:
        ends = re.compile(rf"(^|[-./]){re.escape(name.quant)}(-\d{{5}}-of-\d{{5}})?\.gguf", re.I)
        matching = [file for file in found if ends.search(file)]
        if len(matching) != 1:
            raise CheckpointError(
                f"{name.repo}: {len(matching)} GGUF files fit {name.quant!r} (files: {listed})"
            )
        return matching[0]
    if any(file.endswith(".safetensors") for file in files) or not found:
        return None
    raise CheckpointError(
        f"{name.repo} has only GGUF files, name one as {name.repo}/FILE.gguf: {listed}"
    )


def _all_parts(file: str) -> str:
    """A pattern for every part of a split file, or the file itself."""
    return _PART.sub("-*.gguf", file)


def _reporter(task: str, progress: Callable[[Progress], None]) -> type[Any]:
    """A progress bar class for huggingface_hub that draws nothing and tells `progress`."""
    from huggingface_hub.utils import tqdm

    class Reporter(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **(kwargs | {"file": io.StringIO()}))

        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            # One more bar counts files.
            if self.unit == "B":
                progress(Progress(task, int(self.n), int(self.total or 0)))

    return Reporter


def _fetch(name: _HubName, progress: Callable[[Progress], None]) -> Path:
    import huggingface_hub.constants
    from huggingface_hub import errors

    try:
        if huggingface_hub.constants.HF_HUB_OFFLINE:
            return _from_cache(name)
        listed = huggingface_hub.HfApi().model_info(name.repo, timeout=10).siblings or []
        file = _pick(name, [each.rfilename for each in listed])
        folder = huggingface_hub.snapshot_download(
            name.repo,
            allow_patterns=_FILES if file is None else [_all_parts(file)],
            tqdm_class=_reporter(f"Fetching {name.repo}", progress),
        )
        return Path(folder) if file is None else Path(folder) / file
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"{name.repo} is gated: accept its terms on huggingface.co and log in (hf auth login)"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{name.repo}: not on the hub, or private (then log in: hf auth login)"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise CheckpointError(f"{name.repo}: not in the cache, and the hub is offline") from error
    except CheckpointError:
        raise
    except Exception as error:  # a network fails in the ways of whichever HTTP client is in use
        # What was fetched before still serves.
        return _from_cache(name, str(error).splitlines()[0] if str(error) else repr(error))


def _from_cache(name: _HubName, reason: str = "HF_HUB_OFFLINE is set") -> Path:
    import huggingface_hub
    from huggingface_hub import errors

    try:
        folder = Path(huggingface_hub.snapshot_download(name.repo, local_files_only=True))
    except (errors.HFValidationError, OSError) as error:
        raise CheckpointError(
            f"{name.repo}: not in the cache, and the hub can't be asked ({reason})"
        ) from error
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    file = _pick(name, files)
    return folder if file is None else folder / file
