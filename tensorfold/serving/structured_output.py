"""The fields that ask for a reply of a certain form, and what they make its constraint."""

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

from tensorfold.chat.grammar.calls import calls_grammar, calls_key, has_grammar
from tensorfold.chat.grammar.compiler import GrammarError, is_available
from tensorfold.chat.grammar.structure import Structure
from tensorfold.engine.interface import Constraint
from tensorfold.serving.errors import ApiError
from tensorfold.serving.fields import Body, Field, Kind, mapping, text
from tensorfold.serving.service import Service
from tensorfold.serving.tool_calls import ToolUse

_ANY_OBJECT = {"type": "object"}
_DESCRIBED = {
    "type": "object",
    "properties": {
        "type": {"enum": ["null", "boolean", "integer", "number", "string", "array", "object"]}
    },
    "additionalProperties": False,
    "description": "A JSON schema; many more keywords than this one can be enforced.",
}
_STRUCTURES = ("json", "json_object", "regex", "choice", "grammar")


def _schema() -> Kind[Any]:
    """A JSON schema, as an object, a boolean or the text of one."""

    def read(value: object, name: str) -> Any:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise ApiError(f"{name} must be a JSON schema", param=name) from None
        if not isinstance(value, dict | bool):
            raise ApiError(f"{name} must be a JSON schema: an object or a boolean", param=name)
        return value

    return Kind(read, {"anyOf": [_DESCRIBED, {"const": True}]})


def _choices() -> Kind[tuple[str, ...]]:
    """Texts to choose from."""

    def read(value: object, name: str) -> tuple[str, ...]:
        found = value if isinstance(value, list) else []
        if not found or not all(isinstance(each, str) and each for each in found):
            raise ApiError(f"{name} must be a non-empty list of non-empty strings", param=name)
        return tuple(found)

    item = {"type": "string", "minLength": 1}
    return Kind(read, {"type": "array", "items": item, "minItems": 1})


def _source(example: str) -> Kind[str]:
    """A pattern or a grammar; only some that fit `example` are described."""
    return Kind(text().read, {"type": "string", "pattern": example})


def _object(schema: dict[str, Any]) -> Kind[dict[str, Any]]:
    """An object, described by `schema`."""
    return Kind(mapping().read, schema)


_FORMATS = {
    "anyOf": [
        {"enum": [{}, {"type": "text"}, {"type": "json_object"}]},
        {
            "type": "object",
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "schema": _DESCRIBED,
                        "strict": {"type": ["boolean", "null"]},
                    },
                    "required": ["schema"],
                },
            },
            "required": ["type", "json_schema"],
        },
    ]
}
_REGEX = "^[A-Za-z0-9 ]{1,64}$"
_GRAMMAR = '^root ::= "[a-z]{1,64}"$'
_ONE_STRUCTURE = {
    "type": "object",
    "properties": {
        "json": _DESCRIBED,
        "json_object": {"const": True},
        "regex": {"type": "string", "pattern": _REGEX},
        "choice": _choices().schema,
        "grammar": {"type": "string", "pattern": _GRAMMAR},
    },
    "additionalProperties": False,
    "maxProperties": 1,
}

RESPONSE_FORMAT: Field[dict[str, Any] | None] = Field(
    "response_format",
    _object(_FORMATS),
    None,
    "The form of the content: of type text, json_object, or json_schema with a json_schema.schema.",
)
GUIDED_JSON: Field[Any] = Field("guided_json", _schema(), None, "A JSON schema for the content.")
GUIDED_REGEX: Field[str | None] = Field(
    "guided_regex", _source(_REGEX), None, "A regular expression that the whole content matches."
)
GUIDED_CHOICE: Field[tuple[str, ...] | None] = Field(
    "guided_choice", _choices(), None, "Texts of which the content is one."
)
GUIDED_GRAMMAR: Field[str | None] = Field(
    "guided_grammar",
    _source(_GRAMMAR),
    None,
    "A grammar in GBNF whose rule root the content matches.",
)
STRUCTURED_OUTPUTS: Field[dict[str, Any] | None] = Field(
    "structured_outputs",
    _object(_ONE_STRUCTURE),
    None,
    "One of json, json_object, regex, choice and grammar, as the guided fields.",
)
FIELDS: tuple[Field[Any], ...] = (
    RESPONSE_FORMAT,
    GUIDED_JSON,
    GUIDED_REGEX,
    GUIDED_CHOICE,
    GUIDED_GRAMMAR,
    STRUCTURED_OUTPUTS,
)

