"""GGUF's names and Hugging Face's: tensors and architectures."""

import re

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
}
"""`general.architecture` to the class name in `architectures`."""

ROPE_FACTORS = "rope_freqs.weight"
"""Not a weight: the divisors of Llama 3's rotary frequencies, which belong in the config."""

_WHOLE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "token_embd_norm": "model.embedding_norm",
}

_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_OF_ARCHITECTURE = {
    "gemma3": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    "lfm2": {
        "attn_norm": "operator_norm",
        "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.conv": "conv.conv",
        "shortconv.out_proj": "conv.out_proj",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
    },
    "gpt-oss": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_gate_inp": "mlp.router",
    },
}
"""Names of a layer's parts that only one architecture has, or that mean something else there."""

_TENSORS = {
    "gpt-oss": {
        "attn_sinks.weight": "self_attn.sinks",
        "ffn_gate_exps.weight": "mlp.experts.gate_proj",
        "ffn_gate_exps.bias": "mlp.experts.gate_proj_bias",
        "ffn_up_exps.weight": "mlp.experts.up_proj",
        "ffn_up_exps.bias": "mlp.experts.up_proj_bias",
        "ffn_down_exps.weight": "mlp.experts.down_proj",
        "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
    },
}
"""Tensors of a layer that Hugging Face calls neither weight nor bias of a part."""

_BLOCK_NAME = re.compile(r"blk\.(\d+)\.([\w.]+)\.(weight|bias)")
_WHOLE_NAME = re.compile(r"(\w+)\.(weight|bias)")


def hugging_face_name(name: str, architecture: str) -> str | None:
    """Hugging Face's name of a GGUF tensor; None for one that is not known."""
    if match := _BLOCK_NAME.fullmatch(name):
        layer, part, kind = match.groups()
        whole = _TENSORS.get(architecture, {}).get(f"{part}.{kind}")
        if whole is not None:
            return f"model.layers.{layer}.{whole}"
        known = _BLOCK | _OF_ARCHITECTURE.get(architecture, {})
        return f"model.layers.{layer}.{known[part]}.{kind}" if part in known else None
    if (match := _WHOLE_NAME.fullmatch(name)) and match[1] in _WHOLE:
        return f"{_WHOLE[match[1]]}.{match[2]}"
    return None
