"""A draft model beside a target: what it proposes and reads, and that no reply depends on it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from weakref import WeakSet

import numpy as np
import pytest
from tiny import open_step, random_prompt, shared_step, tiny_checkpoint

from tensorfold.checkpoints.interface import CheckpointError
from tensorfold.engine.drafts.draft_model import ModelSource
from tensorfold.engine.drafts.drafting import Drafting
from tensorfold.engine.drafts.steps import load_draft_model, open_draft_steps
from tensorfold.engine.drafts.widths import StepTimes
from tensorfold.engine.interface import Event, Request, Sampling
from tensorfold.engine.pages import Node, PagePool
from tensorfold.engine.scheduler import RowLimits, Scheduler
from tensorfold.engine.start import make_pool
from tensorfold.engine.stress import Stress
from tensorfold.engine.thread import make_reply
from tensorfold.engine.trace import Traced, trace
from tensorfold.engine.verify import LANES, make_cases, run, run_together, verify
from tensorfold.engine.worker import Worker
from tensorfold.ops.rows import PAGE
from tensorfold.runtime.load import load
from tensorfold.runtime.packed import Span
from tensorfold.runtime.step import StepFunction

GREEDY, SAMPLED = Sampling(), Sampling(temperature=0.9, top_p=0.95, seed=3)
LIMITS = RowLimits(alone=16, beside=16, chunk=16)


@cache
def draft_step(hidden_size: int = 32, seed_layers: int = 1) -> StepFunction:
    """With the sizes of `shared_step` it is the target itself."""
    checkpoint = tiny_checkpoint(
        num_hidden_layers=seed_layers, hidden_size=hidden_size, intermediate_size=48
    )
    target = shared_step()
    step = StepFunction(load(checkpoint), target.shape, target.buckets)
    step.compile()
    return step


def make_worker(step: StepFunction, pool: PagePool | None = None) -> tuple[Worker, ModelSource]:
    target = shared_step()
    source = ModelSource(step, target.model.spec.vocab_size)
    times = StepTimes(target.buckets, learns=False)
    scheduler = Scheduler(target.shape, LIMITS, pool or make_pool(target))
    return Worker(target, scheduler, Drafting(target.buckets, [source], times)), source


def plain(request: Request) -> Traced:
    (reply,) = run_together(shared_step(), [replace(request, draft=False)], LIMITS).values()
    return reply


def requests(sampling: Sampling, lengths: Sequence[int], tokens: int = 24) -> list[Request]:
    rng = np.random.default_rng(len(lengths))
    return [
        Request(str(index), tuple(random_prompt(rng, length)), sampling, tokens)
        for index, length in enumerate(lengths)
    ]


def reads(step: StepFunction, monkeypatch: pytest.MonkeyPatch) -> list[Span]:
    """The spans of the step from here on."""
    spans: list[Span] = []
    run_step = step.run

    def noted(asked: Sequence[Span], *rest: object, **named: object) -> object:
        spans.extend(asked)
        return run_step(asked, *rest, **named)

    monkeypatch.setattr(step, "run", noted)
    return spans


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_model_agrees_with_itself(sampling: Sampling) -> None:
    """With the target's noise, sampled drafts too are all right when the models are the same."""
    asked = requests(sampling, [5, 70])
    worker, _ = make_worker(draft_step())
    replies = run(worker, shared_step(), asked)
    for request in asked:
        assert not plain(request).difference(replies[request.id])
    stats = worker.stats()
    assert stats.accepted == stats.drafted >= 30
    assert stats.steps < 20


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_replies_do_not_depend_on_another_model(sampling: Sampling) -> None:
    asked = requests(sampling, [1, 3, 64, 130])
    worker, _ = make_worker(draft_step(hidden_size=48))
    replies = run(worker, shared_step(), asked, stagger=2)
    for request in asked:
        assert not plain(request).difference(replies[request.id])
    assert worker.stats().drafted > worker.stats().accepted


def test_a_step_takes_note_of_new_pages_only() -> None:
    """A long sequence has thousands, and every step asks."""
    noted: list[Node] = []

    class Noting(WeakSet[Node]):
        def update(self, nodes: Iterable[Node]) -> None:
            noted.extend(nodes)
            super().update(nodes)

    worker, source = make_worker(draft_step())
    source._read = Noting()
    run(worker, shared_step(), requests(GREEDY, [150], tokens=60))
    assert len(noted) == len(set(noted)) == 209 // PAGE


