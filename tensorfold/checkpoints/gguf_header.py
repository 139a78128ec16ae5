"""The header of a GGUF file: metadata, and where each tensor lies.

Little-endian, version 2 or 3: a magic, three counts, key/value pairs, tensor descriptions, padding,
then the tensors. `gguf.GGUFReader` makes several arrays for every element of a list, 20 seconds
for a vocabulary of 262144; here a list of numbers is one array and a list of strings one loop.
Every length is checked against the file before it is believed.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGUF_MAGIC,
    GGMLQuantizationType,
    GGUFValueType,
)

from .interface import CheckpointError

_VERSIONS = (2, 3)

_MAX_DIMENSIONS = 4

_NUMBERS: dict[GGUFValueType, np.dtype[Any]] = {
    GGUFValueType.UINT8: np.dtype("u1"),
    GGUFValueType.INT8: np.dtype("i1"),
    GGUFValueType.UINT16: np.dtype("<u2"),
    GGUFValueType.INT16: np.dtype("<i2"),
    GGUFValueType.UINT32: np.dtype("<u4"),
    GGUFValueType.INT32: np.dtype("<i4"),
    GGUFValueType.UINT64: np.dtype("<u8"),
    GGUFValueType.INT64: np.dtype("<i8"),
    GGUFValueType.FLOAT32: np.dtype("<f4"),
    GGUFValueType.FLOAT64: np.dtype("<f8"),
    GGUFValueType.BOOL: np.dtype("?"),
}


@dataclass(frozen=True)
class GgufTensor:
    """A tensor's place in its file. `shape` is in Hugging Face's order (columns last)."""

    name: str
    format: str
    shape: tuple[int, ...]
    data: np.ndarray
    """Its bytes, uint8 [size], a view of the mapped file."""


@dataclass(frozen=True)
class GgufHeader:
    """An opened GGUF file. Lists of numbers in `metadata` are arrays, lists of strings lists."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


class _Damaged(Exception):
    """What is wrong with the file, without its name."""


class _Cursor:
    """Reads forward through the mapped bytes and never past their end."""

    def __init__(self, data: np.ndarray):
        self._data = data
        self._bytes = data.data
        self.at = 0

    def take(self, size: int) -> int:
        """Skip `size` bytes; returns where they start."""
        start = self.at
        if size > len(self._bytes) - start:
            raise _Damaged("the file ends in the middle of its header")
        self.at = start + size
        return start

    def unpack(self, form: str) -> int:
        """One little-endian integer of struct format `form`."""
        layout = struct.Struct("<" + form)
        value: int = layout.unpack_from(self._bytes, self.take(layout.size))[0]
        return value

    def string(self) -> str:
        """A string: its length in 64 bits, then UTF-8."""
        size = self.unpack("Q")
        start = self.take(size)
        return str(self._bytes[start : start + size], "utf-8")

    def strings(self, count: int) -> list[str]:
        """`count` strings, as `string` reads them: a vocabulary has 100,000 and more."""
        data, at, end, length = self._bytes, self.at, len(self._bytes), struct.Struct("<Q")
        found = []
        for _ in range(count):
            begin = at + length.size
            at = begin + length.unpack_from(data, at)[0] if begin <= end else end + 1
            if at > end:
                raise _Damaged("the file ends in the middle of its header")
            found.append(str(data[begin:at], "utf-8"))
        self.at = at
        return found

    def numbers(self, dtype: np.dtype[Any], count: int) -> np.ndarray:
        """`count` numbers as one array, copied out of the file."""
        size = dtype.itemsize * count
        start = self.take(size)
        return self._data[start : start + size].copy().view(dtype)

    def value(self, kind: GGUFValueType) -> Any:
        """A metadata value of type `kind`."""
        if kind == GGUFValueType.STRING:
            return self.string()
        if kind in _NUMBERS:
            return self.numbers(_NUMBERS[kind], 1)[0].item()
        inner, count = GGUFValueType(self.unpack("I")), self.unpack("Q")
        if inner in _NUMBERS:
            return self.numbers(_NUMBERS[inner], count)
        if inner != GGUFValueType.STRING:
            raise _Damaged("a list of lists in its metadata")
        return self.strings(count)


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string()
        if key in metadata:
            raise _Damaged(f"metadata key {key!r} twice")
        metadata[key] = cursor.value(GGUFValueType(cursor.unpack("I")))
    return metadata


def _describe(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """(name, shape, type number, offset in the data part) of the next tensor."""
    name = cursor.string()
    dimensions = cursor.unpack("I")
    if dimensions > _MAX_DIMENSIONS:
        raise _Damaged(f"tensor {name!r} with {dimensions} dimensions")
    # GGUF puts the fastest-varying dimension first.
    shape = tuple(cursor.unpack("Q") for _ in range(dimensions))[::-1]
    return name, shape, cursor.unpack("I"), cursor.unpack("Q")


def _size(name: str, shape: tuple[int, ...], kind: GGMLQuantizationType) -> int:
    """The bytes of a tensor."""
    weights, block = GGML_QUANT_SIZES[kind]
    if not shape or shape[-1] % weights:
        raise _Damaged(f"tensor {name!r} of type {kind.name} has shape {list(shape)}")
    size: int = math.prod(shape) // weights * block
    return size


def _locate(
    data: np.ndarray, start: int, described: tuple[str, tuple[int, ...], int, int]
) -> GgufTensor:
    name, shape, number, offset = described
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise _Damaged(f"tensor {name!r} has an unknown type, number {number}") from None
    size = _size(name, shape, kind)
    if start + offset + size > len(data):
        raise _Damaged(
            f"tensor {name!r} ends at byte {start + offset + size} of {len(data)}; "
            "the file is truncated"
        )
    return GgufTensor(name, kind.name, shape, data[start + offset :][:size])


def _parse(path: Path, data: np.ndarray) -> GgufHeader:
    cursor = _Cursor(data)
    if cursor.unpack("I") != GGUF_MAGIC:
        raise _Damaged("it does not start with GGUF")
    version = cursor.unpack("I")
    if version not in _VERSIONS:
        raise _Damaged(f"GGUF version {version}; versions 2 and 3 can be read")
    tensor_count, key_count = cursor.unpack("Q"), cursor.unpack("Q")
    metadata = _read_metadata(cursor, key_count)
    described = [_describe(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise _Damaged(f"general.alignment is {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    tensors = {each[0]: _locate(data, start, each) for each in described}
    if len(tensors) != len(described):
        raise _Damaged("two tensors of one name")
    return GgufHeader(path, metadata, tensors)


def read_header(path: Path) -> GgufHeader:
    """Open and map the GGUF file at `path`.

    Raises CheckpointError if it is missing, not GGUF, damaged, or shorter than its tensors.
    """
    try:
        # An empty file can't be mapped.
        size = path.stat().st_size
        data = np.asarray(np.memmap(path, np.uint8, "r")) if size else np.empty(0, np.uint8)
        return _parse(path, data)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: damaged GGUF file: text that is not UTF-8") from error
    except (_Damaged, ValueError) as error:
        raise CheckpointError(f"{path}: damaged GGUF file: {error}") from error
