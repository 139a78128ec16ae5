"""The keywords of one schema, without those that combine schemas, as a case.

Each is read in full or refused by name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensorfold.chat.grammar.automaton import Automaton, TooLarge
from tensorfold.chat.grammar.cases import (
    KINDS,
    ArrayLayer,
    Case,
    ObjectLayer,
    Schema,
    SchemaError,
    Strings,
    common,
)
from tensorfold.chat.grammar.formats import FORMATS
from tensorfold.chat.grammar.numerals import Bound, Numbers, multiple_can_be_kept, tighter
from tensorfold.chat.grammar.pattern import PatternError, compile_pattern

_ANNOTATIONS = frozenset(
    [
        "$schema",
        "$id",
        "$comment",
        "$defs",
        "definitions",
        "title",
        "description",
        "default",
        "example",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "discriminator",
        "externalDocs",
        "xml",
    ]
)


def check_keywords(schema: Mapping[str, Any]) -> None:
    """Refuse a schema with a keyword that can't be enforced. Raises `SchemaError`."""
    for keyword, value in schema.items():
        if keyword in _ANNOTATIONS or keyword.startswith("x-"):
            continue
        if keyword in _HARMLESS and _HARMLESS[keyword](schema):
            continue
        if keyword not in _ENFORCED:
            raise SchemaError(f'the keyword "{keyword}" can\'t be enforced; leave it out')
        if keyword in _REFUSED_FORMS and _REFUSED_FORMS[keyword](value):
            raise SchemaError(f'"{keyword}": {_FORM_REASONS[keyword]}')


_ENFORCED = frozenset(
    [
        "$ref",
        "type",
        "enum",
        "const",
        "allOf",
        "anyOf",
        "oneOf",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "items",
        "prefixItems",
        "additionalItems",
        "minItems",
        "maxItems",
        "properties",
        "patternProperties",
        "additionalProperties",
        "propertyNames",
        "required",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "unevaluatedProperties",
        "unevaluatedItems",
    ]
)
_HARMLESS = {
    "uniqueItems": lambda schema: (
        schema["uniqueItems"] is False or schema.get("maxItems") in (0, 1)
    ),
    "nullable": lambda schema: schema["nullable"] is False,
    "then": lambda schema: "if" not in schema,
    "else": lambda schema: "if" not in schema,
    "minContains": lambda schema: "contains" not in schema,
    "maxContains": lambda schema: "contains" not in schema,
    "not": lambda schema: schema["not"] is False,
}
_REFUSED_FORMS = {
    "exclusiveMinimum": lambda value: isinstance(value, bool),
    "exclusiveMaximum": lambda value: isinstance(value, bool),
}
_FORM_REASONS = {
    "exclusiveMinimum": "must be a number",
    "exclusiveMaximum": "must be a number",
}


def own_case(schema: Mapping[str, Any]) -> Case:
    """What a schema's own keywords ask. Raises `SchemaError`."""
    kinds, whole = _types(schema)
    values = None
    if "const" in schema:
        values = (schema["const"],)
    if "enum" in schema:
        if not isinstance(schema["enum"], list) or not schema["enum"]:
            raise SchemaError("enum must be a non-empty list")
        values = common(values, tuple(schema["enum"]))
    return Case(
        kinds,
        values,
        _numbers(schema, whole),
        _strings(schema),
        _arrays(schema),
        _sizes(schema, "minItems", "maxItems"),
        _objects(schema),
        _names(schema, "required"),
        (),
        (schema["propertyNames"],) if "propertyNames" in schema else (),
        _sizes(schema, "minProperties", "maxProperties"),
    )


def _types(schema: Mapping[str, Any]) -> tuple[frozenset[str], bool]:
    """The kinds of values, and whether numbers are whole."""
    named = schema.get("type", sorted(KINDS))
    listed = [named] if isinstance(named, str) else named
    if not isinstance(listed, list) or not listed:
        raise SchemaError("type must be a string or a non-empty list of them")
    for each in listed:
        if each not in (*KINDS, "integer"):
            raise SchemaError(f"type is unknown: {each!r}")
    kinds = frozenset("number" if each == "integer" else each for each in listed)
    return kinds, "integer" in listed and "number" not in listed


def _number(schema: Mapping[str, Any], keyword: str) -> int | float | None:
    value = schema.get(keyword)
    if keyword in schema and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise SchemaError(f"{keyword} must be a number")
    return value


