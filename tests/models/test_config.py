"""Configs and tensors that can't be served fail at load, in one line that names them."""

from typing import Any

import numpy as np
import pytest
from tiny import TinyCheckpoint, tiny_checkpoint

from tensorfold.checkpoints.interface import CheckpointError
from tensorfold.models import registry
from tensorfold.models.family import Family, PagedKV, Spec
from tensorfold.models.gemma3 import Gemma3Config
from tensorfold.models.llama import LlamaConfig
from tensorfold.runtime.load import load

GONE = object()


def changed(variant: str, **values: Any) -> dict[str, Any]:
    """A sound config with values changed, or taken out."""
    config = dict(CONFIGS[variant]) | values
    return {key: value for key, value in config.items() if value is not GONE}


KNOWN = ", ".join(name for family in registry.FAMILIES for name in family.architectures)

CONFIGS = {name: tiny_checkpoint(name).config for name in ("llama", "qwen2", "qwen3")}


@pytest.mark.parametrize("variant", CONFIGS)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_act": "gelu"}, "config value 'hidden_act': 'gelu' is not supported"),
        ({"vocab_size": GONE}, "config value 'vocab_size' must be int, not None"),
        ({"num_hidden_layers": "2"}, "config value 'num_hidden_layers' must be int, not '2'"),
        ({"num_hidden_layers": True}, "config value 'num_hidden_layers' must be int, not True"),
        ({"num_attention_heads": GONE}, "config value 'num_attention_heads' must be int, not None"),
        ({"num_key_value_heads": 3}, "4 attention heads do not share 3 kv heads"),
        ({"hidden_size": 64.5}, "config value 'hidden_size' must be int, not 64.5"),
        ({"intermediate_size": None}, "config value 'intermediate_size' must be int, not None"),
        ({"rms_norm_eps": "small"}, "config value 'rms_norm_eps' must be float, not 'small'"),
        (
            {"max_position_embeddings": GONE},
            "config value 'max_position_embeddings' must be int, not None",
        ),
        (
            {"partial_rotary_factor": 0.5},
            "config value 'partial_rotary_factor': 0.5 is not supported",
        ),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "rope_scaling type 'dynamic' is not supported",
        ),
        (
            {"rope_parameters": GONE, "rope_scaling": {"type": "longrope"}},
            "rope_scaling type 'longrope' is not supported",
        ),
        (
            {"rope_parameters": {"rope_type": "linear"}},
            "config value rope_scaling lacks 'factor'",
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}},
            "config value rope_scaling lacks 'high_freq_factor'",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 8.0, "mscale": 0.7}},
            "config value 'mscale': 0.7 is not supported",
        ),
        (
            {"architectures": ["MambaForCausalLM"]},
            f"architecture MambaForCausalLM is not supported (only {KNOWN})",
        ),
        (
            {"architectures": GONE},
            f"architecture (none) is not supported (only {KNOWN})",
        ),
    ],
)
def test_a_config_that_can_not_run_is_named(
    variant: str, values: dict[str, Any], message: str
) -> None:
    config = changed(variant, **values)
    with pytest.raises(ValueError) as error:
        registry.find(config)
    assert str(error.value) == message
    checkpoint = tiny_checkpoint(variant)
    checkpoint.config = config
    with pytest.raises(CheckpointError) as wrapped:
        load(checkpoint)
    assert str(wrapped.value) == f"{variant}: {message}"


def test_qwen3_has_no_window() -> None:
    with pytest.raises(ValueError, match="'use_sliding_window': True is not supported"):
        registry.find(changed("qwen3", use_sliding_window=True))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_activation": "gelu"}, "'hidden_activation': 'gelu' is not supported"),
        ({"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping': 50.0 is not supported"),
        ({"use_bidirectional_attention": True}, "'use_bidirectional_attention': True is not"),
        ({"num_key_value_heads": 3}, "4 attention heads do not share 3 kv heads"),
        ({"sliding_window": GONE}, "'sliding_window' must be int, not None"),
    ],
)
def test_what_gemma3_can_not_run_is_named(values: dict[str, Any], message: str) -> None:
    config = dict(tiny_checkpoint("gemma3").config) | values
    with pytest.raises(ValueError, match=message):
        registry.find({key: value for key, value in config.items() if value is not GONE})


