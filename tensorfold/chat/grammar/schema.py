"""JSON Schema read as cases: what a value may be, with every combination of keywords worked out.

A schema (draft 2020-12; the older spellings that mean the same are read too) becomes a list of
`Case`s, any one of which a value must meet. `allOf`, `$ref` and the keywords beside them narrow a
case, `anyOf` makes several. Every keyword is either enforced to the letter or refused by name: a
reply that was constrained by half of a schema would only look as if it fitted.

Two things are narrower than JSON Schema has it, as everywhere in structured output: an object
whose properties are named has no others, and an array whose first items are described has no
others, unless the schema says something about them itself.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tensorfold.chat.grammar.automaton import Automaton, either, lengths, words
from tensorfold.chat.grammar.cases import (
    Case,
    Schema,
    SchemaError,
    both_cases,
    canonical,
    close_array,
    close_object,
    conjunction,
    kind_of,
    within,
)
from tensorfold.chat.grammar.keywords import check_keywords, dependencies, own_case, schemas
from tensorfold.chat.grammar.numerals import automaton_of
from tensorfold.chat.grammar.pattern import PatternError

_MOST_CASES = 1000
_DEEPEST = 64


@dataclass
class Reader:
    """Reads the schemas of one document, whose parts may refer to each other."""

    root: Schema
    _cases: dict[str, list[Case]] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)

    def cases(self, schema: Schema) -> list[Case]:
        """The ways to meet `schema`; none when nothing does. Raises `SchemaError`."""
        if schema is True:
            return [Case()]
        if schema is False:
            return []
        if not isinstance(schema, Mapping):
            raise SchemaError("a schema must be an object, true or false")
        key = canonical(schema)
        if key in self._cases:
            return self._cases[key]
        if key in self._open or len(self._open) > _DEEPEST:
            raise SchemaError("$ref leads back to itself without a value in between")
        self._open.add(key)
        try:
            found = self._read(schema)
        except PatternError as error:
            raise SchemaError(f"pattern: {error}") from None
        finally:
            self._open.discard(key)
        self._cases[key] = found
        return found

    def _read(self, schema: Mapping[str, Any]) -> list[Case]:
        check_keywords(schema)
        found = [own_case(schema)]
        if "$ref" in schema:
            found = self._met(found, self.cases(self._referred(schema["$ref"])), "$ref")
        for each in schemas(schema, "allOf"):
            found = self._met(found, self.cases(each), "allOf")
        if "anyOf" in schema:
            branches = [case for each in schemas(schema, "anyOf") for case in self.cases(each)]
            found = self._met(found, branches, "anyOf")
        if "oneOf" in schema:
            found = self._one_of(found, schemas(schema, "oneOf"))
        for trigger, needed in dependencies(schema):
            absent = Case(forbidden=(trigger,))
            present = Case(frozenset({"object"}), required=(trigger,))
            ways = [absent, *self._met([present], self.cases(needed), "dependentSchemas")]
            found = self._met(found, ways, "dependentRequired")
        if "unevaluatedProperties" in schema:
            found = [close_object(case, schema["unevaluatedProperties"]) for case in found]
        if "unevaluatedItems" in schema:
            found = [close_array(case, schema["unevaluatedItems"]) for case in found]
        return found

    def _met(self, left: list[Case], right: list[Case], keyword: str) -> list[Case]:
        """Every way to meet both."""
        if len(left) * len(right) > _MOST_CASES:
            raise SchemaError(f"{keyword} has too many combinations to be enforced")
        pairs = (both_cases(a, b) for a in left for b in right)
        return [case for case in pairs if case is not None]

    def _one_of(self, before: list[Case], branches: Sequence[Schema]) -> list[Case]:
        """As anyOf, once no value can meet two of the branches."""
        each = [self._met(before, self.cases(branch), "oneOf") for branch in branches]
        for left, right in itertools.combinations(each, 2):
            if any(self.possible(case) for case in self._met(left, right, "oneOf")):
                raise SchemaError(
                    "oneOf can't be enforced where a value may match two of its schemas; "
                    "use anyOf, or tell them apart by a required property with a const"
                )
        return [case for ways in each for case in ways]

    def possible(self, case: Case, depth: int = 0) -> bool:
        """Whether a value may meet `case`; true when that is not easily told."""
        if case.values is not None:
            return any(self._fits_case(value, case) for value in case.values)
        return any(self._kind_possible(case, kind, depth) for kind in case.kinds)

    def _kind_possible(self, case: Case, kind: str, depth: int) -> bool:
        if kind == "number":
            return case.numbers.plain or not automaton_of(case.numbers).empty
        if kind == "string":
            if case.strings.automata:
                return not case.strings.automaton().empty
            return case.strings.most is None or case.strings.least <= case.strings.most
        if kind == "array":
            least, most = case.items
            return (most is None or least <= most) and (
                depth > 4
                or all(
                    any(self.possible(each, depth + 1) for each in self.cases(item))
                    for item in (self.item(case, place) for place in range(min(least, 8)))
                )
            )
        if kind == "object":
            return depth > 4 or all(
                any(self.possible(each, depth + 1) for each in self.cases(self.value(case, name)))
                for name in case.required
            )
        return True

    def value(self, case: Case, name: str) -> Schema:
        """What `case` asks of the property `name` of an object."""
        if name in case.forbidden or not all(self.fits(name, schema) for schema in case.names):
            return False
        if not self.open_object(case) and not any(
            name in dict(layer.named) or any(each.matches(name) for each, _ in layer.patterns)
            for layer in case.objects
        ):
            return name in case.required
        return conjunction([layer.value_of(name) for layer in case.objects])

    @staticmethod
    def open_object(case: Case) -> bool:
        """Whether there may be properties that no schema names or has a pattern for."""
        return any(layer.others is not None for layer in case.objects) or not any(
            layer.named or layer.patterns for layer in case.objects
        )

    def item(self, case: Case, place: int) -> Schema:
        """What `case` asks of the item at `place` of an array."""
        described = max((len(layer.prefix) for layer in case.arrays), default=0)
        closed = described and all(layer.rest is None for layer in case.arrays)
        if closed and described <= place and case.items[0] <= described:
            return False
        asked = [
            layer.prefix[place] if place < len(layer.prefix) else layer.rest
            for layer in case.arrays
        ]
        return conjunction([schema for schema in asked if schema is not None])

    def fits(self, value: Any, schema: Schema) -> bool:
        """Whether a JSON value meets `schema`."""
        return any(self._fits_case(value, case) for case in self.cases(schema))

    def _fits_case(self, value: Any, case: Case) -> bool:
        kind = kind_of(value)
        if kind not in case.kinds:
            return False
        if case.values is not None and canonical(value) not in map(canonical, case.values):
            return False
        if kind == "number":
            return case.numbers.allows(value)
        if kind == "string":
            return within(len(value), (case.strings.least, case.strings.most)) and all(
                automaton.matches(value) for automaton in case.strings.automata
            )
        if kind == "array":
            return within(len(value), case.items) and all(
                self.fits(item, self.item(case, place)) for place, item in enumerate(value)
            )
        if kind == "object":
            return (
                within(len(value), case.properties)
                and set(case.required) <= set(value)
                and all(self.fits(item, self.value(case, name)) for name, item in value.items())
            )
        return True

    def values(self, case: Case) -> list[Any]:
        """The listed values of `case` that meet the rest of it."""
        return [value for value in case.values or () if self._fits_case(value, case)]

    def name_automata(self, case: Case) -> list[Automaton]:
        """What `propertyNames` asks of every name."""
        found = []
        for schema in case.names:
            ways = []
            for each in self.cases(schema):
                if each.values is not None:
                    ways.append(words(each for each in self.values(each) if type(each) is str))
                elif "string" in each.kinds:
                    ways.append(each.strings.automaton())
            union = ways[0] if ways else lengths(1, 0)
            for way in ways[1:]:
                union = either(union, way)
            found.append(union)
        return found

    def _referred(self, reference: Any) -> Schema:
        if not isinstance(reference, str):
            raise SchemaError("$ref must be a string")
        if reference != "#" and not reference.startswith("#/"):
            raise SchemaError(f"$ref must lead to a place in the schema itself, not {reference!r}")
        found: Any = self.root
        for step in reference.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                raise SchemaError(f"$ref leads nowhere: {reference!r}")
        return found
