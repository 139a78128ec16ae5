"""Copies: the longest match, found as a plain search finds it, and drafted once it pays."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tensorfold.engine.drafts.copies import Chances, CopyDrafts, SuffixIndex
from tensorfold.engine.drafts.edits import Match

KEY, LONGEST = 2, 32


def search(tokens: list[int]) -> Match | None:
    """The longest earlier match of at least 2 tokens, the latest of those."""
    best = None
    for place in range(len(tokens) - 1, 0, -1):
        length = 0
        while length < min(place, LONGEST) and tokens[place - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= KEY and (best is None or length > best.length):
            best = Match(place, length)
    return best


@given(st.lists(st.integers(0, 2), max_size=60), st.lists(st.integers(0, 2), max_size=20))
def test_the_longest_match_the_latest_on_ties(first: list[int], more: list[int]) -> None:
    tokens = list(first)
    index = SuffixIndex(tokens)
    assert index.longest() == search(tokens)
    for token in more:
        tokens.append(token)
        assert index.longest() == search(tokens)


def test_a_long_sequence_joins_the_index_bit_by_bit() -> None:
    tokens = list(range(30_000))
    index = SuffixIndex(tokens)
    matches, places = [], [0]
    for token in range(7, 17):
        tokens.append(token)
        matches.append(index.longest())
        places.append(len(index._before))
    assert max(after - before for before, after in pairwise(places)) <= 8192
    assert matches == [None] * 3 + [Match(8 + i, 1 + i) for i in range(3, 10)]


def test_a_match_that_reaches_the_end_goes_round() -> None:
    tokens = [9, 1, 2, 3, 1, 2, 3]
    assert CopyDrafts(tokens).propose(7) == [1, 2, 3, 1, 2, 3, 1]


def test_nothing_to_copy_proposes_nothing() -> None:
    drafts = CopyDrafts([1, 2, 3, 4, 5, 6])
    assert drafts.chances(5) == []
    assert drafts.propose(5) == []
    drafts.observe([7])


def test_a_copy_proves_itself_before_it_is_likely() -> None:
    passage = list(range(40))
    tokens = [*passage, 100, *passage[:4]]
    drafts = CopyDrafts(tokens)
    first = drafts.chances(1)[0]
    assert first < 0.3
    for token in passage[4:20]:
        drafts.observe([token])
        tokens.append(token)
    assert drafts.chances(1)[0] > 0.6
    chances = drafts.chances(8)
    assert len(chances) == 8
    before = chances[0]
    drafts.observe([77])
    tokens.append(77)
    tokens.extend(passage[:20])
    assert drafts.chances(1)[0] < before


def test_chances_follow_what_happened_lately() -> None:
    chances, short = Chances(), Match(9, 5)
    for _ in range(100):
        chances.observe(short, 0, True)
    assert chances.of(short) > 0.99
    assert chances.of(Match(9, 5, followed=True)) == 0.7
    assert chances.of(Match(9, 30)) == chances.of(short, ahead=25) == 0.85
    for _ in range(100):
        chances.observe(Match(9, 4), 1, False)
    assert chances.of(short) < 0.01


@given(st.integers(0, 40), st.booleans())
def test_chances_ahead_are_those_of_longer_matches(length: int, followed: bool) -> None:
    chances = Chances()
    for ahead in range(0, 30, 3):
        chances.observe(Match(99, 0, followed), ahead, ahead % 2 == 0)
    match = Match(99, length, followed)
    assert chances.ahead(match, 30) == [chances.of(match, i) for i in range(30)]
