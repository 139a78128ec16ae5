"""gpt-oss folders with their experts in MXFP4: the same model as the values they stand for."""

from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from small_checkpoints import write_folder, write_json
from tiny import tiny_checkpoint
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tensorfold.checkpoints.convert import convert
from tensorfold.checkpoints.hub import open_checkpoint
from tensorfold.checkpoints.interface import Checkpoint, CheckpointError, Quantised
from tensorfold.info import info_rows
from tensorfold.runtime.load import load

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
        plain[name] = dequantised(stored[f"{name}_blocks"], stored[f"{name}_scales"])
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


@pytest.mark.parametrize("hidden", HIDDEN)
def test_mxfp4_is_what_it_stands_for(hidden: int, tmp_path: Path) -> None:
    quantised, plain = (open_checkpoint(folder) for folder in folders(tmp_path, hidden))
    wanted = leaves_of(plain)
    assert leaves_of(quantised) == wanted
    rows = info_rows(quantised)
    assert rows["layers"] == "2 attention (1 with a window of 20); 2 with experts"
    assert "4 MXFP4" in rows["tensors"]
    convert(quantised, tmp_path / "out")
    assert leaves_of(open_checkpoint(tmp_path / "out")) == wanted


def test_routers_and_biases_stay_when_matrices_become_codes(tmp_path: Path) -> None:
    quantised, _ = folders(tmp_path, 96)
    convert(open_checkpoint(quantised), tmp_path / "out", bits=8)
    out = open_checkpoint(tmp_path / "out")
    assert isinstance(out.read("model.layers.0.self_attn.q_proj.weight"), Quantised)
    for name in ("router.weight", "experts.down_proj_bias", "experts.down_proj"):
        assert not isinstance(out.read(f"model.layers.0.mlp.{name}"), Quantised)
    load(out)


@pytest.mark.parametrize("hidden", HIDDEN)
def test_a_config_that_says_the_other_layout_ends_the_load(hidden: int, tmp_path: Path) -> None:
    quantised, plain = folders(tmp_path, hidden)
    (plain / "config.json").write_bytes((quantised / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"experts\.\w+_proj is \[\d+, \d+\], the config"):
        load(open_checkpoint(plain))
