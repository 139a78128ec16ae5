"""Request fields as declarations: a name, what it may be, its default, and what it means.

An API file lists the fields it reads. The same declarations check requests and describe them in
/openapi.json. `null` always means absent, and every refusal names its field in the message and in
`param`.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tensorfold.serving.errors import ApiError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Body = Mapping[str, Any]
Schema = Mapping[str, Any]

TOKEN_ID: Schema = {"$ref": "#/components/schemas/TokenId"}
"""A token id that the model knows; only a server knows how many there are."""

_INTEGER = r"[+-]?[0-9]{1,4000}"
_NATURAL = r"\+?[0-9]{1,4000}"
_TOKEN = r"(0|[1-9][0-9]{0,8})"
_NUMBER = r"[+-]?([0-9]{1,200}\.?[0-9]{0,200}|\.[0-9]{1,200})([eE][+-]?[0-9]{1,2})?"


@dataclass(frozen=True)
class Kind(Generic[T_co]):
    """What a value may be: how it is read, raising `ApiError`, and the JSON Schema of the same."""

    read: Callable[[object, str], T_co]
    schema: Schema


@dataclass(frozen=True)
class Field(Generic[T]):
    """One field of a request body."""

    name: str
    kind: Kind[T]
    default: T
    description: str = ""

    def of(self, body: Body) -> T:
        """The field's value in `body`, or its default; raises `ApiError`."""
        value = body.get(self.name)
        return self.default if value is None else self.kind.read(value, self.name)

    @property
    def schema(self) -> Schema:
        """The field's JSON Schema."""
        told: dict[str, Any] = {"description": self.description} if self.description else {}
        default = self.kind.schema.get("default", self.default)
        if isinstance(default, bool | int | float | str):
            told["default"] = default
        return {"anyOf": [self.kind.schema, {"type": "null"}], **told}


@dataclass(frozen=True)
class Unsupported:
    """A field this version refuses, unless its value asks for nothing (one of `harmless`)."""

    name: str
    harmless: Sequence[object] = ()

    def check(self, body: Body) -> None:
        """Raise `ApiError` when `body` asks for what the field means."""
        value = body.get(self.name)
        if value is not None and not any(_same(value, known) for known in self.harmless):
            raise ApiError(f"{self.name} is not supported by this version", param=self.name)

    @property
    def schema(self) -> Schema:
        """The field's JSON Schema: the values that ask for nothing."""
        return {"enum": [None, *self.harmless], "description": "Not supported by this version."}


EMPTY: Sequence[object] = (False, 0, "", [], {})
"""Values that ask for nothing, whatever a field means."""


def body_schema(
    fields: Sequence["Field[Any] | Unsupported"], required: Mapping[str, Schema]
) -> dict[str, Any]:
    """The JSON Schema of a body with `fields`, and with what it must have."""
    return {
        "type": "object",
        "properties": {**required, **{field.name: field.schema for field in fields}},
        "required": list(required),
    }


def given(name: str, *nothing: Schema) -> Schema:
    """The JSON Schema of objects with a property that asks for something: it is neither null nor
    what one of the schemas in `nothing` describes."""
    asks = {"not": {"anyOf": [{"type": "null"}, *nothing]}}
    return {"required": [name], "properties": {name: asks}}


def refuse(body: Body, fields: Sequence[Unsupported]) -> None:
    """Refuse every unsupported field of `body`."""
    for field in fields:
        field.check(body)


def _same(value: object, known: object) -> bool:
    """Equality as JSON has it: 0 is 0.0 and not false."""
    return isinstance(value, bool) == isinstance(known, bool) and value == known


def boolean() -> Kind[bool]:
    """True or false."""

    def read(value: object, name: str) -> bool:
        if not isinstance(value, bool):
            raise ApiError(f"{name} must be true, false or null", param=name)
        return value

    return Kind(read, {"type": "boolean"})


def text() -> Kind[str]:
    """A string."""

    def read(value: object, name: str) -> str:
        if not isinstance(value, str):
            raise ApiError(f"{name} must be a string or null", param=name)
        return value

    return Kind(read, {"type": "string"})


def one_of(*words: str) -> Kind[str]:
    """One of a few words."""

    def read(value: object, name: str) -> str:
        if not isinstance(value, str) or value not in words:
            raise ApiError(f"{name} must be one of {', '.join(words)}, or null", param=name)
        return value

    return Kind(read, {"enum": list(words)})


def integer_or(*words: str) -> Kind[int | str]:
    """A whole number of any size, or one of a few words."""

    def read(value: object, name: str) -> int | str:
        if _is_whole(value):
            return int(value)  # type: ignore[call-overload]
        if not isinstance(value, str) or value not in words:
            known = " or ".join(map(json.dumps, words))
            raise ApiError(f"{name} must be an integer, {known}, or null", param=name)
        return value

    return Kind(read, {"anyOf": [{"type": "integer"}, {"enum": list(words)}]})


