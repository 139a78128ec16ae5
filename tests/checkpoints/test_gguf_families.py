"""Models of families in GGUF: the weights and config are those of a Hugging Face folder."""

from pathlib import Path

import jax
import numpy as np
import pytest
from small_checkpoints import Data, write_gguf
from tiny import TinyCheckpoint, tiny_checkpoint

from tensorfold.checkpoints.gguf_file import GgufCheckpoint
from tensorfold.checkpoints.interface import Checkpoint, CheckpointError
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


def leaves_of(checkpoint: Checkpoint) -> list[bytes]:
    return [np.asarray(each).tobytes() for each in jax.tree.leaves(load(checkpoint).leaves)]


def lfm2_tensors(checkpoint: TinyCheckpoint) -> Data:
    """The tensors as llama.cpp's converter has them."""
    found = {}
    for name, array in checkpoint.arrays.items():
        whole, kind = name.rsplit(".", 1)
        place = ""
        if whole.startswith("model.layers."):
            layer, whole = whole.removeprefix("model.layers.").split(".", 1)
            place = f"blk.{layer}."
        if whole == "conv.conv" and kind == "weight":
            array = array[:, 0]
        found[f"{place}{LFM2[whole]}.{kind}"] = array, "F32"
    return found


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
