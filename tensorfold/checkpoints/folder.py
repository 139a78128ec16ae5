"""A checkpoint in a Hugging Face folder: config.json, safetensors and a tokenizer."""

import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from . import folder_quantised
from .folder_tokenizer import open_tokenizer, read_special_tokens
from .interface import (
    FLOATS,
    Checkpoint,
    CheckpointError,
    GenerationDefaults,
    Tensor,
    TensorInfo,
    WeightsFile,
)

_BYTES = ("F8_E4M3", "F8_E8M0")
"""Formats that safetensors has no NumPy type for."""

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no file. Raises CheckpointError."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return found


def _shard_names(folder: Path) -> dict[str, list[str] | None]:
    """The safetensors files, each with the tensors the index promises (None: no index)."""
    if (folder / _WEIGHTS).exists():
        return {_WEIGHTS: None}
    places = read_json(folder / _INDEX).get("weight_map")
    if places is None:
        raise CheckpointError(f"{folder}: no {_WEIGHTS} and no {_INDEX}")
    if not isinstance(places, dict) or not all(isinstance(each, str) for each in places.values()):
        raise CheckpointError(f"{folder / _INDEX}: no weight_map of file names")
    shards: dict[str, list[str] | None] = {}
    for tensor, shard in places.items():
        if Path(shard).name != shard:
            raise CheckpointError(f"{folder / _INDEX}: {shard!r} is not a file of the folder")
        promised = shards.setdefault(shard, [])
        if promised is not None:
            promised.append(tensor)
    return shards


def _open(path: Path) -> Any:
    """The file's handle; its methods have no types."""
    return safe_open(path, framework="numpy")


