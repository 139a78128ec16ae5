"""Where a step's time goes: every op of a model by itself, against the floor of this machine.

`python -m benchmarks.profile [MODEL] [--rows 1,256] [--depth 512] [--activations int8] [--json]`

The floor is measured in the same run, before each op: XLA's own float32 dot of large matrices for
operations, and a product of one row with a matrix too large for any cache for bytes. An op's floor
is the longer of its multiply-adds at the one and its bytes at the other.
"""

import argparse
import functools
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks import machine
from tensorfold.checkpoints.hub import open_checkpoint, resolve
from tensorfold.models.family import PagedKV
from tensorfold.ops import attention, matmul
from tensorfold.ops.matmul import Weight
from tensorfold.ops.rope import make_rope
from tensorfold.ops.rows import PAGE, make_rows
from tensorfold.options import activations_option
from tensorfold.runtime.load import load, with_activations

RUNS = 9


@dataclass(frozen=True)
class Line:
    """One op of a step: its calls, and medians for one of them."""

    op: str
    rows: int
    calls: int
    microseconds: float
    multiply_adds: int
    bytes: int
    floor_share: float


@dataclass(frozen=True)
class Floor:
    """What the machine gives: multiply-adds and bytes a second."""

    multiply_adds: float
    bytes: float


def seconds(run: Callable[[], Any]) -> float:
    """The median time of a call."""
    jax.block_until_ready(run())
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


class FloorGauge:
    """Measures the floor again whenever it is asked, since shared machines change their speed."""

    def __init__(self) -> None:
        self._square = jnp.ones((768, 768))
        self._large = jnp.ones((4096, 8192))
        self._row = jnp.ones((1, 4096))
        self._dot = jax.jit(jnp.dot)

    def read(self) -> Floor:
        """The floor at this moment."""
        dot = seconds(lambda: self._dot(self._square, self._square))
        stream = seconds(lambda: self._dot(self._row, self._large))
        return Floor(768**3 / dot, self._large.nbytes / stream)


def measure(
    gauge: FloorGauge,
    name: str,
    rows: int,
    calls: int,
    work: tuple[int, int],
    run: Callable[[], Any],
) -> Line:
    """Time `calls` of an op in one program, between two readings of the floor."""
    multiply_adds, moved = work
    before, taken, after = gauge.read(), seconds(run) / calls, gauge.read()
    floor = max(
        2 * multiply_adds / (before.multiply_adds + after.multiply_adds),
        2 * moved / (before.bytes + after.bytes),
    )
    return Line(name, rows, calls, taken * 1e6, multiply_adds, moved, floor / taken)


def matmul_lines(gauge: FloorGauge, leaves: tuple[Weight, ...], rows: int) -> list[Line]:
    """Every distinct matrix shape: all its matrices one after another, as no cache holds them."""
    matrices = [leaf for leaf in leaves if leaf.ndim == 2]
    lines = []
    for shape in dict.fromkeys(leaf.shape for leaf in matrices):
        weights = [leaf for leaf in matrices if leaf.shape == shape]
        outputs, inputs = shape
        # The head runs for drawn rows only; a prompt draws one.
        used = 1 if outputs > 16384 else rows
        rng = np.random.default_rng(0)
        x = jnp.asarray(rng.standard_normal((used, inputs), dtype=np.float32))
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(weights[0]))
        work = used * inputs * outputs, size + 4 * used * (inputs + outputs)
        run = functools.partial(_multiply_all, x, weights)
        lines.append(measure(gauge, f"matmul {inputs} to {outputs}", used, len(weights), work, run))
    return lines


@jax.jit
def _multiply_all(x: Array, weights: list[Weight]) -> list[Array]:
    return [matmul.matmul(x, weight) for weight in weights]


def attention_line(gauge: FloorGauge, layer: PagedKV, calls: int, rows: int, depth: int) -> Line:
    """Rows of one lane whose last one stands at `depth`, in `calls` layers."""
    pages = -(-depth // PAGE)
    lane = jnp.zeros(rows, jnp.int32)
    position = jnp.arange(depth - rows, depth, dtype=jnp.int32)
    table = jnp.arange(pages, dtype=jnp.int32)[None]
    angles = make_rope(layer.head_dim, 10000.0).angles(position)
    qkv = jnp.ones((rows, (layer.heads + 2 * layer.kv_heads) * layer.head_dim))
    k_shape = pages, layer.kv_heads, layer.head_dim, PAGE
    v_shape = pages, layer.kv_heads, PAGE, layer.head_dim

    def attend(state: list[tuple[Array, Array]]) -> tuple[list[Array], list[tuple[Array, Array]]]:
        placed = make_rows(lane, lane, position, table)
        done = [attention.attention(qkv, angles, *kv, placed, scale=0.1) for kv in state]
        return [out for out, *_ in done], [(k, v) for _, k, v in done]

    compiled = jax.jit(attend, donate_argnums=0)
    kept = [(jnp.ones(k_shape), jnp.ones(v_shape)) for _ in range(calls)]

    def run() -> list[Array]:
        out, kept[:] = compiled(list(kept))
        return out

    multiply_adds = 2 * (int(position.sum()) + rows) * layer.heads * layer.head_dim
    moved = 2 * 4 * depth * layer.kv_heads * layer.head_dim
    name = f"attention at depth {depth}"
    return measure(gauge, name, rows, calls, (multiply_adds, moved), run)


def main() -> None:
    parser = argparse.ArgumentParser(description="each op of a step against the machine's floor")
    parser.add_argument("model", nargs="?", help="as for tensorfold serve")
    parser.add_argument("--rows", default="1,256", help="rows of the steps (default 1,256)")
    parser.add_argument("--depth", type=int, default=512, help="positions seen (default 512)")
    activations_option(parser)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    loaded = load(open_checkpoint(resolve(options.model)))
    model = with_activations(loaded, options.activations)
    gauge = FloorGauge()
    lines = []
    for rows in map(int, options.rows.split(",")):
        lines += matmul_lines(gauge, model.leaves, rows)
        attending = [layer for layer in model.spec.state if isinstance(layer, PagedKV)]
        for layer, calls in Counter(attending).items():
            lines.append(attention_line(gauge, layer, calls, rows, max(options.depth, rows)))
    if options.json:
        print(json.dumps({"machine": machine.describe(), "ops": [asdict(line) for line in lines]}))
        return
    print(
        f"{'op':28} {'rows':>4} {'calls':>5} {'us':>8} {'M mul-add':>9} {'MB':>7} {'of floor':>8}"
    )
    for line in lines:
        print(
            f"{line.op:28} {line.rows:4} {line.calls:5} {line.microseconds:8.0f} "
            f"{line.multiply_adds / 1e6:9.1f} {line.bytes / 1e6:7.2f} {line.floor_share:8.0%}"
        )


if __name__ == "__main__":
    main()
