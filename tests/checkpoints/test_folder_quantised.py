import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from platforms import IMPLEMENTATIONS
from safetensors.numpy import load_file, save_file
from small_checkpoints import write_folder, write_json
from tiny import ByteTokenizer, TinyCheckpoint, save_folder

from tensorfold.checkpoints.folder import FolderCheckpoint
from tensorfold.checkpoints.folder_quantised import mlx_codes
from tensorfold.checkpoints.interface import (
    Checkpoint,
    CheckpointError,
    Quantised,
    Tensor,
    TensorInfo,
)
from tensorfold.kernels_cpu.layout import packed_codes, zero_code
from tensorfold.runtime.load import load
from tensorfold.runtime.packed import Layout, Span
from tensorfold.runtime.step import StateShape, forward, make_state

Stored = dict[str, np.ndarray]

FP8 = {"quant_method": "fp8", "weight_block_size": [48, 32]}
MXFP4 = {"quant_method": "mxfp4"}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
PACKED = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def write(folder: Path, stored: Stored, **config: Any) -> Path:
    write_folder(folder, {name: np.ascontiguousarray(array) for name, array in stored.items()})
    write_json(folder / "config.json", config)
    return folder


def opened(folder: Path, stored: Stored, **config: Any) -> FolderCheckpoint:
    return FolderCheckpoint(write(folder, stored, **config))


def values(tensor: Tensor) -> np.ndarray:
    dense = tensor.dequantise() if isinstance(tensor, Quantised) else tensor
    return dense.astype(np.float32)


