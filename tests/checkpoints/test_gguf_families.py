"""Models of families in GGUF: the weights and config are those of a Hugging Face folder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGMLQuantizationType
from small_checkpoints import Data, random_blocks, write_gguf
from tiny import TinyCheckpoint, tiny_checkpoint

from tensorfold.checkpoints.convert import convert
from tensorfold.checkpoints.gguf_file import GgufCheckpoint
from tensorfold.checkpoints.hub import open_checkpoint
from tensorfold.checkpoints.interface import Checkpoint, CheckpointError, Quantised
from tensorfold.models.gpt_oss import GptOssConfig
from tensorfold.runtime.load import describe, load

LFM2 = {
    "model.embed_tokens": "token_embd",
    "model.embedding_norm": "token_embd_norm",
    "lm_head": "output",
    "operator_norm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj",
    "ffn_norm": "ffn_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
}


GPT_OSS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.sinks": "attn_sinks",
    "mlp.router": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}


def leaves_of(checkpoint: Checkpoint) -> list[bytes]:
    return [np.asarray(each).tobytes() for each in jax.tree.leaves(load(checkpoint).leaves)]


def gguf_name(name: str, parts: dict[str, str]) -> str:
    whole, kind = name.rsplit(".", 1)
    place = ""
    if whole.startswith("model.layers."):
        layer, whole = whole.removeprefix("model.layers.").split(".", 1)
        place = f"blk.{layer}."
    return f"{place}{parts[whole]}.{kind}"


def lfm2_tensors(checkpoint: TinyCheckpoint) -> Data:
    """The tensors as llama.cpp's converter has them."""
    return {
        gguf_name(name, LFM2): (array[:, 0] if name.endswith("conv.conv.weight") else array, "F32")
        for name, array in checkpoint.arrays.items()
    }


@pytest.mark.parametrize(
    "variant",
    [
        "lfm2",
        "lfm2 untied, odd sizes, width as it is",
        "lfm2 attention first and last, two taps",
        "lfm2 biases, wider filters, width times a factor",
    ],
)
def test_lfm2(variant: str, tmp_path: Path) -> None:
    wanted = tiny_checkpoint(variant)
    config = wanted.config
    attends = [kind == "full_attention" for kind in config["layer_types"]]
    metadata = {
        "lfm2.embedding_length": config["hidden_size"],
        "lfm2.block_count": config["num_hidden_layers"],
        "lfm2.attention.head_count": config["num_attention_heads"],
        "lfm2.attention.head_count_kv": [
            config["num_key_value_heads"] * attending for attending in attends
        ],
        "lfm2.attention.key_length": None,
        "lfm2.feed_forward_length": wanted.arrays["model.layers.0.feed_forward.w1.weight"].shape[0],
        "lfm2.attention.layer_norm_rms_epsilon": config["norm_eps"],
        "lfm2.rope.freq_base": config["rope_parameters"]["rope_theta"],
        "lfm2.context_length": config["max_position_embeddings"],
        "lfm2.shortconv.l_cache": config["conv_L_cache"],
        "tokenizer.ggml.pre": "lfm2",
    }
    path = write_gguf(tmp_path / "m.gguf", "lfm2", lfm2_tensors(wanted), metadata)
    checkpoint = GgufCheckpoint(path)
    assert leaves_of(checkpoint) == leaves_of(wanted)
    assert describe(checkpoint).state == describe(wanted).state
    metadata["lfm2.shortconv.l_cache"] = None
    write_gguf(path, "lfm2", lfm2_tensors(wanted), metadata)
    with pytest.raises(CheckpointError, match=r"no lfm2\.shortconv\.l_cache"):
        GgufCheckpoint(path)