def _numbers(schema: Mapping[str, Any], whole: bool) -> Numbers:
    low = high = None
    for keyword, strict in (("minimum", False), ("exclusiveMinimum", True)):
        if (value := _number(schema, keyword)) is not None:
            low = tighter(low, Bound(value, strict), 1)
    for keyword, strict in (("maximum", False), ("exclusiveMaximum", True)):
        if (value := _number(schema, keyword)) is not None:
            high = tighter(high, Bound(value, strict), -1)
    multiple = _number(schema, "multipleOf")
    if multiple is not None and (multiple <= 0 or not multiple_can_be_kept(multiple)):
        raise SchemaError(
            "multipleOf can be enforced only for whole numbers up to 500 and for 0.1, 0.01, ..."
        )
    numbers = Numbers(whole, low, high, () if multiple is None else (multiple,))
    if "format" in schema and schema["format"] in _WIDTHS:
        bits = _WIDTHS[schema["format"]]
        low = tighter(low, Bound(-(2 ** (bits - 1))), 1)
        high = tighter(high, Bound(2 ** (bits - 1) - 1), -1)
        numbers = replace(numbers, low=low, high=high)
    return numbers


_WIDTHS = {"int32": 32, "int64": 64}


def _strings(schema: Mapping[str, Any]) -> Strings:
    least, most = _sizes(schema, "minLength", "maxLength")
    automata = []
    if "pattern" in schema:
        automata.append(_pattern(schema["pattern"], "pattern"))
    if "format" in schema:
        name = schema["format"]
        if isinstance(name, str) and name in FORMATS:
            automata.append(compile_pattern(FORMATS[name], whole=True))
        elif name not in (*_WIDTHS, "float", "double"):
            known = ", ".join(sorted(FORMATS))
            raise SchemaError(f"format {name!r} can't be enforced; known are {known}")
    return Strings(tuple(automata), least, most)


def _pattern(source: Any, keyword: str) -> Automaton:
    if not isinstance(source, str):
        raise SchemaError(f"{keyword} must be a string")
    try:
        return compile_pattern(source)
    except PatternError as error:
        raise SchemaError(f"{keyword}: {error}: {source!r}") from None
    except TooLarge:
        raise SchemaError(f"{keyword} is too large to be enforced: {source!r}") from None


def _sizes(schema: Mapping[str, Any], low: str, high: str) -> tuple[int, int | None]:
    found: list[int | None] = []
    for keyword in (low, high):
        value = _number(schema, keyword)
        if value is not None and (value != int(value) or value < 0):
            raise SchemaError(f"{keyword} must be a whole number of at least 0")
        found.append(None if value is None else int(value))
    return found[0] or 0, found[1]


def _arrays(schema: Mapping[str, Any]) -> tuple[ArrayLayer, ...]:
    items = schema.get("items")
    if isinstance(items, list):
        return (ArrayLayer(tuple(schemas(schema, "items")), schema.get("additionalItems")),)
    prefix = schemas(schema, "prefixItems") if "prefixItems" in schema else ()
    if "items" not in schema and not prefix:
        return ()
    return (ArrayLayer(tuple(prefix), items),)


def _objects(schema: Mapping[str, Any]) -> tuple[ObjectLayer, ...]:
    named = _mapping(schema, "properties")
    patterns = [
        (_pattern(source, "patternProperties"), value)
        for source, value in _mapping(schema, "patternProperties").items()
    ]
    others = schema.get("additionalProperties")
    if not named and not patterns and others is None:
        return ()
    return (ObjectLayer(tuple(named.items()), tuple(patterns), others),)


def _mapping(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    value = schema.get(keyword, {})
    if not isinstance(value, Mapping):
        raise SchemaError(f"{keyword} must be an object")
    return value


def schemas(schema: Mapping[str, Any], keyword: str) -> Sequence[Schema]:
    """The schemas that a keyword lists."""
    value = schema.get(keyword, [])
    if not isinstance(value, list) or (keyword in schema and not value and keyword != "items"):
        raise SchemaError(f"{keyword} must be a non-empty list of schemas")
    return value


def _names(schema: Mapping[str, Any], keyword: str) -> tuple[str, ...]:
    value = schema.get(keyword, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise SchemaError(f"{keyword} must be a list of names")
    return tuple(dict.fromkeys(value))


def dependencies(schema: Mapping[str, Any]) -> Iterator[tuple[str, Schema]]:
    """What must hold once a property is there."""
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, needed in _mapping(schema, keyword).items():
            if isinstance(needed, list):
                _names({keyword: needed}, keyword)
                yield name, {"required": needed}
            else:
                yield name, needed
