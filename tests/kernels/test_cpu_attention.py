"""The CPU attention kernel against the plain op, at every dispatch level."""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from platforms import LEVELS

from tensorfold.kernels_cpu import attention as kernel
from tensorfold.kernels_cpu import library
from tensorfold.ops import attention
from tensorfold.ops.rope import make_rope
from tensorfold.ops.rows import PAGE, Rows, make_rows

LANES, PAGES_PER_LANE = 3, 4


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before = library.level()
    assert library.set_level(request.param)
    yield request.param
    library.set_level(before)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORFOLD_KERNELS", "xla")


def cut_rows(rng: np.random.Generator, bucket: int) -> Rows:
    """Runs of rows of some lanes, padded to a bucket of whole row tiles."""
    lane, position = np.full(bucket, -1, np.int32), np.zeros(bucket, np.int32)
    row = 0
    for each in rng.permutation(LANES):
        count = min(bucket - row, int(rng.integers(1, bucket)))
        start = int(rng.integers(0, PAGES_PER_LANE * PAGE - count))
        lane[row : row + count] = each
        position[row : row + count] = np.arange(start, start + count)
        row += count
    table = rng.permutation(LANES * PAGES_PER_LANE).astype(np.int32).reshape(LANES, -1)
    arrays = (jnp.asarray(each) for each in (np.zeros(bucket, np.int32), lane, position, table))
    return make_rows(*arrays)


