import dataclasses
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_checkpoints import (
    TEXTS,
    byte_level_tokenizer,
    sentence_piece_metadata,
    write_folder,
    write_gguf,
    write_json,
)
from tiny import VARIANTS, TinyCheckpoint, save_folder, tiny_checkpoint
from tokenizers import pre_tokenizers

from tensorfold.checkpoints import convert as convert_module
from tensorfold.checkpoints.convert import convert
from tensorfold.checkpoints.converted import ConvertedCheckpoint
from tensorfold.checkpoints.gguf_file import GgufCheckpoint
from tensorfold.checkpoints.hub import open_checkpoint
from tensorfold.checkpoints.interface import (
    Checkpoint,
    CheckpointError,
    GenerationDefaults,
    Progress,
    Quantised,
    Tensor,
)
from tensorfold.checkpoints.quantise import quantise
from tensorfold.checkpoints.tokenizer import TextTokenizer
from tensorfold.runtime.load import load, turned_tensors


def mixed_folder(folder: Path) -> Path:
    """Tensors of every precision and of odd shapes, with all that a checkpoint may say."""
    rng = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {
        "a.weight": rng.normal(size=(7, 64)).astype(ml_dtypes.bfloat16),
        "a.bias": rng.normal(size=7).astype(np.float16),
        "b.weight": rng.normal(size=(3, 33)).astype(np.float32),
        "c.weight": rng.normal(size=(2, 3, 64)).astype(np.float32),
        "mlp.gate.weight": rng.normal(size=(6, 64)).astype(np.float32),
    }
    write_folder(folder, weights)
    write_json(folder / "generation_config.json", {"temperature": 0.6, "top_k": 20})
    return folder


def source(kind: str, folder: Path) -> Checkpoint:
    match kind:
        case "mixed folder":
            return open_checkpoint(mixed_folder(folder / kind))
        case "llama folder":
            return open_checkpoint(save_folder(folder / kind))
        case "gguf":
            return open_checkpoint(write_gguf(folder / "byte-level.gguf"))
        case "gguf, sentence piece":
            # Without the words' rule and the merges of the other kind.
            other = {"tokenizer.ggml.pre": None, "tokenizer.ggml.merges": None}
            path = folder / "sentence-piece.gguf"
            return open_checkpoint(write_gguf(path, metadata=other | sentence_piece_metadata()))
    raise AssertionError(kind)


def small(variant: str, **changes: Any) -> TinyCheckpoint:
    """A tiny checkpoint with a tokenizer that can be saved."""
    checkpoint = tiny_checkpoint(variant, **changes)
    checkpoint.config = json.loads(json.dumps(checkpoint.config, default=str))
    pipeline = byte_level_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False), size=260)
    tokenizer: Any = TextTokenizer(pipeline)
    checkpoint.tokenizer = tokenizer
    return checkpoint


def same(left: Tensor, right: Tensor) -> bool:
    if isinstance(left, Quantised) and isinstance(right, Quantised):
        forms = [(each.bits, each.group) for each in (left, right)]
        arrays = [(each.codes, each.scale, each.offset) for each in (left, right)]
        return forms[0] == forms[1] and all(map(same, *arrays))
    assert isinstance(left, np.ndarray) and isinstance(right, np.ndarray)
    return left.dtype == right.dtype and left.shape == right.shape and (left == right).all()


