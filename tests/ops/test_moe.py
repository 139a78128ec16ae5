from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from platforms import IMPLEMENTATIONS

from tensorfold.checkpoints.interface import Quantised, Tensor
from tensorfold.ops import matmul, moe
from tensorfold.ops.activation import clamped_swiglu, squared_relu, swiglu


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    return rng.standard_normal(shape, dtype=np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    odds = np.exp(x.astype(np.float64) - x.max(axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("normalised", [False, True])
def test_softmax_router(normalised: bool) -> None:
    logits = normal(16, 10)
    ids, weights = moe.softmax_router(jnp.asarray(logits), 3, normalised=normalised)
    order = np.argsort(-logits, axis=1)[:, :3]
    np.testing.assert_array_equal(ids, order)
    wanted = np.take_along_axis(softmax(logits), order, axis=1)
    if normalised:
        wanted /= wanted.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(weights, wanted, rtol=1e-5)


def test_chosen_softmax_router() -> None:
    logits = normal(16, 10)
    ids, weights = moe.chosen_softmax_router(jnp.asarray(logits), 3)
    order = np.argsort(-logits, axis=1)[:, :3]
    np.testing.assert_array_equal(ids, order)
    wanted = softmax(np.take_along_axis(logits, order, axis=1))
    np.testing.assert_allclose(weights, wanted, rtol=1e-5)
    ids, weights = moe.chosen_softmax_router(jnp.zeros((8, 6)), 4)
    assert ids.tolist() == [[0, 1, 2, 3]] * 8
    np.testing.assert_allclose(weights, 0.25)
    assert moe.chosen_softmax_router(jnp.asarray(logits), 1)[1].tolist() == [[1.0]] * 16


def test_equal_experts_go_by_id() -> None:
    level = jnp.zeros((8, 6))
    ids, weights = moe.softmax_router(level, 4, normalised=True)
    assert ids.tolist() == [[0, 1, 2, 3]] * 8
    np.testing.assert_allclose(weights, 0.25)
    limits: dict[str, Any] = {"groups": 3, "kept_groups": 2, "normalised": True, "scale": 1.0}
    ids, weights = moe.sigmoid_router(level, jnp.zeros(6), 3, **limits)
    assert ids.tolist() == [[0, 1, 2]] * 8
    np.testing.assert_allclose(weights, 1 / 3)


def test_sigmoid_router_chooses_by_the_corrected_score_and_weighs_by_the_plain_one() -> None:
    logits, bias = normal(32, 12), 0.5 * normal(12)
    ids, weights = moe.sigmoid_router(
        jnp.asarray(logits),
        jnp.asarray(bias),
        4,
        groups=4,
        kept_groups=2,
        normalised=True,
        scale=2.5,
    )
    scores = 1 / (1 + np.exp(-logits.astype(np.float64)))
    for row in range(32):
        choice = scores[row] + bias
        groups = choice.reshape(4, 3)
        best = np.argsort(-np.sort(groups, axis=1)[:, -2:].sum(axis=1))[:2]
        allowed = [expert for expert in range(12) if expert // 3 in best]
        wanted = sorted(allowed, key=lambda expert: -choice[expert])[:4]
        assert ids[row].tolist() == wanted
        share = scores[row, wanted] / scores[row, wanted].sum() * 2.5
        np.testing.assert_allclose(weights[row], share, rtol=1e-5)


def floats_of_8_bits(matrix: np.ndarray) -> Quantised:
    """Rows of E4M3 codes in groups of 8 with a scale each."""
    rows, columns = matrix.shape
    groups = matrix.reshape(rows, columns // 8, 8)
    scale = np.abs(groups).max(axis=2) / np.float32(448)
    codes = (groups / scale[..., None]).astype(ml_dtypes.float8_e4m3fn)
    return Quantised(codes.view(np.uint8).reshape(rows, columns), scale, 0 * scale, 8, 8, True)


@pytest.mark.parametrize("kernels", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("count", "chosen", "hidden", "floats"),
    [(6, 2, 24, False), (5, 5, 20, False), (1, 1, 8, False), (6, 2, 24, True)],
)
def test_experts(
    count: int,
    chosen: int,
    hidden: int,
    floats: bool,
    kernels: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against a sum in float64; and a row's bits in every bucket, among any others."""
    monkeypatch.setenv("TENSORFOLD_KERNELS", kernels)
    width, rows = 48, 64
    up, down = normal(count * 2 * hidden, width), normal(count * width, hidden)
    stored: list[Tensor] = [up, down]
    if floats:
        coded = [floats_of_8_bits(matrix) for matrix in (up, down)]
        up, down = (each.dequantise() for each in coded)
        stored = [*coded]
    x = normal(rows, width)
    ids = np.argsort(normal(rows, count), axis=1)[:, :chosen].astype(np.int32)
    weights = softmax(normal(rows, chosen)).astype(np.float32)
    stacks = matmul.prepare(stored[0], count), matmul.prepare(stored[1], count)

    @jax.jit
    def run(x: Any, ids: Any, weights: Any, real: Any) -> jax.Array:
        return moe.experts(x, ids, weights, real, *stacks, swiglu)

    smallest = 1 if kernels == "cpu" else 8
    alone = np.zeros_like(x)
    for row in range(0, rows, 5):
        real = np.arange(smallest) == row % smallest
        pick = np.full(smallest, row)
        alone[row] = run(x[pick], ids[pick], weights[pick], real)[row % smallest]
        wanted = np.zeros(width)
        for rank in range(chosen):
            gate, value = np.split(
                up.reshape(count, -1, width)[ids[row, rank]] @ x[row].astype(np.float64), 2
            )
            inner = gate / (1 + np.exp(-gate)) * value
            out = down.reshape(count, width, hidden)[ids[row, rank]] @ inner
            wanted += weights[row, rank] * out
        assert np.abs(alone[row] - wanted).max() / np.abs(wanted).max() < 1e-5
    rng = np.random.default_rng(1)
    for size in (8, 64):
        order = rng.permutation(rows)[:size]
        real = rng.random(size) < 0.8
        got = np.asarray(run(x[order], ids[order], weights[order], real))
        for place, row in enumerate(order):
            if not real[place]:
                assert not got[place].any()
            elif row % 5 == 0:
                assert got[place].tobytes() == alone[row].tobytes(), (size, row)


@pytest.mark.parametrize("kernels", IMPLEMENTATIONS)
@pytest.mark.parametrize(("count", "chosen", "hidden"), [(6, 2, 24), (5, 5, 20), (1, 1, 8)])
def test_experts_with_biases(
    count: int, chosen: int, hidden: int, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a sum in float64; and a row's bits beside any others."""
    monkeypatch.setenv("TENSORFOLD_KERNELS", kernels)
    width, rows, alpha, limit = 48, 64, 1.702, 7.0
    up, down = normal(count * 2 * hidden, width), normal(count * width, hidden)
    up_bias, down_bias = normal(count * 2 * hidden), normal(count * width)
    x, ids = normal(rows, width), np.argsort(normal(rows, count), axis=1)[:, :chosen]
    weights = softmax(normal(rows, chosen)).astype(np.float32)
    stacks = matmul.prepare(up, count), matmul.prepare(down, count)
    biases = jnp.asarray(up_bias), jnp.asarray(down_bias)

    @jax.jit
    def run(x: Any, ids: Any, weights: Any) -> jax.Array:
        real = jnp.full(len(x), True)
        return moe.experts(
            x,
            ids,
            weights,
            real,
            *stacks,
            lambda pairs: clamped_swiglu(pairs, alpha, limit),
            biases=biases,
        )

    got = np.asarray(run(x, ids, weights))
    for row in range(0, rows, 5):
        wanted = np.zeros(width)
        for rank, expert in enumerate(ids[row]):
            inner = up.reshape(count, -1, width)[expert] @ x[row].astype(np.float64)
            inner = inner + up_bias.reshape(count, -1)[expert]
            gate, value = np.minimum(inner[::2], limit), np.clip(inner[1::2], -limit, limit)
            inner = (value + 1) * gate / (1 + np.exp(-alpha * gate))
            out = down.reshape(count, width, hidden)[expert] @ inner
            wanted += weights[row, rank] * (out + down_bias.reshape(count, width)[expert])
        assert np.abs(got[row] - wanted).max() / np.abs(wanted).max() < 1e-5
    for size in (1, 2, 8) if kernels == "cpu" else (8,):
        order = np.random.default_rng(size).permutation(rows)
        for start in range(0, rows, size):
            pick = order[start : start + size]
            assert np.asarray(run(x[pick], ids[pick], weights[pick])).tobytes() == (
                got[pick].tobytes()
            )


def test_experts_that_no_row_asks_for_are_not_read() -> None:
    up, down = normal(3 * 16, 16), normal(3 * 16, 16)
    up[16:32] = np.nan
    stacks = matmul.prepare(up, 3), matmul.prepare(down, 3)
    ids = jnp.asarray([[0, 2]] * 8, jnp.int32)
    out = moe.experts(
        jnp.asarray(normal(8, 16)),
        ids,
        jnp.full((8, 2), 0.5),
        jnp.full(8, True),
        *stacks,
        squared_relu,
    )
    assert np.isfinite(np.asarray(out)).all()
