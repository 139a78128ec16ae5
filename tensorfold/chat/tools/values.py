"""Arguments written as text, typed by the offered schema.

Only what the schema declares changes a value: text for a parameter that may be an array, object,
boolean, integer, number or null becomes one when it is one, in JSON's spelling or Python's. All
else stays a string, for the client to check.
"""

import ast
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tensorfold.chat.tools.json_calls import as_json, read_json

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_MOST_DIGITS = 400
_DEPTH = 8
_KINDS = {bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}


def typed(text: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """The JSON of an argument written as `text`, for a parameter of `schema`; references are
    looked up in `root`."""
    kinds = kinds_of(schema, root)
    if kinds and kinds != {"string"}:
        found = _value(text.strip(), kinds)
        if found is not None:
            return found
    return quoted(text)


def any_json(text: str) -> str:
    """`text` if it is JSON, of whatever type; else a JSON string of it."""
    try:
        read_json(text)
    except ValueError:
        return quoted(text)
    return text.strip()


def quoted(text: str) -> str:
    """A JSON string."""
    return as_json(text)


def parameter(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The schema of one parameter, empty when nothing is declared of it."""
    found = list(_declared(schema, name, schema, _DEPTH))
    if len(found) > 1:
        return {"anyOf": found}
    return found[0] if found else undeclared(schema)


def undeclared(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of parameters that have none of their own."""
    found = schema.get("additionalProperties")
    return found if isinstance(found, Mapping) else {}


def kinds_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> frozenset[str]:
    """The types that a schema allows, as far as it names them."""
    return frozenset(_kinds(schema, root, _DEPTH))


def _declared(
    schema: Any, name: str, root: Mapping[str, Any], depth: int
) -> Iterator[Mapping[str, Any]]:
    if not isinstance(schema, Mapping) or depth == 0:
        return
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        yield properties[name] if isinstance(properties[name], Mapping) else {}
    for part in _parts(schema, root):
        yield from _declared(part, name, root, depth - 1)


def _kinds(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or depth == 0:
        return
    declared = schema.get("type")
    yield from [declared] if isinstance(declared, str) else _strings(declared)
    if schema.get("nullable") is True:
        yield "null"
    for part in _parts(schema, root):
        yield from _kinds(part, root, depth - 1)
    if declared is None:
        given = schema.get("enum", [])
        for value in [*(given if isinstance(given, list) else []), *_constant(schema)]:
            yield "null" if value is None else _KINDS.get(type(value), "string")


def _parts(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Any]:
    """The schemas that one is made of."""
    for key in ("anyOf", "oneOf", "allOf"):
        yield from schema[key] if isinstance(schema.get(key), list) else ()
    if isinstance(schema.get("$ref"), str):
        yield _referred(schema["$ref"], root)


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _constant(schema: Mapping[str, Any]) -> list[Any]:
    return [schema["const"]] if "const" in schema else []


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    if not reference.startswith("#/"):
        return {}
    found: Any = root
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _value(text: str, kinds: frozenset[str]) -> str | None:
    """`text` as JSON of one of the types, None when it is none of them."""
    literal = _PYTHON.get(text, text)
    if literal == "null" and "null" in kinds:
        return literal
    if literal in ("true", "false") and "boolean" in kinds:
        return literal
    if _NUMBER.fullmatch(text):
        return _number(text, kinds)
    if text[:1] == "{" and "object" in kinds:
        return _structure(text, dict)
    if text[:1] == "[" and "array" in kinds:
        return _structure(text, list)
    return None


def _number(text: str, kinds: frozenset[str]) -> str | None:
    if "number" not in kinds and "integer" not in kinds:
        return None
    if len(text) > _MOST_DIGITS or not math.isfinite(float(text)):
        return None
    if "number" in kinds or text.lstrip("-").isdigit():
        return text
    whole = _whole(text)
    return None if whole is None else str(whole)


def _whole(text: str) -> int | None:
    """The integer that 3.0 or 1e20 is, exactly."""
    mantissa, _, exponent = text.lower().partition("e")
    before, _, after = mantissa.partition(".")
    shift = int(exponent or 0) - len(after)
    digits = int(before + after)
    if shift >= 0:
        return digits * 10**shift
    quotient, remainder = divmod(abs(digits), 10 ** min(-shift, 2 * _MOST_DIGITS))
    return None if remainder else (quotient if digits >= 0 else -quotient)


def _structure(text: str, kind: type) -> str | None:
    """The text of an object or array, translated if it is in Python's spelling."""
    try:
        return text if isinstance(read_json(text), kind) else None
    except ValueError:
        pass
    try:
        value = ast.literal_eval(text)
        return as_json(value) if _plain(value) else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _plain(value: Any) -> bool:
    """Whether a Python value is JSON's as it is."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_plain, value))
    return value is None or isinstance(value, str | bool | int | float)
