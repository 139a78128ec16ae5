"""A checkpoint in a GGUF file, or in the numbered parts of one."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from . import gguf_blocks
from .gguf_config import architecture, build_config
from .gguf_experts import alternate, find_pairs
from .gguf_header import GgufHeader, GgufTensor, read_header
from .gguf_names import ROPE_FACTORS, hugging_face_name
from .gguf_tokenizer import build_tokenizer, special_tokens
from .interface import (
    FLOATS,
    Checkpoint,
    CheckpointError,
    GenerationDefaults,
    Quantised,
    Tensor,
    TensorInfo,
    WeightsFile,
)
from .joining import take_rows

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})")

_ROTATED = re.compile(r"model\.layers\.\d+\.self_attn\.([qk])_proj\.(weight|bias)")

_FILTERS = ".conv.conv.weight"
"""Short convolutions: Hugging Face has an axis more, of length 1."""


def _part_paths(path: Path) -> tuple[str, list[Path]]:
    """(name of the checkpoint, all its files), whichever part of a split file `path` is."""
    match = _PART.fullmatch(path.stem)
    if match is None:
        return path.stem, [path]
    name, count = match[1], int(match[3])
    return name, [
        path.with_name(f"{name}-{part:05}-of-{match[3]}.gguf") for part in range(1, count + 1)
    ]


def _check_type(tensor: GgufTensor) -> None:
    if tensor.format in FLOATS:
        return
    if tensor.format not in gguf_blocks.FORMATS:
        known = ", ".join([*FLOATS, *gguf_blocks.FORMATS])
        raise CheckpointError(
            f"tensor {tensor.name!r} is {tensor.format}, which is not supported (known: {known})"
        )
    if len(tensor.shape) < 2:
        raise CheckpointError(
            f"tensor {tensor.name!r} is {tensor.format} of shape {list(tensor.shape)}; "
            "only matrices can be quantised"
        )


def _collect(headers: list[GgufHeader], arch: str) -> dict[str, GgufTensor]:
    """All parts' tensors by Hugging Face's names, and `ROPE_FACTORS` by its own."""
    found: dict[str, GgufTensor] = {}
    for header in headers:
        for tensor in header.tensors.values():
            name = hugging_face_name(tensor.name, arch)
            if tensor.name == ROPE_FACTORS:
                name = ROPE_FACTORS
            if name is None:
                raise CheckpointError(f"tensor {tensor.name!r} is not known")
            if name in found:
                raise CheckpointError(f"tensor {tensor.name!r} is in two parts")
            if name.endswith(_FILTERS) and len(tensor.shape) == 2:
                tensor = replace(tensor, shape=(tensor.shape[0], 1, tensor.shape[1]))
            _check_type(tensor)
            found[name] = tensor
    return found


def _pair_order(rows: int, heads: int) -> np.ndarray:
    """Where each row of Hugging Face's q or k is in llama.cpp's.

    Hugging Face rotates row i of a head with row i + half, llama.cpp with its neighbour.
    """
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _decode(tensor: GgufTensor) -> Tensor:
    if tensor.format in FLOATS:
        return tensor.data.view(FLOATS[tensor.format]).reshape(tensor.shape)
    rows = math.prod(tensor.shape[:-1])
    return gguf_blocks.unpack(tensor.data.reshape(rows, -1), tensor.format)


class GgufCheckpoint(Checkpoint):
    """A `Checkpoint` in GGUF. Float tensors are read-only views of the mapped file."""

    def __init__(self, path: Path):
        """Open `path`, or all parts if it is one of a split file.

        Raises CheckpointError, naming the file, for a damaged or truncated file and for an
        architecture, tensor, tensor type or tokenizer that is not known.
        """
        self.name, paths = _part_paths(path)
        self.files = tuple(WeightsFile.of(part) for part in paths)
        headers = [read_header(part) for part in paths]
        self._path = path
        try:
            self._describe(headers)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise CheckpointError(f"{path}: damaged GGUF metadata: {error}") from error

    def _describe(self, headers: list[GgufHeader]) -> None:
        metadata = headers[0].metadata
        found = _collect(headers, architecture(metadata))
        factors = found.pop(ROPE_FACTORS, None)
        self._found = found
        self._pairs = find_pairs(found)
        self.tensors = self._infos()
        values = None if factors is None else np.asarray(_decode(factors), np.float32).tolist()
        self.config = build_config(metadata, self.tensors, values)
        self._check_heads()
        self.tokenizer = build_tokenizer(metadata)
        template = metadata.get("tokenizer.chat_template")
        self.chat_template = template if isinstance(template, str) else None
        self.special_tokens = special_tokens(metadata)
        self.end_ids = self.tokenizer.end_ids
        self.generation = GenerationDefaults()

    def _infos(self) -> dict[str, TensorInfo]:
        """The tensors with pairs of them as one, of which the gates' format is named."""
        infos = {name: TensorInfo(each.shape, each.format) for name, each in self._found.items()}
        for whole, pair in self._pairs.items():
            gates, ups = (infos.pop(name) for name in pair)
            if gates.shape != ups.shape:
                raise CheckpointError(
                    f"tensor {whole!r} is {list(gates.shape)} and {list(ups.shape)}"
                )
            experts, width, *columns = gates.shape
            infos[whole] = replace(gates, shape=(experts, 2 * width, *columns))
        return infos

    def _check_heads(self) -> None:
        """That q and k can be put back in Hugging Face's order."""
        for name, info in self.tensors.items():
            heads = self._heads(name)
            if heads is not None and (heads < 1 or info.shape[0] % (2 * heads)):
                raise CheckpointError(f"tensor {name!r} of {info.shape[0]} rows has {heads} heads")

    def _heads(self, name: str) -> int | None:
        """The heads of a tensor whose rows llama.cpp reorders; None for all others."""
        match = _ROTATED.fullmatch(name)
        if match is None or self.config["model_type"] != "llama":
            return None
        key = "num_attention_heads" if match[1] == "q" else "num_key_value_heads"
        return int(self.config[key])

    def read(self, name: str) -> Tensor:
        """One tensor by Hugging Face's name, in the precision of the file.

        Raises CheckpointError for a name the file does not have.
        """
        if name in self._pairs:
            gates, ups = (_decode(self._found[half]) for half in self._pairs[name])
            both = alternate(gates, ups)
            if isinstance(both, Quantised):
                return both
            return both.reshape(self.tensors[name].shape)
        tensor = self._found.get(name)
        if tensor is None:
            raise CheckpointError(f"{self._path}: no tensor {name!r}")
        values = _decode(tensor)
        if self.config["model_type"] == "gemma3" and name.endswith("norm.weight"):
            # llama.cpp stores the scale, Hugging Face what it has above 1.
            return np.asarray(values, np.float32) - np.float32(1)
        heads = self._heads(name)
        if heads is None:
            return values
        return take_rows(values, _pair_order(tensor.shape[0], heads))
