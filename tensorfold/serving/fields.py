"""Request fields as declarations: a name, what it may be, and its default.

An API file lists the fields it reads; `null` always means absent, and every refusal names its
field in the message and in `param`.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tensorfold.serving.errors import ApiError

T = TypeVar("T")
Body = Mapping[str, Any]
Reader = Callable[[object, str], T]

_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)


@dataclass(frozen=True)
class Field(Generic[T]):
    """One field of a request body."""

    name: str
    read: Reader[T]
    default: T

    def of(self, body: Body) -> T:
        """The field's value in `body`, or its default; raises `ApiError`."""
        value = body.get(self.name)
        return self.default if value is None else self.read(value, self.name)


@dataclass(frozen=True)
class Unsupported:
    """A field this version refuses, unless its value asks for nothing (`harmless`)."""

    name: str
    harmless: Callable[[Any], bool]

    def check(self, body: Body) -> None:
        """Raise `ApiError` when `body` asks for what the field means."""
        value = body.get(self.name)
        if value is not None and not self.harmless(value):
            raise ApiError(f"{self.name} is not supported by this version", param=self.name)


def refuse(body: Body, fields: Sequence[Unsupported]) -> None:
    """Refuse every unsupported field of `body`."""
    for field in fields:
        field.check(body)


def empty(value: object) -> bool:
    """Whether a value asks for nothing: false, zero, or an empty string, list or object."""
    return value in (False, 0, "", [], {})


def is_one_of(*values: object) -> Callable[[object], bool]:
    """Whether a value is one of `values`, of the same type."""
    return lambda value: any(type(value) is type(known) and value == known for known in values)


def boolean() -> Reader[bool]:
    """True or false."""

    def read(value: object, name: str) -> bool:
        if not isinstance(value, bool):
            raise ApiError(f"{name} must be true, false or null", param=name)
        return value

    return read


def text() -> Reader[str]:
    """A string."""

    def read(value: object, name: str) -> str:
        if not isinstance(value, str):
            raise ApiError(f"{name} must be a string or null", param=name)
        return value

    return read


def mapping() -> Reader[dict[str, Any]]:
    """An object."""

    def read(value: object, name: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ApiError(f"{name} must be an object or null", param=name)
        return value

    return read


def integer(minimum: int | None = None, maximum: int | None = None) -> Reader[int]:
    """A whole number, also as 3.0 or "3"; of any size unless bounded."""

    def read(value: object, name: str) -> int:
        whole = isinstance(value, int) and not isinstance(value, bool)
        whole = whole or (isinstance(value, float) and value.is_integer())
        whole = whole or (isinstance(value, str) and _INTEGER.fullmatch(value) is not None)
        if not whole:
            raise ApiError(f"{name} must be an integer or null", param=name)
        number = int(value)  # type: ignore[call-overload]
        if minimum is not None and number < minimum:
            raise ApiError(f"{name} must be at least {minimum}, or null", param=name)
        if maximum is not None and number > maximum:
            raise ApiError(f"{name} must be at most {maximum}, or null", param=name)
        return number

    return read


def number(minimum: float | None = None, maximum: float | None = None) -> Reader[float]:
    """A finite number, also as "0.7"; with both bounds, between them."""

    def read(value: object, name: str) -> float:
        found = _finite(value)
        if found is None:
            raise ApiError(f"{name} must be a finite number or null", param=name)
        if minimum is not None and maximum is not None and not minimum <= found <= maximum:
            raise ApiError(f"{name} must be between {minimum} and {maximum}, or null", param=name)
        return found

    return read


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def strings(most: int, longest: int) -> Reader[tuple[str, ...]]:
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

    return read


def token_ids(value: object, name: str, vocab_size: int) -> tuple[int, ...]:
    """A list of token ids that the model knows."""
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise ApiError(f"{name} must be a list of token ids", param=name)
    if not all(0 <= item < vocab_size for item in value):
        raise ApiError(
            f"{name} holds a token id outside the valid range 0 to {vocab_size - 1}", param=name
        )
    return tuple(value)
