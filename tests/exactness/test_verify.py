"""`verify` finds nothing on a sound build, and finds and names an op that breaks the rule."""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from platforms import IMPLEMENTATIONS
from tiny import open_step, random_prompt, tiny_checkpoint

from tensorfold.engine.verify import CHUNKS, LANES, OTHERS, Comparison, make_cases, verify
from tensorfold.ops import attention, matmul
from tensorfold.ops.rows import Rows

WIDE = {"intermediate_size": 1024, "num_hidden_layers": 1}
"""XLA:CPU orders the sum of a dot over 1024 differently for 1 row and for 256."""

NARROW = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "num_hidden_layers": 1,
}
"""XLA:CPU orders a softmax of 8 rows over few enough keys differently from one of 256 rows."""


@pytest.fixture(autouse=True)
def no_program_of_another_op() -> Iterator[None]:
    """The models trace their blocks once a shape: an op that is swapped must be traced anew."""
    jax.clear_caches()
    yield
    jax.clear_caches()


def run_verify(
    sizes: dict[str, int], buckets: tuple[int, ...], tokens: int = 5
) -> list[Comparison]:
    step = open_step(tiny_checkpoint(**sizes), lanes=LANES, context=128, buckets=buckets)
    rng = np.random.default_rng(0)
    cases = make_cases([random_prompt(rng, 5), random_prompt(rng, 100)], tokens)
    return list(verify(step, cases))


def differing(comparisons: list[Comparison]) -> set[str]:
    return {comparison.name for comparison in comparisons if comparison.difference}


def naming(comparisons: list[Comparison], text: str) -> set[str]:
    return {comparison.name for comparison in comparisons if text in comparison.name}


@pytest.mark.parametrize(
    ("sizes", "kernels"), [(WIDE, IMPLEMENTATIONS[-1]), (NARROW, "xla")], ids=["wide", "narrow"]
)
def test_a_sound_build_has_no_difference(
    sizes: dict[str, int], kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORFOLD_KERNELS", kernels)
    buckets = (8, 256) if kernels == "xla" else (1, 256)
    comparisons = run_verify(sizes, buckets)
    assert differing(comparisons) == set()
    assert all(comparison.compared > 0 for comparison in comparisons)
    names = [comparison.name for comparison in comparisons]
    assert len(set(names)) == len(names)
    replies = {f"{kind} {index}" for kind in ("greedy", "sampled") for index in range(2)}
    ways = [f"among {others} others" for others in OTHERS]
    ways += [f"prompt in chunks of {chunk}" for chunk in CHUNKS]
    ways += ["drafted", "partly warm", "warm", "cancelled and asked again"]
    ways += ["preempted and replayed"]
    assert {f"{reply}, {way}" for reply in replies for way in ways} <= set(names)
    for op in ("step", "matmul", "rms_norm", "rotate", "swiglu", "sample", "attention"):
        found = [name for name in names if name.startswith(f"{op} ")]
        in_rows = [name.split()[-2] for name in found if name.endswith("rows")]
        assert set(map(int, in_rows)) == set(buckets), op


def ordinary_dot(x: Array, weight: Array) -> Array:
    return x @ weight.T


def ordinary_attend(
    q: Array, k_pages: Array, v_pages: Array, rows: Rows, window: int | None, sinks: Array | None
) -> Array:
    """Gather every row's keys and values, then one softmax."""
    tables = rows.block_table[jnp.maximum(rows.lane, 0)]
    kv_heads, head_dim = k_pages.shape[1:3]
    k = k_pages[tables].transpose(0, 1, 4, 2, 3).reshape(len(q), -1, kv_heads, head_dim)
    v = v_pages[tables].transpose(0, 1, 3, 2, 4).reshape(len(q), -1, kv_heads, head_dim)
    grouped = q.reshape(len(q), kv_heads, -1, head_dim)
    scores = jnp.einsum("rkgh,rskh->rkgs", grouped, k)
    seen = jnp.arange(k.shape[1]) <= rows.position[:, None]
    weights = jax.nn.softmax(jnp.where(seen[:, None, None], scores, -jnp.inf))
    return jnp.einsum("rkgs,rskh->rkgh", weights, v).reshape(q.shape)


@pytest.mark.parametrize(
    ("module", "name", "ordinary", "sizes", "buckets", "op"),
    [
        (matmul, "dot", ordinary_dot, WIDE, (1, 256), "matmul"),
        (attention, "attend", ordinary_attend, NARROW, (8, 256), "attention"),
    ],
)
def test_an_ordinary_op_is_found_and_named(
    module: object,
    name: str,
    ordinary: Callable[..., object],
    sizes: dict[str, int],
    buckets: tuple[int, ...],
    op: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TENSORFOLD_KERNELS", "xla")
    monkeypatch.setattr(module, name, ordinary)
    # Enough tokens for bits that differ now and then to do so.
    comparisons = run_verify(sizes, buckets, tokens=20)
    found = differing(comparisons)
    assert f"step in {buckets[-1]} rows" in found
    replies = {each for each in found if each.startswith(("greedy", "sampled"))}
    assert replies & naming(comparisons, "chunks of")
    assert replies & naming(comparisons, "others")
    ops = found - replies - naming(comparisons, "step in")
    assert ops and all(each.startswith(op) for each in ops)
