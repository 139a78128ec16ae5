"""What a checkpoint is to the rest of the system, whatever file it came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np


class CheckpointError(ValueError):
    """A checkpoint that can't be served; the message is one line naming what is wrong."""


@dataclass(frozen=True)
class Quantised:
    """A group-quantised matrix: `value = code * scale + offset` within each group.

    codes:  [rows, columns] uint8 when `bits == 8`; [rows, columns / 2] uint8 when `bits == 4`, the
            even column in the low four bits
    scale, offset: [rows, columns / group] float32
    floats: codes, of 8 bits, are E4M3 floats and none is NaN; offsets are zeros

    Rows are outputs, columns are inputs (the order of Hugging Face's `weight`). A tensor of experts
    [E, rows, columns] has all rows below one another.
    """

    codes: np.ndarray
    scale: np.ndarray
    offset: np.ndarray
    bits: int
    group: int
    floats: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.codes.shape[0], self.codes.shape[1] * (8 // self.bits)

    def dequantise(self) -> np.ndarray:
        """The matrix as float32 [rows, columns]."""
        rows, columns = self.shape
        codes = self.codes.view(ml_dtypes.float8_e4m3fn) if self.floats else self.codes
        if self.bits == 4:
            codes = np.stack([codes & 15, codes >> 4], axis=-1)
        values = codes.reshape(rows, columns // self.group, self.group).astype(np.float32)
        values *= self.scale[..., None]
        if not self.floats:  # Zeros would make 0 of -0.
            values += self.offset[..., None]
        return np.ascontiguousarray(values.reshape(rows, columns))


FLOATS = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
"""What arrays are of, by the names that `TensorInfo` has for them."""

Tensor = Quantised | np.ndarray
"""A tensor as its file holds it: float32, float16 or ml_dtypes.bfloat16 arrays, or `Quantised`."""


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's shape and the name of its format ("F32", "BF16", "Q4_1", ...)."""

    shape: tuple[int, ...]
    format: str


@dataclass(frozen=True)
class WeightsFile:
    """A file as it was just before it was opened: equal values mean the same bytes."""

    path: str
    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> "WeightsFile":
        """The file at `path` as it is now; a size of -1 if it isn't there."""
        try:
            found = path.stat()
        except OSError:
            return cls(str(path), 0, 0, -1, 0, 0)
        times = found.st_mtime_ns, found.st_ctime_ns
        return cls(str(path.resolve()), found.st_dev, found.st_ino, found.st_size, *times)

    def unchanged(self) -> bool:
        """Whether the file still is what it was."""
        return self.size >= 0 and WeightsFile.of(Path(self.path)) == self


class Tokenizer(Protocol):
    """Text to tokens and back, exactly as the checkpoint's own tokenizer does it."""

    @property
    def vocab_size(self) -> int:
        """Token ids are 0 to vocab_size - 1."""
        ...

    @property
    def bos_id(self) -> int | None:
        """The token that `encode(..., add_special_tokens=True)` may put first."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a reply, as the tokenizer's own files say."""
        ...

    @property
    def control_ids(self) -> frozenset[int]:
        """Tokens that ordinary text never encodes to (`<|im_end|>` and the like)."""
        ...

    def encode(
        self, text: str, *, add_special_tokens: bool = False, control: bool = True
    ) -> list[int]:
        """The ids of `text`. With `control=False`, control tokens spelled in it are plain text."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token adds to the text, a control token's spelling included.

        The text of a sequence is the UTF-8 decoding of its tokens' bytes, joined.
        """
        ...

    def token_text(self, token: int) -> str:
        """A control token's or ordinary token's spelling, for templates and logs."""
        ...


@dataclass(frozen=True)
class GenerationDefaults:
    """Sampling defaults of generation_config.json; None where it does not say."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


class Checkpoint(Protocol):
    """An opened checkpoint: everything but the weights is already in memory."""

    name: str
    """The served name: the folder's or file's own, without `.gguf`."""
    config: Mapping[str, Any]
    """Hugging Face's config.json terms, whatever the file format."""
    tensors: Mapping[str, TensorInfo]
    """By Hugging Face's tensor names (`model.layers.0.self_attn.q_proj.weight`)."""
    tokenizer: Tokenizer
    chat_template: str | None
    special_tokens: Mapping[str, str]
    """`bos_token`, `eos_token`, ... as chat templates read them."""
    end_ids: frozenset[int]
    """The union of config's, generation_config's and the tokenizer's."""
    generation: GenerationDefaults
    files: tuple[WeightsFile, ...]
    """The files that the tensors are in; none for a checkpoint that is in no file."""

    def read(self, name: str) -> Tensor:
        """One tensor. Raises CheckpointError naming a missing or damaged one."""
        ...


@dataclass(frozen=True)
class Progress:
    """One piece of long work to show: `done` of `total` `unit`s (total 0: unknown)."""

    task: str
    done: int
    total: int
    unit: str = field(default="bytes")
