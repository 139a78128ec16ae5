import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tensorfold.ops.rope import Rope, make_rope, rotate


def transformers_rope(
    head_dim: int, theta: float, scaling: dict[str, Any]
) -> tuple[np.ndarray, float]:
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=2**20,
        rope_parameters={"rope_theta": theta} | scaling,
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu")
    return frequencies.numpy(), factor


LINEAR = st.fixed_dictionaries({"rope_type": st.just("linear"), "factor": st.floats(1, 64)})
LLAMA3 = st.fixed_dictionaries(
    {
        "rope_type": st.just("llama3"),
        "factor": st.floats(1, 64),
        "low_freq_factor": st.floats(0.5, 2),
        "high_freq_factor": st.floats(4, 16),
        "original_max_position_embeddings": st.sampled_from([64, 2048, 8192]),
    }
)
YARN = st.fixed_dictionaries(
    {
        "rope_type": st.just("yarn"),
        "factor": st.floats(1, 64),
        "original_max_position_embeddings": st.sampled_from([64, 2048, 8192]),
    },
    optional={
        "beta_fast": st.sampled_from([16, 32.0, 64]),
        "beta_slow": st.sampled_from([0.5, 1, 2]),
        "truncate": st.booleans(),
        "attention_factor": st.floats(0.5, 2),
    },
)


@settings(max_examples=150)
@given(
    half=st.integers(1, 64),
    theta=st.sampled_from([100.0, 10000.0, 1e6, 5e5]),
    scaling=LINEAR | LLAMA3 | YARN,
)
def test_scaled_frequencies_are_those_of_transformers(
    half: int, theta: float, scaling: dict[str, Any]
) -> None:
    got = make_rope(2 * half, theta, scaling)
    frequencies, factor = transformers_rope(2 * half, theta, scaling)
    # transformers computes the ramp in float32: off by a few units of the plain frequency.
    plain = np.array(make_rope(2 * half, theta).frequencies)
    assert (np.abs(got.frequencies - frequencies) <= 3e-6 * plain).all()
    assert math.isclose(got.factor, factor, rel_tol=1e-9)


def test_plain_frequencies() -> None:
    frequencies = (1.0, 10000**-0.25, 10000**-0.5, 10000**-0.75)
    for scaling in (None, {}, {"rope_type": "default"}, {"type": "default"}):
        rope = make_rope(8, 10000.0, scaling)
        np.testing.assert_allclose(rope.frequencies, frequencies, rtol=1e-12)
        assert rope.factor == 1.0


def test_factors_divide_the_frequencies() -> None:
    rope = make_rope(4, 100.0, {"rope_type": "factors", "factors": [1.0, 8.0]})
    np.testing.assert_allclose(rope.frequencies, (1.0, 0.1 / 8), rtol=1e-12)


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(ValueError, match="'longrope' is not supported"):
        make_rope(8, 10000.0, {"rope_type": "longrope"})


@pytest.mark.parametrize("head_dim", [2, 8, 10, 64])
@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_rotate_turns_pairs_of_halves(head_dim: int, factor: float) -> None:
    rng = np.random.default_rng(head_dim)
    rope = Rope(make_rope(head_dim, 10000.0).frequencies, factor)
    x = rng.standard_normal((16, 3, head_dim), dtype=np.float32)
    position = np.array([0, 1, 2, 3, 63, 64, 65, 100, 511, 512, 1000, 2047, 0, 4, 8, 9], np.int32)
    got = rotate(jnp.asarray(x), rope.angles(jnp.asarray(position)))
    pairs = x[..., : head_dim // 2] + 1j * x[..., head_dim // 2 :].astype(np.complex128)
    turned = pairs * factor * np.exp(1j * np.outer(position, rope.frequencies))[:, None]
    wanted = np.concatenate([turned.real, turned.imag], axis=-1)
    # An angle is a float32 product: off by 2^-24 of itself.
    assert np.abs(got - wanted).max() < 2047 * 2.0**-24 * np.abs(x).max() * 2 + 1e-6


def test_far_positions_stay_within_a_float_of_their_angle() -> None:
    rope = make_rope(2, 10000.0)
    position = 131071
    cos, sin = rope.angles(jnp.asarray([position], jnp.int32))
    assert abs(cos.item() - math.cos(position)) < 1e-6
    assert abs(sin.item() - math.sin(position)) < 1e-6