def mlx_words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Each row as one long number, code 0 in its lowest bits, cut into words."""
    numbers = [sum(int(code) << (bits * at) for at, code in enumerate(row)) for row in codes]
    size = codes.shape[1] * bits // 8
    rows = [np.frombuffer(number.to_bytes(size, "little"), "<u4") for number in numbers]
    return np.stack(rows).astype(np.uint32)


def mlx(module: str, weight: np.ndarray, bits: int, group: int, dtype: Any) -> tuple[Stored, Any]:
    """(the stored tensors, the values they stand for) of a matrix [rows, columns]."""
    groups = weight.reshape(len(weight), -1, group)
    bias = groups.min(-1).astype(dtype)
    scale = ((groups.max(-1) - groups.min(-1)) / (2**bits - 1)).astype(dtype)
    wide_scale, wide_bias = (each.astype(np.float32)[..., None] for each in (scale, bias))
    codes = np.clip(np.round((groups - wide_bias) / wide_scale), 0, 2**bits - 1).astype(np.uint8)
    stored = {
        f"{module}.weight": mlx_words(codes.reshape(weight.shape), bits),
        f"{module}.scales": scale,
        f"{module}.biases": bias,
    }
    return stored, (codes * wide_scale + wide_bias).reshape(weight.shape)


def fp8(module: str, weight: np.ndarray) -> tuple[Stored, Any]:
    """Blocks of 48 rows and 32 columns."""
    rows, columns = weight.shape
    scale = np.zeros((-(-rows // 48), -(-columns // 32)), np.float32)
    codes = np.zeros(weight.shape, ml_dtypes.float8_e4m3fn)
    dense = np.zeros(weight.shape, np.float32)
    for i, j in np.ndindex(*scale.shape):
        block = np.s_[48 * i : 48 * (i + 1), 32 * j : 32 * (j + 1)]
        scale[i, j] = np.abs(weight[block]).max() / 448
        codes[block] = (weight[block] / scale[i, j]).astype(codes.dtype)
        dense[block] = codes[block].astype(np.float32) * scale[i, j]
    return {f"{module}.weight": codes, f"{module}.weight_scale_inv": scale}, dense


def fp4_codes(weight: np.ndarray) -> np.ndarray:
    return np.abs(weight[..., None] - np.array(E2M1, np.float32)).argmin(-1).astype(np.uint8)


def pairs(codes: np.ndarray) -> np.ndarray:
    return codes[..., 0::2] + 16 * codes[..., 1::2]


def mxfp4(module: str, weight: np.ndarray) -> tuple[Stored, Any]:
    groups = weight.reshape(*weight.shape[:-1], -1, 32)
    exponent = np.floor(np.log2(np.abs(groups).max(-1, keepdims=True) / 4)).astype(np.int32)
    codes = fp4_codes(groups / 2.0**exponent)
    stored = {
        f"{module}.weight_blocks": pairs(codes),
        f"{module}.weight_scales": (exponent[..., 0] + 127).astype(np.uint8),
    }
    dense = np.array(E2M1)[codes] * 2.0**exponent
    return stored, dense.reshape(weight.shape).astype(np.float32)


def nvfp4(
    module: str, weight: np.ndarray, packed: bool = False, factor: float = 1
) -> tuple[Stored, Any]:
    """`factor`: of the scale of them all, which is else a power of two."""
    groups = weight.reshape(*weight.shape[:-1], -1, 16)
    whole = np.float32(factor * 2.0 ** np.floor(np.log2(np.abs(weight).max() / 1000)))
    scale = (np.abs(groups).max(-1) / 6 / whole).astype(ml_dtypes.float8_e4m3fn)
    wide = scale.astype(np.float32)[..., None] * whole
    codes = fp4_codes(groups / wide)
    dense = np.array(E2M1, np.float32)[codes] * wide
    stored = {
        f"{module}.weight_packed" if packed else f"{module}.weight": pairs(codes).reshape(
            *weight.shape[:-1], -1
        ),
        f"{module}.weight_scale": scale,
        f"{module}.input_scale": np.ones((), np.float32),
    }
    if packed:
        stored[f"{module}.weight_global_scale"] = np.array([1 / whole])
    else:
        stored[f"{module}.weight_scale_2"] = np.array(whole)
    return stored, dense.reshape(weight.shape)


@given(data=st.data(), bits=st.sampled_from([2, 3, 4, 5, 6, 8]), rows=st.integers(1, 3))
def test_mlx_codes(data: st.DataObject, bits: int, rows: int) -> None:
    columns = 32 * data.draw(st.integers(1, 5))
    code = st.integers(0, 2**bits - 1)
    drawn = data.draw(st.lists(code, min_size=rows * columns, max_size=rows * columns))
    codes = np.array(drawn, np.uint8).reshape(rows, columns)
    found = mlx_codes(mlx_words(codes, bits), bits)
    if bits == 4:
        found = np.stack([found & 15, found >> 4], axis=-1).reshape(rows, columns)
    np.testing.assert_array_equal(found, codes)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_mlx_values(tmp_path: Path, bits: int, group: int) -> None:
    dtype = {32: np.float32, 64: np.float16, 128: ml_dtypes.bfloat16}[group]
    weight = np.random.default_rng(bits).normal(size=(5, 384)).astype(np.float32)
    stored, wanted = mlx("a", weight, bits, group, dtype)
    settings = {"bits": bits, "group_size": group}
    for config in (
        {"quantization": settings, "quantization_config": settings},
        {"quantization_config": settings | {"mode": "affine"}},
    ):
        checkpoint = opened(tmp_path / "mlx", stored | {"a.bias": np.ones(5)}, **config)
        assert checkpoint.tensors == {
            "a.weight": TensorInfo((5, 384), f"MLX {bits}-bit"),
            "a.bias": TensorInfo((5,), "F64"),
        }
        found = checkpoint.read("a.weight")
        assert isinstance(found, Quantised)
        assert (found.bits, found.group) == (4 if bits == 4 else 8, group)
        np.testing.assert_array_equal(found.dequantise(), wanted)


def test_mlx_overrides(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(4, 128)).astype(np.float32)
    stored = {"c.weight": weight}
    wanted = {"c.weight": weight}
    for module, bits, group in (("a", 4, 64), ("b", 6, 32), ("d", 4, 64)):
        more, wanted[f"{module}.weight"] = mlx(module, weight, bits, group, np.float16)
        stored |= more
    settings = {
        "bits": 4,
        "group_size": 64,
        "mode": "affine",
        "b": {"bits": 6, "group_size": 32},
        "c": False,
        "d": True,
    }
    checkpoint = opened(tmp_path / "mlx", stored, quantization=settings)
    formats = {name: info.format for name, info in checkpoint.tensors.items()}
    assert formats == {
        "a.weight": "MLX 4-bit",
        "b.weight": "MLX 6-bit",
        "c.weight": "F32",
        "d.weight": "MLX 4-bit",
    }
    for name, array in wanted.items():
        np.testing.assert_array_equal(values(checkpoint.read(name)), array)


def test_mxfp4(tmp_path: Path) -> None:
    """Every code with every exponent but the one that stands for no number."""
    codes = np.tile(np.arange(16, dtype=np.uint8), 2)
    exponents = np.arange(252, dtype=np.uint8).reshape(2, 3, 42)
    blocks = np.broadcast_to(pairs(codes), (*exponents.shape, 16))
    stored = {"m.gate_up_proj_blocks": blocks, "m.gate_up_proj_scales": exponents}
    checkpoint = opened(tmp_path / "mxfp4", stored, quantization_config=MXFP4)
    assert checkpoint.tensors == {"m.gate_up_proj": TensorInfo((2, 3, 42 * 32), "MXFP4")}
    found = checkpoint.read("m.gate_up_proj")
    assert isinstance(found, Quantised)
    assert found.codes.shape == (6, 42 * 32) and packed_codes(found)[0] == "q5"
    wanted = np.array(E2M1)[codes] * 2.0 ** (exponents[..., None].astype(np.float64) - 127)
    np.testing.assert_array_equal(found.dequantise(), wanted.reshape(found.shape))
    assert zero_code(found) == 12  # so that no offsets are written


def test_mlx_mxfp4(tmp_path: Path) -> None:
    """MLX keeps the codes' bytes, in words, and the exponents; other modules may be affine."""
    weight = np.random.default_rng(0).normal(size=(3, 8, 64)).astype(np.float32)
    stored, wanted = mxfp4("a", weight)
    blocks = np.ascontiguousarray(stored["a.weight_blocks"])
    more, dense = mlx("b", weight[0], 8, 64, np.float16)
    settings = {"bits": 4, "group_size": 32, "mode": "mxfp4"}
    affine = {"bits": 8, "group_size": 64}
    checkpoint = opened(
        tmp_path / "mlx",
        {
            "a.weight": blocks.reshape(3, 8, 32).view(np.uint32),
            "a.scales": stored["a.weight_scales"],
            **more,
        },
        quantization=settings | {"b": affine},
    )
    assert checkpoint.tensors["a.weight"] == TensorInfo((3, 8, 64), "MXFP4")
    assert set(checkpoint.tensors) == {"a.weight", "b.weight"}
    np.testing.assert_array_equal(values(checkpoint.read("a.weight")), wanted.reshape(24, 64))
    np.testing.assert_array_equal(values(checkpoint.read("b.weight")), dense)


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
def test_mlx_experts(tmp_path: Path, bits: int) -> None:
    """Matrices of one size in one tensor have their rows below one another."""
    weight = np.random.default_rng(bits).normal(size=(3, 8, 128)).astype(np.float32)
    stored, wanted = mlx("a", weight.reshape(24, 128), bits, 32, np.float16)
    stored = {name: array.reshape(3, 8, -1) for name, array in stored.items()}
    settings = {"bits": bits, "group_size": 32}
    checkpoint = opened(tmp_path / "mlx", stored, quantization=settings)
    assert checkpoint.tensors == {"a.weight": TensorInfo((3, 8, 128), f"MLX {bits}-bit")}
    found = checkpoint.read("a.weight")
    assert isinstance(found, Quantised) and found.shape == (24, 128)
    np.testing.assert_array_equal(found.dequantise(), wanted)


