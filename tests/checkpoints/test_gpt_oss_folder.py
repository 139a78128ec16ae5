"""gpt-oss folders with their experts in MXFP4: the same model as the values they stand for."""

from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from platforms import IMPLEMENTATIONS
from small_checkpoints import write_folder, write_json
from tiny import tiny_checkpoint
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tensorfold import cli
from tensorfold.checkpoints.convert import convert
from tensorfold.checkpoints.hub import open_checkpoint
from tensorfold.checkpoints.interface import Checkpoint, CheckpointError, Quantised
from tensorfold.info import info_rows
from tensorfold.kernels_cpu.matmul import PackedMatrix
from tensorfold.runtime.load import load, turned_tensors
from tensorfold.runtime.packed import Layout, Span
from tensorfold.runtime.step import StateShape, forward, make_state

WIDTH = 64
# Of the second width `gate_up_proj` is square, of the third `down_proj`.
HIDDEN = (96, 32, 64)


def leaves_of(checkpoint: Checkpoint) -> list[bytes]:
    return [np.asarray(each).tobytes() for each in jax.tree.leaves(load(checkpoint).leaves)]


def dequantised(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """What transformers makes of them: bfloat16 [experts, inputs, outputs]."""
    made = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales))
    return made.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def folders(path: Path, hidden: int) -> tuple[Path, Path]:
    """(a folder in MXFP4, one with its values)."""
    tiny = tiny_checkpoint("gpt_oss", hidden_size=WIDTH, intermediate_size=hidden)
    rng = np.random.default_rng(hidden)
    stored, plain = dict(tiny.arrays), dict(tiny.arrays)
    for name in [name for name in tiny.arrays if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = stored.pop(name).shape
        shape = experts, outputs, inputs // 32
        stored[f"{name}_blocks"] = rng.integers(0, 256, (*shape, 16), dtype=np.uint8)
        stored[f"{name}_scales"] = rng.integers(122, 126, shape, dtype=np.uint8)
        found = dequantised(stored[f"{name}_blocks"], stored[f"{name}_scales"])
        plain[name] = found + found.dtype.type(0)  # Codes have no -0.
        assert plain[name].shape == (experts, inputs, outputs)
    quantised = tiny.config | {"quantization_config": {"quant_method": "mxfp4"}}
    return (
        write(path / "mxfp4", stored, quantised),
        write(path / "plain", plain, tiny.config),
    )


def write(folder: Path, arrays: dict[str, np.ndarray], config: dict[str, Any]) -> Path:
    write_folder(folder, {name: np.ascontiguousarray(array) for name, array in arrays.items()})
    write_json(folder / "config.json", config)
    return folder


def logits(checkpoint: Checkpoint) -> np.ndarray:
    model = load(checkpoint)
    layout = Layout(24, 1, 1)
    packed = layout.pack([Span(0, 0, list(range(40, 64)), 0)], np.zeros((1, 1), np.int32))
    state = make_state(model.spec.state, StateShape(lanes=1, context=64, pages=1))
    run = jax.jit(lambda leaves, state, packed: forward(model, layout, leaves, state, packed)[0])
    return np.asarray(run(model.leaves, state, packed))


def experts_of(checkpoint: Checkpoint) -> list[PackedMatrix]:
    """The experts' matrices, all of them packed."""
    model = load(checkpoint)
    found = [
        leaf
        for path, leaf in zip(model.paths, model.leaves, strict=True)
        if "experts" in path and path.endswith(".weight")
    ]
    assert len(found) == 4 and all(isinstance(leaf, PackedMatrix) for leaf in found)
    return [leaf for leaf in found if isinstance(leaf, PackedMatrix)]


@pytest.mark.parametrize("hidden", HIDDEN)
def test_mxfp4_is_what_it_stands_for(
    hidden: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantised, plain = (open_checkpoint(folder) for folder in folders(tmp_path, hidden))
    rows = info_rows(quantised)
    assert rows["layers"] == "2 attention (1 with a window of 20); 2 with experts"
    assert "4 MXFP4" in rows["tensors"]
    assert rows["parameters"] == info_rows(plain)["parameters"]
    convert(quantised, tmp_path / "out")
    converted = open_checkpoint(tmp_path / "out")
    assert converted.tensors == quantised.tensors
    assert leaves_of(converted) == leaves_of(quantised)
    monkeypatch.setenv("TENSORFOLD_KERNELS", "xla")
    assert leaves_of(quantised) == leaves_of(plain)
    wanted = logits(plain)
    assert wanted.std() > 0.5
    for kernels in IMPLEMENTATIONS[1:]:
        monkeypatch.setenv("TENSORFOLD_KERNELS", kernels)
        for checkpoint in (quantised, converted):
            got = logits(checkpoint)
            np.testing.assert_allclose(got, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.skipif("cpu" not in IMPLEMENTATIONS, reason="without kernels codes become float32")
def test_experts_stay_codes(tmp_path: Path) -> None:
    quantised, _ = folders(tmp_path, 96)
    for leaf in experts_of(open_checkpoint(quantised)):
        assert (leaf.format, leaf.scales, leaf.zero) == ("q5", "half", 12)
        assert leaf.data.nbytes * 8 == 5.5 * np.prod(leaf.shape)


@pytest.mark.parametrize("bits", [4, 8])
def test_routers_and_biases_stay_when_matrices_become_codes(bits: int, tmp_path: Path) -> None:
    quantised = open_checkpoint(folders(tmp_path, 96)[0])
    convert(quantised, tmp_path / "out", bits=bits)
    out = open_checkpoint(tmp_path / "out")
    assert isinstance(out.read("model.layers.0.self_attn.q_proj.weight"), Quantised)
    for name in ("router.weight", "experts.down_proj_bias", "experts.gate_up_proj_bias"):
        assert not isinstance(out.read(f"model.layers.0.mlp.{name}"), Quantised)
    # What has four bits gets no others.
    name = "model.layers.0.mlp.experts.down_proj"
    before, after = quantised.read(name), out.read(name)
    assert isinstance(before, Quantised) and isinstance(after, Quantised)
    assert after.codes.tobytes() == before.codes.tobytes()
    assert out.tensors[name] == quantised.tensors[name]
    load(out)


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("bits", [4, 8])
def test_plain_experts_become_codes(bits: int, hidden: int, tmp_path: Path) -> None:
    """They are [inputs, outputs]; codes are in groups of inputs."""
    plain = open_checkpoint(folders(tmp_path, hidden)[1])
    convert(plain, tmp_path / "out", bits=bits, turned=turned_tensors(plain))
    out = open_checkpoint(tmp_path / "out")
    for name in ("gate_up_proj", "down_proj"):
        name = f"model.layers.1.mlp.experts.{name}"
        before, after = plain.read(name), out.read(name)
        assert isinstance(before, np.ndarray) and isinstance(after, Quantised)
        assert out.tensors[name].shape == before.shape
        wanted = before.astype(np.float32).swapaxes(1, 2).reshape(-1, before.shape[1])
        steps = np.abs(after.dequantise() - wanted).reshape(*after.scale.shape, 32)
        assert (steps <= after.scale[..., None] * 0.501).all()
    if "cpu" in IMPLEMENTATIONS:
        assert {leaf.format for leaf in experts_of(out)} == {f"q{bits}"}
    else:
        load(out)


def test_the_command_knows_which_are_turned(tmp_path: Path) -> None:
    folder = folders(tmp_path, 64)[1]
    assert cli.main(["convert", str(folder), str(tmp_path / "said"), "--quantize", "q8"]) == 0
    plain = open_checkpoint(folder)
    turned = turned_tensors(plain)
    assert turned == {name for name in plain.tensors if len(plain.tensors[name].shape) == 3}
    convert(plain, tmp_path / "out", bits=8, turned=turned)
    said, out = (open_checkpoint(tmp_path / name) for name in ("said", "out"))
    assert leaves_of(said) == leaves_of(out)


@pytest.mark.parametrize("hidden", HIDDEN)
def test_a_config_that_says_the_other_layout_ends_the_load(hidden: int, tmp_path: Path) -> None:
    quantised, plain = folders(tmp_path, hidden)
    (plain / "config.json").write_bytes((quantised / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"experts\.\w+_proj is \[\d+, \d+\], the config"):
        load(open_checkpoint(plain))
