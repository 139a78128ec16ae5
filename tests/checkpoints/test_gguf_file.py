import shutil
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from small_checkpoints import layer_tensors, random_blocks, write_gguf

from tensorfold.checkpoints.gguf_file import GgufCheckpoint
from tensorfold.checkpoints.gguf_header import read_header
from tensorfold.checkpoints.interface import Checkpoint, CheckpointError, Quantised, TensorInfo


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    factors = (np.array([1, 1, 2, 4, 8, 8, 8, 8], np.float32), "F32")
    tensors = layer_tensors() | {"rope_freqs.weight": factors}
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", tensors=tensors)


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of a Hugging Face q or k."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def test_opens_as_a_checkpoint(path: Path) -> None:
    checkpoint: Checkpoint = GgufCheckpoint(path)
    assert checkpoint.name == "small"
    assert checkpoint.tensors["model.embed_tokens.weight"] == TensorInfo((600, 256), "Q8_0")
    assert checkpoint.tensors["model.norm.weight"] == TensorInfo((256,), "F32")
    assert checkpoint.special_tokens["eos_token"] == "<|im_end|>"
    ends = {checkpoint.tokenizer.encode(each)[0] for each in ("<|im_end|>", "<|endoftext|>")}
    assert checkpoint.end_ids == ends
    assert checkpoint.chat_template is None


def test_config(path: Path) -> None:
    config = GgufCheckpoint(path).config
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["model_type"] == "llama"
    assert config["rms_norm_eps"] == float(np.float32(1e-5))
    assert config["rope_theta"] == 10000.0
    assert config["rope_freq_factors"] == [1, 1, 2, 4, 8, 8, 8, 8]
    assert config["rope_scaling"] is None
    assert (config["head_dim"], config["num_key_value_heads"]) == (16, 2)
    assert config["vocab_size"] == 600
    assert config["tie_word_embeddings"] is True
    assert config["attention_bias"] is False


def test_rope_scaling_and_window(tmp_path: Path) -> None:
    extra = {
        "qwen2.rope.scaling.type": "yarn",
        "qwen2.rope.scaling.factor": 4.0,
        "qwen2.rope.scaling.original_context_length": 32768,
        "qwen2.attention.sliding_window": 64,
    }
    tensors = layer_tensors(bias=True)
    config = GgufCheckpoint(write_gguf(tmp_path / "q.gguf", "qwen2", tensors, extra)).config
    assert config["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    }
    assert config["sliding_window"] == 64
    assert config["attention_bias"] is True


GEMMA3 = {
    "blk.0.post_attention_norm.weight": "blk.0.attn_norm.weight",
    "blk.0.post_ffw_norm.weight": "blk.0.attn_norm.weight",
}


def test_gemma3_has_the_terms_of_hugging_face(tmp_path: Path) -> None:
    tensors = layer_tensors()
    tensors |= {name: tensors[like] for name, like in GEMMA3.items()}
    extra = {"gemma3.rope.freq_base": 1e6, "gemma3.attention.sliding_window": 64}
    checkpoint = GgufCheckpoint(write_gguf(tmp_path / "g.gguf", "gemma3", tensors, extra))
    config = checkpoint.config
    assert config["architectures"] == ["Gemma3ForCausalLM"]
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (1e6, 1e4)
    assert (config["sliding_window"], config["query_pre_attn_scalar"]) == (64, 16)
    assert "layer_types" not in config
    layer = "model.layers.0."
    for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm", "input_layernorm"):
        assert f"{layer}{name}.weight" in checkpoint.tensors
    stored, _ = tensors["blk.0.ffn_norm.weight"]
    read = checkpoint.read(f"{layer}pre_feedforward_layernorm.weight")
    np.testing.assert_array_equal(read, stored - np.float32(1))


def test_gemma3_files_may_name_their_pattern_and_the_27b_scales_by_its_width(
    tmp_path: Path,
) -> None:
    extra = {
        "gemma3.block_count": np.uint32(62),
        "gemma3.attention.sliding_window_pattern": [True, False],
        "gemma3.final_logit_softcapping": 30.0,
    }
    config = GgufCheckpoint(write_gguf(tmp_path / "g.gguf", "gemma3", metadata=extra)).config
    assert config["layer_types"] == ["sliding_attention", "full_attention"]
    assert config["final_logit_softcapping"] == 30.0
    assert config["query_pre_attn_scalar"] == 256 // 4
    extra["gemma3.attention.sliding_window_pattern"] = np.uint32(4)
    config = GgufCheckpoint(write_gguf(tmp_path / "h.gguf", "gemma3", metadata=extra)).config
    assert config["sliding_window_pattern"] == 4


def test_values_are_those_of_ggml(path: Path) -> None:
    checkpoint = GgufCheckpoint(path)
    reader = {each.name: each for each in gguf.GGUFReader(path).tensors}
    pairs = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
        "model.layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
        "model.layers.0.mlp.up_proj.weight": "blk.0.ffn_up.weight",
        "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
    }
    for ours, theirs in pairs.items():
        read = checkpoint.read(ours)
        assert isinstance(read, Quantised)
        expected = quants.dequantize(reader[theirs].data, reader[theirs].tensor_type)
        np.testing.assert_array_equal(read.dequantise(), expected)


