import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfold.ops.sums import rounded, row_sum


@pytest.mark.parametrize("width", [1, 2, 63, 64, 65, 191, 576, 1000])
def test_row_sum_is_the_sum(width: int) -> None:
    x = np.random.default_rng(width).standard_normal((5, 3, width), dtype=np.float32)
    got = np.asarray(row_sum(jnp.asarray(x)))
    assert got.shape == (5, 3, 1)
    wanted = x.astype(np.float64).sum(axis=-1, keepdims=True)
    assert np.abs(got - wanted).max() <= 1e-6 * np.abs(x).sum(axis=-1).max()


@given(st.lists(st.integers(-(2**14), 2**14), min_size=1, max_size=300))
def test_sums_of_integers_are_exact(values: list[int]) -> None:
    # Padded here to two widths, so that few programs are compiled.
    row = np.zeros((1, 100 if len(values) <= 100 else 300), np.float32)
    row[0, : len(values)] = values
    assert row_sum(jnp.asarray(row)).item() == sum(values)


def test_huge_and_tiny_values_keep_their_places() -> None:
    row = np.zeros((1, 130), np.float32)
    row[0, [0, 64, 129]] = 1e30, -1e30, 2.5
    assert row_sum(jnp.asarray(row)).item() == 2.5


@pytest.mark.parametrize("width", [64, 65, 576, 1536])
def test_a_row_has_the_same_sum_among_any_number_of_rows(width: int) -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((64, width), dtype=np.float32))
    compiled = jax.jit(row_sum)
    whole = np.asarray(compiled(x))
    for rows in (1, 2, 3, 8, 16):
        assert np.asarray(compiled(x[:rows])).tobytes() == whole[:rows].tobytes()


@pytest.mark.parametrize("width", [96, 113])
def test_a_product_is_rounded_before_it_is_added(width: int) -> None:
    """The compiler must not make one multiply-add of them, whatever the number of rows."""

    @jax.jit
    def taps(x: jax.Array, weight: jax.Array, total: jax.Array) -> jax.Array:
        for _ in range(3):
            total = total + rounded(x * weight)
        return total

    draw = np.random.default_rng(width).standard_normal
    x, total = (draw((64, width), dtype=np.float32) for _ in range(2))
    weight = draw(width, dtype=np.float32)
    wanted = total
    for _ in range(3):
        wanted = wanted + x * weight
    for rows in (1, 2, 8, 16, 64):
        got = np.asarray(taps(x[:rows], weight, total[:rows]))
        assert got.tobytes() == wanted[:rows].tobytes()


def test_a_rounded_product_keeps_what_is_not_finite() -> None:
    got = np.asarray(rounded(jnp.asarray([np.nan, -np.inf, -0.0, 3.5], np.float32)))
    assert np.isnan(got[0]) and got[1] == -np.inf and got[3] == 3.5
    assert got[2] == 0 and np.signbit(got[2])
