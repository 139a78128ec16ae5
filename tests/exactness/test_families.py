"""`verify` on a model of each kind of state, and snapshots of what lanes hold."""

import numpy as np
import pytest
from tiny import open_step, random_prompt, tiny_checkpoint

from tensorfold.engine.drafts.drafting import MOST_BESIDE_SNAPSHOTS
from tensorfold.engine.interface import Event, Finished, Request, Sampling
from tensorfold.engine.scheduler import RowLimits, Scheduler
from tensorfold.engine.start import make_pool
from tensorfold.engine.thread import make_reply
from tensorfold.engine.trace import trace
from tensorfold.engine.verify import LANES, make_cases, run_together, verify
from tensorfold.engine.worker import Worker
from tensorfold.ops.rows import PAGE
from tensorfold.runtime.packed import SETTINGS, Span

FAMILIES: dict[str, dict[str, object]] = {
    "gemma3": {},
    "qwen3_5": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "qwen3_5_moe": {},
    "nemotron_h": {"layers_block_type": ["linear_attention", "full_attention"]},
    "lfm2": {},
    "gpt_oss": {},
}


@pytest.mark.parametrize("variant", FAMILIES)
def test_every_family_is_exact(variant: str) -> None:
    """Beside others, in chunks, drafted, resumed, cancelled and preempted, over the end of a chunk
    and past the window."""
    checkpoint = tiny_checkpoint(variant, **FAMILIES[variant])
    step = open_step(checkpoint, lanes=LANES, context=128, buckets=(8, 256))
    rng = np.random.default_rng(0)
    # In a loop, so that there are drafts.
    cases = make_cases([random_prompt(rng, 6) * 10], tokens=8)
    comparisons = list(verify(step, cases))
    assert not [each for each in comparisons if each.difference]
    assert {"drafted", "warm", "preempted and replayed"} <= {
        each.name.partition(", ")[2] for each in comparisons
    }


@pytest.mark.parametrize("variant", ["qwen3_5", "qwen3_5_moe", "nemotron_h", "lfm2"])
def test_a_conversation_goes_on_from_snapshots(variant: str) -> None:
    """Every turn starts from what the one before left, and is as if it were read from the start."""
    step = open_step(tiny_checkpoint(variant), lanes=2, context=448, buckets=(8, 64))
    limits = RowLimits(alone=64, beside=64, chunk=64)
    rng = np.random.default_rng(1)
    worker = Worker(step, Scheduler(step.shape, limits, make_pool(step)))
    system = random_prompt(rng, 70)
    known = [*system, *random_prompt(rng, 30)]
    cached, replies = [], []
    for turn in range(5):
        if turn == 3:  # another conversation with the same beginning
            known = [*system, *random_prompt(rng, 90)]
        sampling = Sampling(temperature=0.8 if turn % 2 else 0.0, seed=turn)
        request = Request(f"{turn}", tuple(known), sampling, 40)
        events: list[Event] = []
        worker.add(make_reply(request, events.append, step.model.spec.vocab_size))
        while not worker.idle:
            worker.step()
        replies.append((request, got := trace(events)))
        end = events[-1]
        assert isinstance(end, Finished)
        cached.append(end.stats.cached_tokens)
        known += [*got.tokens, *random_prompt(rng, 25)]
    assert cached[:3] == [0, 128, 192]
    assert cached[4] >= 192
    for request, got in replies:
        (wanted,) = run_together(step, [request], limits).values()
        assert not wanted.difference(got)


@pytest.mark.parametrize("variant", ["qwen3_5", "nemotron_h", "lfm2"])
def test_a_snapshot_may_be_taken_after_drafts_of_the_next_page(variant: str) -> None:
    """They were not kept, and a sequence goes on from the start of the page before."""
    step = open_step(tiny_checkpoint(variant), lanes=2, context=192, buckets=(8, 64))
    tokens = random_prompt(np.random.default_rng(2), 3 * PAGE)
    table = np.arange(6, dtype=np.int32).reshape(2, 3)
    settings = np.zeros((2, SETTINGS), np.int32)

    def run(lane: int, first: int, rows: list[int]) -> list[tuple[int, int]]:
        (drawn,) = step.run([Span(lane, first, rows, len(rows))], table, settings)
        return list(zip(drawn.tokens, drawn.digests, strict=True))

    pages = [tokens[first : first + PAGE] for first in range(0, len(tokens), PAGE)]
    wanted = [run(0, PAGE * index, page) for index, page in enumerate(pages)]
    run(0, 0, pages[0])
    run(0, PAGE, pages[1])
    run(0, 2 * PAGE - 1, [tokens[2 * PAGE - 1], *[7] * MOST_BESIDE_SNAPSHOTS])
    step.copy_lane(0, 2)
    step.copy_lane(2, 1)
    table[1, 0] = table[0, 0]
    assert run(1, PAGE, pages[1]) == wanted[1]
    assert run(1, 2 * PAGE, pages[2]) == wanted[2]
