"""Folders in FP8: codes stay codes, with a scale for a tensor, a row or a block."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from platforms import IMPLEMENTATIONS
from small_checkpoints import write_folder, write_json
from test_folder_quantised import FP8, MATRIX, Stored, fp8, logits, opened, values
from test_gpt_oss_folder import leaves_of
from tiny import TinyCheckpoint, tiny_checkpoint

from tensorfold.checkpoints.convert import convert
from tensorfold.checkpoints.folder_quantised import Method, find
from tensorfold.checkpoints.hub import open_checkpoint
from tensorfold.checkpoints.interface import CheckpointError, Quantised, TensorInfo
from tensorfold.checkpoints.joining import join
from tensorfold.checkpoints.quantise import quantise
from tensorfold.kernels_cpu.matmul import PackedMatrix
from tensorfold.runtime.load import load, with_activations

PLAIN = {"quant_method": "compressed-tensors", "format": "float-quantized"}


@pytest.mark.parametrize(("columns", "group"), [(96, 32), (72, 8), (70, None)])
def test_blocks_of_any_size(tmp_path: Path, columns: int, group: int | None) -> None:
    """The last one may be partial; what no group fits becomes an array."""
    weight = np.random.default_rng(0).normal(size=(100, columns)).astype(np.float32)
    stored, wanted = fp8("a", weight)
    checkpoint = opened(tmp_path / "fp8", stored, quantization_config=FP8)
    assert checkpoint.tensors == {"a.weight": TensorInfo((100, columns), "FP8")}
    found = checkpoint.read("a.weight")
    assert (found.group if isinstance(found, Quantised) else None) == group
    np.testing.assert_array_equal(values(found), wanted)
    np.testing.assert_allclose(values(found), weight, atol=0.2)


@pytest.mark.parametrize("columns", [40, 256, 33])
@pytest.mark.parametrize("shape", [(), (1,), (6,), (6, 1)])
@pytest.mark.parametrize("name", ["a.weight_scale", "a.weight_scale_inv"])
def test_scales_of_rows_and_tensors(
    tmp_path: Path, name: str, shape: tuple[int, ...], columns: int
) -> None:
    codes = np.random.default_rng(0).integers(0, 127, (6, columns), np.uint8)
    scale = np.random.default_rng(1).uniform(1, 2, shape).astype(ml_dtypes.bfloat16)
    weight = codes.view(ml_dtypes.float8_e4m3fn)
    stored = {"a.weight": weight, name: np.array(scale), "a.k_scale": np.ones(1)}
    checkpoint = opened(tmp_path / "fp8", stored, quantization_config=PLAIN)
    assert set(checkpoint.tensors) == {"a.weight"}
    wide = scale.astype(np.float32).reshape(-1, 1)
    found = checkpoint.read("a.weight")
    assert isinstance(found, Quantised) == (columns % 8 == 0)
    assert not isinstance(found, Quantised) or found.group == math.gcd(128, columns)
    np.testing.assert_array_equal(values(found), weight.astype(np.float32) * wide)


def test_stacked(tmp_path: Path) -> None:
    """Experts in one tensor have their rows below one another."""
    weights = np.random.default_rng(0).normal(size=(3, 50, 40)).astype(np.float32)
    parts = [fp8("a", weight) for weight in weights]
    stored = {name: np.stack([each[0][name] for each in parts]) for name in parts[0][0]}
    checkpoint = opened(tmp_path / "fp8", stored, quantization_config=FP8)
    assert checkpoint.tensors == {"a.weight": TensorInfo((3, 50, 40), "FP8")}
    found = checkpoint.read("a.weight")
    assert isinstance(found, Quantised) and found.shape == (150, 40)
    np.testing.assert_array_equal(values(found), np.concatenate([dense for _, dense in parts]))


@given(
    first=st.sampled_from([(), (3,), (2, 2)]),
    rows=st.integers(1, 20),
    columns=st.integers(1, 200),
    high=st.integers(1, 30),
    broad=st.sampled_from([1, 8, 24, 48, 64, 128]),
    seed=st.integers(0, 2**32),
)
def test_every_value_of_any_blocks(
    first: tuple[int, ...], rows: int, columns: int, high: int, broad: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 127, (*first, rows, columns)) + 128 * rng.integers(0, 2, columns)
    codes = codes.astype(np.uint8)
    grid = *first, -(-rows // high), -(-columns // broad)
    assume(math.prod(grid) > 1)  # A single scale has no place.
    scale = rng.uniform(0.1, 2, grid).astype(np.float32)
    infos = {
        "a.weight": TensorInfo(codes.shape, "F8_E4M3"),
        "a.weight_scale": TensorInfo(grid, "F32"),
    }
    method = Method("fp8", {"weight_block_size": [high, broad]})
    found = find(method, infos)[0]["a.weight"].unpack(codes, scale)
    # A scale is taken for one of rows where the shapes say so too.
    by_rows = grid in (codes.shape[:-1], (*codes.shape[:-1], 1))
    tall, wide = (1, columns) if by_rows else (high, broad)
    whole = np.reshape(scale, (*codes.shape[:-1], 1)) if by_rows else scale
    whole = np.repeat(np.repeat(whole, tall, axis=-2)[..., :rows, :], wide, axis=-1)
    wanted = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * whole[..., :columns]
    assert values(found).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("columns", [64, 33])
@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_values_that_are_no_numbers(tmp_path: Path, code: int, columns: int) -> None:
    stored, _ = fp8("a", MATRIX[:, :columns])
    stored["a.weight"].view(np.uint8)[3, 1] = code
    checkpoint = opened(tmp_path / "fp8", stored, quantization_config=FP8)
    with pytest.raises(CheckpointError, match=r"'a\.weight' has values that are no numbers$"):
        checkpoint.read("a.weight")


def test_scales_that_are_no_numbers(tmp_path: Path) -> None:
    stored, _ = fp8("a", MATRIX)
    stored["a.weight_scale_inv"][1, 1] = np.inf
    checkpoint = opened(tmp_path / "fp8", stored, quantization_config=FP8)
    with pytest.raises(CheckpointError, match=r"'a\.weight_scale_inv' has scales that are no num"):
        checkpoint.read("a.weight")


def test_joined_with_others(tmp_path: Path) -> None:
    """Beside floats of other groups they stay codes, beside integers and arrays they do not."""
    stored = fp8("a", MATRIX)[0]
    block = opened(tmp_path / "a", stored, quantization_config=FP8).read("a.weight")
    stored = {"a.weight": stored["a.weight"], "a.weight_scale": np.ones((), np.float32)}
    whole = opened(tmp_path / "b", stored, quantization_config=PLAIN).read("a.weight")
    assert isinstance(block, Quantised) and isinstance(whole, Quantised)
    assert (block.group, whole.group) == (32, 64)
    for other in (block, whole, quantise(MATRIX, 8, 32), quantise(MATRIX, 4, 32), MATRIX):
        joined = join([block, other])
        np.testing.assert_array_equal(
            values(joined), np.concatenate([values(each) for each in (block, other)])
        )
        floats = isinstance(other, Quantised) and other.floats
        assert isinstance(joined, Quantised) == floats
        assert not isinstance(joined, Quantised) or (joined.group, joined.floats) == (32, True)


def scaled(module: str, weight: np.ndarray, axis: int | None) -> tuple[Stored, np.ndarray]:
    """(the stored tensors, their values): a scale for a row (axis 1) or the tensor (None)."""
    scale = np.abs(weight).max(axis=axis, keepdims=axis is not None) / np.float32(448)
    codes = (weight / scale).astype(ml_dtypes.float8_e4m3fn)
    stored = {f"{module}.weight": codes, f"{module}.weight_scale": np.array(scale)}
    return stored, codes.astype(np.float32) * scale


KINDS: dict[str, tuple[dict[str, Any], Callable[[str, np.ndarray], tuple[Stored, np.ndarray]]]] = {
    "tensor": (PLAIN, lambda module, weight: scaled(module, weight, None)),
    "rows": (PLAIN, lambda module, weight: scaled(module, weight, 1)),
    "blocks": (FP8, fp8),
}


def with_experts(kind: str, folder: Path) -> TinyCheckpoint:
    """Writes a model whose projections and experts, each in its own tensor, are in FP8; the same
    with its values."""
    settings, quantised = KINDS[kind]
    tiny = tiny_checkpoint("qwen3_5_moe")
    stored: Stored = {}
    for name, array in tiny.arrays.items():
        if ".experts." in name:
            experts, of = name.rsplit(".", 1)
            projections = ("gate_proj", "up_proj") if of == "gate_up_proj" else ("down_proj",)
            dense = []
            for expert, matrix in enumerate(array):
                parts = np.split(matrix, len(projections))
                for projection, part in zip(projections, parts, strict=True):
                    made, found = quantised(f"{experts}.{expert}.{projection}", part)
                    stored |= made
                    dense.append(found)
            tiny.arrays[name] = np.concatenate(dense).reshape(array.shape)
        elif array.ndim == 2 and "_proj" in name:
            made, tiny.arrays[name] = quantised(name.removesuffix(".weight"), array)
            stored |= made
        else:
            stored[name] = array
    write_folder(folder, {name: np.ascontiguousarray(each) for name, each in stored.items()})
    write_json(folder / "config.json", tiny.config | {"quantization_config": settings})
    return tiny


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_with_experts(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logits are those of its values, also when it was converted, and codes stay codes."""
    plain = with_experts(kind, tmp_path / "fp8")
    checkpoint = open_checkpoint(tmp_path / "fp8")
    convert(checkpoint, tmp_path / "out")
    converted = open_checkpoint(tmp_path / "out")
    assert converted.tensors == checkpoint.tensors
    assert leaves_of(converted) == leaves_of(checkpoint)
    monkeypatch.setenv("TENSORFOLD_KERNELS", "xla")
    wanted = logits(plain)
    assert wanted.std() > 0.1
    assert logits(checkpoint).tobytes() == wanted.tobytes()
    for kernels in IMPLEMENTATIONS[1:]:
        monkeypatch.setenv("TENSORFOLD_KERNELS", kernels)
        np.testing.assert_allclose(logits(checkpoint), wanted, atol=1e-4 * np.abs(wanted).max())
        model = load(checkpoint)
        experts = model.leaves[model.paths.index("layers.0.mlp.experts_up.weight")]
        assert isinstance(experts, PackedMatrix) and experts.format == "e4m3"
        with pytest.raises(ValueError, match="integer codes, and this model has none"):
            with_activations(model, "int8")


@pytest.mark.parametrize("bits", [4, 8])
def test_floats_become_integers_when_asked(tmp_path: Path, bits: int) -> None:
    """Of 8 bits too: rows of int8 are for integers."""
    with_experts("blocks", tmp_path / "fp8")
    checkpoint = open_checkpoint(tmp_path / "fp8")
    convert(checkpoint, tmp_path / "out", bits=bits)
    name = "model.layers.0.mlp.shared_expert.gate_proj.weight"
    before, after = checkpoint.read(name), open_checkpoint(tmp_path / "out").read(name)
    assert isinstance(after, Quantised) and (after.bits, after.floats) == (bits, False)
    wide = np.repeat(after.scale, 32, axis=1)
    assert (np.abs(values(after) - values(before)) <= wide * 0.501).all()
