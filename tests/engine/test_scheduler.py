"""Who runs next on a toy model: lanes, pages, the queue, and whose prompt gets the next chunk."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from toy import BROKEN, ToyRunner, ask, finish, make_worker, queue, solo

from tensorfold.engine.drafts.copies import CopySource
from tensorfold.engine.drafts.drafting import Drafting
from tensorfold.engine.reply import Reply
from tensorfold.engine.scheduler import RowLimits, Scheduler
from tensorfold.engine.worker import Worker
from tensorfold.runtime.packed import Span, pages_for
from tensorfold.runtime.step import Drawn, StateShape


def test_replies_start_in_the_order_they_came_even_when_a_later_one_would_fit() -> None:
    worker, _ = make_worker(StateShape(lanes=3, context=256, pages=5))
    sizes = {"large": 200, "larger": 250, "small": 10}
    listeners = {}
    for name, most in sizes.items():
        reply, listeners[name] = queue(ask(name, max_tokens=most))
        worker.add(reply)
    worker.step()
    assert [reply.request.id for reply in worker.scheduler.running] == ["large"]
    assert worker.stats().waiting == 2
    finish(worker)
    assert all(listeners[name].tokens == solo(ask(name, max_tokens=sizes[name])) for name in sizes)


def test_a_reply_takes_just_the_pages_it_may_need() -> None:
    worker, _ = make_worker()
    for prompt, most, pages in ((3, 61, 1), (3, 62, 2), (64, 1, 2), (1, 1, 1), (100, 156, 4)):
        reply, _ = queue(ask("one", range(prompt), most))
        worker.add(reply)
        worker.scheduler.admit()
        assert reply.holding is not None
        assert reply.holding.reserved == pages == pages_for(prompt + most)
        worker.cancel("one")


def test_a_prompt_gets_on_beside_any_number_of_running_replies() -> None:
    shape = StateShape(lanes=7, context=256, pages=28)
    limits = RowLimits(alone=8, beside=4, chunk=256, decode_share=0)
    worker, runner = make_worker(shape, limits)
    for index in range(6):
        worker.add(queue(ask(f"running {index}", max_tokens=200))[0])
    while len(runner.steps) < 20:
        worker.step()
    late, listener = queue(ask("late", range(20), 1))
    worker.add(late)
    for _ in range(20):
        worker.step()
    assert listener.tokens == solo(late.request)
    assert [len(spans) for spans in runner.steps[-20:]] == [7] * 20
    assert max(sum(len(span.tokens) for span in spans) for spans in runner.steps) <= 8


@pytest.mark.parametrize(("most", "paused"), [(124, 1), (125, 0)])
def test_a_background_reply_yields_only_where_that_makes_room(most: int, paused: int) -> None:
    """Ten of twelve pages are a foreground reply's, one the background's."""
    worker, _ = make_worker(StateShape(3, 640, 12))
    large, behind, ahead = ask("large", (1, 2, 3), 630), ask("behind", (4, 5), 60), ask("ahead")
    behind = replace(behind, background=True)
    ahead = replace(ahead, prompt=(6, 7, 8, 9), max_tokens=most)
    listeners = []
    for request in (large, behind, ahead):
        reply, listener = queue(request)
        listeners.append(listener)
        worker.add(reply)
        worker.step()
    running = [reply.request.id for reply in worker.scheduler.running]
    assert running == ["large", "ahead" if paused else "behind"]
    finish(worker)
    assert listeners[1].end.stats.preempted == paused
    for request, listener in zip((large, behind, ahead), listeners, strict=True):
        assert listener.tokens == solo(request)


def test_rows_that_a_reply_finds_of_its_own_are_not_cached_ones() -> None:
    worker, _ = make_worker(StateShape(1, 640, 20), RowLimits(chunk=64))
    worker.add(queue(ask("before", range(64), 1))[0])
    finish(worker)
    behind, listener = queue(ask("behind", [i % 90 for i in range(300)], 4, background=True))
    worker.add(behind)
    for number in range(4):
        worker.step()
        worker.add(queue(ask(f"ahead {number}", (1, 2, 3), 1))[0])
        worker.step()
    finish(worker)
    assert listener.end.stats.preempted == 4
    assert listener.end.stats.cached_tokens == 64
    assert worker.stats().cached_tokens == 64


@pytest.mark.parametrize(("drafting", "between"), [(0, 8), (1, 4), (3, 2)])
def test_running_replies_get_their_share_of_the_time(
    drafting: int, between: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk takes 16 ms and a step of one row 1 ms, beside what drafting for it takes."""
    clock = SimpleNamespace(now=1000)
    monkeypatch.setattr(
        "tensorfold.engine.worker.time", SimpleNamespace(monotonic=lambda: clock.now)
    )

    class Toy(ToyRunner):
        def run(self, spans: Sequence[Span], *arrays: np.ndarray) -> list[Drawn]:
            clock.now += 16 if len(spans) > 1 else 1
            return super().run(spans, *arrays)

    class Source(CopySource):
        def follow(self, replies: Sequence[Reply]) -> None:
            clock.now += drafting

    shape = StateShape(lanes=2, context=1280, pages=40)
    runner = Toy(shape)
    scheduler = Scheduler(shape, RowLimits(beside=33, decode_share=0.5))
    worker = Worker(runner, scheduler, Drafting(runner.buckets, [Source()]))
    worker.add(queue(ask("running", max_tokens=100))[0])
    for _ in range(5):
        worker.step()
    runner.steps.clear()
    worker.add(queue(ask("long", [i % 90 for i in range(32 * 4)], 1))[0])
    for _ in range(3 + 3 * between):
        worker.step()
    chunks = [index for index, spans in enumerate(runner.steps) if len(spans) > 1]
    assert chunks == [index * (between + 1) for index in range(3)]


def test_no_prompt_waits_behind_any_number_of_long_ones() -> None:
    """More are overdue at a time than get a chunk before the first is overdue again."""
    lanes, context = 14, 64 * 40
    shape = StateShape(lanes, context, lanes * 40)
    worker, _ = make_worker(shape, RowLimits(alone=64, beside=64, chunk=64))
    for index in range(lanes - 1):
        prompt = [(index + i * (index + 1)) % BROKEN for i in range(64 * 39)]
        worker.add(queue(ask(f"long {index}", prompt, 2))[0])
    for _ in range(40):
        worker.step()
    late, listener = queue(ask("late", (3, 1, 4), 1))
    worker.add(late)
    most = 0
    for _ in range(lanes + 1):
        worker.step()
        most = max(most, *(reply.passed_over for reply in worker.scheduler.running))
    assert listener.tokens == solo(late.request)
    assert most <= lanes
    worker.end_all("cancelled")


def test_lanes_must_leave_room_for_a_prompt() -> None:
    with pytest.raises(ValueError, match="8 lanes do not fit a step of 8 rows"):
        Scheduler(StateShape(lanes=8, context=64, pages=8), RowLimits(alone=8))
