"""A row's bits are the same in every bucket, at every place in it and beside any other rows."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from platforms import IMPLEMENTATIONS

from tensorfold.checkpoints.interface import Quantised
from tensorfold.ops import activation, attention, matmul, norm, rope, sample
from tensorfold.ops.rows import PAGE, ROW_TILE, make_rows
from tensorfold.runtime.step import BUCKETS

ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64, 256)
TILES_ONLY = tuple(rows for rows in ROW_COUNTS if rows % ROW_TILE == 0)
"""What the plain matmul and attention run."""


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


@pytest.fixture(params=IMPLEMENTATIONS)
def row_counts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """Chooses an implementation; the rows it runs."""
    monkeypatch.setenv("TENSORFOLD_KERNELS", request.param)
    return ROW_COUNTS if request.param == "cpu" else TILES_ONLY


def test_every_bucket_is_among_the_row_counts() -> None:
    assert set(BUCKETS) <= set(ROW_COUNTS)


def assert_invariant(
    op: Callable[[jax.Array], jax.Array],
    x: np.ndarray,
    row_counts: Sequence[int] = ROW_COUNTS,
) -> None:
    """Every row of x in blocks of the fewest rows, and shuffled in each of the others."""
    compiled = jax.jit(op)
    smallest = row_counts[0]
    wanted = np.concatenate([compiled(x[i : i + smallest]) for i in range(0, len(x), smallest)])
    rng = np.random.default_rng(0)
    for rows in row_counts:
        order = rng.permutation(len(x))[:rows]
        got = np.asarray(compiled(x[order]))
        assert got.tobytes() == wanted[order].tobytes(), rows


@pytest.mark.parametrize(
    ("columns", "outputs"), [(64, 3), (72, 200), (576, 192), (1000, 128), (1536, 576)]
)
def test_matmul(columns: int, outputs: int, row_counts: tuple[int, ...]) -> None:
    weight = matmul.prepare(normal(outputs, columns))
    assert_invariant(lambda x: matmul.matmul(x, weight), normal(256, columns), row_counts)


@pytest.mark.parametrize("form", ["q4", "q8", "e4m3"])
def test_matmul_with_codes(form: str, row_counts: tuple[int, ...]) -> None:
    columns, outputs, bits = 192, 200, 4 if form == "q4" else 8
    codes = np.random.default_rng(0).integers(0, 127, (outputs, columns * bits // 8), np.uint8)
    scale = normal(outputs, columns // 64)
    offset = 0 * scale if form == "e4m3" else normal(outputs, columns // 64)
    weight = matmul.prepare(Quantised(codes, scale, offset, bits, 64, form == "e4m3"))
    assert_invariant(lambda x: matmul.matmul(x, weight), normal(256, columns), row_counts)


@pytest.mark.parametrize("bias", [False, True])
def test_matmul_with_what_belongs_to_it(bias: bool, row_counts: tuple[int, ...]) -> None:
    weight, offset = matmul.prepare(normal(96, 200)), jnp.asarray(normal(96)) if bias else None
    norm_weight = jnp.asarray(normal(200))

    def normed(x: jax.Array) -> jax.Array:
        whole, added = x[:, :200], x[:, 200:]
        norm = norm_weight, 1e-5
        return matmul.matmul(whole, weight, bias=offset, norm=norm, residual=added)

    def gated(x: jax.Array) -> jax.Array:
        return matmul.matmul(x, weight, bias=offset, gated="swiglu")

    def gelu_gated(x: jax.Array) -> jax.Array:
        return matmul.matmul(x, weight, bias=offset, gated="geglu")

    assert_invariant(normed, normal(256, 296), row_counts)
    assert_invariant(gated, normal(256, 400), row_counts)
    assert_invariant(gelu_gated, normal(256, 400), row_counts)


@pytest.mark.parametrize("width", [7, 64, 576, 2048])
def test_rms_norm(width: int) -> None:
    weight = jnp.asarray(normal(width))
    assert_invariant(lambda x: norm.rms_norm(x, weight, 1e-5), normal(256, width))


def test_rms_norm_of_heads() -> None:
    weight = jnp.asarray(normal(24))
    assert_invariant(lambda x: norm.rms_norm(x, weight, 1e-6), normal(256, 3, 24))


@pytest.mark.parametrize("width", [6, 200, 3072])
def test_swiglu(width: int) -> None:
    assert_invariant(activation.swiglu, normal(256, width))


@pytest.mark.parametrize("width", [6, 80, 5760])
def test_clamped_swiglu(width: int) -> None:
    assert_invariant(
        lambda x: activation.clamped_swiglu(x, 1.702, 7.0), 4 * normal(256, width), ROW_COUNTS
    )


@pytest.mark.parametrize("width", [6, 200, 4096])
def test_geglu_and_softcap(width: int) -> None:
    assert_invariant(lambda x: activation.softcap(activation.geglu(x), 30.0), normal(256, width))


@pytest.mark.parametrize("width", [7, 640])
def test_rms_norm_that_is_added(width: int) -> None:
    weight = jnp.asarray(normal(width))
    assert_invariant(
        lambda x: x[:, 0] + norm.rms_norm(x[:, 1], weight, 1e-6), normal(256, 2, width)
    )


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 8), (3, 10), (9, 64)])
def test_rotate(heads: int, head_dim: int) -> None:
    rotation = rope.make_rope(head_dim, 10000.0)

    def rotate(x: jax.Array) -> jax.Array:
        position = (jnp.abs(x[:, 0, 0]) * 10000).astype(jnp.int32)
        return rope.rotate(x, rotation.angles(position))

    assert_invariant(rotate, normal(256, heads, head_dim))


def test_digest() -> None:
    assert_invariant(sample.digest, normal(256, 1013))


def test_draw() -> None:
    def draw(logits: jax.Array) -> jax.Array:
        kind = (jnp.abs(logits[:, 0]) * 1000).astype(jnp.int32)
        settings = sample.Settings(
            temperature=(kind % 3).astype(jnp.float32) / 2,
            top_k=jnp.array([0, 0, 40, 280])[kind % 4],
            top_p=jnp.array([0.9, 1.0, 0.4])[kind // 4 % 3],
            min_p=jnp.array([0.0, 0.05])[kind // 12 % 2],
            seed=jnp.stack([kind, kind + 1], axis=1).astype(jnp.uint32),
        )
        return sample.draw(logits, settings, kind, jnp.asarray(len(logits), jnp.int32))

    # A step draws ROW_TILE rows at a time, or all that it has if they are fewer.
    assert_invariant(draw, 3 * normal(256, 300), (1, 8))


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "window"), [(6, 2, 24, 100)])
def test_attention(
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
    sinks: bool,
    row_counts: tuple[int, ...],
) -> None:
    """Runs of three lanes of any length against each row by itself."""
    lanes, pages_per_lane = 3, 5
    length = pages_per_lane * PAGE
    rng = np.random.default_rng(0)
    table = rng.permutation(lanes * pages_per_lane).astype(np.int32).reshape(lanes, -1)
    q, k, v = (normal(lanes, length, each, head_dim) for each in (heads, kv_heads, kv_heads))
    heads_LSXH = np.concatenate([q, k, v], axis=2)
    # Paged whole: writing a row again changes nothing.
    by_page = (lanes, pages_per_lane, PAGE, kv_heads, head_dim)
    k_pages = np.empty((table.size, kv_heads, head_dim, PAGE), np.float32)
    v_pages = np.empty((table.size, kv_heads, PAGE, head_dim), np.float32)
    k_pages[table] = k.reshape(by_page).transpose(0, 1, 3, 4, 2)
    v_pages[table] = v.reshape(by_page).transpose(0, 1, 3, 2, 4)

    @jax.jit
    def run(lane: jax.Array, position: jax.Array) -> jax.Array:
        rows = make_rows(jnp.zeros_like(lane), lane, position, jnp.asarray(table))
        qkv = jnp.asarray(heads_LSXH)[jnp.maximum(lane, 0), position].reshape(len(lane), -1)
        angles = rope.Rope((0.0,) * (head_dim // 2)).angles(position)
        pages = jnp.asarray(k_pages), jnp.asarray(v_pages)
        scores = jnp.asarray(normal(heads)) if sinks else None
        return attention.attention(
            qkv, angles, *pages, rows, scale=0.2, window=window, sinks=scores
        )[0]

    def place(runs: list[tuple[int, int, int]], rows: int) -> tuple[np.ndarray, np.ndarray]:
        lane, position = np.full(rows, -1, np.int32), np.zeros(rows, np.int32)
        at = 0
        for number, first, count in runs:
            lane[at : at + count] = number
            position[at : at + count] = np.arange(first, first + count)
            at += count
        return lane, position

    for rows in row_counts:
        cuts = np.sort(rng.integers(0, rows + 1, lanes))
        counts = np.diff([0, *cuts.tolist()])
        runs = [
            (int(lane), int(rng.integers(0, length - count)), int(count))
            for lane, count in zip(rng.permutation(lanes), counts, strict=True)
        ]
        lane, position = place(runs, rows)
        got = np.asarray(run(lane, position))
        for row in rng.permutation(cuts[-1])[:24]:
            alone = run(*place([(int(lane[row]), int(position[row]), 1)], row_counts[0]))
            assert got[row].tobytes() == np.asarray(alone)[0].tobytes(), (rows, row)
