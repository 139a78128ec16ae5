import math

import jax.numpy as jnp
import numpy as np
import pytest

from tensorfold.ops.activation import clamped_swiglu, geglu, softcap, swiglu


def exact_swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    gate, up = gate.astype(np.float64), up.astype(np.float64)
    return gate / (1 + np.exp(-gate)) * up


@pytest.mark.parametrize("width", [1, 3, 160])
def test_swiglu(width: int) -> None:
    rng = np.random.default_rng(width)
    x = 3 * rng.standard_normal((8, 2 * width), dtype=np.float32)
    got = swiglu(jnp.asarray(x))
    np.testing.assert_allclose(got, exact_swiglu(x[:, :width], x[:, width:]), rtol=2e-6)


def test_far_gates_are_closed_or_open() -> None:
    gate = np.array([-1e4, -80.0, -20.0, 0.0, 20.0, 80.0, 1e4], np.float32)
    got = swiglu(jnp.asarray(np.concatenate([gate, np.full(7, 2, np.float32)])[None]))
    wanted = [0, exact_swiglu(gate[1], gate[0] * 0 + 2), -8.244614e-08, 0, 40, 160, 2e4]
    np.testing.assert_allclose(got[0], wanted, rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize("width", [1, 3, 160])
def test_geglu(width: int) -> None:
    rng = np.random.default_rng(width)
    x = 3 * rng.standard_normal((8, 2 * width), dtype=np.float32)
    gate, up = x[:, :width].astype(np.float64), x[:, width:]
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    wanted = gate * (1 + np.tanh(inner)) / 2 * up
    np.testing.assert_allclose(geglu(jnp.asarray(x)), wanted, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("width", [1, 3, 160])
def test_clamped_swiglu(width: int) -> None:
    rng = np.random.default_rng(width)
    x = 8 * rng.standard_normal((8, 2 * width), dtype=np.float32)
    gate, up = x[:, ::2].astype(np.float64), x[:, 1::2].astype(np.float64)
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    wanted = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
    np.testing.assert_allclose(clamped_swiglu(jnp.asarray(x), 1.702, 7.0), wanted, rtol=1e-5)


def test_limits_of_gates_and_ups() -> None:
    far = jnp.asarray([[50.0, 50.0, 50.0, -50.0, -50.0, 50.0]])
    got = clamped_swiglu(far, 1.0, 2.0)
    open_gate = 2 / (1 + math.exp(-2))
    np.testing.assert_allclose(got[0], [3 * open_gate, -open_gate, 0], rtol=1e-6, atol=1e-18)


def test_softcap() -> None:
    x = jnp.array([-1e6, -3.0, 0.0, 0.5, 1e6])
    wanted = [-30, 30 * math.tanh(-0.1), 0, 30 * math.tanh(1 / 60), 30]
    np.testing.assert_allclose(softcap(x, 30.0), wanted, rtol=1e-6)
    assert softcap(x, None) is x
