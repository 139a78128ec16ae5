import re

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tensorfold.chat.grammar.automaton import (
    Automaton,
    TooLarge,
    both,
    either,
    free_of,
    lengths,
    without,
    words,
)
from tensorfold.chat.grammar.formats import FORMATS
from tensorfold.chat.grammar.pattern import PatternError, compile_pattern

LETTERS = st.sampled_from("abc")
TEXTS = st.text("abc1 \n", max_size=7)
ATOMS = LETTERS | st.sampled_from(["[ab]", "[^a]", ".", "\\w", "\\d", "[a-c1]", "^", "$", "\\S"])
QUANTIFIERS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "{0,1}", "{2,}", "*?"])


def group(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sequence = st.lists(inner, min_size=1, max_size=3).map("".join)
    choice = st.lists(sequence, min_size=1, max_size=3).map("|".join)
    return st.tuples(choice.map("(?:{})".format), QUANTIFIERS).map("".join)


SINGLE = st.tuples(ATOMS, QUANTIFIERS).map(
    lambda pair: pair[0] + ("" if pair[0] in "^$" else pair[1])
)
PATTERNS = st.lists(st.recursive(SINGLE, group, max_leaves=4), max_size=3).map("".join)


def read(pattern: str, *, whole: bool = False) -> Automaton:
    try:
        return compile_pattern(pattern, whole=whole)
    except TooLarge:
        reject()


@settings(max_examples=60)
@given(pattern=PATTERNS, texts=st.lists(TEXTS, min_size=5, max_size=20))
def test_a_pattern_matches_where_pythons_does(pattern: str, texts: list[str]) -> None:
    # In Python `$` also stands before a last line end; `\Z` is what it means here.
    ours, theirs = read(pattern), re.compile(pattern.replace("$", "\\Z"))
    whole = read(pattern, whole=True)
    for text in texts:
        assert ours.matches(text) == bool(theirs.search(text)), text
        assert whole.matches(text) == bool(theirs.fullmatch(text)), text


@settings(max_examples=30)
@given(a=PATTERNS, b=PATTERNS, texts=st.lists(TEXTS, min_size=5, max_size=20))
def test_sets_of_strings_combine(a: str, b: str, texts: list[str]) -> None:
    left, right = read(a), read(b)
    for text in texts:
        in_a, in_b = left.matches(text), right.matches(text)
        assert both(left, right).matches(text) == (in_a and in_b)
        assert either(left, right).matches(text) == (in_a or in_b)
        assert without(left, right).matches(text) == (in_a and not in_b)


@given(least=st.integers(0, 5), most=st.none() | st.integers(0, 5), text=TEXTS)
def test_lengths_count_characters(least: int, most: int | None, text: str) -> None:
    expected = least <= len(text) and (most is None or len(text) <= most)
    assert lengths(least, most).matches(text) == expected


@given(known=st.lists(TEXTS, max_size=4), text=TEXTS)
def test_words_are_those_and_no_others(known: list[str], text: str) -> None:
    automaton = words(known)
    assert automaton.matches(text) == (text in known)
    assert all(map(automaton.matches, known))


@given(part=st.text("ab", min_size=1, max_size=4), text=st.text("ab", max_size=9))
def test_free_of_a_text(part: str, text: str) -> None:
    assert free_of(part).matches(text) == (part not in text)


def test_an_empty_set_is_known() -> None:
    assert both(words(["a"]), words(["b"])).empty
    assert not words([""]).empty
    assert compile_pattern("[]").empty


def test_states_that_differ_in_nothing_are_one() -> None:
    assert len(compile_pattern("^(a|b|c)*$").rows) == len(compile_pattern("^[abc]*$").rows) == 2


@pytest.mark.parametrize("pattern", ["a{99999}", "((a{50}){50}){50}", "(" * 5000 + ")" * 5000])
def test_too_large_patterns_are_given_up_early(pattern: str) -> None:
    with pytest.raises(TooLarge):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "[", "a**", "*", "a{2,1}", "(?=a)", "(?i)a", "\\1", "\\b", "\\", "\\u12", "[b-a]"],
)
def test_what_cannot_be_read_is_an_error(pattern: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", "2000-02-29", "1900-02-29"),
        ("date", "2023-12-31", "2023-04-31"),
        ("time", "23:59:59.25Z", "24:00:00Z"),
        ("time", "00:00:00+05:30", "00:00:00"),
        ("date-time", "2024-02-29t01:02:03-00:00", "2024-02-29 01:02:03Z"),
        ("duration", "P1Y2M3DT4H5M6S", "P"),
        ("duration", "P3W", "P1YT"),
        ("email", "a.b+c@example.co", "a@b"),
        ("hostname", "a-b.example", "-a.example"),
        ("ipv4", "10.0.0.255", "10.0.0.256"),
        ("ipv6", "::", "1::2::3"),
        ("ipv6", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7"),
        ("uuid", "123e4567-E89B-12d3-a456-426614174000", "123e4567e89b12d3a456426614174000"),
        ("uri", "https://user@example.org:8080/a%20b?q=1#top", "not a uri"),
        ("uri", "urn:isbn:0451450523", "//example.org"),
        ("json-pointer", "/a~1b/~0", "a/b"),
    ],
)
def test_formats(name: str, good: str, bad: str) -> None:
    automaton: Automaton = compile_pattern(FORMATS[name], whole=True)
    assert automaton.matches(good)
    assert not automaton.matches(bad)
