"""Strings that stand in a text as they are, up to a tag that ends them."""

from collections.abc import Iterator
from functools import cache

from tensorfold.chat.grammar.automaton import (
    LAST,
    Automaton,
    Ranges,
    TooLarge,
    both,
    lengths,
    without,
)
from tensorfold.chat.grammar.cases import Strings
from tensorfold.chat.grammar.pattern import compile_pattern
from tensorfold.chat.grammar.rules import Ref, Rules, Sequence_, terminals

FREE_OF_TAGS = compile_pattern("[^<]*", whole=True)
"""Every tag begins with this letter."""
_NO_TAG = "[^<]"
_BUT_TAGS: Ranges = ((0, ord("<") - 1), (ord("<") + 1, LAST))
_FEW_STATES = 150
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


def raw_strings(
    rules: Rules, asked: Strings, kept: Automaton, ending: Sequence_
) -> Iterator[Sequence_]:
    """A string as asked, as it is, that `kept` has, and the `ending` behind it."""
    automaton = kept_in(kept, asked)
    if automaton is not None:
        yield (rules.bare(automaton, ending),)
    elif asked.most is None or asked.least <= asked.most:
        yield from _counted(rules, both(kept, FREE_OF_TAGS), asked.least, asked.most, ending)


def _counted(
    rules: Rules, automaton: Automaton, least: int, most: int | None, ending: Sequence_
) -> Iterator[Sequence_]:
    """Strings of `automaton`, so many characters long.

    Counting is quick only for characters of one class, so they are counted one by one only up to
    a state that any character but the one of tags leads back to, which must be soon.
    """
    live = automaton.live()
    free = {
        state
        for state, accepts in enumerate(automaton.accepting)
        if accepts and automaton.arcs(state).get(state) == _BUT_TAGS
    }

    def after(state: int, count: int) -> Ref:
        key = ("counted", automaton, least, most, ending, state, count)
        return rules.named(key, "k", lambda: ways(state, count))

    def ways(state: int, count: int) -> Iterator[Sequence_]:
        if state in free:
            top = "" if most is None else most - count
            yield (f"{_NO_TAG}{{{max(least - count, 0)},{top}}}", *ending)
            return
        if automaton.accepting[state] and least <= count:
            yield ending
        if count < _LONGEST_START and count != most:
            for target, ranges in automaton.arcs(state).items():
                if live[target]:
                    rest = after(target, count + 1)
                    yield from ((each, rest) for each in terminals(ranges, quoted=False))

    yield (after(0, 0),)
