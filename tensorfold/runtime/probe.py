"""The row probe: the same rows in every bucket, compared bit for bit."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tensorfold.models.family import PagedKV
from tensorfold.ops import activation, attention, matmul, norm, rope, sample
from tensorfold.ops.matmul import Weight
from tensorfold.ops.rows import PAGE, make_rows
from tensorfold.runtime.build import key
from tensorfold.runtime.packed import Span, pack_settings
from tensorfold.runtime.step import StepFunction

Rowwise = Callable[..., Array]
"""An op over rows: every argument and the result have the rows first."""


@dataclass(frozen=True)
class OpCheck:
    """An op on random rows in one bucket against the same rows in the smallest."""

    op: str
    bucket: int
    rows: int
    different: int


@dataclass(frozen=True)
class Probed:
    """What a probe found: the `broken` buckets, and the answers to rows run one by one."""

    broken: list[int]
    alone: list[list[int]]


def probe_step(step: StepFunction) -> Probed:
    """Find the buckets in which the compiled step gives other bits than its smallest bucket does.

    Two short sequences run row by row in the smallest bucket, then whole and side by side in every
    other one. Costs a dozen steps.
    """
    alone = run_alone(step)
    table, settings, sequences = _probe_rows_of(step)
    broken = []
    for bucket in step.buckets:
        spans, room = [], bucket
        for lane, tokens in enumerate(sequences):
            count = min(room, len(tokens))
            spans.append(Span(lane, 0, tokens[:count], count))
            room -= count
        answers = step.run([span for span in spans if span.tokens], table, settings, bucket)
        found = [
            [lane, position, *pair]
            for lane, answer in enumerate(answers)
            for position, pair in enumerate(zip(answer.tokens, answer.digests, strict=True))
        ]
        if not all(each in alone for each in found):
            broken.append(bucket)
    return Probed(broken, alone)


def run_alone(step: StepFunction) -> list[list[int]]:
    """[lane, position, token, digest] of the probe's rows, each run in the smallest bucket."""
    table, settings, sequences = _probe_rows_of(step)
    alone = []
    for lane, tokens in enumerate(sequences):
        for position, token in enumerate(tokens):
            [drawn] = step.run([Span(lane, position, [token], 1)], table, settings)
            alone.append([lane, position, drawn.tokens[0], drawn.digests[0]])
    return alone


def _probe_rows_of(step: StepFunction) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """(block table, settings, tokens of each lane) of two short sequences."""
    lengths = 3, 4
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, step.model.spec.vocab_size, n).tolist() for n in lengths]
    lanes = min(step.shape.lanes, step.shape.pages, len(lengths))
    table = np.zeros((step.shape.lanes, step.shape.pages_per_lane), np.int32)
    table[:lanes, 0] = np.arange(lanes)
    settings = np.tile(pack_settings(1.0, 0, 1.0, 0.0, 1), (step.shape.lanes, 1))
    return table, settings, sequences[:lanes]


def read_probed(step: StepFunction) -> Probed | None:
    """What was found for these very programs and weights before; None if nobody looked."""
    if step.kept is None or step.model.weights_key is None:
        return None
    data = step.kept.read(_record_name(step))
    return None if data is None else Probed(**json.loads(bytes(data)))


def keep_probed(step: StepFunction, probed: Probed) -> None:
    """Keep what was found for the next start, if that can run the same."""
    if step.kept is not None and step.model.weights_key is not None:
        step.kept.write(_record_name(step), [json.dumps(vars(probed)).encode()])


def _record_name(step: StepFunction) -> str:
    return f"probe-{key(step.model.weights_key, step.kept_names())}"


def probe_ops(step: StepFunction, seed: int = 0) -> Iterator[OpCheck]:
    """Every op of the model, at its shapes, in every bucket: which one breaks the rule."""
    rng = np.random.default_rng(seed)
    for name, function, weights, columns in _row_ops(step):
        # Weights are arguments, as in a step: XLA compiles another product for constant ones.
        compiled = partial(jax.jit(function), *weights)
        yield from _probe_rows(name, compiled, columns, step.buckets, rng)
    for layer in _attention_layers(step):
        yield from _probe_attention(layer, step.buckets, rng)


def _attention_layers(step: StepFunction) -> list[PagedKV]:
    """The kinds of attention layer there are, each once."""
    return [each for each in dict.fromkeys(step.model.spec.state) if isinstance(each, PagedKV)]


def _row_ops(
    step: StepFunction,
) -> Iterator[tuple[str, Rowwise, tuple[Weight, ...], tuple[int, ...]]]:
    """(name, function of weights and float rows, weights, shape of a row) for each op and shape."""
    matrices = {leaf.shape: leaf for leaf in step.model.leaves if leaf.ndim == 2}
    for shape, weight in matrices.items():
        name = f"matmul {shape[1]} to {shape[0]}"
        yield name, lambda weight, x: matmul.matmul(x, weight), (weight,), (shape[1],)
    named = zip(step.model.paths, step.model.leaves, strict=True)
    norms = [leaf for path, leaf in named if "norm" in path.split(".")[-2]]
    vectors = {weight.shape: weight for weight in norms}
    for shape, weight in vectors.items():
        yield (
            f"rms_norm {shape[0]}",
            lambda weight, x: norm.rms_norm(x, weight, 1e-5),
            (weight,),
            shape,
        )
    for kv in _attention_layers(step):
        rotation = rope.make_rope(kv.head_dim, 10000.0)

        def rotate(x: Array, rotation: rope.Rope = rotation) -> Array:
            position = (jnp.abs(x[:, 0, 0]) * 1000).astype(jnp.int32)
            return rope.rotate(x, rotation.angles(position))

        yield f"rotate {kv.heads} x {kv.head_dim}", rotate, (), (kv.heads, kv.head_dim)
    width = min(shape[0] for shape in matrices)
    yield f"swiglu {width}", activation.swiglu, (), (2 * width,)
    yield "sample", _draw, (), (step.model.spec.vocab_size,)


