import jax.numpy as jnp
import numpy as np
import pytest

from tensorfold.ops.norm import rms_norm


@pytest.mark.parametrize("shape", [(8, 1), (8, 72), (3, 4, 24), (16, 576)])
@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 1e15])
def test_rms_norm(shape: tuple[int, ...], scale: float) -> None:
    rng = np.random.default_rng(0)
    x = scale * rng.standard_normal(shape, dtype=np.float32)
    weight = rng.standard_normal(shape[-1], dtype=np.float32)
    got = rms_norm(jnp.asarray(x), jnp.asarray(weight), 1e-5)
    exact = x.astype(np.float64)
    wanted = exact / np.sqrt((exact**2).mean(axis=-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(got, wanted, rtol=3e-6)


def test_epsilon_keeps_a_zero_row_at_zero() -> None:
    got = rms_norm(jnp.zeros((8, 64)), jnp.ones(64), 1e-6)
    assert not np.asarray(got).any()
