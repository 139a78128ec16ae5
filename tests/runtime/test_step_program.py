"""The compiled step: state is written where it stands, and no weight is copied."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from tiny import tiny_checkpoint

from tensorfold.runtime.load import load
from tensorfold.runtime.packed import Layout
from tensorfold.runtime.step import StateShape, StepFunction, forward

_NO_COPY = ("parameter", "get-tuple-element", "custom-call", "bitcast", "tuple")


def make_step(variant: str = "llama") -> StepFunction:
    return StepFunction(load(tiny_checkpoint(variant)), StateShape(4, 256, 16))


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORFOLD_KERNELS", "cpu")


def compiled(step: StepFunction, rows: int, donate: tuple[int, ...]) -> Any:
    layout = Layout(rows, step.shape.lanes, step.shape.pages_per_lane)

    def run(leaves: Any, state: Any, packed: Any) -> Any:
        return forward(step.model, layout, leaves, state, packed)

    packed = jax.ShapeDtypeStruct((layout.size,), jnp.int32)
    return (
        jax.jit(run, donate_argnums=donate).lower(step.model.leaves, step._state, packed).compile()
    )


def shape_text(array: jax.Array) -> str:
    """A shape as the compiler writes it."""
    kind = {"float32": "f32", "uint32": "u32"}[array.dtype.name]
    return f"{kind}[{','.join(map(str, array.shape))}]"


def copied(program: Any, arrays: list[jax.Array]) -> list[str]:
    """Instructions that make a new array of the shape of one of `arrays`."""
    shapes = {shape_text(array) for array in arrays}
    found = []
    for line in program.as_text().splitlines():
        match = re.match(r"\s*(?:ROOT )?%\S+ = (\w+\[[\d,]*\])\S* ([\w-]+)\(", line)
        if match and match[1] in shapes and match[2] not in _NO_COPY:
            found.append(line.strip())
    return found


@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("variant", ["llama", "qwen3_5", "nemotron_h", "lfm2"])
def test_nothing_large_is_copied(rows: int, variant: str) -> None:
    step = make_step(variant)
    state = jax.tree.leaves(step._state)
    weights = [leaf for leaf in jax.tree.leaves(step.model.leaves) if leaf.size > 4096]
    assert state and weights
    program = compiled(step, rows, donate=(1,))
    assert copied(program, [*state, *weights]) == []
    memory = program.memory_analysis()
    size = sum(array.nbytes for array in state)
    assert memory.alias_size_in_bytes == size, "every array of the state is written in place"


def test_a_state_that_is_not_given_up_is_copied() -> None:
    """What the test above looks for is there when it should be."""
    step = make_step()
    assert copied(compiled(step, 1, donate=()), jax.tree.leaves(step._state))
