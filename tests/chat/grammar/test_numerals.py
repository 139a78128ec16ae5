from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfold.chat.grammar.numerals import Bound, Numbers, automaton_of

VALUES = st.integers(-1500, 1500) | st.integers(-3000, 3000).map(lambda value: value / 100)
BOUNDS = st.none() | st.builds(Bound, VALUES, st.booleans())
DIGITS = st.from_regex(r"-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,3})?", fullmatch=True)


@settings(max_examples=60)
@given(
    whole=st.booleans(),
    low=BOUNDS,
    high=BOUNDS,
    multiples=st.sampled_from([(), (), (3,), (7, 2), (0.01,)]),
    texts=st.lists(DIGITS, min_size=20, max_size=60),
)
def test_spellings_are_those_of_the_numbers(
    whole: bool,
    low: Bound | None,
    high: Bound | None,
    multiples: tuple[float, ...],
    texts: list[str],
) -> None:
    numbers = Numbers(whole, low, high, multiples)
    automaton = automaton_of(numbers)
    for bound in (low, high):
        if bound is not None:
            texts += [str(bound.value), f"{bound.value:.2f}", f"{bound.value:.2f}1"]
    for text in texts:
        value = float(text) if "." in text else int(text)
        expected = numbers.allows(value)
        if "." in text and (whole or any(isinstance(each, int) for each in multiples)):
            expected = False  # A whole number is written without a fraction.
        if 0.01 in multiples and len(text.partition(".")[2]) > 2:
            expected = False  # And hundredths with two digits at most.
        assert automaton.matches(text) == expected, text


def test_bounds_of_both_signs() -> None:
    automaton = automaton_of(Numbers(False, Bound(-0.5), Bound(0.25, strict=True)))
    inside = ["-0.5", "-0.49", "0", "-0", "0.0", "0.249", "0.2", "-0.1"]
    outside = ["-0.51", "-1", "0.25", "0.250", "0.3", "1", "", "-", ".5", "0."]
    assert [text for text in inside + outside if automaton.matches(text)] == inside
