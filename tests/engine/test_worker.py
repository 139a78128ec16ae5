"""Scheduler and worker on a toy model: whatever the traffic, a reply is what it is alone."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import (
    BROKEN,
    SHAPE,
    VOCABULARY,
    Listener,
    ToyRunner,
    ask,
    finish,
    make_worker,
    queue,
    solo,
    solo_pairs,
)

from tensorfold.engine.drafts.copies import CopySource
from tensorfold.engine.drafts.drafting import Drafting
from tensorfold.engine.interface import Finished, NewTokens, PromptLogprobs, Request, Sampling
from tensorfold.engine.masks import allows, mask_of
from tensorfold.engine.pages import PagePool
from tensorfold.engine.scheduler import RowLimits, Scheduler
from tensorfold.engine.thread import make_reply
from tensorfold.engine.worker import Worker
from tensorfold.runtime.head import HeadDrawn, HeadRow
from tensorfold.runtime.step import StateShape


def assert_all_free(worker: Worker) -> None:
    assert worker.idle
    stats = worker.stats()
    assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0)
    # The next replies find every lane, and every page exactly once.
    shape = worker.runner.shape
    replies = [queue(ask(f"all {i}", max_tokens=61))[0] for i in range(shape.lanes)]
    for reply in replies:
        worker.add(reply)
    assert sorted(reply.lane for reply in worker.scheduler.admit()) == list(range(shape.lanes))
    worker.end_all("cancelled")
    reply, _ = queue(ask("large", max_tokens=shape.context - 3))
    worker.add(reply)
    worker.scheduler.admit()
    assert reply.holding is not None
    assert reply.holding.reserved == shape.pages_per_lane
    worker.end_all("cancelled")
    assert worker.scheduler.pool.available == shape.pages


@dataclass(frozen=True)
class Arrival:
    request: Request
    step: int
    cancel: int | None
    """Steps after its arrival at which the client goes."""


class EveryOther:
    """A constraint: a token of the other parity than the one before it; after 7 comes 8."""

    def __init__(self) -> None:
        self.last = 0

    def masks(self, drafts: Sequence[int]) -> list[np.ndarray]:
        masks, last = [], self.last
        for draft in [*drafts, None]:
            masks.append(self._mask(last))
            if draft is None or not allows(masks[-1], draft):
                break
            last = draft
        return masks

    def forced(self) -> list[int]:
        return [8] if self.last == 7 else []

    def accept(self, token: int) -> None:
        assert allows(self._mask(self.last), token)
        self.last = token

    def _mask(self, last: int) -> np.ndarray:
        if last == 7:
            return mask_of([8], VOCABULARY)
        return np.full(4, 0x55555555 if last % 2 else 0xAAAAAAAA, np.uint32)


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.just(1.0),
    seed=st.none() | st.integers(0, 3),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.25]),
    logit_bias=st.sampled_from([(), (), ((3, 2.0),)]),
    min_tokens=st.sampled_from([0, 0, 4]),
)


def check_pages(worker: Worker) -> None:
    """Every page is free, kept, or in block tables; a page in two tables holds equal prefixes."""
    scheduler = worker.scheduler
    holder: dict[int, tuple[int, ...]] = {}
    for reply in scheduler.running:
        assert reply.holding is not None
        pages = reply.holding.pages
        table = scheduler.block_table[reply.lane, : len(pages)].tolist()
        assert table == pages or reply.holding.changed
        for index, page in enumerate(pages):
            prefix = tuple(reply.known[: 64 * (index + 1)])
            shared = index < len(reply.holding.path) - 1
            assert page not in holder or (shared and holder[page] == prefix)
            holder[page] = prefix
    assert worker.stats().pages_used == len(holder)
    assert scheduler.pool.available >= 0
    assert worker.stats().pages_cached + len(holder) <= worker.stats().pages_total


@st.composite
def traffic(draw: st.DrawFn) -> list[Arrival]:
    arrivals = []
    for index in range(draw(st.integers(1, 9))):
        length = draw(st.sampled_from([1, 2, 7, 63, 64, 65, 100, 150]))
        start = draw(st.integers(0, VOCABULARY - 2))
        # Sequences of step 1 and one start have prefixes in common.
        stride = draw(st.sampled_from([1, 1, index + 1]))
        prompt = tuple((start + i * stride) % BROKEN for i in range(length))
        most = draw(st.sampled_from([1, 2, 5, 20, 70]))
        request = Request(
            f"reply {index}",
            prompt,
            draw(SAMPLINGS),
            max_tokens=most,
            end_ids=frozenset(draw(st.sets(st.integers(0, VOCABULARY), max_size=2))),
            draft=draw(st.booleans()),
            background=draw(st.booleans()),
            cache_salt=draw(st.sampled_from(["", "", "other"])),
            constraint=draw(st.sampled_from([None, None, EveryOther])),
            logprobs=draw(st.sampled_from([None, None, 2])),
            prompt_logprobs=draw(st.sampled_from([None, None, None, 1])),
        )
        step = draw(st.integers(0, 30))
        arrivals.append(Arrival(request, step, draw(st.none() | st.integers(0, 40))))
    return sorted(arrivals, key=lambda arrival: arrival.step)


LIMITS = st.builds(
    RowLimits,
    alone=st.sampled_from([16, 64, 256]),
    beside=st.sampled_from([1, 4, 16]),
    chunk=st.sampled_from([1, 3, 16, 256]),
) | st.just(RowLimits(alone=4, beside=4, chunk=4))


@settings(max_examples=250)
@given(arrivals=traffic(), limits=LIMITS, pages=st.integers(4, 12))
def test_every_reply_is_what_it_is_alone(
    arrivals: list[Arrival], limits: RowLimits, pages: int
) -> None:
    worker, runner = make_worker(StateShape(lanes=3, context=256, pages=pages), limits)
    listeners: dict[str, Listener] = {}
    started: list[str] = []
    waiting = list(arrivals)
    step = 0
    while waiting or not worker.idle:
        while waiting and waiting[0].step <= step:
            request = waiting.pop(0).request
            listeners[request.id] = Listener()
            worker.add(make_reply(request, listeners[request.id], VOCABULARY))
        for arrival in arrivals:
            if arrival.cancel is not None and arrival.step + arrival.cancel == step:
                worker.cancel(arrival.request.id)
        worker.step()
        running = worker.scheduler.running
        started += [reply.request.id for reply in running if reply.request.id not in started]
        assert len({reply.lane for reply in running}) == len(running)
        check_pages(worker)
        step += 1
        assert step < 3000
    for background in (False, True):
        order = [a.request.id for a in arrivals if a.request.background == background]
        assert [each for each in started if each in order] == [e for e in order if e in started]
    for spans in runner.steps:
        assert sum(len(span.tokens) for span in spans) <= limits.alone
        # A span with more draws holds drafts, which no prompt waits for.
        assert all(len(span.tokens) <= limits.chunk for span in spans if span.draws == 1)
    for arrival in arrivals:
        request, listener = arrival.request, listeners[arrival.request.id]
        pairs = solo_pairs(request)
        wanted = [token for token, _ in pairs]
        assert listener.digests == [digest for _, digest in pairs[: len(listener.tokens)]]
        if listener.end.reason == "cancelled":
            assert arrival.cancel is not None
            assert listener.tokens == wanted[: len(listener.tokens)]
        else:
            assert listener.tokens == wanted
            stopped = bool(wanted) and wanted[-1] in request.end_ids
            assert listener.end.reason == ("stop" if stopped else "length")
        assert listener.end.stats.completion_tokens == len(listener.tokens)
        assert listener.end.stats.prompt_tokens == len(request.prompt)
        assert listener.end.stats.cached_tokens < len(request.prompt)
    assert_all_free(worker)


@pytest.mark.parametrize("steps", range(6))
def test_log_probabilities_of_a_prompt_that_yields_come_once(steps: int) -> None:
    worker, _ = make_worker(StateShape(1, 256, 4), RowLimits(chunk=16))
    prompt = tuple(range(1, 61))
    behind = ask("behind", prompt, 9, background=True, prompt_logprobs=0)
    reply, listener = queue(behind)
    worker.add(reply)
    for _ in range(steps):
        worker.step()
    worker.add(queue(ask("ahead", (1, 2, 3), 4))[0])
    finish(worker)
    first, *_ = listener.events
    assert isinstance(first, PromptLogprobs)
    assert tuple(entry.token for entry in first.tokens) == prompt[1:]
    assert listener.tokens == solo(behind)
    assert listener.end.stats.preempted == (steps > 0)


@pytest.mark.parametrize("stage", ["follow", "copy", "saw"])
def test_a_step_counts_as_stuck_wherever_it_is(stage: str) -> None:
    """Draft sources run models of their own before and after the model's step."""
    seen: list[float] = []

    def look(*arguments: object) -> None:
        time.sleep(0.001)
        seen.append(worker.stats().step_seconds)

    class Source(CopySource):
        takes_hidden = True

    class Toy(ToyRunner):
        def hidden(self) -> np.ndarray:
            return np.zeros((64, 1), np.float32)

        def copy_page(self, source: int, target: int) -> None:
            super().copy_page(source, target)
            look()

    source, toy = Source(), Toy(SHAPE)
    drafting = Drafting(toy.buckets, [source])
    worker = Worker(toy, Scheduler(SHAPE), drafting)
    if stage != "copy":
        setattr(source, stage, look)
    for name in ("any", "again"):
        worker.add(queue(ask(name, range(20)))[0])
        finish(worker)
    assert seen and min(seen) > 0
    assert worker.stats().step_seconds == 0


