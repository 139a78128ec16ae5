"""Tiny random checkpoints of every family, and step functions that run them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers
from transformers import (
    Gemma3TextConfig,
    GptOssConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    NemotronHConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
)

from tensorfold.checkpoints.interface import (
    Checkpoint,
    CheckpointError,
    GenerationDefaults,
    TensorInfo,
    WeightsFile,
)
from tensorfold.runtime.load import load
from tensorfold.runtime.step import StateShape, StepFunction


@dataclass(frozen=True)
class ByteTokenizer:
    """Ids 0 to 255 are bytes, the others control tokens `<256>`, `<257>`, ...; 256 is the first of
    a text and 257 the last."""

    vocab_size: int
    bos_id: int = 256
    end_ids: frozenset[int] = frozenset({257})

    @property
    def control_ids(self) -> frozenset[int]:
        return frozenset(range(256, self.vocab_size))

    def encode(
        self, text: str, *, add_special_tokens: bool = False, control: bool = True
    ) -> list[int]:
        return [self.bos_id] * add_special_tokens + list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else self.token_text(token).encode()

    def token_text(self, token: int) -> str:
        return chr(token) if token < 256 else f"<{token}>"


@dataclass
class TinyCheckpoint:
    """Implements `Checkpoint` in memory."""

    name: str
    config: dict[str, Any]
    arrays: dict[str, np.ndarray]
    tokenizer: ByteTokenizer
    chat_template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    end_ids: frozenset[int] = frozenset({257})
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)
    files: tuple[WeightsFile, ...] = ()

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return {name: TensorInfo(array.shape, "F32") for name, array in self.arrays.items()}

    def read(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise CheckpointError(f"{self.name}: no tensor {name!r}")
        return self.arrays[name]


SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def _llama(**changes: Any) -> PretrainedConfig:
    return LlamaConfig(**(SIZES | changes))


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, **values}


def _gemma3(**changes: Any) -> PretrainedConfig:
    sizes = {key: value for key, value in SIZES.items() if key != "rope_theta"}
    kinds = ["sliding_attention", "full_attention"]
    defaults = {"num_hidden_layers": 2, "head_dim": 16, "sliding_window": 20, "layer_types": kinds}
    tied = {"tie_word_embeddings": True, "query_pre_attn_scalar": 16}
    return Gemma3TextConfig(**(sizes | defaults | tied | changes))


_DELTA: dict[str, Any] = {
    "num_hidden_layers": 2,
    "head_dim": 16,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"],
}


def _qwen3_5(**changes: Any) -> PretrainedConfig:
    return Qwen3_5TextConfig(**(SIZES | _DELTA | changes))


def _qwen3_5_moe(**changes: Any) -> PretrainedConfig:
    experts = {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 48,
    }
    return Qwen3_5MoeTextConfig(**(SIZES | _DELTA | experts | changes))


def _nemotron_h(**changes: Any) -> PretrainedConfig:
    sizes = {
        key: value for key, value in SIZES.items() if key not in ("rope_theta", "num_hidden_layers")
    }
    mixers = {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
        "head_dim": 16,
        "mamba_num_heads": 4,
        "mamba_head_dim": 24,
        "ssm_state_size": 16,
        "n_groups": 2,
        "n_routed_experts": 6,
        "moe_intermediate_size": 40,
        "moe_shared_expert_intermediate_size": 48,
        "chunk_size": 32,
    }
    return NemotronHConfig(**(sizes | mixers | changes))


def _lfm2(**changes: Any) -> PretrainedConfig:
    mixers = {
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "block_multiple_of": 32,
        "tie_word_embeddings": True,
    }
    return Lfm2Config(**(SIZES | mixers | changes))


def _gpt_oss(**changes: Any) -> PretrainedConfig:
    sizes = {key: value for key, value in SIZES.items() if key != "rope_theta"}
    layers = {
        "num_hidden_layers": 2,
        "head_dim": 16,
        "sliding_window": 20,
        "intermediate_size": 40,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "rope_parameters": _rope(
            "yarn", factor=8.0, original_max_position_embeddings=64, truncate=False
        ),
    }
    return GptOssConfig(**(sizes | layers | changes))


VARIANTS: dict[str, PretrainedConfig] = {
    "llama": _llama(num_hidden_layers=2),
    "llama tied": _llama(tie_word_embeddings=True),
    "llama odd sizes": _llama(
        hidden_size=72,
        intermediate_size=200,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=8,
        vocab_size=301,
    ),
    "llama heads of 10": _llama(head_dim=10, num_key_value_heads=4),
    "llama wide heads": _llama(head_dim=40),
    "llama one kv head": _llama(num_key_value_heads=1),
    "llama biases": _llama(attention_bias=True, mlp_bias=True),
    "llama rope linear": _llama(rope_parameters=_rope("linear", factor=4.0)),
    "llama rope llama3": _llama(
        rope_parameters=_rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        )
    ),
    "llama rope yarn": _llama(
        rope_parameters=_rope("yarn", factor=8.0, original_max_position_embeddings=64)
    ),
    "mistral window": MistralConfig(**SIZES, sliding_window=20),
    "mistral no window": MistralConfig(**SIZES, sliding_window=None, head_dim=32),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2 tied, window above layer 1": Qwen2Config(
        **(SIZES | {"num_hidden_layers": 3, "tie_word_embeddings": True}),
        use_sliding_window=True,
        sliding_window=24,
        max_window_layers=1,
    ),
    "qwen2 layer types": Qwen2Config(
        **(SIZES | {"num_hidden_layers": 2}),
        use_sliding_window=True,
        sliding_window=70,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "qwen3": Qwen3Config(**(SIZES | {"num_hidden_layers": 2}), head_dim=24),
    "qwen3 tied": Qwen3Config(**(SIZES | {"tie_word_embeddings": True}), head_dim=16),
    "qwen3 biases": Qwen3Config(**SIZES, head_dim=16, attention_bias=True),
    "gemma3": _gemma3(),
    "gemma3 odd sizes, softcap": _gemma3(
        hidden_size=72,
        intermediate_size=200,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=24,
        vocab_size=301,
        query_pre_attn_scalar=40,
        final_logit_softcapping=4.0,
    ),
    "gemma3 untied, one kv head": _gemma3(
        tie_word_embeddings=False, num_key_value_heads=1, layer_types=["full_attention"] * 2
    ),
    "gemma3 biases, rope linear": _gemma3(
        attention_bias=True,
        sliding_window=70,
        rope_parameters={
            "full_attention": _rope("linear", factor=8.0) | {"rope_theta": 1e6},
            "sliding_attention": _rope("default"),
        },
    ),
    "qwen3_5": _qwen3_5(
        num_hidden_layers=4, layer_types=["linear_attention"] * 3 + ["full_attention"]
    ),
    "qwen3_5 tied, odd sizes": _qwen3_5(
        tie_word_embeddings=True,
        hidden_size=72,
        intermediate_size=200,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=24,
        linear_key_head_dim=12,
        linear_value_head_dim=20,
        linear_num_key_heads=3,
        linear_num_value_heads=9,
        vocab_size=301,
    ),
    "qwen3_5 one head, wider filters": _qwen3_5(
        num_key_value_heads=1,
        linear_num_key_heads=1,
        linear_num_value_heads=1,
        linear_conv_kernel_dim=5,
    ),
    "qwen3_5 biases, all rotated": _qwen3_5(
        attention_bias=True,
        rope_parameters=_rope("default") | {"partial_rotary_factor": 1.0},
        layer_types=["full_attention", "linear_attention"],
    ),
    "qwen3_5_moe": _qwen3_5_moe(),
    "qwen3_5_moe one expert": _qwen3_5_moe(num_experts=1, num_experts_per_tok=1),
    "qwen3_5_moe odd sizes": _qwen3_5_moe(
        hidden_size=72,
        moe_intermediate_size=36,
        shared_expert_intermediate_size=20,
        num_experts=7,
        num_experts_per_tok=3,
    ),
    "qwen3_5_moe all chosen, tied": _qwen3_5_moe(
        num_experts=4, num_experts_per_tok=4, tie_word_embeddings=True
    ),
    "nemotron_h": _nemotron_h(),
    "nemotron_h odd sizes, biases": _nemotron_h(
        hidden_size=72,
        intermediate_size=200,
        mamba_num_heads=9,
        mamba_head_dim=10,
        ssm_state_size=12,
        n_groups=3,
        use_bias=True,
        mlp_bias=True,
        moe_intermediate_size=36,
        vocab_size=301,
    ),
    "nemotron_h groups of experts, latent": _nemotron_h(
        layers_block_type=["moe", "linear_attention", "full_attention"],
        n_routed_experts=8,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        moe_latent_size=32,
        routed_scaling_factor=2.5,
        norm_topk_prob=False,
    ),
    "nemotron_h one expert of two, no conv bias": _nemotron_h(
        layers_block_type=["linear_attention", "full_attention", "moe"],
        n_routed_experts=2,
        num_experts_per_tok=1,
        n_groups=1,
        use_conv_bias=False,
    ),
    "lfm2": _lfm2(),
    "lfm2 untied, odd sizes, width as it is": _lfm2(
        tie_word_embeddings=False,
        hidden_size=72,
        intermediate_size=200,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=301,
        block_auto_adjust_ff_dim=False,
        rope_theta=500.0,
    ),
    "lfm2 biases, wider filters, width times a factor": _lfm2(
        conv_bias=True, conv_L_cache=5, block_ffn_dim_multiplier=1.3, num_key_value_heads=1
    ),
    "lfm2 attention first and last, two taps": _lfm2(
        num_hidden_layers=4, layer_types=None, full_attn_idxs=[0, 3], conv_L_cache=2
    ),
    "gpt_oss": _gpt_oss(),
    "gpt_oss tied, odd sizes": _gpt_oss(
        tie_word_embeddings=True,
        hidden_size=72,
        intermediate_size=36,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=10,
        num_local_experts=7,
        num_experts_per_tok=3,
        vocab_size=301,
    ),
    "gpt_oss one expert, no biases, wider window": _gpt_oss(
        num_local_experts=1,
        num_experts_per_tok=1,
        attention_bias=False,
        sliding_window=70,
        layer_types=["full_attention", "sliding_attention"],
        rope_parameters=_rope("default"),
    ),
    "gpt_oss all chosen, limits reached, one kv head": _gpt_oss(
        num_local_experts=4,
        num_experts_per_tok=4,
        intermediate_size=32,
        swiglu_alpha=1.3,
        swiglu_limit=0.7,
        num_key_value_heads=1,
        sliding_window=1,
    ),
}
"""Every configuration that changes what a model computes."""


def random_model(config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A transformers model whose random weights give logits that vary by a few units."""
    family = type(config).__name__.removesuffix("Config").removesuffix("Text")
    config._attn_implementation = "eager"
    model: PreTrainedModel = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if "norm" in name:
                weight.copy_(1 + 0.2 * noise)
            elif "embed" in name and not config.tie_word_embeddings:
                weight.copy_(noise)
            elif "sinks" in name:
                weight.copy_(2 * noise)
            elif weight.ndim == 1:
                weight.copy_(0.3 * noise)
            elif weight.ndim == 3 and "conv1d" not in name:
                weight.copy_(1.5 * noise / weight.shape[2] ** 0.5)
            else:
                weight.copy_(1.5 * noise / weight.shape[1] ** 0.5)
        for name, buffer in model.named_buffers():
            if "correction" in name:
                buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
    return model


