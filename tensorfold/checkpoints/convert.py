"""Writing checkpoints in the layout of converted.py."""

import json
import tempfile
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .converted import ABOUT, QUANTISED, VERSION, Place, checksum, part_folder
from .hub import ignore_progress
from .interface import (
    FLOATS,
    Checkpoint,
    CheckpointError,
    Progress,
    Quantised,
    Tensor,
    TensorInfo,
)
from .joining import merge_axes, turn
from .quantise import quantise
from .tokenizer import TextTokenizer

_PART_BYTES = 2**30
"""A part is written when it has so many: no more of a checkpoint is in memory at once."""

_FOUR_BITS = "MXFP4"
"""The format whose codes take a byte here and have four bits."""

_FORMATS = {np.dtype(kind): name for name, kind in FLOATS.items()}

_NEVER_CODES = (".gate.weight", ".shared_expert_gate.weight", ".router.weight", "_bias", ".bias")
"""Small matrices that choose experts: rounding them saves nothing and changes the choice. And what
experts add, which is no matrix though it has a row an expert."""

_EXPERTS = (".experts.", ".switch_mlp.")
"""Where tensors of three axes are matrices, one an expert."""


def convert(
    checkpoint: Checkpoint,
    out: Path,
    *,
    bits: int | None = None,
    group: int = 32,
    turned: Collection[str] = (),
    progress: Callable[[Progress], None] = ignore_progress,
) -> None:
    """Write `checkpoint` to the new folder `out`, whole or not at all.

    Tensors stay as they are. With `bits` (4 or 8) matrices become codes of so many bits, in groups
    of `group` columns: all but routers and biases, those whose columns are not whole groups, and
    those that are codes of no more bits already (FP8 is floats). Experts [E, rows, columns] are
    written as codes with their rows below one another; those named in `turned` are [E, columns,
    rows].

    Raises CheckpointError if `out` exists or its parent does not, for a tensor that can't be read
    or quantised, and for a tokenizer that did not come from a file.
    """
    if out.exists() or out.is_symlink():
        raise CheckpointError(f"{out} exists: name a new folder, or remove it first")
    parent = out.absolute().parent
    if not parent.is_dir():
        raise CheckpointError(f"{out}: {parent} is no folder")
    tokenizer = checkpoint.tokenizer
    if not isinstance(tokenizer, TextTokenizer):
        raise CheckpointError(f"{checkpoint.name}: the tokenizer can't be saved")
    quantiser = Quantiser(bits, group, turned) if bits else None
    # Made beside `out`, so that renaming moves nothing; on any failure it goes with what is in it.
    with tempfile.TemporaryDirectory(dir=parent, prefix=f".{out.name}-") as beside:
        folder = Path(beside) / "new"
        folder.mkdir()
        places = _write_tensors(checkpoint, folder, quantiser, progress)
        _write_json(folder / "config.json", checkpoint.config)
        tokenizer.save(folder / "tokenizer.json")
        if checkpoint.chat_template is not None:
            (folder / "chat_template.jinja").write_bytes(checkpoint.chat_template.encode())
        about = {
            "version": VERSION,
            "bos_id": tokenizer.bos_id,
            "tokenizer_end_ids": sorted(tokenizer.end_ids),
            "end_ids": sorted(checkpoint.end_ids),
            "special_tokens": dict(checkpoint.special_tokens),
            "generation": asdict(checkpoint.generation),
            "tensors": {name: asdict(place) for name, place in places.items()},
        }
        _write_json(folder / ABOUT, about)
        folder.rename(out)


@dataclass(frozen=True)
class Quantiser:
    """Which tensors become codes, and how; see `convert`."""

    bits: int
    group: int
    turned: Collection[str]

    def apply(self, name: str, tensor: Tensor, info: TensorInfo) -> Quantised | None:
        """The tensor `name` as codes, None if it stays. Raises ValueError for no finite number."""
        if len(info.shape) == 3 and any(place in name for place in _EXPERTS):
            tensor = merge_axes(turn(tensor) if name in self.turned else tensor, 2)
        whole = len(tensor.shape) == 2 and tensor.shape[1] % self.group == 0
        if not whole or name.endswith(_NEVER_CODES):
            return None
        if not isinstance(tensor, Quantised):
            return quantise(tensor, self.bits, self.group)
        if info.format == _FOUR_BITS or (tensor.bits <= self.bits and not tensor.floats):
            return None
        return quantise(tensor.dequantise(), self.bits, self.group)


def _write_tensors(
    checkpoint: Checkpoint,
    folder: Path,
    quantiser: Quantiser | None,
    progress: Callable[[Progress], None],
) -> dict[str, Place]:
    """Write the parts of the weights; where each tensor went."""
    places: dict[str, Place] = {}
    part: dict[str, Any] = {}
    number = size = 0
    for done, (name, info) in enumerate(checkpoint.tensors.items()):
        progress(Progress("convert", done, len(checkpoint.tensors), "tensors"))
        tensor, form = checkpoint.read(name), info.format
        try:
            coded = quantiser.apply(name, tensor, info) if quantiser else None
        except ValueError as error:
            raise CheckpointError(f"{checkpoint.name}: tensor {name!r}: {error}") from error
        if coded is not None:
            tensor, form = coded, f"Q{coded.bits}/{coded.group}"
        if isinstance(tensor, Quantised):
            arrays = {key: getattr(tensor, key) for key in QUANTISED}
            found = checksum(list(arrays.values()))
            codes = tensor.bits, tensor.group, tensor.floats
            place = Place(number, found, info.shape, form, *codes)
            part[name] = arrays
            size += sum(array.nbytes for array in arrays.values())
        else:
            # What a folder stores as FP8 may have come as floats.
            form = _FORMATS.get(tensor.dtype, form)
            place = Place(number, checksum([tensor]), tensor.shape, form)
            part[name] = tensor
            size += tensor.nbytes
        places[name] = place
        if size >= _PART_BYTES or done + 1 == len(checkpoint.tensors):
            _write_part(part_folder(folder, number), part)
            number, size, part = number + 1, 0, {}
    progress(Progress("convert", len(places), len(places), "tensors"))
    return places


def _write_part(folder: Path, tensors: dict[str, Any]) -> None:
    import orbax.checkpoint as ocp

    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(tensors))


def _write_json(path: Path, value: Any) -> None:
    # Metadata of a GGUF file may come as NumPy's numbers.
    path.write_text(json.dumps(value, indent=1, default=lambda number: number.tolist()))
