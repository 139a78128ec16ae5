import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from platforms import IMPLEMENTATIONS

from tensorfold.checkpoints.interface import Quantised
from tensorfold.ops.matmul import matmul, prepare, take_rows

SHAPES = [(1, 1), (5, 3), (72, 90), (576, 17), (1536, 64), (2049, 8)]


@pytest.fixture(params=IMPLEMENTATIONS, autouse=True)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORFOLD_KERNELS", request.param)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def quantised(rows: int, columns: int, bits: int, group: int, floats: bool = False) -> Quantised:
    rng = np.random.default_rng(rows)
    codes = rng.integers(0, 256, (rows, columns * bits // 8), dtype=np.uint8)
    scale, offset = rng.standard_normal((2, rows, columns // group)).astype(np.float16)
    scale, offset = scale.astype(np.float32), offset.astype(np.float32)
    if floats:
        codes[codes & 0x7F == 0x7F] = 0
        offset = 0 * scale
    return Quantised(codes, scale, offset, bits, group, floats)


def assert_is_product(got: jax.Array, x: np.ndarray, weight: np.ndarray) -> None:
    exact_x, exact_weight = x.astype(np.float64), weight.astype(np.float64)
    size = np.abs(exact_x) @ np.abs(exact_weight).T
    assert got.shape == size.shape
    assert (np.abs(got - exact_x @ exact_weight.T) <= 2e-6 * size + 1e-30).all()


@pytest.mark.parametrize(("columns", "outputs"), SHAPES)
def test_matmul(columns: int, outputs: int) -> None:
    x, weight = normal(24, columns), normal(outputs, columns)
    assert_is_product(matmul(jnp.asarray(x), prepare(weight)), x, weight)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_weights(kind: type) -> None:
    x, weight = normal(8, 200), normal(33, 200).astype(kind)
    assert_is_product(matmul(jnp.asarray(x), prepare(weight)), x, weight)


@pytest.mark.parametrize(("bits", "floats"), [(4, False), (8, False), (8, True)])
@pytest.mark.parametrize("group", [16, 32])
def test_quantised_weights(bits: int, floats: bool, group: int) -> None:
    x, weight = normal(16, 96), quantised(21, 96, bits, group, floats)
    assert_is_product(matmul(jnp.asarray(x), prepare(weight)), x, weight.dequantise())


@pytest.mark.parametrize("form", ["float32", "q4", "q8", "e4m3"])
def test_take_rows(form: str) -> None:
    bits = 4 if form == "q4" else 8
    table = normal(50, 64)
    if form != "float32":
        table = quantised(50, 64, bits, 32, floats=form == "e4m3")
    dense = table.dequantise() if isinstance(table, Quantised) else table
    index = np.array([0, 49, 7, 7, 31, 8, 1, 48], np.int32)
    got = take_rows(prepare(table), jnp.asarray(index))
    np.testing.assert_allclose(got, dense[index], rtol=1e-6, atol=1e-6)


def test_integers_multiply_exactly() -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.integers(-50, 50, (16, 640)), rng.integers(-50, 50, (48, 640))
    got = matmul(jnp.asarray(x, jnp.float32), prepare(weight.astype(np.float32)))
    assert (np.asarray(got) == x @ weight.T).all()


def test_a_broken_row_breaks_no_other() -> None:
    x, weight = normal(16, 64), prepare(normal(32, 64))
    clean = np.asarray(matmul(jnp.asarray(x), weight))
    x[3, 5], x[12, 0] = np.nan, np.inf
    got = np.asarray(matmul(jnp.asarray(x), weight))
    assert not np.isfinite(got[[3, 12]]).any()
    others = np.setdiff1d(np.arange(16), [3, 12])
    assert got[others].tobytes() == clean[others].tobytes()


@pytest.mark.parametrize(("bias", "residual"), [(False, True), (True, False)])
@pytest.mark.parametrize("before", ["nothing", "norm", "swiglu", "geglu"])
@pytest.mark.parametrize("columns", [64, 203])
def test_what_belongs_to_the_product(before: str, residual: bool, bias: bool, columns: int) -> None:
    x = normal(16, 2 * columns if before in ("swiglu", "geglu") else columns)
    weight, norm_weight = normal(40, columns), normal(columns)
    offset, added = normal(40) if bias else None, normal(16, 40) if residual else None
    got = matmul(
        jnp.asarray(x),
        prepare(weight),
        bias=None if offset is None else jnp.asarray(offset),
        norm=(jnp.asarray(norm_weight), 1e-2) if before == "norm" else None,
        gated=before if before in ("swiglu", "geglu") else None,
        residual=None if added is None else jnp.asarray(added),
    )
    exact = x.astype(np.float64)
    if before == "norm":
        exact = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-2) * norm_weight
    if before in ("swiglu", "geglu"):
        gate, up = exact[:, :columns], exact[:, columns:]
        inner = gate if before == "swiglu" else (8 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3)
        exact = gate / (1 + np.exp(-inner)) * up
    wanted = exact @ weight.T.astype(np.float64)
    wanted += 0 if offset is None else offset
    wanted += 0 if added is None else added
    assert np.abs(got - wanted).max() < 1e-4