@pytest.mark.parametrize(
    "kind", ["mixed folder", "llama folder", "gguf", "gguf, sentence piece", "default"]
)
def test_everything_is_as_it_was(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if kind == "default":
        checkpoint = request.getfixturevalue("default_checkpoint")
    else:
        checkpoint = source(kind, tmp_path)
    convert(checkpoint, tmp_path / "out")
    opened = open_checkpoint(tmp_path / "out")
    assert isinstance(opened, ConvertedCheckpoint)
    assert opened.name == "out"
    assert opened.config == checkpoint.config
    assert opened.tensors == checkpoint.tensors
    assert list(opened.tensors) == list(checkpoint.tensors)
    for name in opened.tensors:
        assert same(opened.read(name), checkpoint.read(name)), name
    assert opened.chat_template == checkpoint.chat_template
    assert opened.special_tokens == checkpoint.special_tokens
    assert opened.end_ids == checkpoint.end_ids
    assert opened.generation == checkpoint.generation

    ours, theirs = opened.tokenizer, checkpoint.tokenizer
    assert ours.vocab_size == theirs.vocab_size
    assert ours.bos_id == theirs.bos_id
    assert ours.end_ids == theirs.end_ids
    assert ours.control_ids == theirs.control_ids
    for token in range(-1, ours.vocab_size + 1):
        assert ours.token_bytes(token) == theirs.token_bytes(token)
    for text in TEXTS:
        for flags in ({}, {"control": False}, {"add_special_tokens": True}):
            assert ours.encode(text, **flags) == theirs.encode(text, **flags)


def test_what_a_checkpoint_says_besides(tmp_path: Path) -> None:
    checkpoint = source("mixed folder", tmp_path)
    # As a GGUF file may have it.
    checkpoint.chat_template = "{{ messages }}\r\né\n"
    convert(checkpoint, tmp_path / "out")
    opened = open_checkpoint(tmp_path / "out")
    assert opened.generation == GenerationDefaults(temperature=0.6, top_k=20)
    assert opened.chat_template == "{{ messages }}\r\né\n"
    assert opened.special_tokens == {"eos_token": "<|im_end|>"}


def test_parts_hold_no_more_than_they_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert_module, "_PART_BYTES", 1000)
    checkpoint = source("mixed folder", tmp_path)
    convert(checkpoint, tmp_path / "out")
    assert len(list((tmp_path / "out" / "weights").iterdir())) == 3
    opened = open_checkpoint(tmp_path / "out")
    assert all(same(opened.read(name), checkpoint.read(name)) for name in checkpoint.tensors)


def test_progress(tmp_path: Path) -> None:
    seen: list[Progress] = []
    convert(source("mixed folder", tmp_path), tmp_path / "out", progress=seen.append)
    assert [event.done for event in seen] == [0, 1, 2, 3, 4, 5]
    assert {(event.task, event.total) for event in seen} == {("convert", 5)}


def test_a_quantised_folder(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stored: dict[str, np.ndarray] = {
        "a.weight": rng.integers(0, 2**32, (8, 12), np.uint32),
        "a.scales": rng.normal(size=(8, 2)).astype(np.float16),
        "a.biases": rng.normal(size=(8, 2)).astype(np.float16),
    }
    folder = write_folder(tmp_path / "mlx", stored)
    about = {"quantization": {"bits": 6, "group_size": 32}}
    write_json(folder / "config.json", json.loads((folder / "config.json").read_text()) | about)
    checkpoint = open_checkpoint(folder)
    convert(checkpoint, tmp_path / "out")
    opened = open_checkpoint(tmp_path / "out")
    assert opened.tensors == checkpoint.tensors
    assert isinstance(opened.read("a.weight"), Quantised)
    assert same(opened.read("a.weight"), checkpoint.read("a.weight"))


def test_the_format_is_that_of_the_stored_floats(tmp_path: Path) -> None:
    stored: dict[str, np.ndarray] = {
        "a.weight": np.ones((8, 33), ml_dtypes.float8_e4m3fn),
        "a.weight_scale": np.full((8, 1), 0.5, np.float32),
    }
    folder = write_folder(tmp_path / "fp8", stored)
    about = {"quantization_config": {"quant_method": "fp8"}}
    write_json(folder / "config.json", json.loads((folder / "config.json").read_text()) | about)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tensors["a.weight"].format == "FP8"
    convert(checkpoint, tmp_path / "out")
    opened = open_checkpoint(tmp_path / "out")
    assert opened.tensors["a.weight"].format == "F32"
    assert same(opened.read("a.weight"), checkpoint.read("a.weight"))


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (8, 32), (4, 64), (8, 16)])
def test_quantised_on_the_way(bits: int, group: int, tmp_path: Path) -> None:
    checkpoint = source("mixed folder", tmp_path)
    convert(checkpoint, tmp_path / "out", bits=bits, group=group)
    opened = open_checkpoint(tmp_path / "out")
    assert opened.tensors["a.weight"].format == f"Q{bits}/{group}"
    assert opened.tensors["a.weight"].shape == (7, 64)
    coded = opened.read("a.weight")
    assert isinstance(coded, Quantised)
    assert (coded.bits, coded.group, coded.shape) == (bits, group, (7, 64))
    for name in ("a.bias", "b.weight", "c.weight", "mlp.gate.weight"):
        assert same(opened.read(name), checkpoint.read(name)), name


