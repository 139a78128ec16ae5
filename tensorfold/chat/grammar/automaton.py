"""Deterministic automata over code points: what the patterns and lengths of a schema allow.

A pattern, a bound on the length, "any name but these" and a range of numbers are all sets of
strings that an automaton describes, so that any of them can be combined exactly: the intersection
is a product of automata, and what a schema excludes is a complement.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

MOST_STATES = 1500
"""More are refused: every state becomes a rule of the grammar, and takes milliseconds."""

LAST = 0x10FFFF

State = TypeVar("State", bound=Hashable)

Ranges = tuple[tuple[int, int], ...]
"""Disjoint, ascending, inclusive ranges of code points."""


class TooLarge(ValueError):
    """What was asked for needs more states than a grammar should have."""


def ranges_of(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """`pairs` in order, joined where they touch."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(pairs):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return tuple(joined)


def outside(ranges: Ranges) -> Ranges:
    """Every other code point."""
    found = []
    start = 0
    for low, high in ranges:
        if start < low:
            found.append((start, low - 1))
        start = high + 1
    if start <= LAST:
        found.append((start, LAST))
    return tuple(found)


@dataclass(frozen=True)
class Automaton:
    """Complete and deterministic; state 0 is the first.

    cuts: ascending code points, 0 first; column i of a row is for those from cuts[i] to the next
    rows: for every state, the next state in each column
    accepting: for every state, whether a string may end there
    """

    cuts: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    accepting: tuple[bool, ...]

    def matches(self, text: str) -> bool:
        """Whether `text` is in the set."""
        state = 0
        for character in text:
            state = self.rows[state][bisect_right(self.cuts, ord(character)) - 1]
        return self.accepting[state]

    def live(self) -> list[bool]:
        """For every state, whether a string that leads there can be completed."""
        before: list[list[int]] = [[] for _ in self.rows]
        for state, row in enumerate(self.rows):
            for target in set(row):
                before[target].append(state)
        live = list(self.accepting)
        waiting = [state for state, accepts in enumerate(live) if accepts]
        while waiting:
            for state in before[waiting.pop()]:
                if not live[state]:
                    live[state] = True
                    waiting.append(state)
        return live

    @property
    def empty(self) -> bool:
        """Whether no string is in the set."""
        return not self.live()[0]

    def arcs(self, state: int) -> dict[int, Ranges]:
        """The code points that lead from `state` to each other state."""
        ends = [cut - 1 for cut in self.cuts[1:]] + [LAST]
        found: dict[int, list[tuple[int, int]]] = {}
        for low, high, target in zip(self.cuts, ends, self.rows[state], strict=True):
            found.setdefault(target, []).append((low, high))
        return {target: ranges_of(pairs) for target, pairs in found.items()}


def build(
    first: State,
    cuts: Sequence[int],
    follow: Callable[[State, int], State],
    accepts: Callable[[State], bool],
) -> Automaton:
    """The automaton whose states are what `follow(state, column)` reaches from `first`, minimal.

    Raises `TooLarge`.
    """
    numbers = {first: 0}
    order = [first]
    rows = []
    for state in order:
        row = []
        for column in range(len(cuts)):
            target = follow(state, column)
            if target not in numbers:
                if len(order) > 4 * MOST_STATES:
                    raise TooLarge
                numbers[target] = len(order)
                order.append(target)
            row.append(numbers[target])
        rows.append(row)
    return _minimal(tuple(cuts), rows, [accepts(state) for state in order])


