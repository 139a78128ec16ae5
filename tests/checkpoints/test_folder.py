import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from small_checkpoints import write_folder, write_json

from tensorfold.checkpoints.folder import FolderCheckpoint
from tensorfold.checkpoints.interface import (
    Checkpoint,
    CheckpointError,
    GenerationDefaults,
    TensorInfo,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "small-model")


def shards(folder: Path) -> Path:
    """Two shards in place of one file."""
    (folder / "model.safetensors").unlink()
    rng = np.random.default_rng(0)
    parts: dict[str, dict[str, np.ndarray]] = {
        "model-00001-of-00002.safetensors": {
            "a.weight": rng.normal(size=(3, 4)).astype(ml_dtypes.bfloat16),
            "b.weight": rng.normal(size=5).astype(np.float16),
        },
        "model-00002-of-00002.safetensors": {"c.weight": rng.normal(size=2).astype(np.float32)},
    }
    for name, tensors in parts.items():
        save_file(tensors, folder / name)
    places = {tensor: name for name, tensors in parts.items() for tensor in tensors}
    write_json(folder / "model.safetensors.index.json", {"weight_map": places})
    return folder


def refused(folder: Path, *parts: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        FolderCheckpoint(folder)
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_opens_as_a_checkpoint(folder: Path) -> None:
    checkpoint: Checkpoint = FolderCheckpoint(folder)
    assert checkpoint.name == "small-model"
    assert checkpoint.config["model_type"] == "llama"
    assert checkpoint.tensors == {"model.norm.weight": TensorInfo((4,), "F32")}
    np.testing.assert_array_equal(checkpoint.read("model.norm.weight"), np.ones(4))
    assert checkpoint.chat_template is None
    assert checkpoint.special_tokens == {"eos_token": "<|im_end|>"}
    assert checkpoint.generation == GenerationDefaults()
    with pytest.raises(CheckpointError, match=r"no tensor 'lm_head\.weight'"):
        checkpoint.read("lm_head.weight")


def test_shards_keep_their_precision(folder: Path) -> None:
    checkpoint = FolderCheckpoint(shards(folder))
    assert checkpoint.tensors["a.weight"] == TensorInfo((3, 4), "BF16")
    dtypes = {name: checkpoint.read(name).dtype for name in checkpoint.tensors}
    assert dtypes == {
        "a.weight": ml_dtypes.bfloat16,
        "b.weight": np.float16,
        "c.weight": np.float32,
    }
    expected = np.random.default_rng(0).normal(size=(3, 4)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(checkpoint.read("a.weight"), expected)


def test_missing_files(folder: Path) -> None:
    for name in ("tokenizer.json", "model.safetensors", "config.json"):
        (folder / name).unlink()
        refused(folder, name)


def test_missing_shard_and_tensor(folder: Path) -> None:
    shards(folder)
    index = folder / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    write_json(index, {"weight_map": places | {"d.weight": places["c.weight"]}})
    refused(folder, "model-00002-of-00002.safetensors", "'d.weight'")
    write_json(index, {"weight_map": places | {"d.weight": "../other.safetensors"}})
    refused(folder, "../other.safetensors")
    write_json(index, {"weight_map": 3})
    refused(folder, "weight_map")
    write_json(index, {"weight_map": places})
    (folder / "model-00002-of-00002.safetensors").unlink()
    refused(folder, "model-00002-of-00002.safetensors: missing")


def test_other_types_are_refused_when_read(folder: Path) -> None:
    save_file({"ids": np.arange(3)}, folder / "model.safetensors")
    checkpoint = FolderCheckpoint(folder)
    assert checkpoint.tensors["ids"].format == "I64"
    with pytest.raises(CheckpointError, match="'ids' is I64"):
        checkpoint.read("ids")


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_truncated_weights(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp() / "truncated"
    if not folder.exists():
        write_folder(folder)
        save_file({"w": np.ones((8, 8), np.float32)}, folder / "whole.safetensors")
    whole = (folder / "whole.safetensors").read_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    (folder / "model.safetensors").write_bytes(whole[:cut])
    refused(folder, "model.safetensors")


def test_damaged_json(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{")
    refused(folder, "tokenizer_config.json", "not JSON")
    (folder / "tokenizer_config.json").write_text("[]")
    refused(folder, "tokenizer_config.json", "not a JSON object")
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer.json").write_text('{"model": 3}')
    refused(folder, "tokenizer.json", "damaged tokenizer")


def test_quantised_folders_are_refused_by_name(folder: Path) -> None:
    write_json(folder / "config.json", {"quantization_config": {"quant_method": "awq"}})
    refused(folder, "config.json", "quantization_config (awq)")


def test_sentencepiece_only_says_what_to_do(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"")
    refused(folder, "tokenizer.json", "AutoTokenizer")


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({}, {}, set()),
        ({"eos_token_id": 7}, {"eos_token_id": [8, 9]}, {7, 8, 9}),
        ({"eos_token_id": [7, 8]}, {"eos_token_id": 8}, {7, 8}),
        ({"eos_token_id": None}, {"eos_token_id": 3}, {3}),
    ],
)
def test_end_ids_are_the_union(
    folder: Path, config: Any, generation: Any, expected: set[int]
) -> None:
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", generation)
    checkpoint = FolderCheckpoint(folder)
    (own,) = checkpoint.tokenizer.encode("<|im_end|>")
    assert checkpoint.tokenizer.end_ids == {own}
    assert checkpoint.end_ids == expected | {own}


def test_end_ids_of_a_wrong_type(folder: Path) -> None:
    write_json(folder / "generation_config.json", {"eos_token_id": "</s>"})
    refused(folder, "generation_config.json", "eos_token_id")


def test_generation_defaults(folder: Path) -> None:
    path = folder / "generation_config.json"
    values = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0}
    for do_sample in ({}, {"do_sample": True}):
        write_json(path, values | do_sample)
        assert FolderCheckpoint(folder).generation == GenerationDefaults(0.6, 20, 0.95, 0.0)
    write_json(path, values | {"do_sample": False})
    assert FolderCheckpoint(folder).generation == GenerationDefaults()
    write_json(path, {"temperature": "hot"})
    refused(folder, "temperature")


def test_chat_templates(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    write_json(path, {"chat_template": "one"})
    assert FolderCheckpoint(folder).chat_template == "one"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    write_json(path, {"chat_template": named})
    assert FolderCheckpoint(folder).chat_template == "d"
    (folder / "chat_template.jinja").write_text("file")
    assert FolderCheckpoint(folder).chat_template == "file"


def test_special_tokens(folder: Path) -> None:
    write_json(
        folder / "special_tokens_map.json",
        {"bos_token": "<|im_start|>", "eos_token": "<|endoftext|>", "pad_token": None},
    )
    settings = {"eos_token": {"content": "<|im_end|>", "special": True}, "add_bos_token": True}
    write_json(folder / "tokenizer_config.json", settings)
    checkpoint = FolderCheckpoint(folder)
    assert checkpoint.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    tokenizer = checkpoint.tokenizer
    assert tokenizer.bos_id is not None
    assert tokenizer.encode("hi", add_special_tokens=True) == [
        tokenizer.bos_id,
        *tokenizer.encode("hi"),
    ]


def test_tokens_that_only_the_config_lists(folder: Path) -> None:
    size = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    path = folder / "tokenizer_config.json"
    write_json(path, {"added_tokens_decoder": {str(size): {"content": "<tool_call>"}}})
    tokenizer = FolderCheckpoint(folder).tokenizer
    assert tokenizer.encode("<tool_call>") == [size]
    assert size in tokenizer.control_ids
    write_json(path, {"added_tokens_decoder": {str(size + 5): {"content": "<tool_call>"}}})
    refused(folder, "<tool_call>")
