"""Quantised tensors of safetensors folders: several stored tensors that are one of the model's.

They become `Quantised`, the first axes of experts merged. config.json says by which method a folder
is quantised, and the stored tensors' types say which of them are. The functions below say how each
is stored. They follow the documentation of `mlx.core.quantize`, of FP8 in transformers, the OCP's
Microscaling Formats 1.0, NVIDIA's Model Optimizer and compressed-tensors.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from .fp4 import MXFP4_GROUP, MXFP4_LARGEST, fp4, mxfp4
from .interface import CheckpointError, Quantised, Tensor, TensorInfo

_MLX_BITS = (2, 3, 4, 5, 6, 8)
_MLX_GROUPS = (32, 64, 128)
_SCALE_FORMATS = ("F32", "F16", "BF16")
_METHODS = ("mlx", "fp8", "mxfp4", "modelopt", "compressed-tensors")
_COMPRESSED = ("float-quantized", "nvfp4-pack-quantized")

_FP8_GROUP = 128
"""Columns of a group where a scale is of a whole row or more."""

_FP8_GROUPS_OF = 8
"""Groups are multiples of it, as the CPU kernels want them."""

_OF_ACTIVATIONS = (
    ".input_scale",
    ".input_global_scale",
    ".activation_scale",
    ".k_scale",
    ".v_scale",
)
"""Scales for quantising what runs through a model; here that stays float32."""


@dataclass(frozen=True)
class StoredQuantised:
    """One tensor of the model, in several stored ones.

    info: of the whole, its format a name to show
    parts: the stored tensors' names
    unpack: makes the tensor of the parts' arrays; 8-bit floats come as their bytes, uint8
    """

    info: TensorInfo
    parts: tuple[str, ...]
    unpack: Callable[..., Tensor]


@dataclass(frozen=True)
class Method:
    """How config.json says that a folder is quantised.

    name: of `_METHODS`
    settings: `quantization` or `quantization_config` as it is
    """

    name: str
    settings: Mapping[str, Any]


def read_method(config: Mapping[str, Any]) -> Method | None:
    """The method that config.json names, None if none.

    Raises CheckpointError, one line, for one that is not supported.
    """
    found = config.get("quantization") or config.get("quantization_config")
    if not found:
        return None
    settings = found if isinstance(found, dict) else {}
    name = settings.get("quant_method")
    if name is None and "bits" in settings and "group_size" in settings:
        name = "mlx"
    kind = settings.get("format")
    if name == "compressed-tensors" and kind not in _COMPRESSED:
        name = f"{name}, {kind}"
    if name not in _METHODS:
        raise CheckpointError(f"quantization_config ({name or 'unnamed'}) is not supported")
    return Method(name, settings)


def find(
    method: Method, infos: Mapping[str, TensorInfo]
) -> tuple[dict[str, StoredQuantised], set[str]]:
    """(the quantised tensors by the model's names, the stored names that are none of the model's).

    infos: every stored tensor of the folder

    Raises CheckpointError naming a tensor that lacks a part or has one of a wrong shape or type.
    """
    found: dict[str, StoredQuantised] = {}
    for name, info in infos.items():
        made = None
        if method.name == "mlx":
            if name.endswith(".weight") and info.format == "U32":
                made = name, _mlx(name.removesuffix(".weight"), method.settings, infos)
        elif name.endswith("_blocks") and info.format == "U8":
            made = name.removesuffix("_blocks"), _mxfp4_blocks(name, infos)
        elif name.endswith(".weight") and info.format == "F8_E4M3":
            made = name, _fp8(name, method.settings, infos)
        elif name.endswith((".weight", ".weight_packed")) and info.format == "U8":
            made = name.removesuffix("_packed"), _nvfp4(name, infos)
        if made is not None:
            found[made[0]] = made[1]
    hidden = {part for each in found.values() for part in each.parts}
    if method.name != "mlx":
        hidden |= {name for name in infos if name.endswith(_OF_ACTIVATIONS)}
    return found, hidden


def _part(
    infos: Mapping[str, TensorInfo], name: str, of: str, formats: tuple[str, ...]
) -> TensorInfo:
    if name not in infos:
        raise CheckpointError(f"tensor {of!r} has no {name!r}")
    info = infos[name]
    if info.format not in formats:
        known = ", ".join(formats)
        raise CheckpointError(f"tensor {name!r} is {info.format}, not {known}")
    return info


def _check_shape(name: str, info: TensorInfo, wanted: tuple[int, ...]) -> None:
    if info.shape != wanted:
        raise CheckpointError(
            f"tensor {name!r} is {list(info.shape)}, its weight asks for {list(wanted)}"
        )


def _mlx(
    module: str, settings: Mapping[str, Any], infos: Mapping[str, TensorInfo]
) -> StoredQuantised:
    """X.weight uint32 [..., rows, columns * bits / 32]: a row is one stream of codes, lowest bits
    first, that word borders do not stop. X.scales and X.biases are [..., rows, columns / group]."""
    weight, scales, biases = (f"{module}.{part}" for part in ("weight", "scales", "biases"))
    own = settings.get(module, {})
    if own is False:
        raise CheckpointError(f"tensor {weight!r} is U32, config.json says not quantised")
    # A module's own settings are affine unless they say another mode.
    chosen = {**settings, "mode": "affine", **own} if isinstance(own, dict) and own else settings
    bits: Any = chosen.get("bits")
    group: Any = chosen.get("group_size")
    mode = chosen.get("mode", "affine")
    microscaled = (mode, bits, group) == ("mxfp4", 4, MXFP4_GROUP)
    affine = mode == "affine" and bits in _MLX_BITS and group in _MLX_GROUPS
    if not microscaled and not affine:
        raise CheckpointError(
            f"tensor {weight!r} has quantization mode {mode!r}, {bits!r} bits, "
            f"groups of {group!r}, which is not supported"
        )
    shape = infos[weight].shape
    if len(shape) < 2:
        raise CheckpointError(f"tensor {weight!r} is {list(shape)}, a quantised one has two axes")
    *first, words = shape
    columns = words * 32 // bits
    if words * 32 % bits or columns % group:
        raise CheckpointError(
            f"tensor {weight!r} has rows of {words} words, "
            f"which are no whole groups of {group} {bits}-bit codes"
        )
    if microscaled:
        return _mxfp4(weight, scales, (*first, columns), infos)
    for name in (scales, biases):
        wanted = (*first, columns // group)
        _check_shape(name, _part(infos, name, weight, _SCALE_FORMATS), wanted)

    def unpack(words: np.ndarray, scale: np.ndarray, offset: np.ndarray) -> Quantised:
        return Quantised(
            codes=mlx_codes(_merged(words), bits),
            scale=_merged(scale).astype(np.float32),
            offset=_merged(offset).astype(np.float32),
            bits=4 if bits == 4 else 8,
            group=group,
        )

    info = TensorInfo((*first, columns), f"MLX {bits}-bit")
    return StoredQuantised(info, (weight, scales, biases), unpack)


def _merged(array: np.ndarray) -> np.ndarray:
    """The rows [..., columns] below one another: [rows, columns]."""
    return array.reshape(-1, array.shape[-1])


def mlx_codes(words: np.ndarray, bits: int) -> np.ndarray:
    """MLX's codes uint32 [rows, columns * bits / 32] as those of `Quantised`: two a byte for 4
    bits, else one a byte. `columns` is a multiple of eight."""
    # The bytes of a little-endian stream are the stream, so 4 and 8 bits are as they should be.
    stream = np.ascontiguousarray(words.astype("<u4", copy=False)).view(np.uint8)
    if bits in (4, 8):
        return stream
    packs = stream.reshape(len(stream), -1, bits)  # Eight codes take as many bytes as one has bits.
    padded = np.zeros((*packs.shape[:2], 8), np.uint8)
    padded[..., :bits] = packs
    eight = padded.view("<u8")[..., 0]
    codes = np.empty((*eight.shape, 8), np.uint8)
    for place in range(8):
        codes[..., place] = (eight >> np.uint64(bits * place)) & np.uint64(2**bits - 1)
    return codes.reshape(len(stream), -1)


def _fp8(
    weight: str, settings: Mapping[str, Any], infos: Mapping[str, TensorInfo]
) -> StoredQuantised:
    """X.weight [..., rows, columns] with one scale, one a row, or one a block of
    `weight_block_size`: [..., ceil(rows / 128), ceil(columns / 128)]. Arrays where rows or blocks
    are no whole eights of columns."""
    inverse = f"{weight}_scale_inv"
    scale = inverse if inverse in infos else f"{weight}_scale"
    info = _part(infos, scale, weight, _SCALE_FORMATS)
    shape = infos[weight].shape
    if len(shape) < 2:
        raise CheckpointError(f"tensor {weight!r} is {list(shape)}, a quantised one has two axes")
    *first, rows, columns = shape
    block = _block(settings)
    if math.prod(info.shape) == 1:
        grid, (high, broad) = (1,) * len(shape), (rows, columns)
    elif info.shape in (shape[:-1], (*shape[:-1], 1)):
        grid, (high, broad) = (*shape[:-1], 1), (1, columns)
    elif block is not None:
        grid, (high, broad) = (*first, -(-rows // block[0]), -(-columns // block[1])), block
        _check_shape(scale, info, grid)
    else:
        raise CheckpointError(
            f"tensor {scale!r} is {list(info.shape)}, and no weight_block_size says of what"
        )

    # The most columns that fill rows and blocks alike.
    group = math.gcd(broad if grid[-1] > 1 else _FP8_GROUP, columns)

    def unpack(codes: np.ndarray, scales: np.ndarray) -> Tensor:
        if (codes & 0x7F == 0x7F).any():
            raise CheckpointError(f"tensor {weight!r} has values that are no numbers")
        if not np.isfinite(scales.astype(np.float32)).all():
            raise CheckpointError(f"tensor {scale!r} has scales that are no numbers")
        found = scales.astype(np.float32).reshape(grid)[..., np.arange(rows) // high, :]
        found = found[..., np.arange(0, columns, group) // broad]
        wide = _merged(np.broadcast_to(found, (*first, *found.shape[-2:])))
        made = Quantised(_merged(codes), wide, np.zeros_like(wide), 8, group, floats=True)
        return made.dequantise().reshape(shape) if group % _FP8_GROUPS_OF else made

    return StoredQuantised(TensorInfo(shape, "FP8"), (weight, scale), unpack)


def _block(settings: Mapping[str, Any]) -> tuple[int, int] | None:
    found = settings.get("weight_block_size")
    if not found:
        return None
    if isinstance(found, list) and len(found) == 2:
        high, broad = found
        if type(high) is int and type(broad) is int and high > 0 and broad > 0:
            return high, broad
    raise CheckpointError(f"weight_block_size is {found!r}")


def _mxfp4_blocks(blocks: str, infos: Mapping[str, TensorInfo]) -> StoredQuantised:
    """X_blocks [..., rows, columns / 32, 16] and X_scales [..., rows, columns / 32]."""
    shape = infos[blocks].shape
    if len(shape) < 3 or shape[-1] != 16:
        raise CheckpointError(
            f"tensor {blocks!r} is {list(shape)}, and not rows of blocks of 16 bytes"
        )
    whole = (*shape[:-2], shape[-2] * MXFP4_GROUP)
    return _mxfp4(blocks, f"{blocks.removesuffix('_blocks')}_scales", whole, infos)


def _mxfp4(
    codes: str, scales: str, shape: tuple[int, ...], infos: Mapping[str, TensorInfo]
) -> StoredQuantised:
    """A tensor of `shape` [..., rows, columns]. Its codes are two a byte, the even column in the
    low four bits, whatever the bytes are stored as; its scales are exponents plus 127."""
    groups = shape[-1] // MXFP4_GROUP
    _check_shape(scales, _part(infos, scales, codes, ("U8", "F8_E8M0")), (*shape[:-1], groups))

    def unpack(stored: np.ndarray, exponents: np.ndarray) -> Quantised:
        if (exponents > MXFP4_LARGEST).any():
            raise CheckpointError(f"tensor {scales!r} has scales that are no numbers or too large")
        pairs = np.ascontiguousarray(stored).view(np.uint8).reshape(-1, groups, 16)
        return mxfp4(_fp4_codes(pairs), exponents.reshape(-1, groups))

    return StoredQuantised(TensorInfo(shape, "MXFP4"), (codes, scales), unpack)


def _fp4_codes(pairs: np.ndarray) -> np.ndarray:
    """uint8 [..., columns / 2] as [..., columns]: the even column in the low four bits."""
    codes = np.stack([pairs & 15, pairs >> 4], axis=-1)
    return codes.reshape(*pairs.shape[:-1], -1)


def _nvfp4(weight: str, infos: Mapping[str, TensorInfo]) -> StoredQuantised:
    """X.weight [..., columns / 2] with a scale for every 16 columns and one for them all, which
    compressed-tensors (`weight_packed`) divides by and Model Optimizer multiplies with."""
    packed = weight.endswith("_packed")
    plain = weight.removesuffix("_packed")
    scales, whole = f"{plain}_scale", f"{plain}_{'global_scale' if packed else 'scale_2'}"
    shape = infos[weight].shape
    if len(shape) < 2 or shape[-1] % 8:
        raise CheckpointError(f"tensor {weight!r} is {list(shape)}, no rows of blocks of 8 bytes")
    wanted = (*shape[:-1], shape[-1] // 8)
    _check_shape(scales, _part(infos, scales, weight, ("F8_E4M3",)), wanted)
    found = _part(infos, whole, weight, _SCALE_FORMATS)
    if math.prod(found.shape) != 1:
        raise CheckpointError(f"tensor {whole!r} is {list(found.shape)}, not one number")

    def unpack(pairs: np.ndarray, codes: np.ndarray, factor: np.ndarray) -> Quantised:
        scale = _merged(codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32))
        one = factor.astype(np.float32).reshape(())
        scale = scale / one if packed else scale * one
        if not np.isfinite(scale).all():
            raise CheckpointError(f"tensor {scales!r} has scales that are no numbers or too large")
        return fp4(_fp4_codes(pairs).reshape(*scale.shape, 16), scale)

    info = TensorInfo((*shape[:-1], shape[-1] * 2), "NVFP4")
    return StoredQuantised(info, (weight, scales, whole), unpack)