def test_a_failed_step_ends_its_replies_and_the_next_ones_are_served() -> None:
    worker, runner = make_worker()
    runner.fail_on = {7}
    early = [queue(ask(f"early {i}", max_tokens=20)) for i in range(3)]
    queued, queued_listener = queue(ask("queued", max_tokens=20))
    for reply, _ in early:
        worker.add(reply)
    worker.add(queued)
    finish(worker)
    for reply, listener in early:
        assert listener.end.reason == "error"
        assert listener.end.error == "the step failed: the toy broke"
        assert 4 <= len(listener.tokens) < 20
        assert listener.tokens == solo(reply.request)[: len(listener.tokens)]
    assert queued_listener.end.reason == "length"
    assert queued_listener.tokens == solo(queued.request)
    assert runner.resets == 2
    assert_all_free(worker)


@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_receiver_that_fails_ends_only_its_own_reply(at: int) -> None:
    worker, _ = make_worker()
    seen = 0

    def fail(event: object) -> None:
        nonlocal seen
        seen += 1
        if seen == at + 1:
            raise OSError("the client has gone")

    failing, other = Listener(on_event=fail), Listener()
    worker.add(make_reply(ask("failing"), failing, VOCABULARY))
    worker.add(make_reply(ask("other"), other, VOCABULARY))
    finish(worker)
    assert failing.tokens == solo(ask("failing"))[: at + 1]
    assert failing.end.reason == "cancelled"
    assert other.tokens == solo(ask("other"))
    assert other.end.reason == "length"
    assert worker.stats().cancelled == 1
    assert_all_free(worker)


