"""Lanes with state of their own: sequences go on from snapshots, and are the same."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import Listener, RecurrentToy, ask, queue, solo

from tensorfold.engine.interface import Request
from tensorfold.engine.pages import PagePool
from tensorfold.engine.scheduler import RowLimits, Scheduler
from tensorfold.engine.snapshots import Snapshots
from tensorfold.engine.worker import Worker
from tensorfold.ops.rows import PAGE
from tensorfold.runtime.step import StateShape

LIMITS = RowLimits(alone=256, beside=64, chunk=100)


def make_worker(lanes: int = 3, snapshots: int = 4, pages: int = 30) -> Worker:
    shape = StateShape(lanes, 640, pages, snapshots=snapshots)
    scheduler = Scheduler(shape, LIMITS, PagePool(pages, None, snapshots))
    return Worker(RecurrentToy(shape), scheduler)


def run(worker: Worker, *requests: Request) -> list[Listener]:
    listeners = []
    for request in requests:
        reply, listener = queue(request)
        worker.add(reply)
        listeners.append(listener)
    while not worker.idle:
        worker.step()
    for request, listener in zip(requests, listeners, strict=True):
        assert listener.tokens == solo(request)
    return listeners


def text(seed: int, length: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 90, length).tolist())


def test_the_next_turn_goes_on_where_the_reply_ended() -> None:
    worker = make_worker()
    first = ask("1", text(0, 150), max_tokens=50)
    (answer,) = run(worker, first)
    turn = replace(first, id="2", prompt=(*first.prompt, *answer.tokens, *text(1, 40)))
    (again,) = run(worker, turn)
    # 199 rows have run: the last of the reply's tokens never did.
    assert again.end.stats.cached_tokens == 3 * PAGE


def test_another_end_of_the_same_prompt_goes_on_from_the_prompt() -> None:
    worker = make_worker()
    first = ask("1", text(0, 150), max_tokens=50)
    run(worker, first)
    (again,) = run(worker, ask("2", (*first.prompt, *text(1, 40))))
    assert again.end.stats.cached_tokens == 2 * PAGE


def test_what_two_prompts_share_is_kept_for_the_third() -> None:
    """The second one stops where they part."""
    worker = make_worker()
    system = text(0, 3 * PAGE + 20)
    cached = [
        run(worker, ask(str(i), (*system, *text(i, 100))))[0].end.stats.cached_tokens
        for i in range(1, 5)
    ]
    assert cached == [0, 0, 3 * PAGE, 3 * PAGE]


def test_the_snapshot_used_longest_ago_makes_room() -> None:
    worker = make_worker(snapshots=2)
    prompts = [text(seed, 100) for seed in range(3)]
    for index, prompt in enumerate(prompts):
        run(worker, ask(str(index), prompt, max_tokens=2))
    cached = [
        run(worker, ask(f"again {index}", prompts[index], max_tokens=2))[0].end.stats.cached_tokens
        for index in (2, 1, 0)
    ]
    assert cached == [PAGE, PAGE, 0]


def test_without_slots_nothing_is_shared_and_nothing_kept() -> None:
    worker = make_worker(snapshots=0)
    request = ask("1", text(0, 150))
    for _ in range(2):
        assert run(worker, request)[0].end.stats.cached_tokens == 0
    assert worker.stats().pages_cached == 0


def test_a_background_reply_that_yields_goes_on_from_its_snapshot() -> None:
    worker = make_worker(lanes=1, pages=20)
    behind = ask("behind", text(0, 150), max_tokens=100, background=True)
    reply, listener = queue(behind)
    worker.add(reply)
    for _ in range(60):
        worker.step()
    drawn = len(listener.tokens)
    assert 0 < drawn < 100
    run(worker, ask("ahead", text(1, 20)))
    assert listener.tokens == solo(behind)
    assert listener.end.stats.preempted == 1
    toy = worker.runner
    assert isinstance(toy, RecurrentToy)
    starts = [span.position for step in toy.steps for span in step if len(span.tokens) > 1]
    assert (150 + drawn) // PAGE * PAGE in starts


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_traffic_is_as_each_reply_alone(data: st.DataObject) -> None:
    """The toy's lanes check that they are asked to go on only where they can."""
    worker = make_worker(
        lanes=data.draw(st.integers(1, 3)),
        snapshots=data.draw(st.integers(0, 3)),
        pages=data.draw(st.integers(10, 30)),
    )
    waiting = []
    for index in range(data.draw(st.integers(1, 8))):
        parts = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
        prompt = tuple(token for part in parts for token in text(part, PAGE))
        prompt = prompt[: data.draw(st.integers(1, len(prompt)))]
        background = data.draw(st.booleans())
        asked = ask(str(index), prompt, data.draw(st.integers(1, 90)), background=background)
        waiting.append((data.draw(st.integers(0, 30)), data.draw(st.integers(0, 60)), asked))
    listeners, step = {}, 0
    while waiting or not worker.idle:
        for entry in [entry for entry in waiting if entry[0] <= step]:
            waiting.remove(entry)
            reply, listeners[entry] = queue(entry[2])
            worker.add(reply)
        for _, end, asked in listeners:
            if end == step:
                worker.cancel(asked.id)
        worker.step()
        step += 1
    for (_, _, asked), listener in listeners.items():
        wanted = solo(asked)
        if listener.end.reason == "cancelled":
            wanted = wanted[: len(listener.tokens)]
        assert listener.tokens == wanted
    assert worker.stats().pages_used == 0


def test_slots() -> None:
    slots = Snapshots(2)
    assert {slots.add("a"), slots.add("b")} == {0, 1}
    a, b = slots.use("a"), slots.use("b")
    slots.use("a")
    assert slots.add("c") == b
    assert "b" not in slots and slots.use("a") == a
    slots.drop("a")
    slots.drop("a")
    assert slots.add("d") == a
    with pytest.raises(KeyError):
        slots.use("a")
