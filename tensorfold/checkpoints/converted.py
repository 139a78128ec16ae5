"""A checkpoint that `tensorfold convert` wrote: weights in Orbax's format, one folder for all.

tensorfold.json      the version of this layout, each tensor's place and form, token ids
config.json          Hugging Face's terms
tokenizer.json       the whole tokenizer
chat_template.jinja  if there is one
weights/0, 1, ...    an Orbax checkpoint each, of about a GiB: {tensor: array}, or {tensor:
                     {"codes", "scale", "offset"}} for a quantised one
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .folder import read_json
from .folder_tokenizer import read_pipeline
from .interface import (
    Checkpoint,
    CheckpointError,
    GenerationDefaults,
    Quantised,
    Tensor,
    TensorInfo,
    WeightsFile,
)
from .tokenizer import TextTokenizer

# Orbax is imported where it is used, as it takes a second.

ABOUT = "tensorfold.json"
"""The file that makes a folder such a checkpoint."""

VERSION = 1
"""Of the layout; any other is refused."""

QUANTISED = ("codes", "scale", "offset")
"""The arrays of a quantised tensor."""


@dataclass(frozen=True)
class Place:
    """Where a tensor is and what must be found there.

    part: the number of its Orbax checkpoint
    crc32: of the bytes of its arrays, one after another; Orbax does not check them
    bits, group, floats: as in `Quantised`; 0 for plain arrays
    """

    part: int
    crc32: int
    shape: tuple[int, ...]
    format: str
    bits: int = 0
    group: int = 0
    floats: bool = False


def checksum(arrays: Sequence[np.ndarray]) -> int:
    """CRC-32 of the arrays' bytes."""
    found = 0
    for array in arrays:
        found = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, found)
    return found


def part_folder(folder: Path, part: int) -> Path:
    """The Orbax checkpoint number `part`; an absolute path, as Orbax asks for."""
    return folder.absolute() / "weights" / str(part)


class ConvertedCheckpoint(Checkpoint):
    """A `Checkpoint` in a folder of `tensorfold convert`. Weights are read one tensor at a time."""

    def __init__(self, folder: Path):
        """Open `folder`.

        Raises CheckpointError, naming the file, for another version of the layout and for a file
        that is missing or damaged.
        """
        self.name = folder.resolve().name
        self._folder = folder
        found = [path for path in sorted((folder / "weights").rglob("*")) if path.is_file()]
        # What tensorfold.json says of the codes decides the weights too.
        self.files = tuple(WeightsFile.of(path) for path in (folder / ABOUT, *found))
        about = read_json(folder / ABOUT)
        version = about.get("version")
        if version != VERSION:
            raise CheckpointError(
                f"{folder / ABOUT}: version {version!r} of the layout is not supported "
                f"(only {VERSION}): convert the model again"
            )
        self.config = read_json(folder / "config.json")
        pipeline = read_pipeline(folder)
        try:
            self._places = {
                name: Place(**{**place, "shape": tuple(place["shape"])})
                for name, place in about["tensors"].items()
            }
            self.special_tokens = dict(about["special_tokens"])
            self.generation = GenerationDefaults(**about["generation"])
            self.end_ids = frozenset(about["end_ids"])
            ids = {"bos_id": about["bos_id"], "end_ids": about["tokenizer_end_ids"]}
            self.tokenizer = TextTokenizer(pipeline, **ids)
            template = folder / "chat_template.jinja"
            # Decoded by hand: line ends must stay what they are.
            self.chat_template = template.read_bytes().decode() if template.exists() else None
        except CheckpointError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{folder}: damaged: {error!r}") from error
        self.tensors = {
            name: TensorInfo(place.shape, place.format) for name, place in self._places.items()
        }

    def read(self, name: str) -> Tensor:
        """One tensor, as it was converted. Raises CheckpointError if it is missing or damaged."""
        place = self._places.get(name)
        if place is None:
            raise CheckpointError(f"{self._folder}: no tensor {name!r}")
        try:
            arrays = self._restore(name, place)
        except Exception as error:  # Orbax and TensorStore fail in ways of their own.
            reason = next(iter(str(error).splitlines()), repr(error))
            raise CheckpointError(f"{self._folder}: tensor {name!r}: {reason}") from error
        if checksum(arrays) != place.crc32:
            raise CheckpointError(f"{self._folder}: tensor {name!r} is damaged")
        if not place.bits:
            return arrays[0]
        codes, scale, offset = arrays
        return Quantised(codes, scale, offset, place.bits, place.group, place.floats)

    def _restore(self, name: str, place: Place) -> list[np.ndarray]:
        """The arrays of one tensor, without reading the others of its part."""
        import jax
        import orbax.checkpoint as ocp

        item = {name: dict.fromkeys(QUANTISED, 0) if place.bits else 0}
        plain = ocp.RestoreArgs(restore_type=np.ndarray)
        wanted = jax.tree.map(lambda _: plain, item)
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            found = checkpointer.restore(
                part_folder(self._folder, place.part),
                args=ocp.args.PyTreeRestore(item=item, restore_args=wanted, partial_restore=True),
            )[name]
        return [found[key] for key in QUANTISED] if place.bits else [found]