@pytest.mark.parametrize("packed", [False, True])
def test_nvfp4(tmp_path: Path, packed: bool) -> None:
    weight = np.random.default_rng(0).normal(size=(7, 96)).astype(np.float32)
    stored, wanted = nvfp4("a", weight, packed)
    config = {"quantization_config": PACKED if packed else NVFP4}
    checkpoint = opened(tmp_path / "nvfp4", stored, **config)
    assert checkpoint.tensors == {"a.weight": TensorInfo((7, 96), "NVFP4")}
    found = checkpoint.read("a.weight")
    assert isinstance(found, Quantised) and (found.bits, found.group) == (8, 16)
    assert found.codes.max() <= 24
    np.testing.assert_array_equal(found.dequantise(), wanted)
    np.testing.assert_allclose(wanted, weight, atol=0.6)


@pytest.mark.parametrize("packed", [False, True])
def test_nvfp4_with_any_scale(tmp_path: Path, packed: bool) -> None:
    weight = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)
    stored, wanted = nvfp4("a", weight, packed, factor=1.2345)
    config = {"quantization_config": PACKED if packed else NVFP4}
    found = opened(tmp_path / "nvfp4", stored, **config).read("a.weight")
    largest = np.abs(wanted).reshape(5, 4, 16).max(-1).repeat(16, axis=-1)
    assert (np.abs(found.dequantise() - wanted) <= 1e-6 * largest).all()


