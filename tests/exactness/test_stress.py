"""Random traffic: nothing differs on a sound engine, and what differs is found and shrunk."""

from itertools import islice

import numpy as np
import pytest
from platforms import IMPLEMENTATIONS
from tiny import open_step, random_prompt, tiny_checkpoint

from tensorfold.engine.stress import Stress
from tensorfold.runtime.step import StepFunction

ROUNDS = 12


@pytest.fixture(scope="module")
def step() -> StepFunction:
    buckets = (1, 8, 32) if IMPLEMENTATIONS[-1] == "cpu" else (8, 32)
    checkpoint = tiny_checkpoint(num_hidden_layers=1)
    return open_step(checkpoint, lanes=5, context=192, pages=14, buckets=buckets)


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(1)
    repeating = random_prompt(rng, 7) * 12
    return [random_prompt(rng, 130), repeating, random_prompt(rng, 30)]


def test_random_traffic_has_no_difference(step: StepFunction) -> None:
    stress = Stress(step, prompts(), tokens=20)
    outcomes = [outcome for _, outcome in islice(stress.run(1e9, seed=3), ROUNDS)]
    assert [outcome.difference for outcome in outcomes] == [""] * ROUNDS
    assert sum(outcome.replies for outcome in outcomes) > 5 * ROUNDS
    for way in ("drafted", "accepted", "cached", "preempted"):
        assert sum(getattr(outcome, way) for outcome in outcomes) > 0, way
    assert sum(o.accepted for o in outcomes) < sum(o.drafted for o in outcomes)


def test_at_least_one_round_is_run(step: StepFunction) -> None:
    assert len(list(Stress(step, prompts(), tokens=20).run(1e-9, seed=1))) == 1


def test_a_round_is_the_same_again(step: StepFunction) -> None:
    stress = Stress(step, prompts(), tokens=20)
    case, outcome = next(stress.run(1e9, seed=5))
    assert stress.outcome(case) == outcome


def test_a_fault_is_found_and_shrunk(step: StepFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    stress = Stress(step, prompts(), tokens=20)
    monkeypatch.setattr(step, "copy_page", lambda source, target: None)
    case, outcome = next(found for found in stress.run(1e9, seed=3) if found[1].difference)
    assert outcome.difference.startswith("request ")
    # Rows that are missing take a request that left its own and one that wanted them.
    assert 2 <= len(case.arrivals) <= 3
    text = "\n".join(case.lines())
    assert text.count("Request(") == len(case.arrivals)
    monkeypatch.undo()
    assert stress.outcome(case).difference == ""
