"""Scales and codes in the fewest bytes, and exactly."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorfold.kernels_cpu.layout import Written, written


def values_of(found: Written, index: int) -> np.ndarray:
    values = found.values[index].astype(np.float32)
    if found.kind != "steps":
        return values
    wide = np.repeat(found.steps[index].astype(np.float32), 256 // 32, axis=1)
    return values * wide


@given(
    st.integers(0, 2**32),
    st.integers(-24, 8),
    st.sampled_from([(-128, 127), (0, 63), (1, 1), (-128, -128), (2, 6)]),
    st.integers(1, 3),
)
def test_multiples_of_halves_are_found(
    seed: int, exponent: int, between: tuple[int, int], runs: int
) -> None:
    """As K types have them, whatever divisor the multiples share; also of halves with few bits."""
    rng = np.random.default_rng(seed)
    least, most = between
    steps = (rng.standard_normal((5, runs, 1)) * 2.0**exponent).astype(np.float16)
    times = rng.integers(least, most + 1, (5, runs, 8))
    scale = (steps.astype(np.float32) * times).astype(np.float32).reshape(5, -1)
    found = written([scale, -scale], 32)
    assert found.kind in ("half", "steps")
    np.testing.assert_array_equal(values_of(found, 0), scale)
    np.testing.assert_array_equal(values_of(found, 1), -scale)
    if found.kind == "steps":
        assert found.values[0].dtype == np.int8 and found.steps[0].shape == (5, runs)


@given(st.integers(0, 2**32), st.sampled_from([1e-40, 1e-8, 1.0, 1e30]))
def test_other_values_stay_float32(seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    scale = (rng.standard_normal((4, 16)) * size).astype(np.float32)
    found = written([scale, -scale], 32)
    assert found.kind == ("half" if size == 1e-40 and not scale.any() else "float")
    np.testing.assert_array_equal(found.values[1], -scale)


def test_halves_come_first() -> None:
    halves = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float16)
    assert written([halves.astype(np.float32)], 32).kind == "half"


def test_a_row_that_is_no_whole_run_of_steps() -> None:
    scale = np.float32(0.123) * np.arange(1, 8, dtype=np.float32)[None]
    assert written([scale], 32).kind == "float"
