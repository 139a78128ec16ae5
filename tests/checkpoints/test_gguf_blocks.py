import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from small_checkpoints import random_blocks

from tensorfold.checkpoints import gguf_blocks

QUANTISABLE = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


@pytest.mark.parametrize("name", gguf_blocks.FORMATS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 5), blocks=st.integers(1, 3))
def test_values_are_those_of_ggml(name: str, seed: int, rows: int, blocks: int) -> None:
    columns = blocks * 256
    raw = random_blocks(name, rows, columns, seed)
    ours = gguf_blocks.unpack(raw, name)
    assert ours.shape == (rows, columns)
    assert ours.codes.dtype == np.uint8
    assert ours.scale.dtype == ours.offset.dtype == np.float32
    assert ours.scale.shape == (rows, columns // ours.group)
    theirs = quants.dequantize(raw, GGMLQuantizationType[name])
    # Q6_K's product takes 25 bits for a multiplier of -128.
    rounding = 2e-7 * np.abs(theirs).max() if name == "Q6_K" else 0
    np.testing.assert_allclose(ours.dequantise(), theirs, rtol=0, atol=rounding)


@pytest.mark.parametrize("name", QUANTISABLE)
def test_quantised_values_come_back(name: str) -> None:
    values = np.random.default_rng(1).normal(size=(6, 96)).astype(np.float32)
    raw = quants.quantize(values, GGMLQuantizationType[name])
    theirs = quants.dequantize(raw, GGMLQuantizationType[name])
    np.testing.assert_array_equal(gguf_blocks.unpack(raw, name).dequantise(), theirs)


@pytest.mark.parametrize("name", gguf_blocks.FORMATS)
def test_block_sizes(name: str) -> None:
    form = gguf_blocks.FORMATS[name]
    assert GGML_QUANT_SIZES[GGMLQuantizationType[name]] == (form.weights, form.size)


def test_even_columns_are_in_the_low_nibbles() -> None:
    scale = np.array([1], np.float16).view(np.uint8)
    nibbles = np.arange(16, dtype=np.uint8)  # low: 0..15, high: all 0
    ours = gguf_blocks.unpack(np.concatenate([scale, nibbles])[None], "Q4_0")
    assert ours.codes[0, :3].tolist() == [0x10, 0x32, 0x54]
    assert ours.dequantise()[0, :4].tolist() == [-8, -7, -6, -5]