def test_numbers_that_differ_between_layers(tmp_path: Path) -> None:
    metadata = {"llama.attention.head_count_kv": [2, 1]}
    path = write_gguf(tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(CheckpointError, match="head_count_kv differs between layers"):
        GgufCheckpoint(path)


def gpt_oss_tensors(checkpoint: TinyCheckpoint) -> Data:
    """The tensors as llama.cpp's converter has them."""
    found = {}
    for name, array in checkpoint.arrays.items():
        if name.endswith("_bias"):
            name = name.removesuffix("_bias") + ".bias"
        elif name.endswith(("sinks", "gate_up_proj", "down_proj")):
            name = f"{name}.weight"
            array = array.swapaxes(-1, -2) if array.ndim == 3 else array
        parts = {name: array}
        if "gate_up_proj" in name:
            halves = array[:, ::2], array[:, 1::2]
            names = (name.replace("gate_up", kind) for kind in ("gate", "up"))
            parts = dict(zip(names, halves, strict=True))
        for part, values in parts.items():
            found[gguf_name(part, GPT_OSS)] = np.ascontiguousarray(values), "F32"
    return found


def gpt_oss_metadata(config: dict[str, Any]) -> dict[str, Any]:
    rope = config["rope_parameters"]
    values = {
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.sliding_window": config["sliding_window"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "feed_forward_length": config["intermediate_size"],
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "context_length": config["max_position_embeddings"],
        "rope.freq_base": rope["rope_theta"],
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
    }
    return {f"gpt-oss.{key}": value for key, value in values.items()}


@pytest.mark.parametrize("variant", ["gpt_oss", "gpt_oss tied, odd sizes"])
def test_gpt_oss(variant: str, tmp_path: Path) -> None:
    wanted = tiny_checkpoint(variant)
    metadata = gpt_oss_metadata(wanted.config)
    path = write_gguf(tmp_path / "m.gguf", "gpt-oss", gpt_oss_tensors(wanted), metadata)
    checkpoint = GgufCheckpoint(path)
    assert leaves_of(checkpoint) == leaves_of(wanted)
    assert describe(checkpoint).state == describe(wanted).state
    # A float32 in the file.
    read, meant = (GptOssConfig.read(each.config) for each in (checkpoint, wanted))
    assert replace(read, epsilon=meant.epsilon, experts=meant.experts) == meant
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert checkpoint.read(name).shape == checkpoint.tensors[name].shape
    metadata["gpt-oss.expert_used_count"] = None
    write_gguf(path, "gpt-oss", gpt_oss_tensors(wanted), metadata)
    with pytest.raises(CheckpointError, match=r"no gpt-oss\.expert_used_count"):
        GgufCheckpoint(path)


def test_gpt_oss_with_experts_in_mxfp4(tmp_path: Path) -> None:
    """As llama.cpp's files have them: in codes, with values that are ggml's."""
    plain = tiny_checkpoint("gpt_oss", intermediate_size=32)
    tensors = gpt_oss_tensors(plain)
    values = {}
    for seed, (name, (array, _)) in enumerate(tensors.items()):
        if name.endswith("_exps.weight"):
            experts, rows, columns = array.shape
            blocks = random_blocks("MXFP4", experts * rows, columns, seed)
            tensors[name] = blocks.reshape(experts, rows, -1), "MXFP4"
            values[name] = quants.dequantize(blocks, GGMLQuantizationType.MXFP4)
    metadata = gpt_oss_metadata(plain.config)
    path = write_gguf(tmp_path / "m.gguf", "gpt-oss", tensors, metadata)
    checkpoint = GgufCheckpoint(path)
    read = checkpoint.read("model.layers.1.mlp.experts.gate_up_proj")
    assert isinstance(read, Quantised)
    gates, ups = read.dequantise()[::2], read.dequantise()[1::2]
    np.testing.assert_array_equal(gates, values["blk.1.ffn_gate_exps.weight"])
    np.testing.assert_array_equal(ups, values["blk.1.ffn_up_exps.weight"])
    read = checkpoint.read("model.layers.1.mlp.experts.down_proj")
    assert isinstance(read, Quantised)
    np.testing.assert_array_equal(read.dequantise(), values["blk.1.ffn_down_exps.weight"])
    wanted_leaves = leaves_of(checkpoint)
    convert(checkpoint, tmp_path / "out")
    assert leaves_of(open_checkpoint(tmp_path / "out")) == wanted_leaves
    tensors["blk.0.ffn_up_exps.bias"] = np.zeros((6, 31), np.float32), "F32"
    write_gguf(path, "gpt-oss", tensors, metadata)
    with pytest.raises(CheckpointError, match=r"gate_up_proj_bias' is \[6, 32\] and \[6, 31\]"):
        GgufCheckpoint(path)