def run(
    rng: np.random.Generator,
    rows: Rows,
    *,
    group: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
    qk_norm: bool,
    sinks: bool = False,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(kernel's, plain op's) heads and pages."""
    bucket = rows.lane.shape[0]
    width = (group + 2) * kv_heads * head_dim
    qkv = jnp.asarray(rng.standard_normal((bucket, width), dtype=np.float32))
    angles = make_rope(head_dim, 10000.0).angles(rows.position)
    shape = (LANES * PAGES_PER_LANE, kv_heads, head_dim, PAGE)
    k_pages = jnp.asarray(rng.standard_normal(shape, dtype=np.float32))
    v_pages = jnp.asarray(
        rng.standard_normal((shape[0], kv_heads, PAGE, head_dim), dtype=np.float32)
    )
    norms = None
    if qk_norm:
        q_norm, k_norm = rng.standard_normal((2, head_dim), dtype=np.float32)
        norms = jnp.asarray(q_norm), jnp.asarray(k_norm), 1e-6
    scores = None
    if sinks:
        scores = jnp.asarray(3 * rng.standard_normal(group * kv_heads, dtype=np.float32))
    places = rows.lane, rows.position, rows.block_table
    form = {"scale": 0.3, "window": window, "qk_norm": norms, "sinks": scores}
    got = kernel.attention(qkv, *angles, k_pages, v_pages, *places, **form)
    wanted = attention.attention(qkv, angles, k_pages, v_pages, rows, **form)
    return [np.asarray(each) for each in got], [np.asarray(each) for each in wanted]


@pytest.mark.parametrize("window", [None, 1, 50, 100])
@pytest.mark.parametrize(("qk_norm", "sinks"), [(False, False), (True, False), (False, True)])
def test_heads_and_pages_equal_the_plain_op(
    level: str, plain: None, window: int | None, qk_norm: bool, sinks: bool
) -> None:
    rng = np.random.default_rng(0)
    rows = cut_rows(rng, 32)
    shape = {"group": 3, "kv_heads": 2, "head_dim": 64}
    got, wanted = run(rng, rows, **shape, window=window, qk_norm=qk_norm, sinks=sinks)
    used = np.asarray(rows.lane) >= 0
    np.testing.assert_allclose(got[0][used], wanted[0][used], rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(got[1], wanted[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got[2], wanted[2])


@pytest.mark.skipif("avx512" not in LEVELS, reason="this processor has no AVX-512")
@pytest.mark.parametrize(("head_dim", "window"), [(8, None), (16, 70), (64, None), (80, 70)])
def test_avx512_has_the_bits_of_avx2(plain: None, head_dim: int, window: int | None) -> None:
    """A sum is of one score or one dimension, so a wider register changes none."""
    before = library.level()
    rows = cut_rows(np.random.default_rng(1), 32)
    for group in (1, 3, 7):
        found = {}
        for use in ("avx2", "avx512"):
            assert library.set_level(use)
            shape = {"group": group, "kv_heads": 2, "head_dim": head_dim}
            rng = np.random.default_rng(2)
            got, _ = run(rng, rows, **shape, window=window, qk_norm=False, sinks=group == 3)
            found[use] = got[0][np.asarray(rows.lane) >= 0].tobytes()
        library.set_level(before)
        assert found["avx2"] == found["avx512"]


@given(
    bucket=st.sampled_from([8, 16, 64]),
    group=st.integers(1, 5),
    kv_heads=st.integers(1, 3),
    head_dim=st.sampled_from([8, 24, 64, 80, 128]),
    window=st.none() | st.integers(1, 200),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=12, deadline=None)
def test_random_shapes(
    bucket: int, group: int, kv_heads: int, head_dim: int, window: int | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORFOLD_KERNELS", "xla")
        rows = cut_rows(rng, bucket)
        shape = {"group": group, "kv_heads": kv_heads, "head_dim": head_dim}
        got, wanted = run(rng, rows, **shape, window=window, qk_norm=False)
    used = np.asarray(rows.lane) >= 0
    np.testing.assert_allclose(got[0][used], wanted[0][used], rtol=5e-5, atol=5e-6)


@pytest.mark.parametrize("sinks", [False, True])
def test_pages_shared_among_threads_or_not(level: str, sinks: bool) -> None:
    """A lone row's pages are taken at once and merged after, many lanes' one by one."""
    rng = np.random.default_rng(5)
    depth = 3 * PAGE + 17
    qkv = jnp.asarray(rng.standard_normal((1, 6 * 16), dtype=np.float32))
    pages = rng.standard_normal((4, 2, 16, PAGE), dtype=np.float32)
    outs = []
    for rows in (1, 64):
        lane = jnp.arange(rows, dtype=jnp.int32)
        position = jnp.full(rows, depth, jnp.int32)
        table = jnp.tile(jnp.arange(4, dtype=jnp.int32), (rows, 1))
        out, _, _ = kernel.attention(
            jnp.tile(qkv, (rows, 1)),
            *make_rope(16, 10000.0).angles(position),
            jnp.asarray(pages),
            jnp.asarray(pages.swapaxes(2, 3)),
            lane,
            position,
            table,
            scale=0.3,
            window=None,
            qk_norm=None,
            sinks=jnp.asarray([0.5, 4.0]) if sinks else None,
        )
        outs.append(np.asarray(out))
    assert (outs[1] == outs[0]).all() and np.ptp(outs[0]) > 0.01


@pytest.mark.parametrize("window", [None, 1, 30, 64, 200])
@pytest.mark.parametrize("head_dim", [8, 16, 80])
def test_sinks_in_float64(level: str, head_dim: int, window: int | None) -> None:
    """A row's softmax over what it sees and its head's sink, which adds no value: over the ends of
    pages, and sinks from nothing to all there is."""
    group, kv_heads = 3, 2
    heads, length = group * kv_heads, PAGES_PER_LANE * PAGE
    rng = np.random.default_rng(head_dim)
    qkv = rng.standard_normal((length, heads + 2 * kv_heads, head_dim), dtype=np.float32)
    sinks = np.array([-80, -3, 0, 2.5, 9, 80], np.float32)
    position = jnp.arange(length, dtype=jnp.int32)
    still = jnp.ones((length, head_dim // 2)), jnp.zeros((length, head_dim // 2))
    shape = (PAGES_PER_LANE, kv_heads, head_dim, PAGE)
    out, _, _ = kernel.attention(
        jnp.asarray(qkv.reshape(length, -1)),
        *still,
        jnp.full(shape, jnp.nan),
        jnp.full(shape, jnp.nan).swapaxes(2, 3),
        jnp.zeros(length, jnp.int32),
        position,
        jnp.asarray([[2, 0, 3, 1]], jnp.int32),
        scale=0.3,
        window=window,
        qk_norm=None,
        sinks=jnp.asarray(sinks),
    )
    q, k, v = np.split(qkv.astype(np.float64), [heads, heads + kv_heads], axis=1)
    k, v = (np.repeat(each, group, axis=1) for each in (k, v))
    scores = 0.3 * np.einsum("qnh,knh->nqk", q, k)
    distance = np.arange(length)[:, None] - np.arange(length)
    seen = (distance >= 0) & (distance < (window or length))
    scores = np.where(seen, scores, -np.inf)
    peak = np.maximum(scores.max(axis=2, keepdims=True), sinks[:, None, None])
    weights = np.exp(scores - peak)
    total = weights.sum(axis=2, keepdims=True) + np.exp(sinks[:, None, None] - peak)
    wanted = np.einsum("nqk,knh->qnh", weights / total, v)
    np.testing.assert_allclose(np.asarray(out), wanted, rtol=2e-5, atol=3e-6)


def test_unwritten_places_never_leak(level: str) -> None:
    """Pages full of NaN except where this lane wrote."""
    rows = make_rows(*(jnp.asarray(a, jnp.int32) for a in ([0] * 3, [0] * 3, [0, 1, 2], [[1, 0]])))
    shape = (2, 1, 8, PAGE)
    nan = jnp.full(shape, jnp.nan)
    out, k_pages, _ = kernel.attention(
        jnp.ones((3, 24)),
        *make_rope(8, 10000.0).angles(rows.position),
        nan,
        nan.swapaxes(2, 3),
        rows.lane,
        rows.position,
        rows.block_table,
        scale=1.0,
        window=None,
        qk_norm=None,
    )
    np.testing.assert_allclose(np.asarray(out), 1.0, rtol=1e-6)
    assert np.isnan(np.asarray(k_pages)[0]).all(), "the other page is untouched"


def test_heads_that_the_kernel_does_not_take() -> None:
    assert not kernel.can_attend(9)
    assert kernel.can_attend(72)
