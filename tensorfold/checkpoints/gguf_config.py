"""GGUF metadata as a Hugging Face config."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .gguf_names import ARCHITECTURES
from .interface import CheckpointError, TensorInfo

_REQUIRED = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "intermediate_size": "feed_forward_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
}

_OPTIONAL = {
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
}

_SCALING = {
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "attention_factor": "attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}

_TOKENS = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}


def _scalar(key: str, value: Any) -> Any:
    """A per-layer list whose entries agree as one number, zeros of layers without the part left
    out; anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    found = np.unique(value[value != 0])
    if len(found) != 1:
        raise CheckpointError(f"{key} differs between layers, which is not supported")
    return found[0].item()


def _rope_scaling(metadata: Mapping[str, Any], prefix: str) -> dict[str, Any] | None:
    kind = metadata.get(f"{prefix}.type", "none")
    if kind == "none":
        return None
    found = {
        ours: metadata[f"{prefix}.{theirs}"]
        for ours, theirs in _SCALING.items()
        if f"{prefix}.{theirs}" in metadata
    }
    return {"rope_type": kind, **found}


_LAYERS_27B = 62


def _gemma3(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What Gemma 3 has beyond the others' terms. llama.cpp knows the scale of the scores and the
    pattern of the layers by the model's size; newer files name the pattern."""
    head_dim = config["head_dim"]
    if config["num_hidden_layers"] == _LAYERS_27B:
        head_dim = config["hidden_size"] // config["num_attention_heads"]
    found = {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": head_dim,
        "rope_local_base_freq": metadata.get("gemma3.rope.freq_base_swa", 10000.0),
        "final_logit_softcapping": metadata.get("gemma3.final_logit_softcapping"),
    }
    pattern = metadata.get("gemma3.attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray):
        kinds = {True: "sliding_attention", False: "full_attention"}
        return found | {"layer_types": [kinds[bool(slides)] for slides in pattern]}
    return found if pattern is None else found | {"sliding_window_pattern": int(pattern)}


def _lfm2(
    metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]
) -> dict[str, Any]:
    """What LFM2 has beyond the others' terms. Layers without key heads are convolutions, and the
    width of the MLP is the final one."""
    key = "lfm2.shortconv.l_cache"
    if key not in metadata:
        raise CheckpointError(f"no {key} in the metadata")
    heads = np.broadcast_to(
        metadata.get("lfm2.attention.head_count_kv", 1), config["num_hidden_layers"]
    )
    return {
        "conv_L_cache": metadata[key],
        "conv_bias": any(name.endswith(".conv.conv.bias") for name in tensors),
        "layer_types": ["full_attention" if count else "conv" for count in heads],
        "block_auto_adjust_ff_dim": False,
        "norm_eps": config["rms_norm_eps"],
    }


def _gpt_oss(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What gpt-oss has beyond the others' terms. Its rotation is blended between fractional
    indices, which GGUF does not say, and its experts are [outputs, inputs] as GGUF has them."""
    found: dict[str, Any] = {"quantization_config": {"quant_method": "gguf"}}
    experts = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
    for ours, theirs in experts.items():
        if f"gpt-oss.{theirs}" not in metadata:
            raise CheckpointError(f"no gpt-oss.{theirs} in the metadata")
        found[ours] = metadata[f"gpt-oss.{theirs}"]
    if config["rope_scaling"] is not None:
        found["rope_scaling"] = {**config["rope_scaling"], "truncate": False}
    return found


def architecture(metadata: Mapping[str, Any]) -> str:
    """`general.architecture`. Raises CheckpointError for one that is not known."""
    name = metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise CheckpointError(f"architecture {name!r} is not supported (known: {known})")
    return str(name)


def build_config(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo],
    rope_factors: list[float] | None,
) -> dict[str, Any]:
    """The config of a GGUF file whose `tensors` have Hugging Face's names.

    Numbers are the file's own; a float is the exact value of its float32. `rope_factors`, the
    divisors of Llama 3's rotary frequencies, go to the key `rope_freq_factors`. Raises
    CheckpointError for an unknown architecture or missing metadata.
    """
    arch = architecture(metadata)
    config: dict[str, Any] = {"architectures": [ARCHITECTURES[arch]], "model_type": arch}
    for ours, theirs in (_REQUIRED | _OPTIONAL).items():
        key = f"{arch}.{theirs}"
        if key in metadata:
            config[ours] = _scalar(key, metadata[key])
        elif ours in _REQUIRED:
            raise CheckpointError(f"no {key} in the metadata")
    embedding = tensors.get("model.embed_tokens.weight")
    if embedding is None:
        raise CheckpointError("no tensor token_embd.weight")
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    config.setdefault("rope_theta", 10000.0)
    config["rope_scaling"] = _rope_scaling(metadata, f"{arch}.rope.scaling")
    if rope_factors is not None:
        config["rope_freq_factors"] = rope_factors
    config["vocab_size"] = embedding.shape[0]
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    config["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in tensors
    config["hidden_act"] = "silu"
    if arch == "gemma3":
        config.update(_gemma3(metadata, config))
    if arch == "lfm2":
        config.update(_lfm2(metadata, tensors, config))
    if arch == "gpt-oss":
        config.update(_gpt_oss(metadata, config))
    config.update({ours: metadata[key] for ours, key in _TOKENS.items() if key in metadata})
    return config
