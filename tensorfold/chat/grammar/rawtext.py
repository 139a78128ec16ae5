"""Strings that stand in a text as they are, up to a tag that ends them."""

from collections.abc import Iterator
from functools import cache

from tensorfold.chat.grammar.automaton import (
    Automaton,
    TooLarge,
    both,
    lengths,
    outside,
    ranges_of,
    without,
)
from tensorfold.chat.grammar.cases import Strings
from tensorfold.chat.grammar.pattern import compile_pattern
from tensorfold.chat.grammar.rules import Ref, Rules, Sequence_, terminals

FREE_OF_TAGS = compile_pattern("[^<]*", whole=True)
"""Every tag begins with this letter."""
_CLASSES = {
    outside(ranges_of([(ord(letter), ord(letter)) for letter in letters])): name
    for letters, name in (("<", "[^<]"), ("<\n", "[^<\\n]"))
}
_FEW_STATES = 100
_LONGEST_START = 24


@cache
def free_of_matches(pattern: str) -> Automaton:
    """Texts in which `pattern` matches nowhere."""
    return without(lengths(0, None), compile_pattern(pattern))


def kept_in(kept: Automaton, asked: Strings) -> Automaton | None:
    """The strings as asked that `kept` has, or those of them that begin no tag, where that takes
    far fewer states; None where lengths are all that is asked and take too many."""
    try:
        found = both(asked.automaton(), kept)
        if len(found.rows) <= _FEW_STATES or asked == Strings():
            return found
    except TooLarge:
        pass
    return both(asked.automaton(), both(kept, FREE_OF_TAGS)) if asked.automata else None


def counted(
    rules: Rules, kept: Automaton, least: int, most: int | None, ending: Sequence_
) -> Iterator[Sequence_]:
    """The strings of `kept` that begin no tag and are so many characters long, and the `ending`.

    Counting is quick only for characters of one class, so they are counted one by one only up to
    a state that any of a class leads back to, which must be soon.
    """
    if most is not None and least > most:
        return
    automaton = both(kept, FREE_OF_TAGS)
    live = automaton.live()
    free = {
        state: name
        for state, accepts in enumerate(automaton.accepting)
        for ranges, name in _CLASSES.items()
        if accepts and automaton.arcs(state).get(state) == ranges
    }

    def after(state: int, count: int) -> Ref:
        key = ("counted", automaton, least, most, ending, state, count)
        return rules.named(key, "k", lambda: ways(state, count))

    def ways(state: int, count: int) -> Iterator[Sequence_]:
        if state in free:
            top = "" if most is None else most - count
            yield (f"{free[state]}{{{max(least - count, 0)},{top}}}", *ending)
            return
        if automaton.accepting[state] and least <= count:
            yield ending
        if count < _LONGEST_START and count != most:
            for target, ranges in automaton.arcs(state).items():
                if live[target]:
                    rest = after(target, count + 1)
                    yield from ((each, rest) for each in terminals(ranges, quoted=False))

    yield (after(0, 0),)