def _draw(logits: Array) -> Array:
    """Each row's token and digest; settings and position differ by row and depend on it only."""
    rows = logits.shape[0]
    kind = (jnp.abs(logits[:, 0]) * 1000).astype(jnp.int32)
    settings = sample.Settings(
        temperature=(kind % 3).astype(jnp.float32) / 2,
        top_k=jnp.where(kind % 5 == 0, 40, 0),
        top_p=jnp.where(kind % 2 == 0, 0.9, 1.0),
        min_p=jnp.where(kind % 7 == 0, 0.05, 0.0),
        seed=jnp.stack([kind, kind + 1], axis=1).astype(jnp.uint32),
    )
    tokens = sample.draw(logits * 4, settings, kind, jnp.asarray(rows))
    return jnp.stack([tokens, sample.digest(logits)], axis=1)


def _probe_rows(
    name: str,
    compiled: Rowwise,
    columns: tuple[int, ...],
    buckets: tuple[int, ...],
    rng: np.random.Generator,
) -> Iterator[OpCheck]:
    """The smallest bucket runs each row among zeros; the others run all, shuffled."""
    smallest, largest = buckets[0], min(buckets[-1], 64 if columns[0] > 16384 else 256)
    x = rng.standard_normal((largest, *columns), dtype=np.float32)
    checked = 16
    wanted = []
    for row in range(checked):
        block = np.zeros((smallest, *columns), np.float32)
        block[row % smallest] = x[row]
        wanted.append(np.asarray(compiled(block))[row % smallest])
    for bucket in buckets:
        if bucket > largest:
            continue
        order = rng.permutation(max(bucket, checked))[:bucket]
        got = np.asarray(compiled(x[order]))
        pairs = [(got[i], wanted[row]) for i, row in enumerate(order) if row < checked]
        different = sum(a.tobytes() != b.tobytes() for a, b in pairs)
        yield OpCheck(name, bucket, len(pairs), different)


def _probe_attention(
    layer: PagedKV, buckets: tuple[int, ...], rng: np.random.Generator
) -> Iterator[OpCheck]:
    """Runs of rows of three lanes, cut anywhere, against each row by itself."""
    lanes, pages_per_lane = 3, 5
    length, smallest = pages_per_lane * PAGE - 7, buckets[0]
    table = rng.permutation(lanes * pages_per_lane).astype(np.int32).reshape(lanes, -1)

    def normal(heads: int) -> np.ndarray:
        return rng.standard_normal((lanes, length, heads, layer.head_dim), dtype=np.float32)

    qkv = normal(layer.heads + 2 * layer.kv_heads)
    k, v = np.split(qkv[:, :, layer.heads :], 2, axis=2)
    k_pages = np.zeros((table.size, layer.kv_heads, layer.head_dim, PAGE), np.float32)
    v_pages = np.zeros((table.size, layer.kv_heads, PAGE, layer.head_dim), np.float32)
    for lane in range(lanes):
        for position in range(length):
            page, place = table[lane, position // PAGE], position % PAGE
            k_pages[page, :, :, place] = k[lane, position]
            v_pages[page, :, place] = v[lane, position]

    @jax.jit
    def run(lane: Array, position: Array) -> Array:
        rows = make_rows(jnp.zeros_like(lane), lane, position, jnp.asarray(table))
        qkv_R = jnp.asarray(qkv)[jnp.maximum(lane, 0), position].reshape(lane.shape[0], -1)
        # No rotation: the pages below hold the keys as they are.
        still = (
            jnp.ones((lane.shape[0], layer.head_dim // 2)),
            jnp.zeros((lane.shape[0], layer.head_dim // 2)),
        )
        kept = jnp.asarray(k_pages), jnp.asarray(v_pages)
        return attention.attention(qkv_R, still, *kept, rows, scale=0.2, window=layer.window)[0]

    def one(lane: int, position: int) -> bytes:
        lanes_R, positions_R = np.full(smallest, -1, np.int32), np.zeros(smallest, np.int32)
        lanes_R[0], positions_R[0] = lane, position
        return np.asarray(run(lanes_R, positions_R))[0].tobytes()

    for bucket in buckets:
        lanes_R, positions_R = np.full(bucket, -1, np.int32), np.zeros(bucket, np.int32)
        row = 0
        for lane in rng.permutation(lanes):
            count = min(bucket - row, int(rng.integers(1, max(2, bucket // 2))))
            start = int(rng.integers(0, length - count))
            lanes_R[row : row + count] = lane
            positions_R[row : row + count] = np.arange(start, start + count)
            row += count
        got = np.asarray(run(lanes_R, positions_R))
        sample_rows = rng.choice(row, min(row, 12), replace=False)
        different = sum(
            got[i].tobytes() != one(int(lanes_R[i]), int(positions_R[i])) for i in sample_rows
        )
        name = f"attention {layer.heads} x {layer.head_dim} over {layer.kv_heads}"
        yield OpCheck(name, bucket, len(sample_rows), different)