def test_query_and_key_rows_return_to_hugging_faces_order(tmp_path: Path) -> None:
    query = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    blocks = random_blocks("Q8_0", 32, 256)
    key = quants.dequantize(blocks, GGMLQuantizationType.Q8_0)
    bias = np.arange(64, dtype=np.float32)
    tensors = layer_tensors() | {
        "blk.0.attn_q.weight": (interleaved(query, 4), "F32"),
        "blk.0.attn_q.bias": (interleaved(bias, 4), "F32"),
        "blk.0.attn_k.weight": (interleaved(blocks, 2), "Q8_0"),
    }
    checkpoint = GgufCheckpoint(write_gguf(tmp_path / "x.gguf", tensors=tensors))
    attention = "model.layers.0.self_attn."
    np.testing.assert_array_equal(checkpoint.read(attention + "q_proj.weight"), query)
    np.testing.assert_array_equal(checkpoint.read(attention + "q_proj.bias"), bias)
    read = checkpoint.read(attention + "k_proj.weight")
    assert isinstance(read, Quantised)
    np.testing.assert_array_equal(read.dequantise(), key)


def test_other_architectures_keep_their_order(tmp_path: Path) -> None:
    tensors = layer_tensors(bias=True)
    checkpoint = GgufCheckpoint(write_gguf(tmp_path / "x.gguf", "qwen3", tensors))
    bias = checkpoint.read("model.layers.0.self_attn.q_proj.bias")
    np.testing.assert_array_equal(bias, tensors["blk.0.attn_q.bias"][0])


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_floats_keep_their_precision(tmp_path: Path, kind: str) -> None:
    dtype = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}[kind]
    values = np.random.default_rng(0).normal(size=(256, 64)).astype(dtype)
    stored = values.view(np.uint8) if kind == "BF16" else values
    tensors = layer_tensors() | {"blk.0.attn_output.weight": (stored, kind)}
    checkpoint = GgufCheckpoint(write_gguf(tmp_path / "x.gguf", tensors=tensors))
    read = checkpoint.read("model.layers.0.self_attn.o_proj.weight")
    assert isinstance(read, np.ndarray)
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, values)