def mapping(*fields: Field[Any]) -> Kind[dict[str, Any]]:
    """An object, whose `fields` must be right where they are given."""

    def read(value: object, name: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ApiError(f"{name} must be an object or null", param=name)
        for field in fields:
            try:
                field.of(value)
            except ApiError as error:
                raise ApiError(f"{name}: {error.message}", param=name) from None
        return value

    properties = {"properties": {field.name: field.schema for field in fields}} if fields else {}
    return Kind(read, {"type": "object", **properties})


def integer(minimum: int | None = None, maximum: int | None = None) -> Kind[int]:
    """A whole number, also as 3.0. Without a `maximum` of any size, and also as "3"."""
    spelled = maximum is None
    pattern = _INTEGER if minimum is None else _NATURAL

    def read(value: object, name: str) -> int:
        whole = _is_whole(value) or (
            spelled and isinstance(value, str) and re.fullmatch(_INTEGER, value) is not None
        )
        if not whole:
            raise ApiError(f"{name} must be an integer or null", param=name)
        number = int(value)  # type: ignore[call-overload]
        if minimum is not None and number < minimum:
            raise ApiError(f"{name} must be at least {minimum}, or null", param=name)
        if maximum is not None and number > maximum:
            raise ApiError(f"{name} must be at most {maximum}, or null", param=name)
        return number

    schema = {"type": "integer", **_bounds(minimum, maximum)}
    if not spelled:
        return Kind(read, schema)
    return Kind(read, {"anyOf": [schema, {"type": "string", "pattern": f"^{pattern}$"}]})


def _is_whole(value: object) -> bool:
    """Whether a value is an integer as JSON Schema has it, to which 3.0 is one."""
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def number(minimum: float | None = None, maximum: float | None = None) -> Kind[float]:
    """A finite number; without bounds, also as "0.7"."""
    bounded = minimum is not None and maximum is not None

    def read(value: object, name: str) -> float:
        found = _finite(value) if not (bounded and isinstance(value, str)) else None
        if found is None:
            raise ApiError(f"{name} must be a finite number or null", param=name)
        if minimum is not None and maximum is not None and not minimum <= found <= maximum:
            raise ApiError(f"{name} must be between {minimum} and {maximum}, or null", param=name)
        return found

    schema = {"type": "number", **_bounds(minimum, maximum)}
    if bounded:
        return Kind(read, schema)
    return Kind(read, {"anyOf": [schema, {"type": "string", "pattern": f"^{_NUMBER}$"}]})


def _bounds(minimum: float | None, maximum: float | None) -> Schema:
    bounds = {"minimum": minimum, "maximum": maximum}
    return {name: bound for name, bound in bounds.items() if bound is not None}


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and not re.fullmatch(_NUMBER, value):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def or_false(kind: Kind[T]) -> Kind[T | None]:
    """What `kind` is, or false, which asks for nothing."""

    def read(value: object, name: str) -> T | None:
        return None if value is False else kind.read(value, name)

    return Kind(read, {"anyOf": [kind.schema, {"const": False}]})


def strings(most: int, longest: int) -> Kind[tuple[str, ...]]:
    """A non-empty string or a list of them: at most `most`, each of at most `longest` letters."""

    def read(value: object, name: str) -> tuple[str, ...]:
        items = value if isinstance(value, list) else [value]
        found = tuple(item for item in items if isinstance(item, str) and item)
        if len(found) < len(items):
            raise ApiError(
                f"{name} must be a non-empty string, a list of non-empty strings or null",
                param=name,
            )
        if len(found) > most or any(len(item) > longest for item in found):
            raise ApiError(
                f"{name} may hold at most {most} strings of at most {longest} characters",
                param=name,
            )
        return found

    item = {"type": "string", "minLength": 1, "maxLength": longest}
    return Kind(read, {"anyOf": [item, {"type": "array", "items": item, "maxItems": most}]})


def token_ids(most: int | None = None) -> Kind[tuple[int, ...]]:
    """A list of token ids; `known_tokens` checks them against a vocabulary."""

    def read(value: object, name: str) -> tuple[int, ...]:
        if not isinstance(value, list) or not all(map(_is_whole, value)):
            raise ApiError(f"{name} must be a list of token ids", param=name)
        if most is not None and len(value) > most:
            raise ApiError(f"{name} may hold at most {most} token ids", param=name)
        return tuple(map(int, value))

    bound = {} if most is None else {"maxItems": most}
    return Kind(read, {"type": "array", "items": TOKEN_ID, **bound})


def biases(most: int, largest: float) -> Kind[tuple[tuple[int, float], ...]]:
    """An object from token ids to numbers of at most `largest` either way, as (id, number)s."""
    amount = number(-largest, largest)

    def read(value: object, name: str) -> tuple[tuple[int, float], ...]:
        if not isinstance(value, dict):
            raise ApiError(f"{name} must be an object or null", param=name)
        if len(value) > most:
            raise ApiError(f"{name} may hold at most {most} tokens", param=name)
        for key in value:
            if not re.fullmatch(_TOKEN, key):
                raise ApiError(f"{name} must name its tokens by their ids", param=name)
        return tuple((int(key), amount.read(item, name)) for key, item in value.items())

    schema = {
        "type": "object",
        "maxProperties": most,
        "propertyNames": {"pattern": f"^{_TOKEN}$"},
        "additionalProperties": amount.schema,
    }
    return Kind(read, schema)


def known_tokens(ids: Sequence[int], name: str, vocab_size: int) -> tuple[int, ...]:
    """`ids`, if the model knows them all. Raises `ApiError`."""
    if not all(0 <= item < vocab_size for item in ids):
        raise ApiError(
            f"{name} holds a token id outside the valid range 0 to {vocab_size - 1}", param=name
        )
    return tuple(ids)
