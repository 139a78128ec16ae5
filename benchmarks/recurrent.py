"""Steps of models with recurrent layers, and their ops against the floor of this machine.

`python -m benchmarks.recurrent [--rows 1,4,64,256] [--position 96]` needs PyTorch for the shapes.

Two random models of four recurrent layers with 8-bit weights: Gated DeltaNet as in Qwen3.5 and
Mamba-2 as in Nemotron-H. Rows are of one lane and begin at `--position`. Times are the least of
turns: of the step, and of its recurrent ops and convolutions, one a layer, in a program of their
own; each with these two as plain ops / as kernels, all else the same. The floor is as in
benchmarks/profile.py.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from jax import Array

from benchmarks import machine
from benchmarks.growth import RandomCheckpoint
from benchmarks.profile import FloorGauge
from tensorfold.checkpoints.interface import Quantised
from tensorfold.models.family import Recurrent
from tensorfold.ops.conv import causal_conv
from tensorfold.ops.linear_attention import Kept, linear_attention
from tensorfold.ops.rows import PAGE, make_rows
from tensorfold.runtime.load import load
from tensorfold.runtime.packed import Span, pack_settings
from tensorfold.runtime.step import StateShape, StepFunction

_LAYERS = 4
_TURNS = 9
_COMMON: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}
_DELTA: dict[str, Any] = {
    "intermediate_size": 3584,
    "num_hidden_layers": _LAYERS,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "layer_types": ["linear_attention"] * _LAYERS,
}
_MAMBA: dict[str, Any] = {
    "intermediate_size": 4096,
    "layers_block_type": ["linear_attention", "mlp"] * _LAYERS,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
}


def make_step(config: Any, kind: str, rows: list[int]) -> StepFunction:
    """Of a random model."""
    with torch.device("meta"):
        model = getattr(transformers, kind)(config)
    rng = np.random.default_rng(0)
    arrays = {name: _random(rng, tuple(x.shape)) for name, x in model.state_dict().items()}
    about = config.to_dict() | {"architectures": [kind]}
    step = StepFunction(load(RandomCheckpoint(about, arrays)), StateShape(1, 2048, 32), rows)
    step.compile()
    return step


def _random(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    if len(shape) != 2 or shape[0] % 8:
        return rng.standard_normal(shape, dtype=np.float32) * 0.1
    codes = rng.integers(0, 256, shape, dtype=np.uint8)
    scale = np.full((shape[0], shape[1] // 32), 2.0**-7 / shape[1] ** 0.5, np.float32)
    return Quantised(codes, scale, -128 * scale, 8, 32)


@contextmanager
def recurrent_ops(plain: bool) -> Iterator[None]:
    """Traces recurrent ops and convolutions as plain ops, or as they are."""
    jax.clear_caches()  # What was traced the other way.
    if not plain:
        yield
        return
    places = "tensorfold.ops.linear_attention", "tensorfold.ops.conv"
    with (
        mock.patch(f"{places[0]}.implementation", return_value="xla"),
        mock.patch(f"{places[1]}.implementation", return_value="xla"),
    ):
        yield


def step_call(step: StepFunction, rows: int, position: int) -> Callable[[], Any]:
    """A step, ready to run."""
    rng = np.random.default_rng(0)
    table = np.arange(step.shape.pages_per_lane, dtype=np.int32)[None]
    settings = pack_settings(0.0, 0, 1.0, 0.0, 0)[None]
    span = Span(0, position, rng.integers(0, 512, rows).tolist(), 1)
    return lambda: step.run([span], table, settings)


def op_calls(
    layer: Recurrent, corrected: bool, rows: int, position: int
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The recurrences and the convolutions of all layers, ready to run."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return jnp.asarray(rng.standard_normal(shape, dtype=np.float32))

    lane = jnp.zeros(rows, jnp.int32)
    at = jnp.arange(position, position + rows, dtype=jnp.int32)
    placed = make_rows(lane, lane, at, jnp.zeros((1, 32), jnp.int32))
    k = normal(rows, layer.key_heads, layer.key_dim) * layer.key_dim**-0.5
    v = normal(rows, layer.heads, layer.value_dim)
    g = -jnp.abs(normal(rows, layer.heads, 1)) * 0.1
    b = jax.nn.sigmoid(normal(rows, layer.heads)) if corrected else None
    x, weight = normal(rows, layer.channels), normal(layer.channels, 4)

    def recur(kept: list[Kept]) -> tuple[list[Array], list[Kept]]:
        done = [linear_attention(k, k, v, g, b, each, placed) for each in kept]
        return [out for out, _ in done], [each for _, each in done]

    def convolve(kept: list[Array]) -> tuple[list[Array], list[Array]]:
        done = [causal_conv(x, weight, each, placed) for each in kept]
        return [out for out, _ in done], [each for _, each in done]

    states = [[normal(*shape) * 0.01 for shape in layer.shapes(1, 1)] for _ in range(_LAYERS)]
    return (
        _donating(recur, [Kept(*each[1:]) for each in states]),
        _donating(convolve, [each[0] for each in states]),
    )


def _donating(run: Any, state: Any) -> Callable[[], Any]:
    """Calls on a state that is given up and taken back."""
    compiled = jax.jit(run, donate_argnums=0).lower(state).compile()
    held = [state]

    def call() -> Any:
        out, held[0] = compiled(held[0])
        return out

    return call


def least_seconds(runs: list[Callable[[], Any]]) -> list[float]:
    """The least time of each, in turns."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(_TURNS):
        for run, taken in zip(runs, times, strict=True):
            started = time.perf_counter()
            jax.block_until_ready(run())
            taken.append(time.perf_counter() - started)
    return [min(taken) for taken in times]