@pytest.mark.parametrize("bits", [4, 8])
def test_codes_get_no_wider(bits: int, tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(write_gguf(tmp_path / "small.gguf"))
    convert(checkpoint, tmp_path / "out", bits=bits)
    opened = open_checkpoint(tmp_path / "out")
    for name in opened.tensors:
        before, after = checkpoint.read(name), opened.read(name)
        if isinstance(before, Quantised) and before.bits <= bits:
            assert same(before, after)
            assert opened.tensors[name] == checkpoint.tensors[name]
        elif len(checkpoint.tensors[name].shape) == 2:
            assert isinstance(after, Quantised) and after.bits == bits


@given(st.integers(0, 2**32), st.sampled_from([4, 8]), st.integers(-12, 8), st.booleans())
def test_within_half_a_step(seed: int, bits: int, exponent: int, constant: bool) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.normal(rng.normal(), size=(4, 64)) * 10.0**exponent
    if constant:
        matrix[1] = matrix[1, 0]
    matrix = matrix.astype(np.float32)
    coded = quantise(matrix, bits, 32)
    error = np.abs(coded.dequantise() - matrix).reshape(4, 2, 32)
    rounding = 4 * np.spacing(np.abs(matrix).max())
    assert (error <= coded.scale[..., None] / 2 + rounding).all()
    values = matrix.reshape(4, 2, 32)
    spread = (values.max(axis=2) - values.min(axis=2)) / (2**bits - 1)
    # Rounded to float16, of 11 bits, outwards.
    least = np.abs(matrix).max() * 2.0**-10 + 1e-6
    assert (coded.scale <= spread * 1.01 + least).all()


@pytest.mark.parametrize("least", [65504.0, 65520.0, 200_000.0, -65504.0, -65536.0, -3e6])
def test_groups_beyond_what_a_half_holds(least: float) -> None:
    matrix = (least + np.arange(32, dtype=np.float32))[None]
    coded = quantise(matrix, 8, 32)
    assert np.abs(coded.dequantise() - matrix).max() <= 0.5


def test_scales_are_halves_where_they_fit() -> None:
    coded = quantise(np.random.default_rng(0).normal(size=(8, 64)), 4, 32)
    for array in (coded.scale, coded.offset):
        assert array.dtype == np.float32
        assert (array.astype(np.float16) == array).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers(value: float, tmp_path: Path) -> None:
    weights = {"a.weight": np.full((2, 32), value, np.float32)}
    checkpoint = open_checkpoint(write_folder(tmp_path / "model", weights))
    with pytest.raises(CheckpointError, match=r"tensor 'a\.weight': a value is not finite"):
        convert(checkpoint, tmp_path / "out", bits=4)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("bits", [None, 4, 8])
@pytest.mark.parametrize(
    "variant", ["llama", "gemma3", "qwen3_5", "qwen3_5_moe", "nemotron_h", "lfm2", "gpt_oss"]
)
def test_loads(variant: str, bits: int | None, tmp_path: Path) -> None:
    assert variant in VARIANTS
    checkpoint = small(variant)
    turned = turned_tensors(checkpoint)
    convert(checkpoint, tmp_path / "out", bits=bits, group=8, turned=turned)
    opened = open_checkpoint(tmp_path / "out")
    model = load(opened)
    assert model.weights_key
    assert len(model.leaves) == len(load(checkpoint).leaves)
    experts = [name for name in opened.tensors if name.endswith(("up_proj", "down_proj"))]
    assert bool(experts) == (variant in ("qwen3_5_moe", "nemotron_h", "gpt_oss"))
    for name in experts:
        assert isinstance(opened.read(name), Quantised) == (bits is not None)


def test_an_existing_folder_stays(tmp_path: Path) -> None:
    checkpoint = source("mixed folder", tmp_path)
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match="out exists: name a new folder"):
        convert(checkpoint, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_a_folder_in_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere is no folder"):
        convert(source("mixed folder", tmp_path), tmp_path / "nowhere" / "out")


class Failing:
    """A checkpoint whose last tensor can't be read."""

    def __init__(self, inner: Checkpoint):
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def read(self, name: str) -> Tensor:
        if name == list(self.inner.tensors)[-1]:
            raise CheckpointError("unreadable")
        return self.inner.read(name)


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert_module, "_PART_BYTES", 1)
    checkpoint: Any = Failing(source("mixed folder", tmp_path))
    with pytest.raises(CheckpointError, match="unreadable"):
        convert(checkpoint, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["mixed folder"]


def test_a_tokenizer_that_is_in_no_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the tokenizer can't be saved"):
        convert(tiny_checkpoint(), tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def out(tmp_path: Path) -> Path:
    convert(source("mixed folder", tmp_path), tmp_path / "out")
    return tmp_path / "out"


def change_about(out: Path, **values: Any) -> None:
    about = json.loads((out / "tensorfold.json").read_text())
    write_json(out / "tensorfold.json", about | values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"version": 2}, "version 2 of the layout is not supported"),
        ({"version": None}, "version None of the layout is not supported"),
        ({"tensors": {"a": {"part": 0}}}, "damaged"),
        ({"tensors": []}, "damaged"),
        ({"generation": {"warmth": 1}}, "damaged"),
        ({"end_ids": None}, "damaged"),
    ],
)
def test_a_description_that_can_not_be_read(
    values: dict[str, Any], message: str, out: Path
) -> None:
    change_about(out, **values)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(out)
    assert "\n" not in str(caught.value)