def _minimal(cuts: tuple[int, ...], rows: list[list[int]], accepting: list[bool]) -> Automaton:
    """States that the rest of a string can't tell apart made one (Hopcroft, 1971)."""
    sources: list[list[list[int]]] = [[[] for _ in rows] for _ in cuts]
    for state, row in enumerate(rows):
        for column, target in enumerate(row):
            sources[column][target].append(state)
    blocks = [
        members
        for members in (
            {state for state, accepts in enumerate(accepting) if accepts == kind}
            for kind in (True, False)
        )
        if members
    ]
    block_of = [0] * len(rows)
    for number, members in enumerate(blocks):
        for state in members:
            block_of[state] = number
    waiting = set(range(len(blocks)))
    while waiting:
        splitter = list(blocks[waiting.pop()])
        for column in range(len(cuts)):
            touched: dict[int, set[int]] = {}
            for target in splitter:
                for state in sources[column][target]:
                    touched.setdefault(block_of[state], set()).add(state)
            for number, inside in touched.items():
                if len(inside) == len(blocks[number]):
                    continue
                blocks[number] -= inside
                smaller = len(blocks)
                if len(inside) > len(blocks[number]):
                    inside, blocks[number] = blocks[number], inside
                blocks.append(inside)
                for state in inside:
                    block_of[state] = smaller
                # Splitting by the smaller half is enough, unless the whole still waits.
                waiting.add(smaller)
    if len(blocks) > MOST_STATES:
        raise TooLarge
    # Numbered in the order of their first states, so that state 0 is still the first.
    kept: dict[int, int] = {}
    for state in range(len(rows)):
        kept.setdefault(block_of[state], state)
    number_of = {block: number for number, block in enumerate(kept)}
    return Automaton(
        cuts,
        tuple(tuple(number_of[block_of[each]] for each in rows[state]) for state in kept.values()),
        tuple(accepting[state] for state in kept.values()),
    )


def _combined(a: Automaton, b: Automaton, keep: Callable[[bool, bool], bool]) -> Automaton:
    cuts = sorted({*a.cuts, *b.cuts})
    columns = [(bisect_right(a.cuts, cut) - 1, bisect_right(b.cuts, cut) - 1) for cut in cuts]

    def follow(state: tuple[int, int], column: int) -> tuple[int, int]:
        left, right = columns[column]
        return a.rows[state[0]][left], b.rows[state[1]][right]

    def accepts(state: tuple[int, int]) -> bool:
        return keep(a.accepting[state[0]], b.accepting[state[1]])

    return build((0, 0), cuts, follow, accepts)


def both(a: Automaton, b: Automaton) -> Automaton:
    """Strings in both sets."""
    return _combined(a, b, lambda in_a, in_b: in_a and in_b)


def either(a: Automaton, b: Automaton) -> Automaton:
    """Strings in one set or both."""
    return _combined(a, b, lambda in_a, in_b: in_a or in_b)


def without(a: Automaton, b: Automaton) -> Automaton:
    """Strings in the first set only."""
    return _combined(a, b, lambda in_a, in_b: in_a and not in_b)


def all_of(automata: Iterable[Automaton]) -> Automaton:
    """Strings in every set."""
    return reduce(both, automata, lengths(0, None))


def lengths(least: int, most: int | None) -> Automaton:
    """Strings of so many code points."""
    top = least if most is None else most + 1
    if top > MOST_STATES:
        raise TooLarge

    def accepts(state: int) -> bool:
        return least <= state and (most is None or state <= most)

    return build(0, (0,), lambda state, _: min(state + 1, top), accepts)


def words(texts: Iterable[str]) -> Automaton:
    """Exactly these strings."""
    known = frozenset(texts)
    heads = {text[:end] for text in known for end in range(len(text) + 1)}
    letters = {ord(letter) for text in known for letter in text}
    cuts = sorted({0, *letters, *(letter + 1 for letter in letters if letter < LAST)})

    def follow(state: str | None, column: int) -> str | None:
        if state is None or cuts[column] not in letters:
            return None
        longer = state + chr(cuts[column])
        return longer if longer in heads else None

    def accepts(state: str | None) -> bool:
        return state in known

    first: str | None = ""
    return build(first, cuts, follow, accepts)


def free_of(text: str) -> Automaton:
    """Strings that do not contain `text`, which is not empty (Knuth, Morris and Pratt, 1977)."""
    letters = sorted({ord(letter) for letter in text})
    cuts = sorted({0, *letters, *(letter + 1 for letter in letters if letter < LAST)})

    def follow(matched: int, column: int) -> int:
        if matched == len(text):
            return matched
        if cuts[column] not in letters:
            return 0
        seen = text[:matched] + chr(cuts[column])
        return next(size for size in range(len(seen), -1, -1) if seen.endswith(text[:size]))

    return build(0, cuts, follow, lambda matched: matched != len(text))
