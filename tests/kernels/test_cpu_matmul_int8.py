"""The CPU matmul with rows in int8: what is computed, in NumPy, and equal bits everywhere."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from platforms import LEVELS

from tensorfold.checkpoints.interface import Quantised
from tensorfold.kernels_cpu import library
from tensorfold.kernels_cpu.matmul import PackedMatrix, matmul, pack, with_int8


def quantised(
    rng: np.random.Generator, bits: int, rows: int, columns: int, group: int, zero: int = 0
) -> Quantised:
    """Codes of `bits`; with `zero` that code is 0 in every group."""
    stored = 4 if bits == 4 else 8
    most = 256 if bits == 4 else 2**bits
    codes = rng.integers(0, most, (rows, columns * stored // 8), dtype=np.uint8)
    scale, offset = rng.standard_normal((2, rows, columns // group)).astype(np.float16)
    scale, offset = scale.astype(np.float32), offset.astype(np.float32)
    return Quantised(codes, scale, -zero * scale if zero else offset, stored, group)


def at_level(use: str, x: np.ndarray, weight: PackedMatrix, **around: object) -> np.ndarray:
    before = library.level()
    assert library.set_level(use)
    found = np.asarray(matmul(jnp.asarray(x), weight, **around))
    library.set_level(before)
    return found


def block_of(group: int) -> int:
    return next(size for size in (32, 24, 16, 8) if group % size == 0)


def rounded(x: np.ndarray, block: int) -> np.ndarray:
    """What the int8 codes of x [rows, inputs] stand for, in float64."""
    blocks = x.reshape(len(x), -1, block)
    most = np.abs(blocks).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), most, where=most > 0, out=np.zeros_like(most))
    codes = np.rint(blocks * inverse).astype(np.int64)
    assert np.abs(codes).max() <= 127
    return (codes * (most / np.float32(127)).astype(np.float64)).reshape(x.shape)


@given(
    bits=st.sampled_from([4, 5, 6, 8]),
    zero=st.sampled_from([0, 16]),
    group=st.sampled_from([8, 16, 24, 32, 40, 64, 96, 128]),
    groups=st.integers(1, 4),
    outputs=st.integers(1, 130),
    rows=st.integers(1, 40),
    spread=st.floats(-20, 20),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=80, deadline=None)
def test_products_of_rounded_rows(
    bits: int,
    zero: int,
    group: int,
    groups: int,
    outputs: int,
    rows: int,
    spread: float,
    seed: int,
) -> None:
    """Near the exact product of the rounded rows, and bit for bit the same at every level and for
    each row alone."""
    rng = np.random.default_rng(seed)
    inputs = group * groups
    weight = quantised(rng, bits, outputs, inputs, group, zero)
    x = (rng.standard_normal((rows, inputs)) * 2.0**spread).astype(np.float32)
    x[rng.random(rows) < 0.2] = 0
    packed = with_int8(pack(weight))
    found = {use: at_level(use, x, packed) for use in LEVELS}
    assert len({each.tobytes() for each in found.values()}) == 1
    y = found[LEVELS[0]]
    alone = [at_level(LEVELS[-1], x[row : row + 1], packed) for row in range(rows)]
    assert y.tobytes() == np.concatenate(alone).tobytes()
    meant, dense = rounded(x, block_of(group)), weight.dequantise().astype(np.float64)
    size = np.abs(meant) @ (np.abs(dense) + np.abs(weight.scale).max() * 2**bits).T
    assert (np.abs(y - meant @ dense.T) <= 2e-6 * size + 1e-30).all()


@pytest.mark.parametrize("use", LEVELS)
def test_integers_come_out_exact(use: str) -> None:
    """Rows whose largest value is 127 are their own codes."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (96, 64), dtype=np.uint8)
    ones, zeros = np.ones((96, 2), np.float32), np.zeros((96, 2), np.float32)
    x = rng.integers(-127, 128, (9, 64))
    x[:, ::32] = 127
    y = at_level(use, x.astype(np.float32), with_int8(pack(Quantised(codes, ones, zeros, 8, 32))))
    assert (y == x @ codes.astype(np.int64).T).all()


