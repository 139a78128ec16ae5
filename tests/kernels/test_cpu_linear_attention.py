"""The CPU kernels of recurrent layers in float64 and against the plain ops, at every level."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from platforms import LEVELS

from tensorfold.kernels_cpu import conv, library
from tensorfold.kernels_cpu import linear_attention as kernel
from tensorfold.ops.chunks import write_rows
from tensorfold.ops.linear_attention import Kept, linear_attention
from tensorfold.ops.rows import PAGE, make_rows

LANES = 3

Run = tuple[int, int, int]
"""(lane, first position, rows)"""

Shape = tuple[int, int, int, int, bool, bool]
"""(keys, heads, dk, dv, whether u is corrected, whether every channel decays by itself)"""

DELTA = (2, 4, 32, 48, True, False)
SHAPES = [
    DELTA,
    (1, 5, 24, 8, False, False),
    (3, 3, 16, 32, True, True),
    (2, 2, 8, 40, True, False),
]


attend = jax.jit(kernel.linear_attention)
convolve = jax.jit(conv.causal_conv)
place = jax.jit(make_rows)
keep = jax.jit(write_rows)


@contextmanager
def using(level: str) -> Iterator[None]:
    before = library.level()
    assert library.set_level(level)
    yield
    library.set_level(before)


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[None]:
    with using(request.param):
        yield


class Lanes:
    """Sequences in lanes, which steps take on, and what the kernel keeps of them."""

    def __init__(self, shape: Shape, length: int, seed: int):
        keys, heads, dk, dv, corrected, by_channel = shape
        rng = np.random.default_rng(seed)

        def normal(*size: int) -> np.ndarray:
            return rng.standard_normal((LANES, length, *size), dtype=np.float32)

        self.group, decays = heads // keys, dk if by_channel else 1
        k = normal(keys, dk)
        self.x: dict[str, Any] = {
            "q": normal(keys, dk),
            "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
            "v": normal(heads, dv),
            # From a long memory to almost none.
            "g": -np.exp(2 * normal(heads, decays) - 3),
            "b": 1 / (1 + np.exp(-normal(heads))) if corrected else None,
        }
        sizes = (keys, PAGE, dk), (heads, PAGE, dv), (heads, PAGE, decays), (heads, dk, dv)
        self.kept = [jnp.full((LANES, 2, *size), jnp.nan) for size in sizes]

    def operands(self, runs: Sequence[Run], size: int = 0, x: Any = None) -> tuple[Any, ...]:
        """A step's rows, then its lanes and positions; padding up to `size` is NaN, its lane -1."""
        padding = max(0, size - sum(count for *_, count in runs))

        def rows(each: np.ndarray) -> jax.Array:
            taken = [each[lane, first : first + count] for lane, first, count in runs]
            return jnp.asarray(
                np.concatenate([*taken, np.full((padding, *each.shape[2:]), np.nan)])
            )

        x = self.x if x is None else x
        lane = np.repeat([lane for lane, *_ in runs] + [-1], [*(n for *_, n in runs), padding])
        at = np.concatenate([np.arange(p, p + n) for _, p, n in runs] + [np.zeros(padding)])
        given = {name: None if each is None else rows(each) for name, each in x.items()}
        return given, jnp.asarray(lane, jnp.int32), jnp.asarray(at, jnp.int32)

    def step(self, runs: Sequence[Run], size: int = 0, x: Any = None) -> np.ndarray:
        """The output of the runs' rows; what is kept is written."""
        given, lane, at = self.operands(runs, size, x)
        out, *self.kept = attend(**given, kept=tuple(self.kept), lane=lane, position=at)
        got, used = np.asarray(out), sum(count for *_, count in runs)
        assert (got[used:] == 0).all()
        return got[:used]

    def wanted(self) -> np.ndarray:
        """The recurrence step by step, in float64."""
        x = {name: each if each is None else each.astype(float) for name, each in self.x.items()}
        q, k = (np.repeat(x[name], self.group, axis=2) for name in "qk")
        S, out = np.zeros((LANES, *k.shape[2:], x["v"].shape[-1])), np.zeros(x["v"].shape)
        for p in range(out.shape[1]):
            S = S * np.exp(x["g"][:, p])[..., None]
            u = x["v"][:, p]
            if x["b"] is not None:
                u = x["b"][:, p, :, None] * (u - np.einsum("lnd,lndv->lnv", k[:, p], S))
            S = S + k[:, p, ..., None] * u[..., None, :]
            out[:, p] = np.einsum("lnd,lndv->lnv", q[:, p], S)
        return out


