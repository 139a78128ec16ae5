from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from platforms import IMPLEMENTATIONS

from tensorfold.ops.attention import attention
from tensorfold.ops.rope import Rope, make_rope
from tensorfold.ops.rows import PAGE, make_rows

LANES, PAGES_PER_LANE, ROWS = 3, 4, 24
CONTEXT = PAGES_PER_LANE * PAGE


@pytest.fixture(params=IMPLEMENTATIONS, autouse=True)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORFOLD_KERNELS", request.param)


class Sequences(NamedTuple):
    """Queries, keys and values of every position of every lane, [L, S, heads, H]."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


def make_sequences(heads: int, kv_heads: int, head_dim: int, scale: float = 1.0) -> Sequences:
    rng = np.random.default_rng(heads * head_dim)
    return Sequences(
        *(
            scale * rng.standard_normal((LANES, CONTEXT, each, head_dim), dtype=np.float32)
            for each in (heads, kv_heads, kv_heads)
        )
    )


def exact(
    sequences: Sequences,
    lane: int,
    position: int,
    window: int | None,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """The rule in float64: softmax over the positions a row sees, and the head's sink."""
    q, k, v = (each[lane].astype(np.float64) for each in sequences)
    first = 0 if window is None else max(0, position - window + 1)
    out = []
    for head in range(q.shape[1]):
        key_head = head // (q.shape[1] // k.shape[1])
        scores = k[first : position + 1, key_head] @ q[position, head] * q.shape[-1] ** -0.5
        sink = -np.inf if sinks is None else sinks[head].astype(np.float64)
        peak = max(sink, scores.max())
        weights = np.exp(scores - peak)
        total = weights.sum() + np.exp(sink - peak)
        out.append(weights @ v[first : position + 1, key_head] / total)
    return np.array(out)


class Paged:
    """Runs blocks of rows over pages that hold `stale` wherever nothing was written."""

    def __init__(
        self,
        sequences: Sequences,
        window: int | None = None,
        stale: float = 0.0,
        rope: Rope | None = None,
        qk_norm: tuple[jax.Array, jax.Array, float] | None = None,
        sinks: jax.Array | None = None,
    ):
        kv_heads, head_dim = sequences.k.shape[2:]
        pages = LANES * PAGES_PER_LANE + 2
        table = np.random.default_rng(5).permutation(pages)[: pages - 2]
        self.table = table.astype(np.int32).reshape(LANES, PAGES_PER_LANE)
        self.k_pages = jnp.full((pages, kv_heads, head_dim, PAGE), stale)
        self.v_pages = jnp.full((pages, kv_heads, PAGE, head_dim), stale)
        self.sequences = sequences
        scale = head_dim**-0.5
        rope = rope or Rope((0.0,) * (head_dim // 2))

        @jax.jit
        def run(qkv, k_pages, v_pages, lane, position):
            rows = make_rows(jnp.zeros_like(lane), lane, position, jnp.asarray(self.table))
            angles = rope.angles(position)
            return attention(
                qkv,
                angles,
                k_pages,
                v_pages,
                rows,
                scale=scale,
                window=window,
                qk_norm=qk_norm,
                sinks=sinks,
            )

        self._run = run

    def run(self, runs: list[tuple[int, int, int]]) -> dict[tuple[int, int], np.ndarray]:
        """The output of each (lane, position) in `runs` of (lane, first position, length)."""
        lane, position = np.full(ROWS, -1, np.int32), np.zeros(ROWS, np.int32)
        at = 0
        for number, first, length in runs:
            lane[at : at + length] = number
            position[at : at + length] = np.arange(first, first + length)
            at += length
        qkv = np.concatenate([each[lane, position] for each in self.sequences], axis=1)
        qkv[at:] = np.nan  # what padding rows hold must not matter
        out, self.k_pages, self.v_pages = self._run(
            qkv.reshape(ROWS, -1), self.k_pages, self.v_pages, lane, position
        )
        places = zip(lane[:at].tolist(), position[:at].tolist(), strict=True)
        return dict(zip(places, np.asarray(out), strict=False))

    def fill(self, lane: int, end: int) -> dict[tuple[int, int], np.ndarray]:
        """Run a lane's positions up to `end` in blocks."""
        found = {}
        for first in range(0, end, ROWS):
            found |= self.run([(lane, first, min(ROWS, end - first))])
        return found


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window"),
    [(4, 2, 16, None), (3, 3, 8, 1), (6, 1, 24, 20), (9, 3, 10, 64), (1, 1, 64, 100)],
)
def test_every_row_attends_to_what_it_sees(
    heads: int, kv_heads: int, head_dim: int, window: int | None
) -> None:
    sequences = make_sequences(heads, kv_heads, head_dim)
    paged = Paged(sequences, window)
    found = paged.fill(1, 140) | paged.fill(0, 63) | paged.fill(2, 66)
    found |= paged.run([(2, 66, 3), (0, 63, 9), (1, 140, 1)])
    assert len(found) == 140 + 63 + 66 + 3 + 9 + 1
    for (lane, position), got in found.items():
        wanted = exact(sequences, lane, position, window)
        np.testing.assert_allclose(got, wanted, atol=5e-6, err_msg=f"{lane} {position}")


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window"),
    [(4, 2, 16, None), (6, 1, 24, 20), (9, 3, 10, 64), (1, 1, 64, 1)],
)
def test_sinks_take_their_part(
    heads: int, kv_heads: int, head_dim: int, window: int | None
) -> None:
    """From next to nothing up to nearly all, and the same bits in any chunks."""
    sequences = make_sequences(heads, kv_heads, head_dim)
    sinks = np.random.default_rng(3).permutation(np.linspace(-30, 12, heads)).astype(np.float32)
    paged = Paged(sequences, window, stale=np.nan, sinks=jnp.asarray(sinks))
    found = paged.fill(1, 140)
    for (lane, position), got in found.items():
        wanted = exact(sequences, lane, position, window, sinks)
        np.testing.assert_allclose(got, wanted, atol=5e-6, err_msg=f"{lane} {position}")
    again = Paged(sequences, window, stale=np.nan, sinks=jnp.asarray(sinks))
    for first, length in ((0, 7), (7, 1), (8, 24), (32, 24), (56, 9), (65, 1), (66, 24)):
        for place, row in again.run([(0, 0, 0), (1, first, length)]).items():
            assert row.tobytes() == found[place].tobytes(), place


