"""The rules of a grammar, in xgrammar's EBNF (GBNF), and automata as rules."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorfold.chat.grammar.automaton import MOST_STATES, Automaton, Ranges, ranges_of
from tensorfold.chat.grammar.cases import SchemaError

_MOST_RULES = 20_000


@dataclass(frozen=True)
class Ref:
    """A rule in a sequence, repeated `least` to `most` times (None: without end)."""

    name: str
    least: int = 1
    most: int | None = 1

    def __str__(self) -> str:
        if (self.least, self.most) == (1, 1):
            return self.name
        most = "" if self.most is None else str(self.most)
        return f"{self.name}{{{self.least},{most}}}"


Symbol = str | Ref
"""A terminal, as it stands in the grammar's text, or a rule."""
Sequence_ = tuple[Symbol, ...]


def literal(text: str) -> str:
    """A terminal that is exactly `text`."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character.isascii() and character.isprintable() and character not in '"\\':
        return character
    point = ord(character)
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def _class(ranges: Ranges) -> str:
    def point(value: int) -> str:
        letter = chr(value)
        return letter if letter.isascii() and letter.isalnum() else _point(value)

    parts = [point(low) if low == high else f"{point(low)}-{point(high)}" for low, high in ranges]
    return f"[{''.join(parts)}]"


def _point(value: int) -> str:
    return f"\\u{value:04x}" if value < 0x10000 else f"\\U{value:08x}"


PLAIN = '[^"\\\\\\u0000-\\u001f]'
"""What stands for itself in a JSON string."""
PLAIN_FREE_OF_TAGS = '[^"\\\\<\\u0000-\\u001f]'
MOST_COUNTED = 64
_STRING_RULES = r"""
ws ::= [ \n\t\r]{0,32}
hex ::= [0-9a-fA-F]
escape ::= ["\\/bfnrt] | "u" ([0-9a-ce-fA-CE-F] hex hex hex | [dD] [0-7] hex hex | [dD] [89abAB] hex hex "\\u" [dD] [c-fC-F] hex hex)
text ::= "\"" | [^"\\\u0000-\u001f] text | "\\" escape text
integer ::= "-"? ("0" | [1-9] [0-9]*)
number ::= integer ("." [0-9]+)? ([eE] [+-]? [0-9]+)?
"""  # noqa: E501
_FIXED = ("ws", "hex", "escape", "text", "integer", "number")
_QUOTE: Sequence_ = ('"\\""',)


@dataclass
class Rules:
    """A grammar that grows as schemas and automata are added to it."""

    alternatives: dict[str, list[Sequence_]] = field(default_factory=dict)
    _names: dict[Any, str] = field(default_factory=dict)
    _documents: int = 0
    _states: int = 0

    def new_document(self) -> int:
        """A number that tells the schemas of one document from those of another."""
        self._documents += 1
        return self._documents

    def named(self, key: Any, kind: str, make: Callable[[], Iterator[Sequence_]]) -> Ref:
        """The rule known by `key`, made if it is not there yet. A rule may refer to itself."""
        if key not in self._names:
            if len(self._names) > _MOST_RULES:
                raise SchemaError("the schema is too large to be enforced")
            name = f"{kind}{len(self._names)}"
            self._names[key] = name
            self.alternatives[name] = []
            self.alternatives[name] = list(dict.fromkeys(make()))
        return Ref(self._names[key])

    def quoted(self, automaton: Automaton) -> Ref:
        """The rest of a JSON string after its opening quote, the closing one included."""
        return self._state(automaton, _QUOTE, quoted=True)

    def characters(self, least: int, most: int | None, plain: str = PLAIN) -> Ref:
        """The rest of a JSON string of so many characters, `plain` ones or escapes, the closing
        quote included.

        Each count is a rule of its own that goes on to the next one: xgrammar finds a mask quickly
        where a rule need not return. Beyond `MOST_COUNTED` it stops short.
        """
        if most is None and not least and plain == PLAIN:
            return Ref("text")
        if most is not None:
            least, most = min(least, most), min(most, MOST_COUNTED)
        key = ("characters", least, most, plain)

        def make() -> Iterator[Sequence_]:
            if not least:
                yield _QUOTE
            if most is None or most > 0:
                fewer = None if most is None else most - 1
                rest = self.characters(max(least - 1, 0), fewer, plain)
                yield (plain, rest)
                yield ('"\\\\"', Ref("escape"), rest)

        return self.named(key, "c", make)

    def bare(self, automaton: Automaton, ending: Sequence_ = ()) -> Ref:
        """A text that `automaton` accepts, as it is, and `ending`.

        With an ending a text may be long: its rules return once, where they have come to it.
        """
        return self._state(automaton, ending, quoted=False)

    def _state(self, automaton: Automaton, ending: Sequence_, *, quoted: bool) -> Ref:
        live = automaton.live()

        def key(state: int) -> Any:
            return (automaton, state, ending, quoted)

        def arcs(state: int) -> Iterator[Sequence_]:
            if automaton.accepting[state]:
                yield ending
            for target, ranges in automaton.arcs(state).items():
                if live[target]:
                    rest = Ref(self._names[key(target)])
                    yield from ((terminal, rest) for terminal in terminals(ranges, quoted=quoted))

        # Every state's rule is named before any is made, so that none waits for another.
        fresh = [state for state in range(len(automaton.rows)) if key(state) not in self._names]
        for state in fresh:
            self._names[key(state)] = f"s{len(self._names)}"
        self._states += len(fresh)
        if self._states > MOST_STATES or len(self._names) > _MOST_RULES:
            raise SchemaError("the schema is too large to be enforced")
        for state in fresh:
            self.alternatives[self._names[key(state)]] = list(arcs(state))
        return Ref(self._names[key(0)])

    def text(self, root: Sequence_) -> str | None:
        """The grammar, of which `root` is the whole; None when nothing at all matches it."""
        productive = self._productive()

        def useful(sequence: Sequence_) -> Sequence_ | None:
            kept: list[Symbol] = []
            for symbol in sequence:
                if isinstance(symbol, str) or symbol.name in productive:
                    kept.append(symbol)
                elif symbol.least:
                    return None
            return tuple(kept)

        used: dict[str, list[Sequence_]] = {}
        start = useful(root)
        if start is None:
            return None
        waiting = [start]
        while waiting:
            for symbol in waiting.pop():
                if isinstance(symbol, Ref) and symbol.name not in used:
                    found = [useful(each) for each in self.alternatives.get(symbol.name, [])]
                    used[symbol.name] = [each for each in found if each is not None]
                    waiting.extend(used[symbol.name])
        lines = [f"root ::= {_written(start)}"]
        for name, sequences in used.items():
            if name not in _FIXED:
                lines.append(f"{name} ::= {' | '.join(map(_written, sequences))}")
        return "\n".join(lines) + _STRING_RULES

    def _productive(self) -> set[str]:
        """The rules that some finite text matches."""
        found = set(_FIXED)
        waiting = dict(self.alternatives)
        while True:
            more = [
                name
                for name, sequences in waiting.items()
                if any(
                    all(
                        isinstance(each, str) or each.least == 0 or each.name in found
                        for each in sequence
                    )
                    for sequence in sequences
                )
            ]
            if not more:
                return found
            found.update(more)
            for name in more:
                del waiting[name]


def _written(sequence: Sequence_) -> str:
    return " ".join(map(str, sequence)) or '""'


_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}


def terminals(ranges: Ranges, *, quoted: bool) -> Iterator[str]:
    """The terminals for one code point of `ranges`, in a JSON string or as it is."""
    plain = _without(ranges, [(0xD800, 0xDFFF)])
    if not quoted:
        if plain:
            yield _class(plain)
        return
    plain = _without(plain, [(0, 31), (34, 34), (92, 92)])
    if plain:
        yield _class(plain)
    inside = [
        point for point in (*range(32), 34, 92) if any(low <= point <= high for low, high in ranges)
    ]
    if short := [_SHORT[point] for point in inside if point in _SHORT]:
        yield f'"\\\\" {_letters(short)}'
    for digit in "01":
        codes = [f"{point:02x}" for point in inside if point not in _SHORT]
        if last := [code[1] for code in codes if code[0] == digit]:
            yield f'"\\\\u00{digit}" {_letters(last)}'


def _letters(letters: Sequence[str]) -> str:
    return _class(ranges_of((ord(letter), ord(letter)) for letter in letters))


def _without(ranges: Ranges, holes: Sequence[tuple[int, int]]) -> Ranges:
    for first, last in holes:
        kept = []
        for low, high in ranges:
            if low < first:
                kept.append((low, min(high, first - 1)))
            if high > last:
                kept.append((max(low, last + 1), high))
        ranges = tuple(kept)
    return ranges


WS = Ref("ws")