def test_gemma3_configs_may_be_in_the_terms_of_older_versions() -> None:
    new = dict(tiny_checkpoint("gemma3 biases, rope linear").config)
    assert new["layer_types"] == ["sliding_attention", "full_attention"]
    old = {
        key: value for key, value in new.items() if key not in ("rope_parameters", "layer_types")
    }
    old |= {"rope_theta": 1e6, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 2}
    old["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    assert Gemma3Config.read(old) == Gemma3Config.read(new)


def test_a_config_may_be_in_the_terms_of_older_versions() -> None:
    old = changed("llama", rope_parameters=GONE, rope_theta=500.0, head_dim=GONE)
    old["rope_scaling"] = {"type": "linear", "factor": 4.0}
    new = changed(
        "llama", rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
    )
    assert rope_of(old) == rope_of(new)
    assert rope_of(old) != rope_of(changed("llama"))


def rope_of(config: dict[str, Any]) -> object:
    return LlamaConfig.read(config).rope


def test_heads_and_windows_of_the_state() -> None:
    mistral = tiny_checkpoint("mistral window").config
    assert registry.find(mistral).state == (PagedKV(2, 16, 4, 20),)
    qwen2 = tiny_checkpoint("qwen2 tied, window above layer 1").config
    windows = [layer.window for layer in registry.find(qwen2).state]
    assert windows == [None, 24, 24]
    qwen2 = changed("qwen2", sliding_window=16, use_sliding_window=False)
    assert registry.find(qwen2).state == (PagedKV(2, 16, 4),)


@pytest.fixture
def checkpoint() -> TinyCheckpoint:
    return tiny_checkpoint()


def assert_load_fails(checkpoint: TinyCheckpoint, message: str) -> None:
    with pytest.raises(CheckpointError) as error:
        load(checkpoint)
    assert str(error.value) == f"llama: {message}"


def test_a_missing_tensor_is_named(checkpoint: TinyCheckpoint) -> None:
    del checkpoint.arrays["model.layers.1.self_attn.k_proj.weight"]
    assert_load_fails(checkpoint, "tensor model.layers.1.self_attn.k_proj.weight is missing")
    del checkpoint.arrays["lm_head.weight"]
    assert_load_fails(checkpoint, "tensor lm_head.weight and 1 more is missing")


def test_a_tensor_without_a_place_is_named(checkpoint: TinyCheckpoint) -> None:
    checkpoint.arrays["model.layers.0.self_attn.q_norm.weight"] = np.ones(16, np.float32)
    assert_load_fails(checkpoint, "no place for tensor model.layers.0.self_attn.q_norm.weight")


def test_a_tensor_of_another_shape_is_named(checkpoint: TinyCheckpoint) -> None:
    checkpoint.arrays["model.norm.weight"] = np.ones(63, np.float32)
    assert_load_fails(checkpoint, "model.norm.weight is [63], the config says [64]")


def test_the_parts_of_a_fused_tensor_are_named(checkpoint: TinyCheckpoint) -> None:
    checkpoint.arrays["model.layers.0.mlp.up_proj.weight"] = np.ones((150, 64), np.float32)
    names = "model.layers.0.mlp.gate_proj.weight + model.layers.0.mlp.up_proj.weight"
    assert_load_fails(checkpoint, f"{names} is [310, 64], the config says [320, 64]")


def test_known_tensors_that_are_not_needed_are_let_be() -> None:
    checkpoint = tiny_checkpoint("llama tied")
    checkpoint.arrays["lm_head.weight"] = checkpoint.arrays["model.embed_tokens.weight"]
    checkpoint.arrays["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    assert len(load(checkpoint).leaves) > 5


def test_loading_reports_its_progress(checkpoint: TinyCheckpoint) -> None:
    seen = []
    model = load(checkpoint, seen.append)
    assert [event.done for event in seen] == list(range(len(model.leaves) + 1))
    assert {(event.task, event.total) for event in seen} == {("load", len(model.leaves))}


def test_a_family_is_one_line_in_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def spec(config: dict[str, Any]) -> Spec:
        asked.append(config)
        return Spec(lambda: None, {}, (), vocab_size=7, context=8)

    family = Family(("NewForCausalLM",), spec)
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, family))
    config = {"architectures": ["NewForCausalLM"]}
    assert registry.find(config).vocab_size == 7
    assert asked == [config]
    assert registry.find(CONFIGS["llama"]).vocab_size == 300
    with pytest.raises(ValueError, match=f"{KNOWN}, NewForCausalLM"):
        registry.find({"architectures": ["Other"]})
