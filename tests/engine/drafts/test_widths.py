"""Widths: the choice is the best of all choices, by the table of step times."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfold.engine.drafts.widths import Offer, StepTimes, choose_widths

BUCKETS = (1, 2, 4, 8)


def table(*seconds: float) -> StepTimes:
    times = StepTimes(BUCKETS)
    for bucket, each in zip(BUCKETS, seconds, strict=True):
        times.observe(bucket, each)
    return times


def rate(offers: list[Offer], widths: tuple[int, ...], times: StepTimes) -> float:
    tokens = 0.0
    for offer, width in zip(offers, widths, strict=True):
        chance, expected = 1.0, 1.0
        for each in offer.chances[:width]:
            chance *= each
            expected += chance
        tokens += expected
    proposing = max(w * offer.seconds for w, offer in zip(widths, offers, strict=True))
    return tokens / (times.of(times.bucket(len(offers) + sum(widths))) + proposing)


@given(
    offers=st.lists(st.lists(st.floats(0.01, 1), max_size=4), min_size=1, max_size=3),
    seconds=st.lists(st.floats(0.1, 3), min_size=4, max_size=4),
    most_rows=st.integers(4, 8),
)
def test_no_other_choice_is_expected_to_be_faster(
    offers: list[list[float]], seconds: list[float], most_rows: int
) -> None:
    times = table(*sorted(seconds))
    given_offers = [Offer(chances) for chances in offers]
    widths = choose_widths(given_offers, times, most_rows)
    assert all(w <= len(chances) for w, chances in zip(widths, offers, strict=True))
    assert len(offers) + sum(widths) <= most_rows
    chosen = rate(given_offers, tuple(widths), times)
    for other in product(*(range(len(chances) + 1) for chances in offers)):
        if len(offers) + sum(other) <= most_rows:
            assert rate(given_offers, other, times) <= chosen * (1 + 1e-9)


def test_rows_that_cost_their_tokens_are_not_drafted() -> None:
    linear = table(1, 2, 4, 8)
    assert choose_widths([Offer([0.9, 0.9, 0.9])], linear, 8) == [0]
    flat = table(1, 1.1, 1.2, 1.5)
    assert choose_widths([Offer([0.9] * 7)], flat, 8) == [7]
    assert choose_widths([Offer([0.05] * 7)], flat, 8) == [0]


def test_a_source_that_takes_time_must_earn_it() -> None:
    flat = table(1, 1.1, 1.2, 1.5)
    assert choose_widths([Offer([0.6] * 3, seconds=0.0)], flat, 8) == [3]
    assert choose_widths([Offer([0.6] * 3, seconds=1.0)], flat, 8) == [0]


def test_the_rows_of_a_step_go_to_the_likeliest_drafts() -> None:
    flat = table(1, 1.01, 1.02, 100)
    widths = choose_widths([Offer([0.9, 0.9, 0.9]), Offer([0.5, 0.5])], flat, 8)
    assert widths == [2, 0]


def test_a_step_that_was_disturbed_counts_little() -> None:
    times = StepTimes(BUCKETS)
    assert times.of(8) > times.of(1)
    times.observe(1, 1.0)
    times.observe(1, 50.0)
    assert times.of(1) == pytest.approx(1.1)
    times.observe(3, 2.0)
    assert times.of(4) == 2.0
    assert times.of(8) > 2.0
