"""The CPU matmul against float64, at every format, dispatch level and edge."""

import platform
from collections.abc import Iterator

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from platforms import LEVELS

from tensorfold.checkpoints.interface import Quantised, Tensor
from tensorfold.kernels_cpu import library
from tensorfold.kernels_cpu.matmul import can_pack, matmul, pack, take_rows

CODES = {"q4": 4, "q5": 5, "q6": 6, "q8": 8, "e4m3": 8}
FORMATS = [*CODES, "float32", "float16", "bfloat16"]
SCALES = ["half", "float", "steps"]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before = library.level()
    assert library.set_level(request.param)
    yield request.param
    library.set_level(before)


def make_weight(
    rng: np.random.Generator,
    form: str,
    rows: int,
    columns: int,
    group: int,
    scales: str = "half",
    zero: int = 0,
) -> Tensor:
    """`scales` is what they can be written as; with `zero` that code is 0 in every group. Floats
    have neither offsets nor NaN."""
    if form not in CODES:
        kind = ml_dtypes.bfloat16 if form == "bfloat16" else np.dtype(form)
        return rng.standard_normal((rows, columns)).astype(kind)
    groups = columns // group
    scale = rng.uniform(0.01, 0.1, (rows, groups)).astype(np.float32)
    offset = rng.uniform(-1, 0.2, (rows, groups)).astype(np.float32)
    if scales == "half":
        scale, offset = (each.astype(np.float16).astype(np.float32) for each in (scale, offset))
    if scales == "steps":
        steps = rng.uniform(-0.01, 0.01, (2, rows, -(-columns // 256), 1)).astype(np.float16)
        times = rng.integers(-128, 128, (2, rows, steps.shape[2], 256 // group))
        both = (steps.astype(np.float32) * times).reshape(2, rows, -1)[..., :groups]
        scale, offset = both.astype(np.float32)
    if zero or form == "e4m3":
        offset = -zero * scale
    bits = 4 if form == "q4" else 8
    most = 256 if form == "q4" else 2 ** CODES[form]
    codes = rng.integers(0, most, (rows, columns * bits // 8)).astype(np.uint8)
    codes[0, 0] = most - 1
    if form == "e4m3":
        codes[codes & 0x7F == 0x7F] -= 1
        return Quantised(codes, scale, 0 * scale, bits, group, floats=True)
    return Quantised(codes, scale, offset, bits, group)


def as_float64(weight: Tensor) -> np.ndarray:
    dense = weight.dequantise() if isinstance(weight, Quantised) else weight
    return dense.astype(np.float64)


def reference(x: np.ndarray, weight: np.ndarray, **around: object) -> np.ndarray:
    """`ops.matmul.matmul` in float64."""
    x = x.astype(np.float64)
    if around.get("gated"):
        gate, up = np.split(x, 2, axis=1)
        gelu = (8 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3)
        x = gate / (1 + np.exp(-(gelu if around["gated"] == "geglu" else gate))) * up
    if around.get("norm"):
        scale, epsilon = around["norm"]
        x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + epsilon) * scale
    y = x @ weight.T
    for part in ("bias", "residual"):
        if around.get(part) is not None:
            y = y + around[part]
    return y


def close(got: np.ndarray, wanted: np.ndarray, x: np.ndarray, weight: np.ndarray) -> None:
    """Within a few float32 roundings of the sum of magnitudes."""
    columns = weight.shape[1]
    magnitude = np.abs(wanted).max() + np.abs(weight).max() * np.abs(x).max() * columns**0.5
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-6 * magnitude)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 64])
def test_every_format_and_row_count(level: str, form: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    weight = make_weight(rng, form, 203, 160, 32)
    x = rng.standard_normal((rows, 160), dtype=np.float32)
    got = np.asarray(matmul(jnp.asarray(x), pack(weight)))
    wanted = reference(x, as_float64(weight))
    close(got, wanted, x, as_float64(weight))


def test_there_is_a_level_beside_the_portable_one() -> None:
    assert LEVELS[0] == "portable"
    assert len(LEVELS) > 1 or platform.machine() not in ("x86_64", "AMD64")


@pytest.mark.parametrize("form", FORMATS)
def test_all_levels_have_equal_bits(form: str) -> None:
    """A sum is of one output, so a wider register changes none."""
    rng = np.random.default_rng(7)
    packed = pack(make_weight(rng, form, 250, 256, 32))
    for rows in (1, 2, 3, 4, 7, 8, 9, 16, 65):
        x = jnp.asarray(rng.standard_normal((rows, 256), dtype=np.float32) * 100)
        found = set()
        for use in LEVELS:
            before = library.level()
            assert library.set_level(use)
            found.add(np.asarray(matmul(x, packed)).tobytes())
            library.set_level(before)
        assert len(found) == 1


@pytest.mark.parametrize("rows", [1, 2, 4, 64])
def test_every_float_code(level: str, rows: int) -> None:
    """All 254 that are numbers, each by itself in a product, and in take_rows with its sign."""
    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F] + [0, 0x80], np.uint8)
    scale = np.full((50, 2), 0.5, np.float32)
    weight = Quantised(np.tile(codes, (50, 1)), scale, 0 * scale, 8, 128, floats=True)
    wanted = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) / 2
    assert len(set(wanted.view(np.uint32).tolist())) == 254
    packed = pack(weight)
    taken = np.asarray(take_rows(jnp.arange(50), packed))
    assert taken.tobytes() == np.tile(wanted, (50, 1)).tobytes() == weight.dequantise().tobytes()
    for first in range(0, 256, rows):
        x = np.eye(256, dtype=np.float32)[first : first + rows]
        got = np.asarray(matmul(jnp.asarray(x), packed))
        np.testing.assert_array_equal(got, np.tile(wanted[first : first + rows, None], 50))


@given(
    form=st.sampled_from(FORMATS),
    scales=st.sampled_from(SCALES),
    zero=st.sampled_from([0, 8, 12, 16, 32, 128]),
    group=st.sampled_from([8, 16, 32, 64, 128]),
    groups=st.integers(1, 5),
    outputs=st.integers(1, 130),
    rows=st.integers(1, 40),
    parts=st.sets(st.sampled_from(["norm", "bias", "residual"])),
    gated=st.sampled_from([None, "swiglu", "geglu"]),
    use=st.sampled_from(LEVELS),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_random_shapes_with_all_around(
    form: str,
    scales: str,
    zero: int,
    group: int,
    groups: int,
    outputs: int,
    rows: int,
    parts: set[str],
    gated: str | None,
    use: str,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    inputs = 256 * -(-groups // 2) if scales == "steps" else group * groups
    weight = make_weight(rng, form, outputs, inputs, group, scales, zero)
    width = 2 * inputs if gated else inputs
    x = rng.standard_normal((rows, width), dtype=np.float32)
    around: dict[str, object] = {"gated": gated}
    if "norm" in parts:
        around["norm"] = rng.standard_normal(inputs, dtype=np.float32), 1e-5
    if "bias" in parts:
        around["bias"] = rng.standard_normal(outputs, dtype=np.float32)
    if "residual" in parts:
        around["residual"] = rng.standard_normal((rows, outputs), dtype=np.float32)
    before = library.level()
    assert library.set_level(use)
    packed = pack(weight)
    got = np.asarray(matmul(jnp.asarray(x), packed, **around))
    alone = []
    for row in range(rows):
        one = dict(around)
        if "residual" in parts:
            one["residual"] = around["residual"][row : row + 1]
        alone.append(np.asarray(matmul(jnp.asarray(x[row : row + 1]), packed, **one)))
    library.set_level(before)
    wanted = reference(x, as_float64(weight), **around)
    scale = 4.0 if gated or "norm" in parts else 1.0
    close(got, wanted, x * scale, as_float64(weight))
    assert got.tobytes() == np.concatenate(alone).tobytes(), "a row depends on its neighbours"


@pytest.mark.parametrize("form", FORMATS)
def test_take_rows_gives_the_dequantised_rows(form: str) -> None:
    rng = np.random.default_rng(3)
    weight = make_weight(rng, form, 37, 96, 32, "half" if form == "q4" else "float")
    index = np.array([0, 36, 5, 5, -1, 37, 8], np.int32)
    got = np.asarray(take_rows(jnp.asarray(index), pack(weight)))
    dense = as_float64(weight).astype(np.float32)
    wanted = np.where((index >= 0)[:, None] & (index < 37)[:, None], dense[index % 37], 0)
    np.testing.assert_array_equal(got, wanted)


@given(
    codes=st.lists(st.integers(0, 255).filter(lambda code: code & 0x7F != 0x7F), min_size=1),
    scales=st.lists(st.floats(2.0**-60, 2.0**60, width=32), min_size=1),
    group=st.sampled_from([8, 24, 64, 128]),
    outputs=st.integers(1, 60),
)
def test_floats_come_back_as_they_were(
    codes: list[int], scales: list[float], group: int, outputs: int
) -> None:
    every = np.resize(np.array(codes, np.uint8), (outputs, 2 * group))
    scale = np.resize(np.array(scales, np.float32), (outputs, 2))
    weight = Quantised(every, scale, 0 * scale, 8, group, floats=True)
    got = np.asarray(take_rows(jnp.arange(outputs), pack(weight)))
    exact = every.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.repeat(scale, group, axis=1)
    assert got.tobytes() == exact.tobytes() == weight.dequantise().tobytes()


@pytest.mark.parametrize("zero", [0, 12, 32])
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("form", CODES)
def test_every_way_to_write_a_matrix(form: str, scales: str, zero: int) -> None:
    """The shortest is chosen, and it means the same values."""
    weight = make_weight(np.random.default_rng(5), form, 60, 512, 32, scales, zero)
    assert isinstance(weight, Quantised)
    packed = pack(weight)
    floats = form == "e4m3"
    assert (packed.format, packed.scales, packed.zero) == (form, scales, 0 if floats else zero)
    scale_bits = {"half": 16, "float": 32, "steps": 8}[scales] / 32 + (scales == "steps") / 16
    bits = CODES[form] + scale_bits * (1 if zero or floats else 2)
    assert packed.data.nbytes == 64 * 512 * bits / 8  # the outputs padded to whole tiles
    got = np.asarray(take_rows(jnp.arange(60), packed))
    np.testing.assert_array_equal(got, weight.dequantise())


def test_what_the_kernel_does_not_take() -> None:
    rng = np.random.default_rng(0)
    assert not can_pack(rng.standard_normal((8, 8)))  # float64
    assert not can_pack(np.zeros((8, 8), ml_dtypes.float8_e4m3fn))  # without scales
    four = np.zeros((8, 6), np.uint8), np.zeros((8, 3), np.float32), np.zeros((8, 3), np.float32)
    assert not can_pack(Quantised(*four, bits=4, group=4))


def test_extreme_gates_stay_finite(level: str) -> None:
    x = jnp.asarray([[-1e4, -100.0, -88.0, 0.0, 88.0, 100.0, 1e4, 1.0] + [1.0] * 8])
    weight = pack(np.eye(8, dtype=np.float32))
    got = np.asarray(matmul(x, weight, gated="swiglu"))[0]
    np.testing.assert_allclose(got, [0, 0, 0, 0, 88, 100, 1e4, 0.7310586], rtol=1e-6, atol=1e-30)
