"""Regular expressions as automata: the dialect of JSON Schema, ECMA-262 without looking around.

`^` and `$` may stand anywhere, and a pattern without them matches anywhere in a string. Groups
capture nothing, and a lazy quantifier means what the plain one means: both only say how a match
is found. Lookaround, word boundaries and back references are refused.
"""

from dataclasses import dataclass, field
from functools import cache

from tensorfold.chat.grammar.automaton import (
    LAST,
    MOST_STATES,
    Automaton,
    Ranges,
    TooLarge,
    build,
    outside,
    ranges_of,
)

_DIGIT: Ranges = ((0x30, 0x39),)
_WORD = ranges_of([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
_SPACE = ranges_of(
    (low, high)
    for low, high in [
        (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
        (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
    ]
)  # fmt: skip
_LINE_END = ranges_of([(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)])
_CLASSES = {
    "d": _DIGIT,
    "D": outside(_DIGIT),
    "w": _WORD,
    "W": outside(_WORD),
    "s": _SPACE,
    "S": outside(_SPACE),
}
_LETTERS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_MOST_NODES = 20_000
_MOST_WORK = 1_000_000


class PatternError(ValueError):
    """A pattern that can't be read or has no automaton."""


@dataclass
class _Graph:
    """A nondeterministic automaton (Thompson, 1968): edges by state, the empty ones by guard."""

    moves: list[list[tuple[Ranges, int]]] = field(default_factory=list)
    jumps: list[list[tuple[str, int]]] = field(default_factory=list)

    def state(self) -> int:
        """A new state."""
        if len(self.moves) > _MOST_NODES:
            raise TooLarge
        self.moves.append([])
        self.jumps.append([])
        return len(self.moves) - 1

    def jump(self, start: int, end: int, guard: str = "") -> None:
        """An empty edge, always open or only at the start (`^`) or the end (`$`) of a string."""
        self.jumps[start].append((guard, end))


Part = tuple[int, int]
"""Where a piece of the graph begins and ends."""


class _Reader:
    """A recursive descent over the pattern that builds the graph as it goes."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.graph = _Graph()

    def peek(self) -> str:
        return self.source[self.at : self.at + 1]

    def take(self) -> str:
        character = self.peek()
        if not character:
            raise PatternError("the pattern ends too early")
        self.at += 1
        return character

    def alternatives(self) -> Part:
        parts = [self.sequence()]
        while self.peek() == "|":
            self.at += 1
            parts.append(self.sequence())
        if len(parts) == 1:
            return parts[0]
        start, end = self.graph.state(), self.graph.state()
        for first, last in parts:
            self.graph.jump(start, first)
            self.graph.jump(last, end)
        return start, end

    def sequence(self) -> Part:
        start = end = self.graph.state()
        while self.peek() not in ("", "|", ")"):
            first, last = self.repeated()
            self.graph.jump(end, first)
            end = last
        return start, end

    def repeated(self) -> Part:
        before = self.at
        part = self.atom()
        bounds = self.quantifier()
        if bounds is None:
            return part
        after = self.at
        least, most = bounds
        start = end = self.graph.state()
        leave = self.graph.state()
        for index in range(least if most is None else most):
            if index:
                part = self.again(before)
            if index >= least:
                self.graph.jump(end, leave)
            self.graph.jump(end, part[0])
            end = part[1]
        if most is None:
            if least:
                part = self.again(before)
            hub = self.graph.state()
            self.graph.jump(end, hub)
            self.graph.jump(hub, part[0])
            self.graph.jump(part[1], hub)
            end = hub
        self.graph.jump(end, leave)
        self.at = after
        return start, leave

    def again(self, at: int) -> Part:
        """One more copy of the atom that was read at `at`."""
        self.at = at
        return self.atom()

    def quantifier(self) -> tuple[int, int | None] | None:
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        character = self.peek()
        if character in simple:
            self.at += 1
            bounds = simple[character]
        elif character == "{" and (close := self.source.find("}", self.at)) > 0:
            low, comma, high = self.source[self.at + 1 : close].partition(",")
            if not (low.isdecimal() and low.isascii()) or not (high == "" or high.isdecimal()):
                return None
            bounds = (int(low), int(high) if high else None if comma else int(low))
            if bounds[1] is not None and bounds[1] < bounds[0]:
                raise PatternError("a repetition's bounds are out of order")
            if max(bounds[0], bounds[1] or 0) > MOST_STATES:
                raise TooLarge
            self.at = close + 1
        else:
            return None
        if self.peek() == "?":
            self.at += 1
        if self.peek() and self.peek() in "*+":
            raise PatternError("nothing to repeat")
        return bounds

    def atom(self) -> Part:
        character = self.take()
        if character == "(":
            return self.group()
        if character in "^$":
            start, end = self.graph.state(), self.graph.state()
            self.graph.jump(start, end, character)
            return start, end
        if character in "*+?":
            raise PatternError("nothing to repeat")
        if character == "[":
            return self.one_of(self.bracket())
        if character == ".":
            return self.one_of(outside(_LINE_END))
        if character == "\\":
            return self.one_of(self.escape(inside=False))
        return self.one_of(((ord(character), ord(character)),))

    def group(self) -> Part:
        if self.peek() == "?":
            self.at += 1
            mark = self.take()
            if mark == "<" and self.peek() not in ("=", "!", ""):
                while self.take() != ">":
                    pass
            elif mark != ":":
                raise PatternError("lookaround and flags in a pattern can't be enforced")
        part = self.alternatives()
        if self.take() != ")":
            raise PatternError("a group is not closed")
        return part

    def one_of(self, ranges: Ranges) -> Part:
        start, end = self.graph.state(), self.graph.state()
        self.graph.moves[start].append((ranges, end))
        return start, end

    def bracket(self) -> Ranges:
        negated = self.peek() == "^"
        self.at += negated
        pairs: list[tuple[int, int]] = []
        while self.peek() != "]":
            low = self.member()
            if self.peek() == "-" and self.source[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                high = self.member()
                if low[0][0] != low[-1][1] or high[0][0] != high[-1][1] or low[0][0] > high[0][0]:
                    raise PatternError("a range in brackets is out of order")
                pairs.append((low[0][0], high[0][0]))
            else:
                pairs.extend(low)
        self.at += 1
        ranges = ranges_of(pairs)
        return outside(ranges) if negated else ranges

    def member(self) -> Ranges:
        character = self.take()
        if character == "\\":
            return self.escape(inside=True)
        return ((ord(character), ord(character)),)

    def escape(self, inside: bool) -> Ranges:
        character = self.take()
        if character in _CLASSES:
            return _CLASSES[character]
        if character == "b" and inside:
            return ((8, 8),)
        if character in _LETTERS and not (character == "0" and self.peek().isdecimal()):
            point = _LETTERS[character]
        elif character == "x":
            point = self.hexadecimal(2)
        elif character == "u" and self.peek() == "{":
            close = self.source.find("}", self.at)
            self.at += 1
            point = self.hexadecimal(max(close - self.at, 0))
            self.at += 1
        elif character == "u":
            point = self.hexadecimal(4)
            if 0xD800 <= point < 0xDC00 and self.source[self.at : self.at + 2] == "\\u":
                self.at += 2
                point = 0x10000 + ((point - 0xD800) << 10) + (self.hexadecimal(4) - 0xDC00)
        elif character == "c" and self.peek().isascii() and self.peek().isalpha():
            point = ord(self.take()) % 32
        elif character.isalnum():
            raise PatternError(f"\\{character} in a pattern can't be enforced")
        else:
            point = ord(character)
        if point > LAST:
            raise PatternError("a code point in the pattern is out of range")
        return ((point, point),)

    def hexadecimal(self, digits: int) -> int:
        text = self.source[self.at : self.at + digits]
        try:
            point = int(text, 16) if len(text) == digits and text.isalnum() else -1
        except ValueError:
            point = -1
        if point < 0:
            raise PatternError("an escape in the pattern is not complete")
        self.at += digits
        return point


def compile_pattern(source: str, *, whole: bool = False) -> Automaton:
    """Strings in which `source` matches somewhere, or that it matches as a `whole`.

    Raises `PatternError`, and `TooLarge` for a pattern that needs too many states.
    """
    reader = _Reader(source)
    try:
        start, end = reader.alternatives()
    except RecursionError:
        raise TooLarge from None
    if reader.at < len(source):
        raise PatternError("a closing parenthesis is unmatched")
    graph = reader.graph
    if not whole:
        anything: Ranges = ((0, LAST),)
        before, after = graph.state(), graph.state()
        graph.moves[before].append((anything, before))
        graph.moves[after].append((anything, after))
        graph.jump(before, start)
        graph.jump(end, after)
        start, end = before, after
    return _determined(graph, start, end)


_States = tuple[frozenset[int], str]
"""States of the graph that a text may have led to, and the guards that are open there."""


def _determined(graph: _Graph, start: int, end: int) -> Automaton:
    """The subset construction (Rabin and Scott, 1959)."""
    edges = {0}
    for moves in graph.moves:
        for ranges, _ in moves:
            edges.update(low for low, _ in ranges)
            edges.update(high + 1 for _, high in ranges if high < LAST)
    cuts = sorted(edges)

    @cache
    def closure(states: frozenset[int], guards: str) -> frozenset[int]:
        found = set(states)
        waiting = list(found)
        while waiting:
            for guard, target in graph.jumps[waiting.pop()]:
                if guard in guards and target not in found:
                    found.add(target)
                    waiting.append(target)
        return frozenset(found)

    def reached(state: int, column: int) -> list[int]:
        point = cuts[column]
        return [
            target
            for ranges, target in graph.moves[state]
            if any(low <= point <= high for low, high in ranges)
        ]

    # "" is in every string of guards, so plain edges are always open.
    table: dict[tuple[int, int], list[int]] = {}

    work = 0

    def follow(state: _States, column: int) -> _States:
        nonlocal work
        targets: set[int] = set()
        states = closure(*state)
        work += len(states)
        if work > _MOST_WORK:
            raise TooLarge
        for each in states:
            if (each, column) not in table:
                table[each, column] = reached(each, column)
            targets.update(table[each, column])
        return closure(frozenset(targets), ""), ""

    def accepts(state: _States) -> bool:
        states, guards = state
        return end in closure(states, guards + "$")

    return build((frozenset({start}), "^"), cuts, follow, accepts)
