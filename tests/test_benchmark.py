"""`tensorfold bench` on a tiny model: what it counts, and what it prints."""

import json

import numpy as np
import pytest
from tiny import open_step, tiny_checkpoint

from tensorfold import benchmark
from tensorfold.benchmark import Load, measure, run_load
from tensorfold.runtime.step import StepFunction


@pytest.fixture(scope="module")
def step() -> StepFunction:
    return open_step(tiny_checkpoint(num_hidden_layers=1), lanes=3, context=128, buckets=(8, 64))


def test_a_load_measures_every_stream_at_once(step: StepFunction) -> None:
    rates = run_load(step, Load(streams=3, prompt=20, tokens=6), np.random.default_rng(0))
    assert rates.streams == 3
    assert rates.prompt_tokens_per_second > 0
    assert rates.decode_tokens_per_second > 0
    assert rates.time_to_first_token > 0


def test_streams_that_do_not_fit_are_refused(step: StepFunction) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        run_load(step, Load(step.shape.lanes + 1, 8, 2), np.random.default_rng(0))


def test_the_report_is_json_and_text(step: StepFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "STEP_ROWS", (1, 4))
    loads = [Load(streams, prompt=12, tokens=3) for streams in (1, 2)]
    report = measure(step, loads, name="tiny", ready_seconds=1.5, runs=2)
    plain = json.loads(json.dumps(report.as_json()))
    assert plain["model"] == "tiny"
    assert [each["streams"] for each in plain["streams"]] == [1, 2]
    assert list(plain["step_milliseconds"]) == ["1", "4"]
    lines = report.lines()
    assert lines[0].startswith("tiny, ")
    assert len(lines) == 2 + len(loads) + 2
