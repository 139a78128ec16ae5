"""The engine's thread: asked from any other, on a toy model and on a real one."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import open_step, random_prompt, tiny_checkpoint
from toy import VOCABULARY, Listener, ToyRunner, ask, solo

from tensorfold.engine.interface import (
    EngineClosed,
    EngineFull,
    Event,
    Finished,
    Limits,
    Request,
    Sampling,
)
from tensorfold.engine.scheduler import Scheduler
from tensorfold.engine.start import start_engine
from tensorfold.engine.thread import ThreadEngine
from tensorfold.engine.worker import Worker
from tensorfold.runtime.compilation import CompileCounter
from tensorfold.runtime.step import StateShape

SHAPE = StateShape(lanes=3, context=256, pages=8)


class Waiter(Listener):
    """A listener that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self._done = threading.Event(), threading.Event()

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        self.started.set()
        if isinstance(event, Finished):
            self._done.set()

    def wait(self) -> "Waiter":
        assert self._done.wait(30)
        return self


class HeldRunner(ToyRunner):
    """A toy that runs a step only while it is let, and no longer after `last` of them."""

    def __init__(self, shape: StateShape, last: int = 0):
        super().__init__(shape)
        self.go, self.stepping = threading.Event(), threading.Event()
        self.last = last

    def run(self, *arguments: object) -> list:
        self.stepping.set()
        assert self.go.wait(30)
        answers = super().run(*arguments)
        if len(self.steps) == self.last:
            self.go.clear()
        return answers


@contextmanager
def engine_on(runner: ToyRunner, most_waiting: int | None = None) -> Iterator[ThreadEngine]:
    engine = ThreadEngine(
        Worker(runner, Scheduler(runner.shape)),
        Limits(runner.shape.context, VOCABULARY, runner.shape.lanes, most_waiting),
    )
    try:
        yield engine
    finally:
        engine.close()


def test_requests_of_many_threads_get_their_own_replies() -> None:
    with engine_on(ToyRunner(SHAPE)) as engine:

        def client(number: int) -> None:
            rng = np.random.default_rng(number)
            for turn in range(8):
                length = int(rng.integers(1, 100))
                request = ask(
                    f"{number} {turn}", random_prompt(rng, length, 90), int(rng.integers(1, 30))
                )
                waiter = Waiter()
                engine.submit(request, waiter)
                if rng.random() < 0.3:
                    engine.cancel(request.id)
                waiter.wait()
                wanted = solo(request)
                if waiter.end.reason == "cancelled":
                    assert waiter.tokens == wanted[: len(waiter.tokens)]
                else:
                    assert waiter.tokens == wanted

        with ThreadPoolExecutor(12) as threads:
            for done in [threads.submit(client, number) for number in range(12)]:
                done.result()
        stats = engine.stats()
    assert stats.requests == 96
    assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0)


def test_close_ends_everything() -> None:
    runner = HeldRunner(SHAPE)
    waiters = [Waiter() for _ in range(6)]
    with engine_on(runner) as engine:
        for index, waiter in enumerate(waiters):
            engine.submit(ask(f"{index}", max_tokens=200), waiter)
        assert runner.stepping.wait(30)
        closing = threading.Thread(target=engine.close)
        closing.start()
        runner.go.set()
        closing.join(30)
        assert not closing.is_alive()
        assert [waiter.wait().end.reason for waiter in waiters] == ["cancelled"] * 6
        with pytest.raises(EngineClosed):
            engine.submit(ask("late"), Waiter())
        engine.cancel("0")  # which is harmless
        assert engine.stats().running == engine.stats().waiting == 0


def test_a_queued_request_that_is_cancelled_never_starts() -> None:
    runner = HeldRunner(StateShape(lanes=1, context=256, pages=4))
    with engine_on(runner) as engine:
        first, second, third = Waiter(), Waiter(), Waiter()
        engine.submit(ask("first"), first)
        assert runner.stepping.wait(30)
        engine.submit(ask("second", (7, 7)), second)
        engine.submit(ask("third", (8, 8)), third)
        engine.cancel("second")
        runner.go.set()
        assert second.wait().end.reason == "cancelled"
        assert second.tokens == []
        assert third.wait().tokens == solo(ask("third", (8, 8)))
    ran = [token for spans in runner.steps for span in spans for token in span.tokens]
    assert 7 not in ran and 8 in ran