def test_model_optimizer_with_a_file_of_its_own(tmp_path: Path) -> None:
    stored, wanted = nvfp4("a", np.ones((2, 32), np.float32))
    folder = write(tmp_path / "nvfp4", stored)
    write_json(folder / "hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}})
    found = FolderCheckpoint(folder).read("a.weight")
    np.testing.assert_array_equal(found.dequantise(), wanted)


def test_a_scale_that_is_no_number_is_refused(tmp_path: Path) -> None:
    stored, _ = nvfp4("a", MATRIX)
    stored["a.weight_scale"].view(np.uint8)[3, 1] = 0x7F
    checkpoint = opened(tmp_path / "nvfp4", stored, quantization_config=NVFP4)
    with pytest.raises(CheckpointError, match=r"'a\.weight_scale' has scales that are no numbers"):
        checkpoint.read("a.weight")


def test_other_methods_are_refused_by_name(tmp_path: Path) -> None:
    for settings, name in (
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "pack-quantized"),
        ({"bits": 4}, "unnamed"),
        ([1], "unnamed"),
    ):
        folder = write(tmp_path / "other", {"a": np.ones(2)}, quantization_config=settings)
        with pytest.raises(CheckpointError, match=rf"config\.json.*\(.*{name}\) is not supported"):
            FolderCheckpoint(folder)


MLX = {"quantization": {"bits": 4, "group_size": 32}}
MATRIX = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)


def mlx_stored(**changes: Any) -> Stored:
    stored, _ = mlx("a", MATRIX, 4, 32, np.float32)
    return changed(stored, **changes)


def changed(stored: Stored, **changes: Any) -> Stored:
    """`stored` with parts of `a` in another form, or gone."""
    found = stored | {f"a.{name}": array for name, array in changes.items()}
    return {name: array for name, array in found.items() if array is not None}


BAD: list[tuple[dict[str, Any], Callable[[], Stored], str]] = [
    (MLX, lambda: mlx_stored(scales=None), "'a.weight' has no 'a.scales'"),
    (MLX, lambda: mlx_stored(biases=None), "'a.weight' has no 'a.biases'"),
    (MLX, lambda: mlx_stored(scales=np.ones((64, 3))), "'a.scales' is F64, not F32"),
    (
        MLX,
        lambda: mlx_stored(scales=np.ones((64, 1), np.float32)),
        "'a.scales' is [64, 1], its weight asks for [64, 2]",
    ),
    (MLX, lambda: mlx_stored(weight=np.ones((64, 3), np.uint32)), "'a.weight' has rows of 3 words"),
    (MLX, lambda: mlx_stored(weight=np.ones(64, np.uint32)), "has two axes"),
    (
        MLX,
        lambda: mlx_stored(weight=np.ones((2, 64, 8), np.uint32)),
        "'a.scales' is [64, 2], its weight asks for [2, 64, 2]",
    ),
    (
        {"quantization": {"bits": 7, "group_size": 32}},
        mlx_stored,
        "'a.weight' has quantization mode 'affine', 7 bits, groups of 32",
    ),
    ({"quantization": {"bits": 4, "group_size": 48}}, mlx_stored, "groups of 48"),
    ({"quantization": MLX["quantization"] | {"mode": "mxfp8"}}, mlx_stored, "mode 'mxfp8'"),
    (
        {"quantization": MLX["quantization"] | {"mode": "mxfp4", "group_size": 64}},
        mlx_stored,
        "mode 'mxfp4', 4 bits, groups of 64",
    ),
    (
        {"quantization": MLX["quantization"] | {"mode": "mxfp4"}},
        mlx_stored,
        "'a.scales' is F32, not U8, F8_E8M0",
    ),
    ({"quantization": MLX["quantization"] | {"a": False}}, mlx_stored, "says not quantised"),
    (
        {"quantization_config": FP8},
        lambda: changed(fp8("a", MATRIX)[0], weight_scale_inv=None),
        "'a.weight' has no 'a.weight_scale'",
    ),
    (
        {"quantization_config": FP8},
        lambda: changed(fp8("a", MATRIX)[0], weight_scale_inv=np.ones((2, 3), np.float32)),
        "'a.weight_scale_inv' is [2, 3], its weight asks for [2, 2]",
    ),
    (
        {"quantization_config": {"quant_method": "fp8"}},
        lambda: fp8("a", MATRIX)[0],
        "'a.weight_scale_inv' is [2, 2], and no weight_block_size",
    ),
    (
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, "x"]}},
        lambda: fp8("a", MATRIX)[0],
        "weight_block_size is [128, 'x']",
    ),
    (
        {"quantization_config": MXFP4},
        lambda: changed(mxfp4("a", MATRIX)[0], weight_scales=None),
        "'a.weight_blocks' has no 'a.weight_scales'",
    ),
    (
        {"quantization_config": MXFP4},
        lambda: changed(mxfp4("a", MATRIX)[0], weight_blocks=np.ones((64, 2, 8), np.uint8)),
        "'a.weight_blocks' is [64, 2, 8]",
    ),
    (
        {"quantization_config": MXFP4},
        lambda: mxfp4("a", MATRIX)[0] | {"a.weight": MATRIX},
        "'a.weight' is there quantised too",
    ),
    (
        {"quantization_config": NVFP4},
        lambda: changed(nvfp4("a", MATRIX)[0], weight_scale=np.ones((64, 4), np.float32)),
        "'a.weight_scale' is F32, not F8_E4M3",
    ),
    (
        {"quantization_config": NVFP4},
        lambda: changed(nvfp4("a", MATRIX)[0], weight_scale_2=np.ones(2, np.float32)),
        "'a.weight_scale_2' is [2], not one number",
    ),
    (
        {"quantization_config": NVFP4},
        lambda: changed(nvfp4("a", MATRIX)[0], weight=np.ones((64, 36), np.uint8)),
        "'a.weight' is [64, 36]",
    ),
]


