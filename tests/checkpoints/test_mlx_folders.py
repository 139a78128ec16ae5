"""Folders that MLX wrote, quantised: the model of Hugging Face's folder with the same codes."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from mlx_names import to_mlx
from safetensors.numpy import load_file
from small_checkpoints import write_folder, write_json
from test_gpt_oss_folder import folders
from tiny import TinyCheckpoint, tiny_checkpoint

from tensorfold.checkpoints.convert import convert
from tensorfold.checkpoints.hub import open_checkpoint
from tensorfold.checkpoints.interface import Checkpoint
from tensorfold.checkpoints.quantise import quantise
from tensorfold.runtime.load import load


def leaves_of(checkpoint: Checkpoint) -> list[bytes]:
    return [np.asarray(each).tobytes() for each in jax.tree.leaves(load(checkpoint).leaves)]


def write(folder: Path, arrays: dict[str, np.ndarray], config: dict[str, Any]) -> Checkpoint:
    write_folder(folder, {name: np.ascontiguousarray(array) for name, array in arrays.items()})
    write_json(folder / "config.json", config)
    return open_checkpoint(folder)


def is_quantised(name: str, array: np.ndarray) -> bool:
    """Whether these tests quantise a tensor, under either's names."""
    experts = ".experts." in name or ".switch_mlp." in name
    matrix = experts or (array.ndim == 2 and name.endswith("_proj.weight"))
    return matrix and array.shape[-1] % 32 == 0


def mlx_quantised(arrays: dict[str, np.ndarray], bits: int) -> dict[str, np.ndarray]:
    """The stored tensors, in groups of 32."""
    out = {}
    for name, array in arrays.items():
        if not is_quantised(name, array):
            out[name] = array
            continue
        coded = quantise(array.reshape(-1, array.shape[-1]), bits, 32)
        module = name.removesuffix(".weight")
        parts = {"weight": coded.codes.view("<u4"), "scales": coded.scale, "biases": coded.offset}
        out |= {f"{module}.{k}": each.reshape(*array.shape[:-1], -1) for k, each in parts.items()}
    return out


def test_qwen3_5_with_experts(tmp_path: Path) -> None:
    plain = tiny_checkpoint("qwen3_5_moe", moe_intermediate_size=32)
    mlx = to_mlx(plain)
    config = mlx.config | {"quantization": {"group_size": 32, "bits": 8}}
    checkpoint = write(tmp_path / "mlx", mlx_quantised(mlx.arrays, 8), config)
    name = "language_model.model.layers.0.mlp.switch_mlp.up_proj.weight"
    assert checkpoint.tensors[name].shape == (6, 32, 64)
    arrays: dict[str, Any] = {
        name: quantise(array.reshape(-1, array.shape[-1]), 8, 32)
        if is_quantised(name, array)
        else array
        for name, array in plain.arrays.items()
    }
    wanted = leaves_of(TinyCheckpoint("coded", plain.config, arrays, plain.tokenizer))
    assert leaves_of(checkpoint) == wanted
    convert(checkpoint, tmp_path / "out")
    assert leaves_of(open_checkpoint(tmp_path / "out")) == wanted


def test_gpt_oss_in_mxfp4(tmp_path: Path) -> None:
    """MLX keeps the codes of the published file, gates and ups apart, with settings of its own."""
    published = folders(tmp_path, 96)[0]
    checkpoint = open_checkpoint(published)
    stored: dict[str, np.ndarray] = {}
    for name, array in load_file(published / "model.safetensors").items():
        name = name.replace("_blocks", ".weight").replace("_scales", ".scales")
        name = name.replace("_proj_bias", "_proj.bias")
        if name.endswith("proj.weight") and "experts" in name:
            array = np.ascontiguousarray(array).view(np.uint32).reshape(*array.shape[:2], -1)
        if "gate_up_proj" in name:
            stored[name.replace("gate_up", "gate")] = array[:, ::2]
            stored[name.replace("gate_up", "up")] = array[:, 1::2]
        else:
            stored[name] = array
    settings = {"group_size": 32, "bits": 4, "mode": "mxfp4"}
    config = dict(checkpoint.config) | {"quantization": settings, "quantization_config": settings}
    mlx = write(tmp_path / "mlx", stored, config)
    name = "model.layers.0.mlp.experts.gate_proj.weight"
    assert (mlx.tensors[name].shape, mlx.tensors[name].format) == ((6, 96, 64), "MXFP4")
    wanted = leaves_of(checkpoint)
    assert leaves_of(mlx) == wanted
    convert(mlx, tmp_path / "out", bits=4)
    out = open_checkpoint(tmp_path / "out")
    assert out.tensors[name] == mlx.tensors[name]
    assert isinstance(out.read("model.layers.0.mlp.experts.down_proj.bias"), np.ndarray)