ONE_FORM = {
    "not": {"anyOf": [{"required": [a.name, b.name]} for a, b in itertools.combinations(FIELDS, 2)]}
}
"""The JSON Schema of bodies with one of the fields at most."""

Asked = tuple[Structure, str]
"""What a reply must match, and the field that says so."""


def read_structure(body: Body) -> Asked | None:
    """What a body asks its replies to match. Raises `ApiError`."""
    found = [
        _of_response_format(RESPONSE_FORMAT.of(body)),
        *_of_guided(body),
        _of_structured_outputs(STRUCTURED_OUTPUTS.of(body)),
    ]
    asked = [each for each in found if each is not None]
    if len(asked) > 1:
        names = " and ".join(param for _, param in asked)
        raise ApiError(f"{names} can't be combined: send one of them", param=asked[1][1])
    return asked[0] if asked else None


def _of_response_format(value: dict[str, Any] | None) -> Asked | None:
    name = RESPONSE_FORMAT.name
    if not value:
        return None
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Structure.of_schema(_ANY_OBJECT), name
    if kind != "json_schema":
        raise ApiError(f"{name}.type must be text, json_object or json_schema", param=name)
    inner = value.get("json_schema")
    if not isinstance(inner, dict) or not isinstance(inner.get("schema"), dict | bool):
        raise ApiError(f"{name}.json_schema must be an object with a schema", param=name)
    return Structure.of_schema(inner["schema"]), name


def _of_structured_outputs(value: dict[str, Any] | None) -> Asked | None:
    name = STRUCTURED_OUTPUTS.name
    given = {key: each for key, each in (value or {}).items() if each not in (None, False)}
    if not given:
        return None
    if len(given) > 1 or next(iter(given)) not in _STRUCTURES:
        raise ApiError(f"{name} must have exactly one of {', '.join(_STRUCTURES)}", param=name)
    if "json_object" in given:
        if given["json_object"] is not True:
            raise ApiError(f"{name}.json_object must be true, false or null", param=name)
        return Structure.of_schema(_ANY_OBJECT), name
    try:
        structure, _ = _of_guided({f"guided_{key}": each for key, each in given.items()})[0]
    except ApiError as error:
        raise ApiError(f"{name}.{error.message.removeprefix('guided_')}", param=name) from None
    return structure, name


def _of_guided(body: Body) -> list[Asked]:
    found: list[Asked] = []
    if (schema := GUIDED_JSON.of(body)) is not None:
        found.append((Structure.of_schema(schema), GUIDED_JSON.name))
    if (pattern := GUIDED_REGEX.of(body)) is not None:
        found.append((Structure("regex", pattern), GUIDED_REGEX.name))
    if (choices := GUIDED_CHOICE.of(body)) is not None:
        found.append((Structure.of_choices(choices), GUIDED_CHOICE.name))
    if (grammar := GUIDED_GRAMMAR.of(body)) is not None:
        found.append((Structure("grammar", grammar), GUIDED_GRAMMAR.name))
    return found


async def compile_structure(
    service: Service, asked: Asked, *, blanks_first: bool = False
) -> Callable[[], Constraint]:
    """What makes the constraint of each reply. Raises `ApiError` with the reason it can't be."""
    structure, param = asked

    def grammar() -> str:
        return structure.grammar(blanks_first=blanks_first)

    key = f"{structure.kind} {blanks_first} {structure.source}"
    return await _compiled(service, grammar, key, param)


async def compile_calls(
    service: Service, use: ToolUse, *, blanks_first: bool = False
) -> Callable[[], Constraint] | None:
    """What makes each reply calls to the shown tools by their schemas; None where no grammar can
    be had for the model's format or without xgrammar. Raises `ApiError`."""
    shape = service.tool_format.shape
    if not (has_grammar(shape) and is_available()):
        return None
    tools = tuple(use.tools)

    def grammar() -> str:
        return calls_grammar(
            shape, tools, service.tokenizer, parallel=use.parallel, blanks_first=blanks_first
        )

    key = calls_key(shape, tools, parallel=use.parallel, blanks_first=blanks_first)
    return await _compiled(service, grammar, key, "tools")


async def _compiled(
    service: Service, grammar: Callable[[], str], key: str, param: str
) -> Callable[[], Constraint]:
    try:
        # Compiling takes from milliseconds to seconds, and the first time loads PyTorch.
        loop = asyncio.get_running_loop()
        compiler = service.grammars
        return await loop.run_in_executor(compiler.callers, compiler.compile, grammar, key)
    except GrammarError as error:
        raise ApiError(f"{param}: {error}", param=param) from None
