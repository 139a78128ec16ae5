"""Checkpoints of the same weights under the names that other files use."""

from collections.abc import Callable

import jax
import numpy as np
import pytest
from tiny import TinyCheckpoint, tiny_checkpoint

from tensorfold.checkpoints.interface import CheckpointError
from tensorfold.models.blocks import AttentionShape
from tensorfold.models.gpt_oss import GptOssConfig
from tensorfold.models.lfm2 import Lfm2Config
from tensorfold.runtime.load import load


def leaves_of(checkpoint: TinyCheckpoint) -> list[bytes]:
    """The bytes of every loaded leaf."""
    return [np.asarray(each).tobytes() for each in jax.tree.leaves(load(checkpoint).leaves)]


def rename(checkpoint: TinyCheckpoint, new_name: Callable[[str], str]) -> None:
    checkpoint.arrays = {new_name(name): array for name, array in checkpoint.arrays.items()}


def split_experts(checkpoint: TinyCheckpoint) -> None:
    """Every expert's matrices in tensors of their own."""
    for name in [name for name in checkpoint.arrays if ".experts." in name]:
        stacked = checkpoint.arrays.pop(name)
        place, kind = name.rsplit(".", 1)
        for expert, matrix in enumerate(stacked):
            parts = {kind: matrix}
            if kind == "gate_up_proj":
                parts = dict(zip(("gate_proj", "up_proj"), np.split(matrix, 2), strict=True))
            for part, array in parts.items():
                checkpoint.arrays[f"{place}.{expert}.{part}.weight"] = array


def test_the_text_part_of_a_multimodal_checkpoint() -> None:
    plain = tiny_checkpoint("qwen3_5_moe")
    wanted = leaves_of(plain)
    nested = tiny_checkpoint("qwen3_5_moe")
    text = {key: value for key, value in nested.config.items() if key != "architectures"}
    nested.config = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "text_config": text,
        "vision_config": {"depth": 1},
    }
    rename(nested, lambda name: name.replace("model.", "model.language_model.", 1))
    nested.arrays["model.visual.patch_embed.proj.weight"] = np.ones((2, 2), np.float32)
    nested.arrays["mtp.fc.weight"] = np.ones((2, 2), np.float32)
    split_experts(nested)
    assert leaves_of(nested) == wanted
    nested.arrays["model.language_model.extra.weight"] = np.ones((2, 2), np.float32)
    with pytest.raises(CheckpointError, match=r"no place for tensor model\.language_model\.extra"):
        load(nested)


def test_published_nemotron_h_files() -> None:
    variant = "nemotron_h groups of experts, latent"
    wanted = leaves_of(tiny_checkpoint(variant))
    published = tiny_checkpoint(variant)
    config = published.config
    letters = {"linear_attention": "M", "full_attention": "*", "moe": "E", "mlp": "-"}
    kinds = config.pop("layers_block_type", None) or config.pop("layer_types")
    config.pop("layer_types", None)
    config["hybrid_override_pattern"] = "".join(letters[kind] for kind in kinds)
    rename(published, lambda name: name.replace("model.", "backbone.", 1))
    split_experts(published)
    assert leaves_of(published) == wanted
    del published.arrays["backbone.layers.0.mixer.experts.5.up_proj.weight"]
    with pytest.raises(CheckpointError, match=r"experts\.5\.up_proj\.weight is missing"):
        load(published)


def test_published_gpt_oss_configs() -> None:
    new = dict(tiny_checkpoint("gpt_oss").config)
    left_out = ("rope_parameters", "layer_types", "swiglu_alpha", "attention_bias")
    old = {key: value for key, value in new.items() if key not in left_out}
    scaling = dict(new["rope_parameters"])
    old |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    assert GptOssConfig.read(old) == GptOssConfig.read(new)
    bare = {key: value for key, value in old.items() if not key.startswith("rope")}
    read = GptOssConfig.read(bare).rope
    assert read.frequencies[1] == pytest.approx(150000 ** (-1 / 8))
    assert read.factor == pytest.approx(1 + 0.1 * np.log(32))


def test_published_lfm2_files() -> None:
    variant = "lfm2 attention first and last, two taps"
    wanted = leaves_of(tiny_checkpoint(variant))
    published = tiny_checkpoint(variant)
    config = published.config
    config["block_ff_dim"] = config.pop("intermediate_size")
    config["tie_embedding"] = config.pop("tie_word_embeddings")
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    assert config.pop("layer_types") and config["full_attn_idxs"] == [0, 3]
    published.arrays["lm_head.weight"] = published.arrays["model.embed_tokens.weight"]
    assert leaves_of(published) == wanted
    mixers = Lfm2Config.read(config | {"full_attn_idxs": None}).mixers
    assert len(mixers) == 4 and all(isinstance(each, AttentionShape) for each in mixers)


@pytest.mark.parametrize(
    ("variant", "values", "message"),
    [
        ("qwen3_5", {"linear_num_key_heads": 3}, "4 attention heads do not share 3 key heads"),
        ("qwen3_5", {"hidden_act": "gelu"}, "'hidden_act': 'gelu' is not supported"),
        ("qwen3_5", {"linear_conv_kernel_dim": None}, "'linear_conv_kernel_dim' must be int"),
        ("nemotron_h", {"n_groups": 3}, "4 mamba heads do not share 3 groups"),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, "'mlp_hidden_act': 'silu' is not supported"),
        ("nemotron_h", {"layers_block_type": ["conv"]}, "layer type 'conv' is not supported"),
        ("nemotron_h", {"sliding_window": 64}, "'sliding_window': 64 is not supported"),
        ("lfm2", {"layer_types": ["conv", "mamba"]}, "layer type 'mamba' is not supported"),
        ("gpt_oss", {"num_experts_per_tok": 7}, "7 experts a token, and only 6 in all"),
        ("gpt_oss", {"layer_types": ["chunked"]}, "layer type 'chunked' is not supported"),
        ("gpt_oss", {"sliding_window": None}, "'sliding_window' must be int, not None"),
        ("gpt_oss", {"hidden_act": "gelu"}, "'hidden_act': 'gelu' is not supported"),
        ("lfm2", {"num_key_value_heads": 3}, "4 attention heads do not share 3 kv heads"),
        ("lfm2", {"block_ffn_dim_multiplier": None}, "'block_ffn_dim_multiplier' must be float"),
    ],
)
def test_what_can_not_run_is_named(variant: str, values: dict[str, object], message: str) -> None:
    checkpoint = tiny_checkpoint(variant)
    checkpoint.config |= values
    with pytest.raises(CheckpointError, match=message):
        load(checkpoint)