class _Shard:
    """An opened safetensors file."""

    def __init__(self, path: Path, promised: list[str] | None):
        if not path.is_file():
            raise CheckpointError(f"{path}: missing")
        self._path = path
        try:
            self._file: Any = _open(path)
            # The handle is no mapping: it has keys() but can't be iterated.
            self.infos = {name: self._describe(name) for name in self._file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: damaged safetensors file: {error}") from error
        for name in promised or []:
            if name not in self.infos:
                raise CheckpointError(f"{path}: no tensor {name!r}, which the index promises")

    def _describe(self, name: str) -> TensorInfo:
        part = self._file.get_slice(name)
        return TensorInfo(tuple(part.get_shape()), part.get_dtype())

    def read(self, name: str) -> np.ndarray:
        """A tensor of floats."""
        info = self.infos[name]
        if info.format not in FLOATS:
            known = ", ".join(FLOATS)
            raise CheckpointError(
                f"{self._path}: tensor {name!r} is {info.format}, which is not supported "
                f"(known: {known})"
            )
        return self.read_stored(name)

    def read_stored(self, name: str) -> np.ndarray:
        """A tensor of any type that a quantised one is stored in; 8-bit floats as uint8."""
        info = self.infos[name]
        try:
            if info.format in _BYTES:
                at = self._starts[name]
                stored = np.fromfile(self._path, np.uint8, math.prod(info.shape), offset=at)
                return stored.reshape(info.shape)
            values: np.ndarray = self._file.get_tensor(name)
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{self._path}: tensor {name!r}: {error}") from error
        return values

    @cached_property
    def _starts(self) -> dict[str, int]:
        """Where each tensor begins in the file: its header is JSON behind an 8-byte length."""
        with self._path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        return {name: 8 + length + each["data_offsets"][0] for name, each in header.items()}


def _end_ids(path: Path, settings: Mapping[str, Any]) -> frozenset[int]:
    """`eos_token_id`: absent, one id or a list of ids."""
    found = settings.get("eos_token_id")
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(isinstance(each, int) for each in ids):
        raise CheckpointError(f"{path}: eos_token_id is {found!r}")
    return frozenset(ids)


def _number(path: Path, settings: Mapping[str, Any], key: str) -> float | None:
    found = settings.get(key)
    if found is not None and (isinstance(found, bool) or not isinstance(found, int | float)):
        raise CheckpointError(f"{path}: {key} is {found!r}")
    return found


def _generation(path: Path, settings: Mapping[str, Any]) -> GenerationDefaults:
    """The sampling that generation_config.json asks for; nothing if it asks for none."""
    if settings.get("do_sample") is False:
        return GenerationDefaults()
    top_k = _number(path, settings, "top_k")
    return GenerationDefaults(
        temperature=_number(path, settings, "temperature"),
        top_k=None if top_k is None else int(top_k),
        top_p=_number(path, settings, "top_p"),
        min_p=_number(path, settings, "min_p"),
    )


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, or tokenizer_config.json's: a string, or a list with a "default"."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path}: {error}") from error
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = [each for each in found if isinstance(each, dict)]
        found = next(
            (each.get("template") for each in named if each.get("name") == "default"), None
        )
    return found if isinstance(found, str) else None


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{path}: missing")
    config = read_json(path)
    # Older exports of NVIDIA's Model Optimizer say in a file of their own that they are quantised.
    if "quantization_config" not in config and read_json(folder / "hf_quant_config.json"):
        config["quantization_config"] = {"quant_method": "modelopt"}
    return config


class FolderCheckpoint(Checkpoint):
    """A `Checkpoint` in a Hugging Face folder. Weights are read one tensor at a time."""

    def __init__(self, folder: Path):
        """Open `folder`.

        Raises CheckpointError, naming the file, for one that is missing, damaged or of an
        unsupported format.
        """
        self.name = folder.resolve().name
        self._folder = folder
        self.config = _config(folder)
        try:
            method = folder_quantised.read_method(self.config)
        except CheckpointError as error:
            raise CheckpointError(f"{folder / 'config.json'}: {error}") from None
        self._find_tensors()
        self._quantised: dict[str, folder_quantised.StoredQuantised] = {}
        if method:
            self._find_quantised(method)
        settings = read_json(folder / "tokenizer_config.json")
        self.special_tokens = read_special_tokens(
            settings, read_json(folder / "special_tokens_map.json")
        )
        self.tokenizer = open_tokenizer(folder, settings, self.special_tokens)
        self.chat_template = _chat_template(folder, settings)
        path = folder / "generation_config.json"
        generation = read_json(path)
        self.generation = _generation(path, generation)
        self.end_ids = (
            _end_ids(folder / "config.json", self.config)
            | _end_ids(path, generation)
            | self.tokenizer.end_ids
        )

    def _find_tensors(self) -> None:
        self._shard_of: dict[str, _Shard] = {}
        infos: dict[str, TensorInfo] = {}
        shards = _shard_names(self._folder)
        self.files = tuple(WeightsFile.of(self._folder / shard_name) for shard_name in shards)
        for shard_name, promised in shards.items():
            shard = _Shard(self._folder / shard_name, promised)
            for name, info in shard.infos.items():
                if name in infos:
                    raise CheckpointError(
                        f"{self._folder / shard_name}: tensor {name!r} is in another shard too"
                    )
                infos[name] = info
                self._shard_of[name] = shard
        self.tensors = infos

    def _find_quantised(self, method: folder_quantised.Method) -> None:
        """Put what is stored in parts under the model's names."""
        try:
            self._quantised, hidden = folder_quantised.find(method, self.tensors)
        except CheckpointError as error:
            raise CheckpointError(f"{self._folder}: {error}") from None
        plain = {name: info for name, info in self.tensors.items() if name not in hidden}
        for name, each in self._quantised.items():
            if name in plain:
                raise CheckpointError(f"{self._folder}: tensor {name!r} is there quantised too")
            plain[name] = each.info
        self.tensors = plain

    def read(self, name: str) -> Tensor:
        """One tensor, in the precision of its file, or what `folder_quantised` makes of its parts.

        Raises CheckpointError for a missing or damaged tensor, or one that is neither quantised nor
        F32, F16 or BF16.
        """
        if name not in self.tensors:
            raise CheckpointError(f"{self._folder}: no tensor {name!r}")
        quantised = self._quantised.get(name)
        if quantised is None:
            return self._shard_of[name].read(name)
        parts = [self._shard_of[part].read_stored(part) for part in quantised.parts]
        try:
            return quantised.unpack(*parts)
        except CheckpointError as error:
            raise CheckpointError(f"{self._folder}: {error}") from None
