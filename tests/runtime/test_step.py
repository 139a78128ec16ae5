"""The step function: what it draws, from which logits, and what it keeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sampling_rule
from sampling_rule import Rule
from tiny import open_step, random_prompt, shared_step, tiny_checkpoint

from tensorfold.engine.start import start_engine
from tensorfold.ops.sample import NO_TOKEN, digest
from tensorfold.runtime.packed import Layout, Span, pack_settings
from tensorfold.runtime.probe import probe_step
from tensorfold.runtime.step import BUCKETS, StateShape, StepFunction, forward, make_state

RULES = (
    Rule(temperature=0.0),
    Rule(temperature=1.0, seed=3),
    Rule(temperature=0.8, top_k=20, top_p=0.9, seed=2**63 + 1),
    Rule(temperature=1.5, top_p=0.7, min_p=0.02, seed=12345),
)


def settings_of(rules: tuple[Rule, ...]) -> np.ndarray:
    return np.stack(
        [pack_settings(r.temperature, r.top_k, r.top_p, r.min_p, r.seed) for r in rules]
    )


def tables(step: StepFunction) -> np.ndarray:
    """Pages of every lane, in no order."""
    pages = np.random.default_rng(1).permutation(step.shape.pages)
    return pages.astype(np.int32).reshape(step.shape.lanes, -1)


def logits_of(step: StepFunction, tokens: list[int]) -> np.ndarray:
    """Every position's logits, by the model alone."""
    layout = Layout(32, 1, 1)
    packed = layout.pack([Span(0, 0, tokens, 0)], np.zeros((1, 1), np.int32))
    state = make_state(step.model.spec.state, StateShape(1, 64, 1))
    run = jax.jit(lambda *arguments: forward(step.model, layout, *arguments))
    return np.asarray(run(step.model.leaves, state, packed)[0])[: len(tokens)]


def test_tokens_and_digests_are_those_of_the_logits() -> None:
    step = shared_step()
    rng = np.random.default_rng(0)
    prompts = [random_prompt(rng, length) for length in (3, 4, 5, 4)]
    spans = [Span(lane, 0, prompt, len(prompt)) for lane, prompt in enumerate(prompts)]
    answers = step.run(spans, tables(step), settings_of(RULES))
    for lane, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        logits = logits_of(step, prompt)
        assert answer.digests == tuple(digest(jnp.asarray(logits)).tolist())
        # The draw's position is that of the token being chosen.
        wanted = [
            sampling_rule.draw(row, RULES[lane], position + 1)
            for position, row in enumerate(logits)
        ]
        assert answer.tokens == tuple(wanted)


def test_only_the_rows_that_are_asked_for_draw() -> None:
    step = shared_step()
    prompt = random_prompt(np.random.default_rng(2), 6)
    table, settings = tables(step), settings_of(RULES)
    [whole] = step.run([Span(1, 0, prompt, 6)], table, settings)
    for draws in (0, 1, 4):
        [answer] = step.run([Span(1, 0, prompt, draws)], table, settings)
        assert answer.tokens == whole.tokens[6 - draws :]
        assert answer.digests == whole.digests[6 - draws :]


def test_a_step_takes_the_smallest_bucket_that_holds_it() -> None:
    step = shared_step()
    ran = []
    programs = dict(step._programs)
    try:
        for rows, program in programs.items():
            step._programs[rows] = lambda *a, rows=rows, program=program: (
                ran.append(rows) or program(*a)
            )
        for count in (1, 8, 9, 16):
            step.run([Span(0, 0, [5] * count, 1)], tables(step), settings_of(RULES))
    finally:
        step._programs = programs
    assert ran == [8, 8, 16, 16]
    assert tuple(sorted(BUCKETS)) == BUCKETS


def test_the_probe_finds_nothing_and_leaves_lanes_usable() -> None:
    assert probe_step(shared_step()).broken == []


class Crooked:
    """A program whose digests are off in one row."""

    def __init__(self, program, row: int):
        self.program, self.row = program, row

    def __call__(self, *arguments):
        drawn, hidden, state = self.program(*arguments)
        return drawn.at[1, self.row].add(1), hidden, state


def test_a_bucket_that_is_not_exact_is_dropped() -> None:
    step = shared_step()
    programs, buckets = dict(step._programs), step.buckets
    try:
        step._programs[16] = Crooked(programs[16], row=2)
        assert probe_step(step).broken == [16]
        engine = start_engine(step)
        engine.close()
        assert step.buckets == (8,)
    finally:
        step._programs, step.buckets = programs, buckets


def test_a_smallest_bucket_that_is_not_exact_stops_the_start() -> None:
    step = shared_step()
    programs = dict(step._programs)
    try:
        step._programs[8] = Crooked(programs[8], row=3)
        with pytest.raises(RuntimeError, match="run tensorfold verify"):
            start_engine(step)
    finally:
        step._programs = programs


def test_lanes_must_leave_room_in_the_largest_bucket() -> None:
    step = open_step(tiny_checkpoint(num_hidden_layers=1), lanes=8, context=64, buckets=(8,))
    with pytest.raises(RuntimeError, match="8 lanes do not fit a step of 8 rows"):
        start_engine(step)


def test_a_reset_forgets_and_serves_on() -> None:
    step = shared_step()
    prompt = random_prompt(np.random.default_rng(4), 10)
    table, settings = tables(step), settings_of(RULES)
    before = step.run([Span(2, 0, prompt, 1)], table, settings)
    step.reset()
    assert step.run([Span(2, 0, prompt, 1)], table, settings) == before


def test_weights_that_are_no_numbers_draw_no_token() -> None:
    checkpoint = tiny_checkpoint(num_hidden_layers=1)
    checkpoint.arrays["model.norm.weight"] = np.full(64, np.nan, np.float32)
    step = open_step(checkpoint, buckets=(8,))
    answers = step.run(
        [Span(lane, 0, [1, 2], 2) for lane in range(4)], tables(step), settings_of(RULES)
    )
    assert all(answer.tokens == (NO_TOKEN, NO_TOKEN) for answer in answers)


def test_compiling_reports_its_progress() -> None:
    step = shared_step()
    fresh = StepFunction(step.model, step.shape, (8,))
    seen = []
    fresh.compile(seen.append)
    total = 1 + len(fresh._head.sizes) + 2  # a bucket, the heads, the copies of a page and a lane
    wanted = [("compile", done, total) for done in range(total + 1)]
    assert [(event.task, event.done, event.total) for event in seen] == wanted
