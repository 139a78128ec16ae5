"""Models as MLX writes them: the same weights as under Hugging Face's names."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from mlx_names import to_mlx
from next_token import random_pair, with_layers
from tiny import TinyCheckpoint, tiny_checkpoint

from tensorfold.checkpoints.interface import CheckpointError, Quantised
from tensorfold.checkpoints.quantise import quantise
from tensorfold.runtime.load import describe, load

VARIANTS = (
    "qwen3_5",
    "qwen3_5 tied, odd sizes",
    "qwen3_5 biases, all rotated",
    "qwen3_5_moe",
    "qwen3_5_moe odd sizes",
    "nemotron_h",
    "nemotron_h odd sizes, biases",
    "nemotron_h groups of experts, latent",
    "gpt_oss",
    "gpt_oss tied, odd sizes",
    "gpt_oss all chosen, limits reached, one kv head",
    "lfm2",
    "lfm2 biases, wider filters, width times a factor",
    "gemma3",
    "gemma3 untied, one kv head",
)


def leaves_of(checkpoint: TinyCheckpoint) -> list[bytes]:
    """The bytes of every loaded leaf."""
    return [np.asarray(each).tobytes() for each in jax.tree.leaves(load(checkpoint).leaves)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_are_equal(variant: str) -> None:
    plain = tiny_checkpoint(variant)
    mlx = to_mlx(plain)
    differing = {
        name
        for name, array in mlx.arrays.items()
        if name not in plain.arrays or plain.arrays[name].shape != array.shape
    }
    assert differing
    assert leaves_of(mlx) == leaves_of(plain)


@pytest.mark.parametrize("variant", ["qwen3_5_moe", "nemotron_h", "gpt_oss"])
def test_quantised_weights_are_equal(variant: str) -> None:
    """Rows keep their codes wherever they stand."""

    def coded(checkpoint: TinyCheckpoint, turned: bool) -> TinyCheckpoint:
        arrays: dict[str, Any] = checkpoint.arrays
        for name, array in checkpoint.arrays.items():
            experts = array.ndim == 3 and ("experts" in name or "switch_mlp" in name)
            rows = array.swapaxes(1, 2) if turned and experts else array
            if (array.ndim == 2 and name.endswith("_proj.weight")) or experts:
                arrays[name] = quantise(rows.reshape(-1, rows.shape[-1]), 4, 8)
        assert any(isinstance(each, Quantised) for each in arrays.values())
        return checkpoint

    plain = tiny_checkpoint(variant)
    mlx = coded(to_mlx(plain), turned=False)
    assert leaves_of(mlx) == leaves_of(coded(plain, turned=variant == "gpt_oss"))


def test_the_newer_names_of_a_multimodal_gemma() -> None:
    plain = tiny_checkpoint("gemma3")
    newer = to_mlx(plain)
    newer.arrays = {
        name.replace("language_model.model.", "model.language_model."): array
        for name, array in newer.arrays.items()
        if name.startswith("language_model.")
    } | {"model.vision_tower.post_layernorm.weight": np.ones(3, np.float32)}
    assert leaves_of(newer) == leaves_of(plain)


def test_what_a_multimodal_gemma_config_leaves_out() -> None:
    """As transformers fills it."""
    plain = tiny_checkpoint("gemma3", head_dim=256)
    mlx = to_mlx(plain)
    text = mlx.config["text_config"]
    given = ("hidden_size", "intermediate_size", "num_hidden_layers", "sliding_window")
    mlx.config["text_config"] = {name: text[name] for name in given}
    spec = describe(mlx)
    assert (spec.vocab_size, spec.context) == (262208, 131072)
    assert [(each.heads, each.kv_heads, each.head_dim) for each in spec.state] == [(8, 4, 256)] * 2


def test_next_token_layers_that_mlx_leaves_out() -> None:
    whole = with_layers(*random_pair())
    plain = with_layers(*random_pair())
    assert describe(whole).next_token is not None
    mlx = to_mlx(whole)
    assert describe(mlx).next_token is None
    plain.arrays = {n: each for n, each in plain.arrays.items() if not n.startswith("mtp.")}
    assert leaves_of(mlx) == leaves_of(plain)


def unturned(arrays: dict[str, np.ndarray], name: str) -> None:
    arrays[name] = arrays[name].swapaxes(1, 2)


WRONG: list[tuple[str, Callable[[dict[str, Any]], Any], str]] = [
    (
        "qwen3_5",
        lambda arrays: unturned(arrays, "language_model.model.layers.0.linear_attn.conv1d.weight"),
        r"language_model\.model\.layers\.0\.linear_attn\.conv1d\.weight is \[",
    ),
    (
        "qwen3_5_moe",
        lambda arrays: arrays.pop("language_model.model.layers.1.mlp.switch_mlp.up_proj.weight"),
        r"layers\.1\.mlp\.switch_mlp\.up_proj\.weight is missing",
    ),
    (
        "qwen3_5_moe",
        lambda arrays: arrays.update({"language_model.extra": np.ones(3)}),
        r"no place for tensor language_model\.extra",
    ),
    (
        "nemotron_h",
        lambda arrays: unturned(arrays, "backbone.layers.1.mixer.switch_mlp.fc1.weight"),
        r"fc1\.weight is \[384, 40\], the config says \[240, 64\]",
    ),
    (
        "gpt_oss",
        lambda arrays: unturned(arrays, "model.layers.0.mlp.experts.gate_proj.weight"),
        r"gate_proj\.weight \+ .*up_proj\.weight is \[384, 40\], the config says \[480, 64\]",
    ),
    (
        "gpt_oss",
        lambda arrays: arrays.pop("model.layers.0.mlp.experts.up_proj.bias"),
        r"experts\.up_proj\.bias is missing",
    ),
    (
        "lfm2",
        lambda arrays: arrays.update(
            {"model.layers.0.conv.conv.weight": np.ones((64, 4, 1), np.float32)}
        ),
        r"conv\.conv\.weight is \[64, 1, 4\], the config says \[64, 1, 3\]",
    ),
]


@pytest.mark.parametrize(("variant", "damage", "message"), WRONG)
def test_a_wrong_guess_ends_the_load(
    variant: str, damage: Callable[[dict[str, Any]], Any], message: str
) -> None:
    mlx = to_mlx(tiny_checkpoint(variant))
    damage(mlx.arrays)
    with pytest.raises(CheckpointError, match=message) as caught:
        load(mlx)
    assert "\n" not in str(caught.value)