@pytest.mark.parametrize("use", LEVELS)
def test_the_largest_products_fit(use: str) -> None:
    codes = np.full((48, 128), 255, np.uint8)
    ones, zeros = np.ones((48, 1), np.float32), np.zeros((48, 1), np.float32)
    x = np.full((5, 128), -1.0, np.float32)
    y = at_level(use, x, with_int8(pack(Quantised(codes, ones, zeros, 8, 128))))
    assert np.allclose(y, -255 * 128, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("use", LEVELS)
def test_a_broken_row_breaks_no_other(use: str, value: float) -> None:
    rng = np.random.default_rng(1)
    packed = with_int8(pack(quantised(rng, 4, 60, 64, 32)))
    x = rng.standard_normal((6, 64), dtype=np.float32)
    clean = at_level(use, x, packed)
    x[2, 40] = value
    broken = at_level(use, x, packed)
    assert not np.isfinite(broken[2]).any()
    assert np.delete(broken, 2, 0).tobytes() == np.delete(clean, 2, 0).tobytes()


@pytest.mark.parametrize("use", LEVELS)
def test_with_all_around(use: str) -> None:
    """Rounded after norm and gate; bias and residual are added as they are."""
    rng = np.random.default_rng(2)
    packed = with_int8(pack(quantised(rng, 8, 70, 96, 32)))
    dense = quantised(np.random.default_rng(2), 8, 70, 96, 32).dequantise().astype(np.float64)
    bias, residual = rng.standard_normal(70), rng.standard_normal((5, 70))
    added = {"bias": bias.astype(np.float32), "residual": residual.astype(np.float32)}
    scale = rng.standard_normal(96).astype(np.float32)
    x = rng.standard_normal((5, 192)).astype(np.float32)
    gate, up = x[:, :96].astype(np.float64), x[:, 96:]
    for before, ready in (
        ({"gated": "swiglu"}, gate / (1 + np.exp(-gate)) * up),
        (
            {"norm": (scale, 1e-5)},
            gate / np.sqrt((gate**2).mean(axis=1, keepdims=True) + 1e-5) * scale,
        ),
    ):
        given_x = x if "gated" in before else x[:, :96]
        y = at_level(use, given_x, packed, **before, **added)
        wanted = rounded(ready.astype(np.float32), 32) @ dense.T + bias + residual
        # A code may fall to the other side where a product lies half way.
        step = np.abs(ready).max() / 127 * np.abs(dense).max()
        assert np.abs(y - wanted).max() < step


def test_dense_matrices_stay_as_they_are() -> None:
    packed = pack(np.ones((8, 8), np.float32))
    assert not with_int8(packed).int8


@pytest.mark.skipif("avx512" not in LEVELS, reason="this processor has no AVX-512")
@pytest.mark.parametrize("before", ["nothing", "norm", "swiglu", "geglu"])
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (5, 32), (6, 16), (8, 64), (8, 24)])
def test_avx512_has_the_bits_of_avx2(bits: int, group: int, before: str) -> None:
    rng = np.random.default_rng(3)
    inputs = group * 8
    packed = with_int8(pack(quantised(rng, bits, 100, inputs, group)))
    around: dict[str, object] = {"gated": before if before in ("swiglu", "geglu") else None}
    if before == "norm":
        around["norm"] = rng.standard_normal(inputs, dtype=np.float32), 1e-6
    width = 2 * inputs if around["gated"] else inputs
    for rows in (1, 2, 3, 4, 7, 17):
        x = rng.standard_normal((rows, width), dtype=np.float32) * 5
        found = [at_level(use, x, packed, **around).tobytes() for use in ("avx2", "avx512")]
        assert found[0] == found[1]