def cut(rng: np.random.Generator, length: int, most: int) -> Iterator[list[Run]]:
    """Steps that take all lanes to `length`, a few rows of some lanes at a time."""
    reached = [0] * LANES
    while min(reached) < length:
        runs = []
        for lane in rng.permutation(LANES).tolist():
            count = int(rng.integers(0, min(most, length - reached[lane]) + 1))
            if count:
                runs.append((lane, reached[lane], count))
                reached[lane] += count
        if runs:
            yield runs


def stepped(lanes: Lanes, length: int, steps: Iterator[list[Run]], size: int = 0) -> np.ndarray:
    out = np.full((LANES, length, *lanes.x["v"].shape[2:]), np.nan, np.float32)
    for runs in steps:
        got, row = lanes.step(runs, size), 0
        for lane, first, count in runs:
            out[lane, first : first + count] = got[row : row + count]
            row += count
    return out


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    # A decay is of the difference of two sums of log-decays. These reach hundreds, where float32
    # has steps of 3e-5: the plain op is as far off.
    assert np.abs(got - wanted).max() < 3e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("shape", SHAPES)
def test_row_by_row_in_chunks_and_at_once_are_the_same_bits(level: None, shape: Shape) -> None:
    length = 3 * PAGE + 20
    alone, at_once, ragged = (Lanes(shape, length, 0) for _ in range(3))
    rows = ([(lane, p, 1)] for p in range(length) for lane in range(LANES))
    one_by_one = stepped(alone, length, rows)
    close(one_by_one, alone.wanted())
    whole = stepped(at_once, length, iter([[(lane, 0, length) for lane in (2, 0, 1)]]))
    assert whole.tobytes() == one_by_one.tobytes()
    steps = cut(np.random.default_rng(1), length, 90)
    assert stepped(ragged, length, steps, size=275).tobytes() == one_by_one.tobytes()
    # What goes on from here is the same too: of the last chunk, the third, the rows and the start.
    places = slice(None), 1, slice(None), slice(None, 20)
    for lanes in (at_once, ragged):
        for got, expected in zip(lanes.kept[:3], alone.kept[:3], strict=True):
            assert np.asarray(got)[places].tobytes() == np.asarray(expected)[places].tobytes()
        S, expected = (np.asarray(each.kept[3])[:, 1] for each in (lanes, alone))
        assert S.tobytes() == expected.tobytes()


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_taken_back_leave_nothing(level: None, shape: Shape) -> None:
    """Drafts after each row, up to 63, over the ends of chunks."""
    length = 2 * PAGE + 30
    straight, drafted, other = (
        Lanes(shape, length, 2),
        Lanes(shape, length, 2),
        Lanes(shape, length, 3),
    )
    wanted = straight.step([(1, 0, length)])
    for p in range(length):
        assert drafted.step([(1, p, 1)]).tobytes() == wanted[p : p + 1].tobytes(), p
        drafts = min(1 + 13 * p % 63, length - 1 - p)
        if drafts:
            drafted.step([(1, p + 1, drafts)], x=other.x)


