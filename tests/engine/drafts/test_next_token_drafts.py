"""Next-token layers of a trained model: what they draft is right, and no reply depends on it."""

import threading
from dataclasses import replace
from functools import cache

import nemotron_h_next_token as nemotron_h
import numpy as np
import pytest
from next_token import random_pair, sentences, trained, with_layers
from tiny import open_step, random_prompt

from tensorfold.engine.drafts.drafting import Drafting
from tensorfold.engine.drafts.next_token import NextTokenSource
from tensorfold.engine.drafts.steps import DraftSteps, open_draft_steps
from tensorfold.engine.drafts.widths import StepTimes
from tensorfold.engine.interface import Event, Request, Sampling
from tensorfold.engine.pages import PagePool
from tensorfold.engine.scheduler import RowLimits, Scheduler
from tensorfold.engine.start import make_pool, start_engine
from tensorfold.engine.stress import Stress
from tensorfold.engine.thread import make_reply
from tensorfold.engine.trace import Traced, trace
from tensorfold.engine.verify import LANES, make_cases, run, run_together, verify
from tensorfold.engine.worker import Worker
from tensorfold.runtime.step import StepFunction

GREEDY, SAMPLED = Sampling(), Sampling(temperature=0.7, seed=3)
LIMITS = RowLimits(alone=16, beside=16, chunk=16)


@cache
def opened() -> tuple[StepFunction, DraftSteps]:
    step = open_step(trained())
    return step, open_draft_steps(step)


@cache
def opened_counting() -> tuple[StepFunction, DraftSteps]:
    step = open_step(nemotron_h.counting())
    return step, open_draft_steps(step)


def make_worker(
    pool: PagePool | None = None, steps: tuple[StepFunction, DraftSteps] | None = None
) -> Worker:
    step, drafts = steps or opened()
    assert drafts.next_token is not None
    drafting = Drafting(
        step.buckets, [NextTokenSource(drafts.next_token)], StepTimes(step.buckets, learns=False)
    )
    return Worker(step, Scheduler(step.shape, LIMITS, pool or make_pool(step)), drafting)


def requests(sampling: Sampling, lengths: list[int], tokens: int = 40) -> list[Request]:
    texts = sentences(np.random.default_rng(8), len(lengths), max(lengths))
    return [
        Request(str(index), tuple(text[:length].tolist()), sampling, tokens)
        for index, (text, length) in enumerate(zip(texts, lengths, strict=True))
    ]


def plain(request: Request, step: StepFunction | None = None) -> Traced:
    alone = [replace(request, draft=False)]
    (reply,) = run_together(step or opened()[0], alone, LIMITS).values()
    return reply


def test_the_checkpoint_is_small() -> None:
    assert sum(array.nbytes for array in trained().arrays.values()) < 2 * 2**20


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_most_tokens_are_drafted_by_them(sampling: Sampling) -> None:
    asked = requests(sampling, [6, 30, 70])
    worker = make_worker()
    replies = run(worker, opened()[0], asked)
    for request in asked:
        assert not plain(request).difference(replies[request.id])
    stats = worker.stats()
    # A guess among 60 numbers would be right once in 60 times, one of the five steps once in 5.
    assert stats.accepted > 0.5 * sum(request.max_tokens for request in asked)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_nemotron_h_drafts_with_its_own(sampling: Sampling) -> None:
    """Beside recurrent layers, from layers of which one keeps nothing."""
    steps = opened_counting()
    asked = [
        Request(str(length), tuple(range(5, 5 + length)), sampling, 40) for length in (6, 30, 70)
    ]
    worker = make_worker(steps=steps)
    replies = run(worker, steps[0], asked)
    for request in asked:
        wanted = plain(request, steps[0])
        first = 5 + len(request.prompt)
        assert list(wanted.tokens[:3]) == [first, first + 1, first + 2]
        assert not wanted.difference(replies[request.id])
    assert worker.stats().accepted > 0.6 * sum(request.max_tokens for request in asked)


def test_a_reply_that_yielded_is_read_anew() -> None:
    worker = make_worker(PagePool(3, 0))
    (behind,) = requests(SAMPLED, [100], tokens=60)
    events: list[Event] = []
    vocabulary = opened()[0].model.spec.vocab_size
    worker.add(make_reply(replace(behind, background=True), events.append, vocabulary))
    for _ in range(9):
        worker.step()
    (ahead,) = requests(GREEDY, [150], tokens=3)
    replies = run(worker, opened()[0], [replace(ahead, id="ahead")])
    assert worker.stats().preempted == 1
    assert not plain(ahead).difference(replies["ahead"])
    assert not plain(behind).difference(trace(events))
    assert worker.stats().accepted > 0.5 * behind.max_tokens


@pytest.mark.parametrize("family", ["qwen3_5", "nemotron_h"])
def test_layers_that_know_nothing_change_nothing(family: str) -> None:
    """Random layers on a random model with prompts out of any language."""
    if family == "qwen3_5":
        checkpoint = with_layers(*random_pair())
    else:
        checkpoint = nemotron_h.with_layers(*nemotron_h.random_pair())
    step = open_step(checkpoint, lanes=LANES, context=128, buckets=(8, 256))
    drafts = open_draft_steps(step)
    prompts = [random_prompt(np.random.default_rng(0), length) for length in (5, 70)]
    comparisons = list(verify(step, make_cases(prompts, tokens=6), drafts))
    assert [each for each in comparisons if each.difference] == []
    assert sum("drafted by next-token layers" in each.name for each in comparisons) == 4
    rounds = list(Stress(step, prompts, 6, drafts).run(seconds=2, seed=1))
    assert rounds and not any(outcome.difference for _, outcome in rounds)


def test_the_engine_drafts_with_them() -> None:
    step, drafts = opened()
    (request,) = requests(GREEDY, [30], tokens=60)
    wanted = plain(request)
    engine = start_engine(step, draft_steps=drafts)
    events: list[Event] = []
    done = threading.Event()

    def deliver(event: Event) -> None:
        events.append(event)
        if hasattr(event, "stats"):
            done.set()

    engine.submit(request, deliver)
    assert done.wait(60)
    engine.close()
    assert not wanted.difference(trace(events))
