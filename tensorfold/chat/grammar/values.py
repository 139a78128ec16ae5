"""A schema's cases as rules for the JSON text of a value.

Between any two tokens of JSON there may be up to 32 blanks. Properties come in the order of the
schema, then the others that it allows. Where a schema lets any string stand, every escape may be
written; a string with a pattern, a name and a listed value are written with the shortest ones.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tensorfold.chat.grammar.automaton import Automaton, all_of, without, words
from tensorfold.chat.grammar.cases import (
    Case,
    ObjectLayer,
    Schema,
    SchemaError,
    canonical,
    conjunction,
)
from tensorfold.chat.grammar.notation import JSON, Notation, after_colon, spelled
from tensorfold.chat.grammar.numerals import automaton_of
from tensorfold.chat.grammar.rules import WS, Ref, Rules, Sequence_
from tensorfold.chat.grammar.schema import Reader

_MOST_PATTERNS = 4


@dataclass(frozen=True)
class Frame:
    """What stands around the members of an object: between two, behind the last, or alone."""

    comma: Sequence_ = ()
    end: Sequence_ = ()
    end_of_none: Sequence_ = ()


Member = Callable[[str], Iterator[Sequence_]]
"""The ways to write a property, by its name."""
Other = Callable[[Automaton, Schema], Iterator[Sequence_]]
"""The ways to write a property of some names, whose value meets a schema."""


@dataclass
class ValueRules:
    """Adds rules for the texts of values that meet schemas of one document."""

    rules: Rules
    reader: Reader
    notation: Notation = JSON

    def __post_init__(self) -> None:
        self.document = self.rules.new_document()
        """Tells its rules from those of other documents."""

    def value(self, schema: Schema) -> Ref:
        """The rule for a value that meets `schema`. Raises `SchemaError`."""

        def make() -> Iterator[Sequence_]:
            for case in self.reader.cases(schema):
                yield from self.case(case)

        return self.rules.named((self.document, canonical(schema)), "v", make)

    def case(self, case: Case) -> Iterator[Sequence_]:
        """The ways to write a value that meets one case."""
        if case.values is not None:
            for value in self.reader.values(case):
                if (text := spelled(value, self.notation)) is not None:
                    yield text
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
            yield from self.notation.strings(self.rules, case.strings)
        if "array" in case.kinds:
            yield from self._array(case)
        if "object" in case.kinds:
            yield self._object(case)

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

        return self.rules.named((self.document, id(case), "items", place), "a", make)

    def _object(self, case: Case) -> Sequence_:
        frame = Frame((WS, '","', WS), (WS, '"}"'), ('"}"',))
        return '"{"', WS, self.members(case, self._member(case), self._other, frame)

    def _member(self, case: Case) -> Member:
        def written(name: str) -> Iterator[Sequence_]:
            if (key := self.notation.string(name)) is not None:
                value = self.value(self.reader.value(case, name))
                yield after_colon(key, (value,))

        return written

    def _other(self, names: Automaton, schema: Schema) -> Iterator[Sequence_]:
        yield after_colon(self.notation.names(self.rules, names), (self.value(schema),))

    def members(self, case: Case, member: Member, other: Other, frame: Frame) -> Ref:
        """The properties of an object, by how one is written, and another that no schema names."""
        named = [name for layer in case.objects for name, _ in layer.named]
        names = list(dict.fromkeys([*named, *case.required]))
        members = [([*member(name)], name in case.required) for name in names]
        others = self.rules.named(
            (self.document, id(case), "others", frame),
            "o",
            lambda: self._others(case, names, other),
        )
        return self._members(case, members, others, frame, 0, 0)

    def _members(
        self,
        case: Case,
        members: Sequence[tuple[Sequence[Sequence_], bool]],
        others: Ref,
        frame: Frame,
        index: int,
        written: int,
    ) -> Ref:
        """The members from `index` on and the closing brace, after `written` ones."""
        least, most = case.properties
        comma = frame.comma if written else ()
        more = min(written + 1, max(least, 1)) if most is None else written + 1

        def make() -> Iterator[Sequence_]:
            if index < len(members):
                ways, required = members[index]
                if most is None or written < most:
                    rest = self._members(case, members, others, frame, index + 1, more)
                    yield from ((*comma, *way, rest) for way in ways)
                if not required:
                    yield (self._members(case, members, others, frame, index + 1, written),)
                return
            if written >= least:
                yield frame.end if written else frame.end_of_none
            if most is None or written < most:
                top = None if most is None else most - written - 1
                again = self.rules.named(
                    ("other", others), "i", lambda: iter([(*frame.comma, others)])
                )
                yield (*comma, others, Ref(again.name, 0, top), *frame.end)

        key = (self.document, id(case), "members", frame, index, written)
        return self.rules.named(key, "m", make)

    def _others(self, case: Case, names: Sequence[str], other: Other) -> Iterator[Sequence_]:
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
                yield from other(keys, value)


def _asked(layer: ObjectLayer, matched: Sequence[Automaton]) -> Schema:
    """What a layer asks of a name that exactly the patterns `matched` match."""
    asked = [schema for automaton, schema in layer.patterns if automaton in matched]
    if not asked and layer.others is not None:
        return layer.others
    return conjunction(asked)


def _after_comma(item: Ref) -> Sequence_:
    return (WS, '","', WS, item)
