"""Logits against Hugging Face transformers, for every family and config variant."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from platforms import IMPLEMENTATIONS
from tiny import VARIANTS, make_checkpoint, random_model, random_prompt

from tensorfold.models.family import State
from tensorfold.runtime.load import LoadedModel, load
from tensorfold.runtime.packed import Layout, Span
from tensorfold.runtime.step import StateShape, forward, make_state

LENGTH = 90
PAGES = 4

Prefill = Callable[..., np.ndarray]
"""(tokens, lengths of the chunks, drafts after each) -> logits [S, V]"""


def prefill_of(model: LoadedModel) -> Prefill:
    """Runs a sequence in chunks, each in the smaller of two blocks of rows that holds it."""
    layouts = {rows: Layout(rows, 2, PAGES) for rows in (8, 96)}
    shape = StateShape(lanes=2, context=PAGES * 64, pages=PAGES)

    def compile(layout: Layout) -> Any:
        def step(leaves: Any, state: State, packed: jax.Array) -> tuple[jax.Array, State]:
            return forward(model, layout, leaves, state, packed)

        packed = jax.ShapeDtypeStruct((layout.size,), jnp.int32)
        return (
            jax.jit(step).lower(model.leaves, make_state(model.spec.state, shape), packed).compile()
        )

    with ThreadPoolExecutor(len(layouts)) as threads:
        programs = dict(zip(layouts, threads.map(compile, layouts.values()), strict=True))

    # The sequence is in lane 1, and its pages are out of order.
    table = np.array([[0, 0, 0, 0], [2, 0, 3, 1]], np.int32)

    def run(state: State, at: int, tokens: Sequence[int]) -> tuple[np.ndarray, State]:
        rows = min(rows for rows in layouts if rows >= len(tokens))
        packed = layouts[rows].pack([Span(1, at, tokens, 0)], table)
        out, state = programs[rows](model.leaves, state, packed)
        return np.asarray(out)[: len(tokens)], state

    def prefill(
        tokens: Sequence[int], chunks: Sequence[int], drafts: Sequence[int] = ()
    ) -> np.ndarray:
        state = make_state(model.spec.state, shape)
        logits, at = [], 0
        for place, chunk in enumerate(chunks):
            out, state = run(state, at, tokens[at : at + chunk])
            logits.append(out)
            at += chunk
            if drafts:
                # Rows that are dropped again: the lane is taken back to `at`.
                _, state = run(state, at, [at % 7 + 1] * drafts[place])
        return np.concatenate(logits)

    return prefill


def random_chunks(rng: np.random.Generator, length: int) -> list[int]:
    chunks = []
    while length:
        chunks.append(min(length, int(rng.integers(1, rng.choice([3, 9, 40])))))
        length -= chunks[-1]
    return chunks


PLAIN = ("llama", "mistral window", "qwen3", "qwen3_5_moe", "lfm2", "gpt_oss")
"""Variants that the plain ops run too, where others are there."""

CASES = [(variant, IMPLEMENTATIONS[-1]) for variant in VARIANTS]
if len(IMPLEMENTATIONS) > 1:
    CASES += [(variant, "xla") for variant in PLAIN]


@pytest.mark.parametrize(("variant", "kernels"), CASES)
def test_logits_are_those_of_transformers(
    variant: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORFOLD_KERNELS", kernels)
    rng = np.random.default_rng(1)
    reference = random_model(VARIANTS[variant])
    tokens = random_prompt(rng, LENGTH)
    with torch.no_grad():
        wanted = reference(torch.tensor([tokens])).logits[0].numpy()
    assert wanted.std() > 0.5
    prefill = prefill_of(load(make_checkpoint(reference)))
    whole = prefill(tokens, [LENGTH])
    assert np.abs(whole - wanted).max() / np.abs(wanted).max() < 1e-4
    drafts = [63 if at % 16 == 0 else 1 + at % 7 for at in range(LENGTH)]
    assert prefill(tokens, [1] * LENGTH, drafts).tobytes() == whole.tobytes()
    for _ in range(4):
        assert prefill(tokens, random_chunks(rng, LENGTH)).tobytes() == whole.tobytes()