def make_checkpoint(model: PreTrainedModel, name: str = "tiny") -> TinyCheckpoint:
    """What a folder that `model` was saved to would hold."""
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    arrays = {name: weight.numpy(force=True) for name, weight in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del arrays["lm_head.weight"]
    return TinyCheckpoint(name, config, arrays, ByteTokenizer(model.config.vocab_size))


def tiny_checkpoint(variant: str = "llama", **changes: Any) -> TinyCheckpoint:
    """A checkpoint of one of the `VARIANTS`, with values of its config changed."""
    config = VARIANTS[variant]
    changed = type(config)(**(config.to_dict() | changes))
    return make_checkpoint(random_model(changed), variant)


def open_step(
    checkpoint: Checkpoint,
    *,
    lanes: int = 4,
    context: int = 256,
    pages: int | None = None,
    buckets: Sequence[int] = (8, 16),
) -> StepFunction:
    """A compiled step function over a small state: by default every lane at its longest."""
    shape = StateShape(lanes, context, pages or lanes * -(-context // 64), snapshots=4)
    step = StepFunction(load(checkpoint), shape, buckets)
    step.compile()
    return step


@cache
def shared_step() -> StepFunction:
    """One compiled one-layer model for the tests that only need tokens. Its state holds what
    earlier tests left there, as a server's does."""
    return open_step(tiny_checkpoint(num_hidden_layers=1, hidden_size=32, intermediate_size=48))


def random_prompt(rng: np.random.Generator, length: int, vocab_size: int = 300) -> list[int]:
    return rng.integers(0, vocab_size, length).tolist()


def save_folder(folder: Path, **changes: Any) -> Path:
    """A Hugging Face folder of a tiny llama with a byte-level tokenizer and a chat template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: token for token, letter in enumerate(letters)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    size = tokenizer.get_vocab_size()
    config = _llama(vocab_size=size, bos_token_id=None, eos_token_id=size - 1, **changes)
    random_model(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return folder