def test_a_receiver_that_fails_at_the_end_stops_nothing() -> None:
    worker, _ = make_worker()

    def fail(event: object) -> None:
        if not isinstance(event, NewTokens):
            raise OSError("the client has gone")

    other = Listener()
    worker.add(make_reply(ask("failing", max_tokens=2), Listener(on_event=fail), VOCABULARY))
    worker.add(make_reply(ask("other"), other, VOCABULARY))
    finish(worker)
    assert other.tokens == solo(ask("other"))
    assert_all_free(worker)


def test_logits_that_are_no_numbers_end_only_their_reply() -> None:
    worker, _ = make_worker()
    broken, broken_listener = queue(ask("broken", (1, BROKEN)))
    other, other_listener = queue(ask("other"))
    worker.add(broken)
    worker.add(other)
    finish(worker)
    assert broken_listener.tokens == []
    assert broken_listener.end.reason == "error"
    assert broken_listener.end.error == "the model's logits are not finite numbers"
    assert other_listener.tokens == solo(other.request)
    assert_all_free(worker)


def test_a_queued_reply_that_is_cancelled_never_starts() -> None:
    worker, runner = make_worker(StateShape(lanes=1, context=256, pages=4))
    first, _ = queue(ask("first"))
    second, listener = queue(ask("second", (9, 9)))
    worker.add(first)
    worker.step()
    worker.add(second)
    worker.cancel("second")
    assert listener.end.reason == "cancelled"
    assert listener.end.stats.time_to_first_token == 0
    finish(worker)
    assert not any(9 in span.tokens for spans in runner.steps for span in spans)


