"""A schema's cases as the rules of a grammar of JSON text, in xgrammar's EBNF (GBNF).

Between any two tokens of JSON there may be up to 32 blanks. Properties come in the order of the
schema, then the others that it allows. Where a schema lets any string stand, every escape may be
written; a string with a pattern, a name and a listed value are written with the shortest ones.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorfold.chat.grammar.automaton import (
    MOST_STATES,
    Automaton,
    Ranges,
    all_of,
    lengths,
    ranges_of,
    without,
    words,
)
from tensorfold.chat.grammar.cases import (
    Case,
    ObjectLayer,
    Schema,
    SchemaError,
    canonical,
    conjunction,
)
from tensorfold.chat.grammar.numerals import automaton_of
from tensorfold.chat.grammar.schema import Reader

MOST_BLANKS = 32
_MOST_RULES = 20_000
_MOST_PATTERNS = 4


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


_PLAIN = '[^"\\\\\\u0000-\\u001f]'
_MOST_COUNTED = 64
_STRING_RULES = r"""
ws ::= [ \n\t\r]{0,32}
hex ::= [0-9a-fA-F]
escape ::= ["\\/bfnrt] | "u" ([0-9a-ce-fA-CE-F] hex hex hex | [dD] [0-7] hex hex | [dD] [89abAB] hex hex "\\u" [dD] [c-fC-F] hex hex)
text ::= "\"" | [^"\\\u0000-\u001f] text | "\\" escape text
integer ::= "-"? ("0" | [1-9] [0-9]*)
number ::= integer ("." [0-9]+)? ([eE] [+-]? [0-9]+)?
"""  # noqa: E501
_FIXED = ("ws", "hex", "escape", "text", "integer", "number")


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
        return self._state(automaton, 0, quoted=True)

    def characters(self, least: int, most: int | None) -> Ref:
        """The rest of a JSON string of so many characters, the closing quote included.

        Each count is a rule of its own that goes on to the next one: xgrammar finds a mask quickly
        where a rule need not return. Beyond `_MOST_COUNTED` it stops short.
        """
        if most is None and not least:
            return Ref("text")
        if most is not None:
            least, most = min(least, most), min(most, _MOST_COUNTED)
        key = ("characters", least, most)

        def make() -> Iterator[Sequence_]:
            if not least:
                yield ('"\\""',)
            if most is None or most > 0:
                rest = self.characters(max(least - 1, 0), None if most is None else most - 1)
                yield (_PLAIN, rest)
                yield ('"\\\\"', Ref("escape"), rest)

        return self.named(key, "c", make)

    def bare(self, automaton: Automaton) -> Ref:
        """A text that `automaton` accepts, as it is."""
        return self._state(automaton, 0, quoted=False)

    def _state(self, automaton: Automaton, first: int, *, quoted: bool) -> Ref:
        live = automaton.live()

        def key(state: int) -> Any:
            return (automaton, state, quoted)

        def arcs(state: int) -> Iterator[Sequence_]:
            if automaton.accepting[state]:
                yield ('"\\""',) if quoted else ()
            for target, ranges in automaton.arcs(state).items():
                if live[target]:
                    rest = Ref(self._names[key(target)])
                    yield from ((terminal, rest) for terminal in _terminals(ranges, quoted))

        # Every state's rule is named before any is made, so that none waits for another.
        fresh = [state for state in range(len(automaton.rows)) if key(state) not in self._names]
        for state in fresh:
            self._names[key(state)] = f"s{len(self._names)}"
        self._states += len(fresh)
        if self._states > MOST_STATES or len(self._names) > _MOST_RULES:
            raise SchemaError("the schema is too large to be enforced")
        for state in fresh:
            self.alternatives[self._names[key(state)]] = list(arcs(state))
        return Ref(self._names[key(first)])

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


def _terminals(ranges: Ranges, quoted: bool) -> Iterator[str]:
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
_ANYTHING = lengths(0, None)


@dataclass
class JsonRules:
    """Adds rules for the JSON texts of values that meet schemas of one document."""

    rules: Rules
    reader: Reader

    def __post_init__(self) -> None:
        self._document = self.rules.new_document()

    def value(self, schema: Schema) -> Ref:
        """The rule for a value that meets `schema`. Raises `SchemaError`."""

        def make() -> Iterator[Sequence_]:
            for case in self.reader.cases(schema):
                yield from self._case(case)

        return self.rules.named((self._document, canonical(schema)), "v", make)

    def _case(self, case: Case) -> Iterator[Sequence_]:
        if case.values is not None:
            for value in self.reader.values(case):
                yield tuple(_listed(value))
            return
        if "null" in case.kinds:
            yield ('"null"',)
        if "boolean" in case.kinds:
            yield from (('"true"',), ('"false"',))
        if "number" in case.kinds:
            if case.numbers.plain:
                yield (Ref("integer" if case.numbers.whole else "number"),)
            else:
                yield (self.rules.bare(automaton_of(case.numbers)),)
        if "string" in case.kinds:
            yield from self._string(case)
        if "array" in case.kinds:
            yield from self._array(case)
        if "object" in case.kinds:
            yield self._object(case)

    def _string(self, case: Case) -> Iterator[Sequence_]:
        strings = case.strings
        if strings.automata:
            yield '"\\""', self.rules.quoted(strings.automaton())
        elif strings.most is None or strings.least <= strings.most:
            yield '"\\""', self.rules.characters(strings.least, strings.most)
            if strings.most is not None and strings.most > _MOST_COUNTED:
                # Counting is quick only for characters of one class.
                yield '"\\""', f"{_PLAIN}{{{strings.least},{strings.most}}}", '"\\""'

    def _array(self, case: Case) -> Iterator[Sequence_]:
        least, most = case.items
        described = max((len(layer.prefix) for layer in case.arrays), default=0)
        if most is not None and least > most:
            return
        if least == 0:
            yield '"["', WS, '"]"'
        if most == 0:
            return
        first = self.value(self.reader.item(case, 0))
        yield '"["', WS, first, self._items(case, 1, described), WS, '"]"'

    def _items(self, case: Case, place: int, described: int) -> Ref:
        """The items after the first `place`, each with its comma."""
        least, most = case.items

        def make() -> Iterator[Sequence_]:
            if place >= described:
                item = self.value(self.reader.item(case, place))
                more = self.rules.named(("item", item), "i", lambda: iter([_after_comma(item)]))
                top = None if most is None else most - place
                yield (Ref(more.name, max(least - place, 0), top),)
                return
            if least <= place:
                yield ()
            if most is None or place < most:
                item = self.value(self.reader.item(case, place))
                yield (*_after_comma(item), self._items(case, place + 1, described))

        return self.rules.named((self._document, id(case), "items", place), "a", make)

    def _object(self, case: Case) -> Sequence_:
        names = dict.fromkeys(name for layer in case.objects for name, _ in layer.named)
        names |= dict.fromkeys(case.required)
        members = [
            (
                (literal(json.dumps(name, ensure_ascii=False)), *_after_colon(
                    self.value(self.reader.value(case, name))
                )),
                name in case.required,
            )
            for name in names
        ]  # fmt: skip
        others = self.rules.named(
            (self._document, id(case), "others"), "o", lambda: self._others(case, [*names])
        )
        return '"{"', WS, self._members(case, members, others, 0, 0)

    def _members(
        self,
        case: Case,
        members: Sequence[tuple[Sequence_, bool]],
        others: Ref,
        index: int,
        written: int,
    ) -> Ref:
        """The members from `index` on and the closing brace, after `written` ones."""
        least, most = case.properties
        comma: Sequence_ = (WS, '","', WS) if written else ()
        more = min(written + 1, max(least, 1)) if most is None else written + 1

        def make() -> Iterator[Sequence_]:
            if index < len(members):
                member, required = members[index]
                if most is None or written < most:
                    rest = self._members(case, members, others, index + 1, more)
                    yield (*comma, *member, rest)
                if not required:
                    yield (self._members(case, members, others, index + 1, written),)
                return
            end: Sequence_ = (WS, '"}"')
            if written >= least:
                yield end if written else ('"}"',)
            if most is None or written < most:
                top = None if most is None else most - written - 1
                again = self.rules.named(
                    ("other", others), "i", lambda: iter([(WS, '","', WS, others)])
                )
                yield (*comma, others, Ref(again.name, 0, top), *end)

        return self.rules.named((self._document, id(case), "members", index, written), "m", make)

    def _others(self, case: Case, names: Sequence[str]) -> Iterator[Sequence_]:
        """A member whose name no schema lists."""
        patterns = list(
            dict.fromkeys(automaton for layer in case.objects for automaton, _ in layer.patterns)
        )
        if len(patterns) > _MOST_PATTERNS:
            raise SchemaError(f"patternProperties may have at most {_MOST_PATTERNS} patterns")
        if not patterns and not self.reader.open_object(case):
            return
        if case.properties[0] - len(case.required) > 1:
            raise SchemaError(
                "minProperties can't be enforced over names that the schema does not list"
            )
        known = words([*names, *case.forbidden])
        for chosen in itertools.product((True, False), repeat=len(patterns)):
            matched = [each for each, taken in zip(patterns, chosen, strict=True) if taken]
            if not matched and not self.reader.open_object(case):
                continue
            value = conjunction([_asked(layer, matched) for layer in case.objects])
            if value is False:
                continue
            keys = without(all_of([*matched, *self.reader.name_automata(case)]), known)
            for each in patterns:
                if each not in matched:
                    keys = without(keys, each)
            if not keys.empty:
                key: Sequence_ = ('"\\""', self.rules.quoted(keys))
                if keys == _ANYTHING:
                    key = ('"\\""', Ref("text"))
                yield (*key, *_after_colon(self.value(value)))


def _asked(layer: ObjectLayer, matched: Sequence[Automaton]) -> Schema:
    """What a layer asks of a name that exactly the patterns `matched` match."""
    asked = [schema for automaton, schema in layer.patterns if automaton in matched]
    if not asked and layer.others is not None:
        return layer.others
    return conjunction(asked)


def _after_comma(item: Ref) -> Sequence_:
    return (WS, '","', WS, item)


def _after_colon(value: Ref) -> Sequence_:
    return (WS, '":"', WS, value)


def _listed(value: Any) -> Iterator[Symbol]:
    """The JSON text of exactly `value`."""
    if isinstance(value, dict):
        yield from ('"{"', WS)
        for index, (name, item) in enumerate(value.items()):
            yield from (WS, '","', WS) if index else ()
            yield from (literal(json.dumps(name, ensure_ascii=False)), WS, '":"', WS)
            yield from _listed(item)
        yield from (WS, '"}"') if value else ('"}"',)
    elif isinstance(value, list):
        yield from ('"["', WS)
        for index, item in enumerate(value):
            yield from (WS, '","', WS) if index else ()
            yield from _listed(item)
        yield from (WS, '"]"') if value else ('"]"',)
    else:
        yield literal(json.dumps(value, ensure_ascii=False))