@pytest.mark.parametrize(
    ("arch", "tensors", "metadata", "message"),
    [
        ("mamba", {}, {}, "architecture 'mamba'"),
        ("llama", {"blk.0.ssm_in.weight": (np.ones((4, 4), np.float32), "F32")}, {}, "ssm_in"),
        ("llama", {"blk.0.ffn_up.weight": (np.zeros((4, 110), np.uint8), "Q3_K")}, {}, "Q3_K"),
        ("llama", {}, {"llama.block_count": None}, "llama.block_count"),
        ("llama", {}, {"tokenizer.ggml.pre": "odd"}, "tokenizer.ggml.pre 'odd'"),
        ("llama", {}, {"tokenizer.ggml.model": "t5"}, "tokenizer.ggml.model 't5'"),
        ("llama", {}, {"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens"),
        ("llama", {}, {"llama.attention.head_count": 7}, "7 heads"),
        ("llama", {}, {"llama.attention.head_count": 0}, "zero"),
    ],
)
def test_unsupported_files_say_why(
    tmp_path: Path, arch: str, tensors: Any, metadata: dict[str, Any], message: str
) -> None:
    path = write_gguf(tmp_path / "bad.gguf", arch, layer_tensors() | tensors, metadata)
    if message == "zero":
        metadata["llama.attention.key_length"] = None
    with pytest.raises(CheckpointError) as caught:
        GgufCheckpoint(path)
    assert "bad.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert message in str(caught.value) or message == "zero"


def test_missing_tensor(path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"small\.gguf: no tensor 'lm_head\.weight'"):
        GgufCheckpoint(path).read("lm_head.weight")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_truncation_is_always_noticed(path: Path, data: st.DataObject) -> None:
    whole = path.read_bytes()
    # The last tensor is followed by padding, which may be missing.
    end = len(whole) - 32
    header = 16_000
    places = st.integers(0, end - 1) | st.integers(0, header)
    cut = path.with_name("cut.gguf")
    cut.write_bytes(whole[: data.draw(places)])
    with pytest.raises(CheckpointError, match=r"cut\.gguf"):
        GgufCheckpoint(cut)


@settings(max_examples=100, deadline=None)
@given(place=st.integers(0, 2000), value=st.integers(0, 255))
def test_damage_is_an_error_or_harmless(path: Path, place: int, value: int) -> None:
    whole = bytearray(path.read_bytes())
    whole[place] = value
    damaged = path.with_name("damaged.gguf")
    damaged.write_bytes(whole)
    try:
        GgufCheckpoint(damaged)
    except CheckpointError as error:
        assert "\n" not in str(error)


def test_header_errors(tmp_path: Path) -> None:
    for content, message in [(b"", "ends"), (b"PK\3\4" * 9, "GGUF"), (b"GGUF\x09\0\0\0", "9")]:
        path = tmp_path / "x.gguf"
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=message):
            read_header(path)
    with pytest.raises(CheckpointError, match="No such file"):
        read_header(tmp_path / "absent.gguf")


def test_header_agrees_with_the_gguf_package(path: Path) -> None:
    header = read_header(path)
    reader = gguf.GGUFReader(path)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            ours = header.metadata[key]
            expected = field.contents()
            assert (ours.tolist() if isinstance(ours, np.ndarray) else ours) == expected
    for each in reader.tensors:
        assert header.tensors[each.name].data.tobytes() == each.data.tobytes()


def test_split_files(tmp_path: Path, path: Path) -> None:
    tensors = layer_tensors()
    names = list(tensors)
    first = {name: tensors[name] for name in names[:5]}
    second = {name: tensors[name] for name in names[5:]}
    one = write_gguf(tmp_path / "m-00001-of-00002.gguf", tensors=first)
    two = write_gguf(tmp_path / "m-00002-of-00002.gguf", tensors=second)
    whole = GgufCheckpoint(path)
    for part in (one, two):
        checkpoint = GgufCheckpoint(part)
        assert checkpoint.name == "m"
        assert checkpoint.tensors == whole.tensors
    two.unlink()
    with pytest.raises(CheckpointError, match="00002-of-00002"):
        GgufCheckpoint(one)
    shutil.copy(one, two)
    with pytest.raises(CheckpointError, match="two parts"):
        GgufCheckpoint(one)


def test_default_model(default_checkpoint: Checkpoint) -> None:
    assert default_checkpoint.name == "SmolLM2-135M-Instruct"
    config = default_checkpoint.config
    assert config["hidden_size"] == 576
    assert config["tie_word_embeddings"]
    assert len(default_checkpoint.tensors) == 2 + 9 * config["num_hidden_layers"]
    query = default_checkpoint.read("model.layers.3.self_attn.q_proj.weight")
    assert isinstance(query, Quantised)
    assert (query.shape, query.bits, query.group) == ((576, 576), 4, 32)
    assert default_checkpoint.chat_template is not None
    encode = default_checkpoint.tokenizer.encode
    assert default_checkpoint.end_ids == {encode("<|im_end|>")[0], encode("<|endoftext|>")[0]}