def test_unknown_ids_are_ignored_and_end_all_ends_all() -> None:
    worker, _ = make_worker(StateShape(lanes=1, context=256, pages=4))
    replies = [queue(ask(f"{i}")) for i in range(3)]
    for reply, _ in replies:
        worker.add(reply)
    worker.step()
    worker.cancel("no such reply")
    worker.end_all("cancelled")
    assert [listener.end.reason for _, listener in replies] == ["cancelled"] * 3
    assert_all_free(worker)


def test_figures_count_the_tokens_of_running_replies() -> None:
    worker, _ = make_worker()
    listeners = []
    for name, most in (("short", 2), ("long", 9), ("longer", 12)):
        reply, listener = queue(ask(name, max_tokens=most))
        worker.add(reply)
        listeners.append(listener)
    for _ in range(5):
        worker.step()
    ended, *running = listeners
    assert isinstance(ended.events[-1], Finished)
    assert worker.stats().running_tokens == sum(len(each.tokens) for each in running) > 0
    finish(worker)
    assert worker.stats().running_tokens == 0


def test_figures_count_what_was_done() -> None:
    worker, runner = make_worker()
    listeners = []
    for index in range(4):
        reply, listener = queue(ask(f"{index}", range(10 + index), 6))
        worker.add(reply)
        listeners.append(listener)
    finish(worker)
    stats = worker.stats()
    assert stats.requests == 4
    assert stats.prompt_tokens + stats.cached_tokens == 10 + 11 + 12 + 13
    assert stats.generated_tokens == 24
    assert stats.steps == len(runner.steps)
    assert stats.pages_total == SHAPE.pages
    assert stats.decode_tokens_per_second == 12
    assert stats.prefill_tokens_per_second == stats.prompt_tokens / 2
    for listener in listeners:
        cost = listener.end.stats
        assert cost.rounds == cost.completion_tokens == 6
        assert 0 <= cost.prefill_seconds <= cost.time_to_first_token
        assert cost.decode_seconds >= 0


@pytest.mark.parametrize("lies", [False, True])
def test_a_reply_under_rules_is_drawn_again_and_compared(
    lies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It yields; its tokens so far are drawn once more under the rules that they had."""
    shape = StateShape(1, 640, 20)
    toy = ToyRunner(shape)
    worker = Worker(toy, Scheduler(shape, RowLimits(chunk=16), PagePool(20, kept=0)))
    sampling = Sampling(temperature=1.0, seed=5, presence_penalty=1.0, min_tokens=20)
    behind = Request("behind", tuple(range(1, 41)), sampling, 60, background=True)
    reply, listener = queue(behind)
    worker.add(reply)
    for _ in range(30):
        worker.step()
    drawn = len(listener.tokens)
    assert drawn > 20
    honest, again = toy.draw, []

    def draw(rows: Sequence[HeadRow]) -> list[HeadDrawn]:
        found = honest(rows)
        again.extend(row.position for row in rows)
        if lies and 50 in again:
            found = [replace(each, token=(each.token + 1) % BROKEN) for each in found]
        return found

    monkeypatch.setattr(toy, "draw", draw)
    other, beside = queue(ask("ahead", (1, 2, 3), 4))
    worker.add(other)
    while not worker.idle:
        worker.step()
    assert beside.tokens == solo(other.request)
    assert again[: drawn + 1] == list(range(40, 41 + drawn)) or lies
    if lies:
        assert listener.end.reason == "error"
        assert "came out otherwise" in str(listener.end.error)
    else:
        assert listener.tokens == solo(behind)
        assert listener.end.stats.preempted == 1