def test_a_running_request_is_cancelled_at_the_next_step() -> None:
    runner = HeldRunner(SHAPE)
    with engine_on(runner) as engine:
        waiter = Waiter()
        engine.submit(ask("one", max_tokens=200), waiter)
        assert runner.stepping.wait(30)
        engine.cancel("one")
        runner.go.set()
        assert waiter.wait().end.reason == "cancelled"
        assert len(waiter.tokens) == 1
        assert engine.stats().cancelled == 1


def taken(engine: ThreadEngine, *requests: Request) -> list[bool]:
    """Of each request, whether the engine took it."""
    answers = []
    for request in requests:
        try:
            engine.submit(request, Waiter())
            answers.append(True)
        except EngineFull as error:
            assert "(--max-queue)" in str(error)
            answers.append(False)
    return answers


def test_no_more_wait_than_may() -> None:
    runner = HeldRunner(StateShape(lanes=2, context=256, pages=8))
    with engine_on(runner, most_waiting=3) as engine:
        running = [ask(f"running {i}", max_tokens=200) for i in range(2)]
        assert taken(engine, *running) == [True, True]
        assert runner.stepping.wait(30)
        assert taken(engine, *[ask(f"{i}") for i in range(5)]) == [True] * 3 + [False] * 2
        runner.go.set()


def test_choices_of_one_request_count_once() -> None:
    runner = HeldRunner(StateShape(lanes=1, context=256, pages=4))
    with engine_on(runner, most_waiting=1) as engine:
        choices = [Waiter() for _ in range(5)]
        for index, waiter in enumerate(choices):
            engine.submit(ask(f"choice {index}"), waiter, joins=index > 0)
        assert taken(engine, ask("another")) == [False]
        runner.go.set()
        assert [len(waiter.wait().tokens) for waiter in choices] == [len(solo(ask("")))] * 5


def test_the_background_takes_no_place_from_others() -> None:
    runner = HeldRunner(StateShape(lanes=2, context=256, pages=8))
    with engine_on(runner, most_waiting=2) as engine:
        behind = [ask(f"behind {i}", max_tokens=200, background=True) for i in range(6)]
        assert taken(engine, *behind[:2]) == [True] * 2
        assert runner.stepping.wait(30)
        assert taken(engine, *behind[2:]) == [True] * 2 + [False] * 2
        # Two take the lanes of the background, and two wait.
        ahead = [ask(f"ahead {i}", max_tokens=20) for i in range(5)]
        assert taken(engine, *ahead) == [True] * 4 + [False]
        runner.go.set()


def test_a_lane_without_pages_is_no_place() -> None:
    runner = HeldRunner(StateShape(lanes=4, context=256, pages=4), last=5)
    with engine_on(runner, most_waiting=2) as engine:
        large = [ask(f"{i}", max_tokens=250) for i in range(8)]
        assert taken(engine, large[0], large[1]) == [True, True]
        assert runner.stepping.wait(30)
        runner.go.set()
        while engine.stats().waiting + engine.stats().running < 2 or engine.stats().steps < 5:
            time.sleep(0.001)
        assert taken(engine, *large[2:]) == [True] + [False] * 5
        runner.go.set()


def test_replies_on_their_way_to_the_queue_count() -> None:
    """Commands that came during a step are followed one by one after it."""
    runner = HeldRunner(StateShape(lanes=1, context=256, pages=4))
    with engine_on(runner, most_waiting=2) as engine:
        answers: list[bool] = []

        def ask_again(event: Event) -> None:
            if isinstance(event, Finished):
                answers.extend(taken(engine, *[ask(f"late {i}") for i in range(3)]))

        engine.submit(ask("first", max_tokens=200), ask_again)
        assert runner.stepping.wait(30)
        engine.cancel("first")
        assert taken(engine, ask("second"), ask("third")) == [True, True]
        runner.go.set()
        while not answers:
            time.sleep(0.001)
    # The lane of the first is free by then.
    assert answers == [True, False, False]


def test_a_fault_of_the_engine_ends_its_replies_and_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = HeldRunner(SHAPE)
    with engine_on(runner) as engine:
        waiters = [Waiter() for _ in range(5)]
        for index, waiter in enumerate(waiters):
            engine.submit(ask(f"{index}", max_tokens=50), waiter)
        assert runner.stepping.wait(30)
        with monkeypatch.context() as patch:
            failed = threading.Event()

            def plan(scheduler: Scheduler) -> None:
                failed.set()
                raise AssertionError("out of order")

            patch.setattr(Scheduler, "decoding", plan)
            runner.go.set()
            assert failed.wait(30)
            for waiter in waiters:
                assert waiter.wait().end.reason == "error"
                assert waiter.end.error == "the engine failed: out of order"
        again = Waiter()
        engine.submit(ask("again"), again)
        assert again.wait().tokens == solo(ask("again"))
        assert engine.stats().pages_used == 0