@given(
    level=st.sampled_from(LEVELS),
    keys=st.integers(1, 3),
    group=st.integers(1, 5),
    dims=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kind=st.sampled_from([(True, False), (False, False), (True, True), (False, True)]),
    most=st.sampled_from([3, 40, 200]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=12, deadline=None)
def test_random_shapes(
    level: str,
    keys: int,
    group: int,
    dims: tuple[int, int],
    kind: tuple[bool, bool],
    most: int,
    seed: int,
) -> None:
    shape = (keys, keys * group, 8 * dims[0], 8 * dims[1], *kind)
    length = 150
    lanes, again = Lanes(shape, length, seed), Lanes(shape, length, seed)
    rng = np.random.default_rng(seed)
    with using(level):
        got = stepped(lanes, length, cut(rng, length, most), size=3 * most)
        other = stepped(again, length, cut(rng, length, 100), 301)
    close(got, lanes.wanted())
    assert got.tobytes() == other.tobytes()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_plain_op_keeps_the_same(level: None, monkeypatch: Any, shape: Shape) -> None:
    monkeypatch.setenv("TENSORFOLD_KERNELS", "xla")
    lanes = Lanes(shape, 200, 4)
    kept = Kept(*lanes.kept)
    for runs in ([(0, 0, 70), (2, 0, 20)], [(2, 20, 100), (0, 70, 4)], [(0, 74, 54), (2, 120, 10)]):
        got = lanes.step(runs)
        given, lane, at = lanes.operands(runs)
        rows = make_rows(at, lane, at, jnp.zeros((LANES, 1), jnp.int32))
        out, kept = linear_attention(**given, kept=kept, rows=rows)
        close(got, np.asarray(out))
        for mine, plain in zip(lanes.kept, kept, strict=True):
            assert (np.isnan(mine) == np.isnan(plain)).all(), "written where the plain op writes"
            np.testing.assert_allclose(mine, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif("avx512" not in LEVELS, reason="this processor has no AVX-512")
@pytest.mark.parametrize(
    "shape", [*SHAPES, (2, 4, 128, 128, True, False), (1, 8, 128, 64, False, False)]
)
def test_avx512_has_the_bits_of_avx2(shape: Shape) -> None:
    found = set()
    for level in ("avx2", "avx512"):
        lanes = Lanes(shape, 150, 5)
        with using(level):
            out = [lanes.step([(0, 0, 131), (1, 0, 66)]), lanes.step([(1, 66, 3), (0, 131, 1)])]
        found.add(tuple(np.asarray(each).tobytes() for each in [*out, *lanes.kept]))
    assert len(found) == 1


def test_heads_that_the_kernel_does_not_take() -> None:
    assert not kernel.can_attend(12, 16)
    assert not kernel.can_attend(16, 20)
    assert kernel.can_attend(8, 24)


@given(
    level=st.sampled_from(LEVELS),
    channels=st.sampled_from([1, 7, 255, 256, 300, 513]),
    taps=st.integers(1, 6),
    biased=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=12, deadline=None)
def test_convolutions(level: str, channels: int, taps: int, biased: bool, seed: int) -> None:
    """In float64, the same bits whatever the steps; and what is kept is what the plain op keeps."""
    rng, length = np.random.default_rng(seed), 200
    x = rng.standard_normal((LANES, length, channels), dtype=np.float32)
    weight = jnp.asarray(rng.standard_normal((channels, taps), dtype=np.float32))
    bias = jnp.asarray(rng.standard_normal(channels, dtype=np.float32)) if biased else None
    padded = np.pad(x.astype(float), ((0, 0), (taps - 1, 0), (0, 0)))
    wanted = sum(np.asarray(weight)[:, t] * padded[:, t : t + length] for t in range(taps))
    wanted = wanted + (0 if bias is None else np.asarray(bias))
    outs = []
    for most in (160, 30):
        kept = plain = jnp.full((LANES, 2, PAGE, channels), jnp.nan)
        outs.append(np.zeros(x.shape, np.float32))
        for runs in cut(rng, length, most):
            lane, at = np.full(3 * most, -1, np.int32), np.zeros(3 * most, np.int32)
            row = 0
            for number, first, count in runs:
                lane[row : row + count], at[row : row + count] = number, first + np.arange(count)
                row += count
            rows = jnp.asarray(x[lane, at])
            placed = place(*map(jnp.asarray, (at, lane, at)), jnp.zeros((LANES, 1), jnp.int32))
            with using(level):
                out, kept = convolve(rows, weight, kept, placed.lane, placed.position, bias)
                out.block_until_ready()
            plain = keep(plain, rows, placed)
            assert np.asarray(kept).tobytes() == np.asarray(plain).tobytes()
            outs[-1][lane[:row], at[:row]] = out[:row]
            assert (np.asarray(out)[row:] == 0).all()
    np.testing.assert_allclose(outs[0], wanted, atol=2e-5)
    assert outs[0].tobytes() == outs[1].tobytes()
