"""Tiny checkpoints as MLX writes them: what mlx-lm's `sanitize` functions make of the names."""

from dataclasses import replace

import numpy as np
from tiny import TinyCheckpoint

Arrays = dict[str, np.ndarray]

_RAISED = (
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
)
"""Norms of Qwen3.5 that get their 1 added."""


def to_mlx(checkpoint: TinyCheckpoint) -> TinyCheckpoint:
    """The same model; the config is Hugging Face's, but for Gemma 3's, which is multimodal."""
    kind = checkpoint.config["model_type"].removesuffix("_text")
    make = {
        "qwen3_5": _qwen3_5,
        "qwen3_5_moe": _qwen3_5,
        "nemotron_h": _nemotron_h,
        "gpt_oss": _gpt_oss,
        "lfm2": _same,
        "gemma3": _gemma3,
    }
    arrays = {
        name: array.swapaxes(1, 2)
        if name.endswith(("conv1d.weight", "conv.conv.weight"))
        else array
        for name, array in make[kind](checkpoint.arrays).items()
    }
    config = dict(checkpoint.config)
    if kind == "gemma3":
        config = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": config}
        config["tie_word_embeddings"] = checkpoint.config["tie_word_embeddings"]
        arrays["vision_tower.post_layernorm.weight"] = np.ones(3, np.float32)
        arrays["multi_modal_projector.mm_soft_emb_norm.weight"] = np.ones(3, np.float32)
    return replace(checkpoint, name="mlx", config=config, arrays=arrays)


def _same(arrays: Arrays) -> Arrays:
    return arrays


def _gemma3(arrays: Arrays) -> Arrays:
    return {f"language_model.{name}": array for name, array in arrays.items()}


def _qwen3_5(arrays: Arrays) -> Arrays:
    out: Arrays = {}
    for name, array in arrays.items():
        name = f"language_model.{name}"
        if name.startswith("language_model.mtp."):
            continue
        if name.endswith(_RAISED):
            out[name] = array + np.float32(1)
        elif name.endswith("experts.gate_up_proj"):
            place = name.replace("experts.gate_up_proj", "switch_mlp")
            half = array.shape[-2] // 2
            out[f"{place}.gate_proj.weight"] = array[..., :half, :]
            out[f"{place}.up_proj.weight"] = array[..., half:, :]
        elif name.endswith("experts.down_proj"):
            out[name.replace("experts", "switch_mlp") + ".weight"] = array
        else:
            out[name] = array
    return out


def _nemotron_h(arrays: Arrays) -> Arrays:
    out: Arrays = {}
    for name, array in arrays.items():
        name = name.replace("model.", "backbone.", 1)
        for theirs, stacked in (("up_proj", "fc1"), ("down_proj", "fc2")):
            name = name.replace(f".experts.{theirs}", f".switch_mlp.{stacked}.weight")
        out[name] = array
    return out


def _gpt_oss(arrays: Arrays) -> Arrays:
    """As from MXFP4, whose matrices are [outputs, inputs]."""
    out: Arrays = {}
    for name, array in arrays.items():
        place, _, last = name.rpartition(".")
        kind = "bias" if last.endswith("_bias") else "weight"
        if not place.endswith("experts"):
            out[name] = array
            continue
        rows = array if kind == "bias" else array.swapaxes(1, 2)
        if last.startswith("gate_up"):
            out[f"{place}.gate_proj.{kind}"] = rows[:, ::2]
            out[f"{place}.up_proj.{kind}"] = rows[:, 1::2]
        else:
            out[f"{place}.down_proj.{kind}"] = rows
    return out