def test_a_command_that_fails_takes_no_other_along(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = HeldRunner(SHAPE)
    with engine_on(runner) as engine:
        first, second = Waiter(), Waiter()
        engine.submit(ask("first"), first)
        assert runner.stepping.wait(30)

        def fail(worker: Worker, request_id: str) -> None:
            raise AssertionError("out of order")

        monkeypatch.setattr(Worker, "cancel", fail)
        engine.cancel("first")
        engine.submit(ask("second"), second)
        runner.go.set()
        assert first.wait().end.error == "the engine failed: out of order"
        assert second.wait().tokens == solo(ask("second"))


def test_the_thread_sleeps_while_there_is_nothing_to_do() -> None:
    with engine_on(ToyRunner(SHAPE)) as engine:
        waiter = Waiter()
        engine.submit(ask("one"), waiter)
        waiter.wait()
        before = time.process_time()
        time.sleep(0.2)
        assert time.process_time() - before < 0.1
        again = Waiter()
        engine.submit(ask("two"), again)
        assert again.wait().tokens == waiter.tokens


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ((), 5, "the prompt is empty"),
        ((1,), 0, "max_tokens must be at least 1"),
        ((1,), -3, "max_tokens must be at least 1"),
        ((1, VOCABULARY), 5, "prompt token ids must be between 0 and 96"),
        ((-1, 1), 5, "prompt token ids must be between 0 and 96"),
        ((1,) * 250, 7, "257 tokens do not fit the context of 256"),
    ],
)
def test_a_request_that_can_never_run_is_refused(
    prompt: tuple[int, ...], max_tokens: int, message: str
) -> None:
    with engine_on(ToyRunner(SHAPE)) as engine:
        with pytest.raises(ValueError, match=f"^{message}$"):
            engine.submit(ask("one", prompt, max_tokens), Waiter())
        assert engine.stats().requests == 0
        longest = Waiter()
        engine.submit(ask("one", (1,) * 250, 6), longest)
        assert longest.wait().end.reason == "length"


def test_the_counter_counts_programs_by_thread() -> None:
    counter = CompileCounter()
    mine = threading.get_ident()
    before = counter.of_thread(mine)
    jax.jit(lambda x: x * 3 + len("new"))(jnp.arange(7)).block_until_ready()
    assert counter.of_thread(mine) > before
    assert counter.of_thread(mine + 1) == counter.of_thread(None) == 0
    counter.close()
    count = counter.of_thread(mine)
    jax.jit(lambda x: x * 5 + len("newer"))(jnp.arange(7)).block_until_ready()
    assert counter.of_thread(mine) == count


def test_serving_compiles_nothing() -> None:
    step = open_step(tiny_checkpoint("llama tied"), lanes=3)
    engine = start_engine(step)
    rng = np.random.default_rng(0)
    waiters = []
    for index in range(12):
        sampling = Sampling(
            temperature=float(rng.choice([0.0, 0.7, 1.5])),
            top_k=int(rng.choice([0, 5, 280])),
            top_p=float(rng.choice([1.0, 0.9])),
            min_p=float(rng.choice([0.0, 0.1])),
        )
        prompt = random_prompt(rng, int(rng.integers(1, 90)))
        waiter = Waiter()
        waiters.append(waiter)
        engine.submit(Request(f"{index}", tuple(prompt), sampling, index + 1), waiter)
        if index % 5 == 4:
            engine.cancel(f"{index}")
    for index, waiter in enumerate(waiters):
        reason = waiter.wait().end.reason
        assert reason in (("length", "cancelled") if index % 5 == 4 else ("length",))
    assert engine.stats().recompilations == 0
    # The counter would tell: make the engine's own thread compile something.
    probe = Waiter()
    probe.on_event = lambda event: jax.jit(lambda x: x - len(repr(event)))(jnp.arange(5))
    engine.submit(Request("compile", (1,), Sampling(), 1), probe)
    probe.wait()
    assert engine.stats().recompilations > 0
    engine.close()