def test_a_wrong_model_is_asked_less_and_less() -> None:
    """A chance that falls with every wrong draft leaves decoding alone in the end."""
    target = shared_step()
    source = ModelSource(draft_step(hidden_size=48), target.model.spec.vocab_size)
    (request,) = requests(GREEDY, [5], tokens=120)
    times = StepTimes(target.buckets)
    worker = Worker(
        target, Scheduler(target.shape, LIMITS), Drafting(target.buckets, [source], times)
    )
    replies = run(worker, target, [request])
    assert not plain(request).difference(replies["0"])
    # Of 120 tokens, each of which could be drafted 15 times over.
    assert 0 < worker.stats().drafted < 120


def test_what_was_read_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that the target shares are shared by the draft model, within a run and after it."""
    step = draft_step()
    worker, _ = make_worker(step)
    spans = reads(step, monkeypatch)
    (first,) = requests(GREEDY, [200], tokens=20)
    run(worker, shared_step(), [first])
    assert sum(len(span.tokens) for span in spans) >= 200
    spans.clear()
    replies = run(worker, shared_step(), [replace(first, id="again")])
    assert not plain(first).difference(replies["again"])
    # The last shared page ends at 192; eight rows of the prompt and the reply are left.
    assert min(span.position for span in spans) >= 192
    assert worker.stats().accepted == worker.stats().drafted > 0


def test_a_reply_that_yielded_is_read_anew() -> None:
    pages = 3
    worker, _ = make_worker(draft_step(), PagePool(pages))
    (behind,) = requests(SAMPLED, [100], tokens=60)
    events: list[Event] = []
    vocabulary = shared_step().model.spec.vocab_size
    worker.add(make_reply(replace(behind, background=True), events.append, vocabulary))
    for _ in range(9):
        worker.step()
    (ahead,) = requests(GREEDY, [150], tokens=3)
    replies = run(worker, shared_step(), [replace(ahead, id="ahead")])
    assert worker.stats().preempted == 1
    assert not plain(ahead).difference(replies["ahead"])
    assert not plain(behind).difference(trace(events))
    assert worker.stats().accepted == worker.stats().drafted > 0


def test_a_step_that_fails_costs_drafts_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    step = draft_step()
    worker, _ = make_worker(step)
    run_step, calls = step.run, iter(range(1000))

    def failing(*arguments: object, **named: object) -> object:
        if next(calls) == 3:
            raise RuntimeError("the draft model broke")
        return run_step(*arguments, **named)

    monkeypatch.setattr(step, "run", failing)
    asked = requests(GREEDY, [5, 70])
    replies = run(worker, shared_step(), asked)
    for request in asked:
        assert not plain(request).difference(replies[request.id])
    assert "a step of a draft source failed" in caplog.text


def test_tokens_that_the_draft_model_lacks_are_not_read() -> None:
    """A vocabulary filled up further than the draft model's, and a longer context."""
    small = tiny_checkpoint(vocab_size=280, max_position_embeddings=128, hidden_size=32)
    step = StepFunction(load(small), shared_step().shape, shared_step().buckets)
    step.compile()
    worker, _ = make_worker(step)
    asked = [
        Request("high", (5, 290, 7), GREEDY, 20),
        Request("low", (5, 6, 7), GREEDY, 20),
        Request("long", tuple(random_prompt(np.random.default_rng(0), 125, 280)), GREEDY, 20),
    ]
    replies = run(worker, shared_step(), asked)
    for request in asked:
        assert not plain(request).difference(replies[request.id])


def test_another_tokenizer_is_refused() -> None:
    small, large = tiny_checkpoint(), tiny_checkpoint(vocab_size=305)
    with pytest.raises(CheckpointError, match=r"token 300 is .* must have the same tokenizer"):
        load_draft_model(small, large)


def test_verify_and_stress_take_a_draft_model() -> None:
    step = open_step(tiny_checkpoint(), lanes=LANES, context=128, buckets=(8, 256))
    other = tiny_checkpoint(hidden_size=48)
    drafting = open_draft_steps(step, load_draft_model(other, tiny_checkpoint()))
    prompts = [random_prompt(np.random.default_rng(0), length) for length in (5, 70)]
    comparisons = list(verify(step, make_cases(prompts, tokens=6), drafting))
    assert [each for each in comparisons if each.difference] == []
    assert sum("drafted by the draft model" in each.name for each in comparisons) == 4
    rounds = list(Stress(step, prompts, 6, drafting).run(seconds=2, seed=1))
    assert rounds and not any(outcome.difference for _, outcome in rounds)


def test_a_model_that_never_pays_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose drafts cost more than a step of the target does: it stops reading."""
    step = draft_step()
    worker, source = make_worker(step)
    source.seconds = 10.0
    spans = reads(step, monkeypatch)
    (request,) = requests(GREEDY, [5], tokens=200)
    replies = run(worker, shared_step(), [request])
    assert not plain(request).difference(replies["0"])
    assert worker.stats().drafted == 0
    assert sum(len(span.tokens) for span in spans) <= 64 + 5