@pytest.mark.parametrize(("config", "make", "message"), BAD)
def test_damaged_ones_are_refused(
    tmp_path: Path, config: dict[str, Any], make: Callable[[], Stored], message: str
) -> None:
    folder = write(tmp_path / "bad", make(), **config)
    with pytest.raises(CheckpointError) as caught:
        FolderCheckpoint(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("exponent", [252, 255])
def test_scales_that_are_no_numbers(tmp_path: Path, exponent: int) -> None:
    stored = mxfp4("a", MATRIX)[0]
    stored["a.weight_scales"][3, 1] = exponent
    checkpoint = opened(tmp_path / "mxfp4", stored, quantization_config=MXFP4)
    with pytest.raises(CheckpointError, match=r"'a\.weight_scales' has scales"):
        checkpoint.read("a.weight")


def logits(checkpoint: Checkpoint) -> np.ndarray:
    model = load(checkpoint)
    layout = Layout(16, 1, 1)
    packed = layout.pack([Span(0, 0, list(range(40, 56)), 0)], np.zeros((1, 1), np.int32))
    state = make_state(model.spec.state, StateShape(lanes=1, context=64, pages=1))
    run = jax.jit(lambda leaves, state, packed: forward(model, layout, leaves, state, packed)[0])
    return np.asarray(run(model.leaves, state, packed))


KINDS: dict[str, tuple[dict[str, Any], Callable[[str, np.ndarray], tuple[Stored, Any]]]] = {
    "MLX 4-bit": (MLX, lambda name, w: mlx(name, w, 4, 32, ml_dtypes.bfloat16)),
    "MLX 6-bit": (
        {"quantization": {"bits": 6, "group_size": 32}},
        lambda name, w: mlx(name, w, 6, 32, np.float16),
    ),
    "FP8": ({"quantization_config": FP8}, fp8),
    "MXFP4": ({"quantization_config": MXFP4}, mxfp4),
    "NVFP4": ({"quantization_config": NVFP4}, nvfp4),
}


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_dequantised_weights(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more, quantise = KINDS[kind]
    folder = save_folder(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    stored: Stored = {}
    dense: Stored = {}
    for name, array in load_file(folder / "model.safetensors").items():
        if array.ndim == 2:
            made, dense[name] = quantise(name.removesuffix(".weight"), array)
            stored |= made
        else:
            stored[name] = dense[name] = array
    save_file(
        {name: np.ascontiguousarray(each) for name, each in stored.items()},
        folder / "model.safetensors",
    )
    write_json(folder / "config.json", config | more)
    checkpoint = FolderCheckpoint(folder)
    assert {info.format for info in checkpoint.tensors.values()} == {"F32", kind}
    plain = TinyCheckpoint("plain", config, dense, ByteTokenizer(config["vocab_size"]))
    monkeypatch.setenv("TENSORFOLD_KERNELS", "xla")
    wanted = logits(plain)
    assert wanted.std() > 0.5
    assert logits(checkpoint).tobytes() == wanted.tobytes()
    for kernels in IMPLEMENTATIONS[1:]:
        monkeypatch.setenv("TENSORFOLD_KERNELS", kernels)
        np.testing.assert_allclose(logits(checkpoint), wanted, atol=1e-4 * np.abs(wanted).max())