@pytest.mark.parametrize("stale", [np.nan, -np.inf])
def test_places_not_written_do_not_leak(stale: float) -> None:
    sequences = make_sequences(4, 2, 16)
    clean, dirty = Paged(sequences), Paged(sequences, stale=stale)
    runs = [[(0, 0, 5), (1, 0, 11)], [(1, 11, 1), (0, 5, 1)], [(2, 0, 24)], [(1, 12, 24)]]
    for block in [*runs, [(1, 36, 24)], [(1, 60, 9), (0, 6, 2)]]:
        wanted, got = clean.run(block), dirty.run(block)
        for place, row in wanted.items():
            assert got[place].tobytes() == row.tobytes(), place


def test_only_the_rows_places_are_written() -> None:
    sequences = make_sequences(4, 2, 16)
    paged = Paged(sequences, stale=7.0)
    runs = [(2, 60, 9), (0, 0, 3)]
    paged.run(runs)
    k_wanted = np.full(paged.k_pages.shape, 7.0, np.float32)
    v_wanted = np.full(paged.v_pages.shape, 7.0, np.float32)
    for lane, first, length in runs:
        for position in range(first, first + length):
            page, place = paged.table[lane, position // PAGE], position % PAGE
            k_wanted[page, :, :, place] = sequences.k[lane, position]
            v_wanted[page, :, place] = sequences.v[lane, position]
    assert np.asarray(paged.k_pages).tobytes() == k_wanted.tobytes()
    assert np.asarray(paged.v_pages).tobytes() == v_wanted.tobytes()


def test_rolling_back_is_moving_the_length() -> None:
    sequences = make_sequences(4, 2, 16)
    plain, rolled = Paged(sequences), Paged(sequences)
    wanted = plain.fill(0, 80)
    rolled.fill(0, 60)
    wrong = Sequences(*(np.flip(each, axis=1).copy() for each in sequences))
    rolled.sequences = wrong
    rolled.run([(0, 60, 12)])
    rolled.sequences = sequences
    got = rolled.run([(0, 60, 2)]) | rolled.run([(0, 62, 18)])
    for place, row in got.items():
        assert row.tobytes() == wanted[place].tobytes(), place


@pytest.mark.parametrize("scale", [1e-4, 12.0])
def test_flat_and_sharp_weights(scale: float) -> None:
    sequences = make_sequences(2, 1, 16, scale)
    for place, got in Paged(sequences).fill(0, 150).items():
        wanted = exact(sequences, *place, None)
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4 * scale)


def test_padding_alone_runs_no_tile() -> None:
    paged = Paged(make_sequences(4, 2, 16), stale=3.0)
    before = np.asarray(paged.k_pages).tobytes()
    assert paged.run([]) == {}
    assert np.asarray(paged.k_pages).tobytes() == before


@pytest.mark.parametrize("head_dim", [10, 24])
def test_heads_are_normalised_and_turned_before(head_dim: int) -> None:
    sequences = make_sequences(4, 2, head_dim)
    rope = make_rope(head_dim, 100.0)
    norms = np.random.default_rng(0).standard_normal((2, head_dim), dtype=np.float32)
    epsilon = 1e-3
    turns = np.exp(1j * np.outer(np.arange(CONTEXT), rope.frequencies))[:, None]

    def prepared(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64)
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon) * weight
        turned = (x[..., : head_dim // 2] + 1j * x[..., head_dim // 2 :]) * turns
        return np.concatenate([turned.real, turned.imag], axis=-1)

    by_hand = Sequences(
        prepared(sequences.q, norms[0]), prepared(sequences.k, norms[1]), sequences.v
    )
    qk_norm = jnp.asarray(norms[0]), jnp.asarray(norms[1]), epsilon
    for place, got in Paged(sequences, rope=rope, qk_norm=qk_norm).fill(1, 100).items():
        np.testing.assert_allclose(got, exact(by_hand, *place, None), atol=2e-5)
