"""Small checkpoints, made on the spot."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 1234567890 o'clock, isn't it? WE'LL see!",
    "def add(a, b):\n    return a + b  # comment\n\n\nclass Thing:\n\tname = 'x'\n",
    "你好，世界。日本語のテスト 한국어 été naïve Ελληνικά кириллица 😀👍🏽",
    "import numpy as np\nfor i in range(10):\n        print(i, end='\\n')\n",
] * 4

TEXTS = [
    *CORPUS[:4],
    "",
    " ",
    "\n",
    "  two  spaces   three    four",
    "don't DON'T I'LL we'Ve it'S 'tis",
    "a\r\n\tb \n c\u00a0d",
    "007 3.14159 1,000,000 ½ ٣٤",
    "<|im_start|>user\nhi<|im_end|>\n<think>no</think>[INST] <br> <table>",
    "🤷‍♀️ e\u0301 \x00\x07",
    "!!!???... --- ===>>> <<<",
]

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKERS = ["<think>", "</think>", "[INST]"]
WORDS = ["<table>", "    ", "\n\n\n"]


def byte_level_tokenizer(
    pre_tokenizer: pre_tokenizers.PreTokenizer, size: int = 500, **settings: Any
) -> tokenizers.Tokenizer:
    """A trained byte-level BPE with control tokens, markers and words added behind it."""
    tokenizer = tokenizers.Tokenizer(models.BPE(**settings))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(each, normalized=False) for each in CONTROL]
    )
    tokenizer.add_tokens(
        [tokenizers.AddedToken(each, normalized=False) for each in MARKERS + WORDS]
    )
    return tokenizer


def gguf_tokenizer_metadata(tokenizer: tokenizers.Tokenizer, pre: str) -> dict[str, Any]:
    """What llama.cpp's converter writes for a byte-level tokenizer."""
    model = json.loads(tokenizer.to_str())["model"]
    added = tokenizer.get_added_tokens_decoder()
    size = tokenizer.get_vocab_size()
    kinds = [1] * size
    for token, each in added.items():
        kinds[token] = 3 if each.special else 4
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [tokenizer.id_to_token(token) for token in range(size)],
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": tokenizer.token_to_id("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokenizer.token_to_id("<|im_end|>"),
    }


def sentence_piece_metadata() -> dict[str, Any]:
    """A small SentencePiece vocabulary in GGUF's terms."""
    fixed = [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("\n\n", 4), ("  ", 4), ("<table>", 4)]
    words = ["he", "ll", "hell", "▁he", "▁hell", "hello", "▁hello", "wor", "ld", "▁wor", "▁world"]
    letters = [*"▁abcdefghijklmnopqrstuvwxyz<>/."]
    tokens = [each for each, _ in fixed]
    kinds = [kind for _, kind in fixed]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    kinds += [6] * 256
    tokens += words + letters
    kinds += [1] * (len(words) + len(letters))
    normal = len(words) + len(letters)
    scores = [0.0] * (len(tokens) - normal) + [-float(rank) for rank in range(normal)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def random_blocks(name: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Valid data of a GGUF type, uint8 [rows, bytes]: random bytes with finite scales."""
    rng = np.random.default_rng(seed)
    weights, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (rows, columns // weights, size), dtype=np.uint8)
    halves = {"Q6_K": [208], "Q4_0": [0], "Q5_0": [0], "Q8_0": [0]}.get(name, [0, 2])
    if name == "MXFP4":
        blocks[..., 0] = rng.integers(118, 132, blocks.shape[:2])
        halves = []
    for at in halves:
        scale = rng.normal(size=(*blocks.shape[:2], 1)).astype(np.float16)
        blocks[..., at : at + 2] = scale.view(np.uint8)
    return blocks.reshape(rows, -1)


Data = dict[str, tuple[np.ndarray, str]]


def layer_tensors(heads: int = 4, key_heads: int = 2, bias: bool = False) -> Data:
    """A one-layer model's tensors (hidden size 256) by GGUF's names, with their types."""
    rng = np.random.default_rng(3)

    def floats(*shape: int) -> tuple[np.ndarray, str]:
        return rng.normal(size=shape).astype(np.float32), "F32"

    found = {
        "token_embd.weight": (random_blocks("Q8_0", 600, 256), "Q8_0"),
        "output_norm.weight": floats(256),
        "blk.0.attn_norm.weight": floats(256),
        "blk.0.attn_q.weight": (random_blocks("Q4_K", 16 * heads, 256), "Q4_K"),
        "blk.0.attn_k.weight": (random_blocks("Q6_K", 16 * key_heads, 256), "Q6_K"),
        "blk.0.attn_v.weight": (random_blocks("Q5_0", 16 * key_heads, 256), "Q5_0"),
        "blk.0.attn_output.weight": (
            rng.normal(size=(256, 16 * heads)).astype(np.float16),
            "F16",
        ),
        "blk.0.ffn_norm.weight": floats(256),
        "blk.0.ffn_gate.weight": (random_blocks("Q4_0", 512, 256), "Q4_0"),
        "blk.0.ffn_up.weight": (random_blocks("Q4_1", 512, 256), "Q4_1"),
        "blk.0.ffn_down.weight": (random_blocks("Q5_1", 256, 512), "Q5_1"),
    }
    if bias:
        found |= {"blk.0.attn_q.bias": floats(16 * heads), "blk.0.attn_k.bias": floats(32)}
    return found


def write_gguf(
    path: Path,
    arch: str = "llama",
    tensors: Data | None = None,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """A GGUF file of a one-layer model; `metadata` replaces or, with None, removes keys."""
    values: dict[str, Any] = {
        f"{arch}.embedding_length": np.uint32(256),
        f"{arch}.block_count": np.uint32(1),
        f"{arch}.attention.head_count": np.uint32(4),
        f"{arch}.attention.head_count_kv": np.uint32(2),
        f"{arch}.attention.key_length": np.uint32(16),
        f"{arch}.feed_forward_length": np.uint32(512),
        f"{arch}.attention.layer_norm_rms_epsilon": np.float32(1e-5),
        f"{arch}.context_length": np.uint32(128),
        **gguf_tokenizer_metadata(
            byte_level_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False)), "gpt-2"
        ),
        **(metadata or {}),
    }
    writer = gguf.GGUFWriter(path, arch)
    for key, value in values.items():
        _write_value(writer, key, value)
    for name, (data, kind) in (layer_tensors() if tensors is None else tensors).items():
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, list | np.ndarray):
        writer.add_array(key, list(value) if isinstance(value, list) else value.tolist())
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float | np.floating):
        writer.add_float32(key, float(value))
    else:
        writer.add_uint32(key, int(value))


def write_folder(folder: Path, weights: dict[str, np.ndarray] | None = None) -> Path:
    """A Hugging Face folder with a tokenizer; `weights` in one safetensors file."""
    folder.mkdir(exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "eos_token_id": 7}
    write_json(folder / "config.json", config)
    tokenizer = byte_level_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"eos_token": "<|im_end|>"})
    save_file(
        weights or {"model.norm.weight": np.ones(4, np.float32)}, folder / "model.safetensors"
    )
    return folder


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))
