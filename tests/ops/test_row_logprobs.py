"""Log probabilities: those of NumPy in double precision, on every platform and in every shape."""

from collections.abc import Callable

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from platforms import IMPLEMENTATIONS

from tensorfold.ops.logprobs import MOST, Logprobs, logprobs

Compute = Callable[[np.ndarray, list[int], list[bool]], Logprobs]


@pytest.fixture(params=IMPLEMENTATIONS)
def compute(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Compute:
    monkeypatch.setenv("TENSORFOLD_KERNELS", request.param)
    compiled = jax.jit(lambda *arguments: logprobs(*arguments))  # Of this platform.
    return lambda logits, token, asked: compiled(logits, np.array(token, np.int32), np.array(asked))


def wanted(logits: np.ndarray, token: int) -> tuple[float, int, list[int], np.ndarray]:
    """(log probability, rank, likeliest ids, theirs) of one row."""
    wide = logits.astype(np.float64)
    peak = wide.max()
    norm = peak + np.log(np.exp(wide - peak).sum())
    order = sorted(range(len(wide)), key=lambda i: (-wide[i], i))[:MOST]
    rank = int((wide >= wide[token]).sum())
    return wide[token] - norm, rank, order, wide[order] - norm


def check(got: Logprobs, row: int, logits: np.ndarray, token: int) -> None:
    logprob, rank, ids, top = wanted(logits, token)
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(got.logprob[row], logprob, **close)
    assert got.rank[row] == rank
    assert got.top_ids[row].tolist() == ids
    np.testing.assert_allclose(got.top[row], top, **close)


@pytest.mark.parametrize("vocabulary", [1, 7, 20, 300, 4099])
@pytest.mark.parametrize("spread", [1e-3, 3.0, 60.0])
def test_are_those_of_double_precision(compute: Compute, vocabulary: int, spread: float) -> None:
    rng = np.random.default_rng(vocabulary)
    logits = rng.normal(0, spread, (3, vocabulary)).astype(np.float32)
    logits[1] = np.round(logits[1])  # With many equals.
    tokens = rng.integers(0, vocabulary, 3).tolist()
    got = compute(logits, tokens, [True] * 3)
    for row in range(3):
        check(got, row, logits[row], tokens[row])


@pytest.mark.parametrize("compute", ["cpu"], indirect=True)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_row(compute: Compute, data: st.DataObject) -> None:
    few = st.sampled_from([0.0, -0.0, 1.0, -2.5, -np.inf, 90.0, -1e30])
    values = data.draw(
        st.lists(
            few | st.floats(-100, 100, width=32, allow_subnormal=False), min_size=40, max_size=40
        )
    )
    logits = np.array([values], np.float32)
    if np.isfinite(logits.max()):
        token = data.draw(st.integers(0, 39).filter(lambda i: np.isfinite(logits[0, i])))
        got = compute(logits, [token], [True])
        top_found = np.asarray(got.top[0])
        finite = np.isfinite(top_found)
        logprob, rank, ids, top = wanted(logits[0], token)
        assert got.rank[0] == rank
        assert got.top_ids[0].tolist() == ids
        np.testing.assert_allclose(got.logprob[0], logprob, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(top_found[finite], top[finite], rtol=1e-5, atol=1e-5)


def test_a_row_does_not_depend_on_its_neighbours(compute: Compute) -> None:
    logits = np.random.default_rng(5).normal(0, 4, (8, 1000)).astype(np.float32)
    tokens = list(range(8))
    together = compute(logits, tokens, [True] * 8)
    for row in range(8):
        alone = compute(logits[row : row + 1], [row], [True])
        for all_rows, one in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            assert np.asarray(all_rows)[row].tobytes() == np.asarray(one)[0].tobytes()


def test_rows_that_are_not_asked_for_are_zeros(compute: Compute) -> None:
    logits = np.random.default_rng(6).normal(0, 4, (3, 100)).astype(np.float32)
    got = compute(logits, [1, 2, 3], [False, True, False])
    check(got, 1, logits[1], 2)
    for rows in jax.tree.leaves(got):
        assert not rows[0].any() and not rows[2].any()
    assert not any(rows.any() for rows in jax.tree.leaves(compute(logits, [1, 2, 3], [False] * 3)))


def test_logits_that_are_no_numbers_have_none(compute: Compute) -> None:
    logits = np.zeros((2, 50), np.float32)
    logits[0, 7], logits[1, 9] = np.nan, np.inf
    got = compute(logits, [1, 1], [True, True])
    assert not np.isfinite(got.logprob).any()