def work(layer: Recurrent, corrected: bool, rows: int, position: int) -> tuple[int, int]:
    """(multiply-adds, bytes) that the recurrence of `rows` rows of a lane needs."""
    asked = 2 if corrected else 1
    k, v = layer.key_dim, layer.value_dim
    adds = moved = 0
    for at in range(position, position + rows):
        place = at % PAGE
        if at >= PAGE:
            adds += layer.heads * asked * k * v
        adds += layer.key_heads * asked * place * k + layer.heads * asked * place * v
        if place == PAGE - 1:
            adds += layer.heads * PAGE * k * v
            moved += layer.heads * k * v
        if at == position or place == 0:
            # What a chunk's first row here finds: its start and the rows before.
            moved += layer.heads * k * v
            moved += place * (layer.key_heads * k + layer.heads * (v + 1))
        # A row's own: q, k, v, g, b in; k, u, G and the output out.
        moved += layer.key_heads * 3 * k + layer.heads * (3 * v + 3)
    return adds, 4 * moved


def report(name: str, kind: str, config: Any, buckets: list[int], position: int) -> None:
    """A line for every bucket."""
    corrected = name == "Gated DeltaNet"
    steps = []
    for plain in (True, False):
        with recurrent_ops(plain):
            steps.append(make_step(config, kind, buckets))
    layer = next(each for each in steps[0].model.spec.state if isinstance(each, Recurrent))
    gauge = FloorGauge()
    for rows in buckets:
        ops: list[Callable[[], Any]] = []
        for plain in (True, False):
            with recurrent_ops(plain):
                ops += op_calls(layer, corrected, rows, position)
        whole = least_seconds([step_call(step, rows, position) for step in steps])
        floors = [gauge.read()]
        plain_recur, plain_conv, recur, conv = (each / _LAYERS for each in least_seconds(ops))
        floors.append(gauge.read())
        adds, moved = work(layer, corrected, rows, position)
        floor = max(
            adds / max(each.multiply_adds for each in floors),
            moved / max(each.bytes for each in floors),
        )
        pairs = [whole, (plain_recur, recur), (plain_conv, conv)]
        cells = [f"{before * 1e6:,.0f} / {after * 1e6:,.0f}" for before, after in pairs]
        print(
            f"| {name} | {rows} | {cells[0]} | {cells[1]} | {floor / recur:.0%} | {cells[2]} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="models with recurrent layers, by op")
    parser.add_argument("--rows", default="1,4,64,256", help="rows of the steps")
    parser.add_argument("--position", type=int, default=96, help="of the first row (default 96)")
    options = parser.parse_args()
    buckets = [int(each) for each in options.rows.split(",")]
    print(machine.heading(machine.describe()))
    print("| layers | rows | step | recurrence, a layer | of floor | convolution, a layer |")
    print("| --- | --- | --- | --- | --- | --- |")
    delta = transformers.Qwen3_5TextConfig(**_COMMON, **_DELTA)
    mamba = transformers.NemotronHConfig(**_COMMON, **_MAMBA)
    report("Gated DeltaNet", "Qwen3_5ForCausalLM", delta, buckets, options.position)
    report("Mamba-2", "NemotronHForCausalLM", mamba, buckets, options.position)


if __name__ == "__main__":
    main()
