from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sequences import LANES, cut_steps, gather, place_rows, scatter

from tensorfold.ops.linear_attention import Kept, linear_attention

LENGTH = 200
SIZES = (1, 8, 64, 256)

Shape = tuple[int, int, int, int]
"""(keys, heads, dk, dv)"""

KINDS = {
    "delta": ((2, 4, 16, 24), True, False),
    "kda": ((3, 3, 8, 16), True, True),
    "mamba2": ((1, 5, 12, 8), False, False),
}
"""(shape, whether u is corrected, whether every channel decays by itself)"""


def make(kind: str, seed: int) -> dict[str, np.ndarray | None]:
    (keys, heads, dk, dv), corrected, by_channel = KINDS[kind]
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal((LANES, LENGTH, *shape), dtype=np.float32)

    q, k = normal(keys, dk), normal(keys, dk)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    # Decays from a long memory to almost none.
    g = -np.exp(2 * normal(heads, dk if by_channel else 1) - 3)
    b = 1 / (1 + np.exp(-normal(heads))) if corrected else None
    return {"q": q, "k": k, "v": normal(heads, dv), "g": g.astype(np.float32), "b": b}


def empty(kind: str, value: float) -> Kept:
    (keys, heads, dk, dv), _, by_channel = KINDS[kind]
    return Kept(
        *(
            jnp.full((LANES, 2, *shape), value)
            for shape in (
                (keys, 64, dk),
                (heads, 64, dv),
                (heads, 64, dk if by_channel else 1),
                (heads, dk, dv),
            )
        )
    )


def step_by_step(x: dict[str, Any]) -> np.ndarray:
    """The recurrence in float64."""
    x = {name: None if each is None else each.astype(np.float64) for name, each in x.items()}
    group = x["v"].shape[2] // x["k"].shape[2]
    q, k = (np.repeat(x[name], group, axis=2) for name in "qk")
    out = np.zeros(x["v"].shape)
    S = np.zeros((LANES, *k.shape[2:], x["v"].shape[-1]))
    for p in range(LENGTH):
        S = S * np.exp(x["g"][:, p])[..., None]
        u = x["v"][:, p]
        if x["b"] is not None:
            u = x["b"][:, p, :, None] * (u - np.einsum("lnd,lndv->lnv", k[:, p], S))
        S = S + k[:, p, ..., None] * u[..., None, :]
        out[:, p] = np.einsum("lnd,lndv->lnv", q[:, p], S)
    return out


@partial(jax.jit, static_argnums=0)
def run(kind: str, x: dict[str, Any], kept: Kept, rows: Any) -> tuple[jax.Array, Kept]:
    return linear_attention(**x, kept=kept, rows=rows)


def step(kind: str, x: dict[str, Any], kept: Kept, runs: Any, size: int) -> tuple[Any, Kept]:
    taken = {name: None if each is None else gather(each, runs, size) for name, each in x.items()}
    return run(kind, taken, kept, place_rows(runs, size))


@pytest.mark.parametrize("kind", KINDS)
def test_any_steps_give_the_recurrence(kind: str) -> None:
    x = make(kind, 1)
    rng = np.random.default_rng(2)
    outs = []
    for _ in range(4):
        # What lanes held before does not matter.
        kept, out = empty(kind, np.nan), np.zeros(x["v"].shape, np.float32)
        for size, runs in cut_steps(rng, LENGTH, SIZES):
            rows, kept = step(kind, x, kept, runs, size)
            scatter(out, np.asarray(rows), runs)
        outs.append(out)
    wanted = step_by_step(x)
    assert np.abs(outs[0] - wanted).max() / np.abs(wanted).max() < 1e-5
    assert len({out.tobytes() for out in outs}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_lane_that_is_taken_back_goes_on_as_if_it_had_not_run(kind: str) -> None:
    """After every row, other rows that are then dropped, as drafts are: 1 to 63 of them."""
    x, other = make(kind, 3), make(kind, 4)
    wanted, straight = step(kind, x, empty(kind, 0.0), [(1, 0, LENGTH)], 256)
    kept = empty(kind, 0.0)
    for position in range(LENGTH):
        got, kept = step(kind, x, kept, [(1, position, 1)], 64)
        assert np.asarray(got[0]).tobytes() == np.asarray(wanted[position]).tobytes(), position
        drafts = min(1 + 13 * position % 63, LENGTH - 1 - position)
        if drafts:
            _, kept = step(kind, other, kept, [(1, position + 1, drafts)], 64)
    # 200 positions end at place 8 of chunk 3: its rows and both starts are the same.
    for got, wanted in zip(kept[:3], straight[:3], strict=True):
        got, wanted = np.asarray(got)[1, 1, :, :8], np.asarray(wanted)[1, 1, :, :8]
        assert got.tobytes() == wanted.tobytes()
    assert np.asarray(kept.S)[1].tobytes() == np.asarray(straight.S)[1].tobytes()
