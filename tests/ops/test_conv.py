import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sequences import LANES, cut_steps, gather, place_rows, scatter

from tensorfold.ops.conv import causal_conv

LENGTH = 300
SIZES = (1, 8, 64, 256)


@pytest.mark.parametrize(
    ("channels", "width", "biased"), [(5, 4, True), (96, 4, False), (3, 2, True)]
)
def test_any_steps_give_one_convolution(channels: int, width: int, biased: bool) -> None:
    rng = np.random.default_rng(channels)
    x = rng.standard_normal((LANES, LENGTH, channels), dtype=np.float32)
    weight = rng.standard_normal((channels, width), dtype=np.float32)
    bias = rng.standard_normal(channels, dtype=np.float32) if biased else None
    padded = np.pad(x.astype(np.float64), ((0, 0), (width - 1, 0), (0, 0)))
    wanted = sum(weight[:, tap] * padded[:, tap : tap + LENGTH] for tap in range(width))
    if bias is not None:
        wanted = wanted + bias
    filters = jnp.asarray(weight), None if bias is None else jnp.asarray(bias)
    run = jax.jit(lambda x, kept, rows: causal_conv(x, filters[0], kept, rows, filters[1]))
    outs = []
    for _ in range(4):
        kept = jnp.full((LANES, 2, 64, channels), jnp.nan)
        out = np.zeros_like(x)
        for size, runs in cut_steps(rng, LENGTH, SIZES):
            rows, kept = run(gather(x, runs, size), kept, place_rows(runs, size))
            scatter(out, np.asarray(rows), runs)
        outs.append(out)
    np.testing.assert_allclose(outs[0], wanted, rtol=1e-5, atol=1e-5)
    assert len({out.tobytes() for out in outs}) == 1


def test_a_lane_that_is_taken_back_goes_on_as_if_it_had_not_run() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((LANES, 200, 6), dtype=np.float32)
    other = rng.standard_normal((LANES, 200, 6), dtype=np.float32)
    weight = jnp.asarray(rng.standard_normal((6, 4), dtype=np.float32))
    run = jax.jit(lambda x, kept, rows: causal_conv(x, weight, kept, rows))
    whole = [(0, 0, 200)]
    wanted, _ = run(gather(x, whole, 200), jnp.zeros((LANES, 2, 64, 6)), place_rows(whole, 200))
    kept = jnp.zeros((LANES, 2, 64, 6))
    for position in range(199):
        one = [(0, position, 1)]
        got, kept = run(gather(x, one, 64), kept, place_rows(one, 64))
        assert np.asarray(got[0]).tobytes() == np.asarray(wanted[position]).tobytes(), position
        wrong = [(0, position + 1, min(63, 199 - position))]
        _, kept = run(gather(other, wrong, 64), kept, place_rows(wrong, 64))