def test_files_that_are_missing(out: Path) -> None:
    (out / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: missing"):
        open_checkpoint(out)


def test_tensors_that_are_missing(out: Path) -> None:
    with pytest.raises(CheckpointError, match="no tensor 'z'"):
        open_checkpoint(out).read("z")


def largest(out: Path) -> Path:
    return max((out / "weights").rglob("*"), key=lambda path: path.stat().st_size * path.is_file())


@pytest.mark.parametrize("damage", ["a byte", "cut", "gone"])
def test_damaged_weights_are_refused(damage: str, tmp_path: Path) -> None:
    weights = {"a": np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)}
    convert(open_checkpoint(write_folder(tmp_path / "model", weights)), tmp_path / "out")
    path = largest(tmp_path / "out")
    data = bytearray(path.read_bytes())
    assert len(data) > 8000
    data[len(data) // 2] ^= 16
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data if damage == "a byte" else data[: len(data) // 2])
    checkpoint = open_checkpoint(tmp_path / "out")
    with pytest.raises(CheckpointError, match="tensor 'a'") as caught:
        checkpoint.read("a")
    assert "\n" not in str(caught.value)


def test_a_wrong_sum_is_refused(out: Path) -> None:
    checkpoint = ConvertedCheckpoint(out)
    place = checkpoint._places["b.weight"]
    checkpoint._places["b.weight"] = dataclasses.replace(place, crc32=place.crc32 ^ 1)
    with pytest.raises(CheckpointError, match=r"tensor 'b\.weight' is damaged"):
        checkpoint.read("b.weight")


def test_files_change_with_every_file_that_makes_the_weights(out: Path) -> None:
    before = open_checkpoint(out)
    assert all(file.unchanged() for file in before.files)
    paths = [path for path in (out / "weights").rglob("*") if path.is_file()]
    for path in [*paths, out / "tensorfold.json"]:
        before = open_checkpoint(out)
        path.write_bytes(path.read_bytes())
        assert not all(file.unchanged() for file in before.files)
        assert open_checkpoint(out).files != before.files
