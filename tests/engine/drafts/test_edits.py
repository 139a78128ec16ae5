"""Copies with edits: taken up again past an edit, and with what it replaced."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfold.engine.drafts.copies import CopyDrafts
from tensorfold.engine.drafts.edits import Copied, Edit, Match, Rewriting
from tensorfold.engine.drafts.widths import Offer, StepTimes, choose_widths

MOST = 12
TEXT = [10 + i if i % 9 else 1 for i in range(400)]
"""Every ninth token is the same."""


@given(st.lists(st.integers(0, 2), min_size=16, max_size=40), st.data())
def test_a_copy_goes_on_where_the_last_tokens_agree_most(
    tokens: list[int], data: st.DataObject
) -> None:
    first = data.draw(st.integers(10, len(tokens) - 1))
    source = data.draw(st.integers(8, first - 1))
    new = len(tokens) - first
    usual = source + new

    def agreeing(place: int) -> int:
        most = min(new, place)
        differ = (i for i in range(most) if tokens[place - 1 - i] != tokens[-1 - i])
        return next(differ, most)

    match = Edit(source, first).resumed(tokens)
    places = range(source, min(usual + MOST, first))
    longest = max(map(agreeing, places), default=0)
    if new > MOST or (not longest and new > 1):
        assert match is None
        return
    assert match is not None
    assert match.length == longest
    if longest:
        assert agreeing(match.position) == longest
        near = min(abs(place - usual) for place in places if agreeing(place) == longest)
        assert abs(match.position - usual) == near
    else:
        assert match.position == usual


@given(st.lists(st.integers(0, 3), min_size=2, max_size=20), st.integers(1, 50), st.data())
def test_without_edits_copies_are_what_stands_there(
    tokens: list[int], count: int, data: st.DataObject
) -> None:
    place = data.draw(st.integers(1, len(tokens) - 1))
    period = len(tokens) - place
    wanted = [Copied(tokens[place + i % period], place + i % period) for i in range(count)]
    assert Rewriting(tokens).copies(Match(place, 1), count) == wanted


def drafted(known: list[int], rest: Sequence[int], edits: bool = True) -> int:
    """Steps for a reply that goes on with `rest`, where more rows cost next to nothing."""
    times = StepTimes((1, 16, 64))
    for rows, seconds in ((1, 1.0), (16, 1.1), (64, 1.3)):
        times.observe(rows, seconds)
    drafts, steps, done = CopyDrafts(known), 0, 0
    while done < len(rest):
        (width,) = choose_widths([Offer(drafts.chances(63))], times, 64)
        proposed, right = drafts.propose(width), 0
        while right < min(width, len(rest) - 1 - done) and proposed[right] == rest[done + right]:
            right += 1
        drafts.observe(rest[done : done + right + 1])
        if not edits:
            drafts._rewriting = Rewriting(known)
        known += rest[done : done + right + 1]
        done, steps = done + right + 1, steps + 1
    return steps


@pytest.mark.parametrize("new", [[2], [3, 4], [3, 4, 5]], ids=len)
def test_a_name_is_replaced_wherever_it_stands(new: list[int]) -> None:
    renamed = [t for token in TEXT for t in (new if token == 1 else [token])]
    steps = drafted([*TEXT, 6], renamed)
    assert steps < len(renamed) // 10
    assert steps < drafted([*TEXT, 6], renamed, edits=False) // 3


def test_a_replacement_may_come_in_two_steps() -> None:
    source = list(range(10, 40))
    tokens = [*source, 6, *source[:9]]
    rewriting, at = Rewriting(tokens), Match(9, 9, followed=True)
    rewriting._replaced[19] = [19], [1, 2, 3]
    copies = rewriting.copies(at, 4)
    assert [copy.token for copy in copies] == [1, 2, 3, 20]
    rewriting.observe(at, copies[:2], right=1)  # 1 is right, and 2 not known yet.
    tokens.append(1)
    following = rewriting.match()
    assert following is not None
    tokens += [2, 3, 20, 21, 22]
    following = rewriting.match()
    assert following == Match(13, 3, followed=True)
    rewriting.observe(following, rewriting.copies(following, 2), right=1)
    assert rewriting._replaced[19] == ([19], [1, 2, 3])


def test_what_is_left_out_is_skipped_and_what_is_put_in_is_waited_for() -> None:
    shorter = [token for token in TEXT if token != 1]
    longer = [t for token in TEXT for t in ([token, 1000 + token] if token % 9 == 4 else [token])]
    for rewritten in (shorter, longer):
        steps = drafted([*TEXT, 6], rewritten)
        assert steps < 0.75 * drafted([*TEXT, 6], rewritten, edits=False)


def test_a_replacement_that_does_not_come_again_is_forgotten() -> None:
    half = [2 if token == 1 and i < 200 else token for i, token in enumerate(TEXT)]
    assert drafted([*TEXT, 6], half) < drafted([*TEXT, 6], TEXT) + 12


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.data())
def test_any_text_is_followed(known: list[int], data: st.DataObject) -> None:
    """Whatever is drawn: copies are tokens of the sequence, and as many as were asked for."""
    drafts = CopyDrafts(known)
    for _ in range(data.draw(st.integers(1, 30))):
        chances, proposed = drafts.chances(9), drafts.propose(9)
        assert len(chances) == len(proposed) == (9 if chances else 0)
        assert all(0 <= chance <= 1 for chance in chances)
        assert set(proposed) <= set(known)
        drawn = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=9))
        drafts.observe(drawn)
        known += drawn
