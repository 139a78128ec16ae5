"""What a value may be: the cases that a schema comes to, and how two of them are one.

Whatever a case says of a kind of values counts for that kind only, as in JSON Schema.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tensorfold.chat.grammar.automaton import Automaton, all_of, lengths
from tensorfold.chat.grammar.numerals import Numbers, tighter

Schema = bool | Mapping[str, Any]

KINDS = frozenset({"null", "boolean", "number", "string", "array", "object"})


class SchemaError(ValueError):
    """A schema that is malformed, or that asks for what can't be enforced."""


@dataclass(frozen=True)
class Strings:
    """What a schema asks of a string: automata that must all match, and a length."""

    automata: tuple[Automaton, ...] = ()
    least: int = 0
    most: int | None = None

    def automaton(self) -> Automaton:
        """All of it as one."""
        return all_of([*self.automata, lengths(self.least, self.most)])


@dataclass(frozen=True)
class ArrayLayer:
    """One schema's word on items: the first ones, and the `rest` unless it says nothing."""

    prefix: tuple[Schema, ...] = ()
    rest: Schema | None = None


@dataclass(frozen=True)
class ObjectLayer:
    """One schema's word on properties: by name, by pattern, and all `others`, if it says."""

    named: tuple[tuple[str, Schema], ...] = ()
    patterns: tuple[tuple[Automaton, Schema], ...] = ()
    others: Schema | None = None

    def value_of(self, name: str) -> Schema:
        """What this layer asks of the property `name`."""
        asked = [schema for each, schema in self.named if each == name]
        asked += [schema for automaton, schema in self.patterns if automaton.matches(name)]
        if not asked and self.others is not None:
            return self.others
        return conjunction(asked)


@dataclass(frozen=True)
class Case:
    """One way a value can meet a schema.

    values: JSON values it is one of, or None; layers of arrays and objects hold all together
    """

    kinds: frozenset[str] = KINDS
    values: tuple[Any, ...] | None = None
    numbers: Numbers = field(default_factory=Numbers)
    strings: Strings = field(default_factory=Strings)
    arrays: tuple[ArrayLayer, ...] = ()
    items: tuple[int, int | None] = (0, None)
    objects: tuple[ObjectLayer, ...] = ()
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    names: tuple[Schema, ...] = ()
    properties: tuple[int, int | None] = (0, None)


def conjunction(schemas: Sequence[Schema]) -> Schema:
    """The schema of what meets them all, in one form whatever repeats."""
    parts: dict[str, Schema] = {}
    for schema in schemas:
        inner = [schema]
        if isinstance(schema, Mapping) and set(schema) == {"allOf"}:
            inner = list(schema["allOf"])
        for each in inner:
            if each is False:
                return False
            if each is not True and each != {}:
                parts[canonical(each)] = each
    if len(parts) < 2:
        return next(iter(parts.values()), True)
    return {"allOf": list(parts.values())}


def canonical(value: Any) -> str:
    """A text that JSON values share exactly when they are equal in JSON Schema's sense."""
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def kind_of(value: Any) -> str:
    """The kind of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def within(count: int, bounds: tuple[int, int | None]) -> bool:
    """Whether `count` is between two bounds, the second of which may be missing."""
    return bounds[0] <= count and (bounds[1] is None or count <= bounds[1])


def _smaller(a: int | None, b: int | None) -> int | None:
    return a if b is None else b if a is None else min(a, b)


def _distinct(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    return a + tuple(each for each in b if each not in a)


def common(a: tuple[Any, ...] | None, b: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """The values in both lists, where a missing list has every value."""
    if a is None or b is None:
        return b if a is None else a
    known = set(map(canonical, b))
    return tuple(value for value in a if canonical(value) in known)


def close_object(case: Case, schema: Schema) -> Case:
    """`case` with unevaluatedProperties: `schema` for the properties it says nothing of."""
    if any(layer.others is not None for layer in case.objects):
        return case
    named = {name: True for layer in case.objects for name, _ in layer.named}
    patterns = [(each, True) for layer in case.objects for each, _ in layer.patterns]
    closing = ObjectLayer(tuple(named.items()), tuple(patterns), schema)
    return replace(case, objects=(*case.objects, closing))


def close_array(case: Case, schema: Schema) -> Case:
    """`case` with unevaluatedItems: `schema` for the items it says nothing of."""
    if any(layer.rest is not None for layer in case.arrays):
        return case
    described = max((len(layer.prefix) for layer in case.arrays), default=0)
    return replace(case, arrays=(*case.arrays, ArrayLayer((True,) * described, schema)))


def both_cases(a: Case, b: Case) -> Case | None:
    """The case of what meets both, or None when plainly nothing does."""
    numbers = Numbers(
        a.numbers.whole or b.numbers.whole,
        tighter(a.numbers.low, b.numbers.low, 1),
        tighter(a.numbers.high, b.numbers.high, -1),
        a.numbers.multiples + b.numbers.multiples,
    )
    strings = Strings(
        tuple(dict.fromkeys(a.strings.automata + b.strings.automata)),
        max(a.strings.least, b.strings.least),
        _smaller(a.strings.most, b.strings.most),
    )
    case = Case(
        a.kinds & b.kinds,
        common(a.values, b.values),
        numbers,
        strings,
        _distinct(a.arrays, b.arrays),
        (max(a.items[0], b.items[0]), _smaller(a.items[1], b.items[1])),
        _distinct(a.objects, b.objects),
        tuple(dict.fromkeys(a.required + b.required)),
        tuple(dict.fromkeys(a.forbidden + b.forbidden)),
        _distinct(a.names, b.names),
        (max(a.properties[0], b.properties[0]), _smaller(a.properties[1], b.properties[1])),
    )
    return case if case.kinds and case.values != () else None
