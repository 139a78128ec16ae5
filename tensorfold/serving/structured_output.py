"""The fields that ask for a reply of a certain form, and what they make its constraint."""

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorfold.chat.grammar.calls import calls_grammar, calls_key, has_grammar
from tensorfold.chat.grammar.compiler import GrammarError, is_available
from tensorfold.chat.grammar.structure import Structure
from tensorfold.engine.interface import Constraint
from tensorfold.serving.errors import ApiError
from tensorfold.serving.fields import Body, Field, Kind, Schema, given, mapping, text
from tensorfold.serving.service import Service
from tensorfold.serving.tool_calls import ToolUse

_ANY_OBJECT = {"type": "object"}
_SCHEMA = {
    "type": "object",
    "description": "A JSON schema; one with a keyword that can't be enforced is refused.",
    "examples": [{"type": "array", "items": {"type": "integer"}, "maxItems": 3}],
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

    spelled = {"type": "string", "contentMediaType": "application/schema+json"}
    return Kind(read, {"anyOf": [_SCHEMA, {"const": True}, spelled]})


def _choices() -> Kind[tuple[str, ...]]:
    """Texts to choose from."""

    def read(value: object, name: str) -> tuple[str, ...]:
        found = value if isinstance(value, list) else []
        if not found or not all(isinstance(each, str) and each for each in found):
            raise ApiError(f"{name} must be a non-empty list of non-empty strings", param=name)
        return tuple(found)

    item = {"type": "string", "minLength": 1}
    return Kind(read, {"type": "array", "items": item, "minItems": 1})


def _object(schema: dict[str, Any]) -> Kind[dict[str, Any]]:
    """An object, described by `schema`."""
    return Kind(mapping().read, schema)


_NO_FORMAT: list[Schema] = [
    {"type": "object", "maxProperties": 0},
    {"type": "object", "properties": {"type": {"const": "text"}}, "required": ["type"]},
]
_FORMATS = {
    "anyOf": [
        *_NO_FORMAT,
        {"type": "object", "properties": {"type": {"const": "json_object"}}, "required": ["type"]},
        {
            "type": "object",
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "properties": {
                        "name": {"type": ["string", "null"]},
                        "schema": {"anyOf": [_SCHEMA, {"const": True}]},
                        "strict": {"type": ["boolean", "null"]},
                    },
                    "required": ["schema"],
                },
            },
            "required": ["type", "json_schema"],
        },
    ]
}
_REGEX = Kind(text().read, {"type": "string", "format": "regex", "examples": ["[a-z]{1,8}"]})
_GRAMMAR = Kind(text().read, {"type": "string", "examples": ['root ::= "[" [a-z]{1,8} "]"']})


def _at_most_one(nothing: Mapping[str, Sequence[Schema]]) -> Schema:
    """The JSON Schema of objects that ask for at most one of some properties; by the name of each,
    what of it asks for nothing."""
    asked = [given(name, *schemas) for name, schemas in nothing.items()]
    pairs = itertools.combinations(asked, 2)
    return {"not": {"anyOf": [{"allOf": list(pair)} for pair in pairs]}}


_ONE_STRUCTURE = {
    "type": "object",
    "properties": {
        "json": {"anyOf": [_schema().schema, {"type": "null"}]},
        "json_object": {"type": ["boolean", "null"]},
        "regex": {"anyOf": [_REGEX.schema, {"type": "null"}]},
        "choice": {"anyOf": [_choices().schema, {"type": "null"}]},
        "grammar": {"anyOf": [_GRAMMAR.schema, {"type": "null"}]},
    },
    "additionalProperties": {"type": "null"},
    **_at_most_one({name: [] for name in _STRUCTURES} | {"json_object": [{"const": False}]}),
}

RESPONSE_FORMAT: Field[dict[str, Any] | None] = Field(
    "response_format",
    _object(_FORMATS),
    None,
    "The form of the content: of type text, json_object, or json_schema with a json_schema.schema.",
)
GUIDED_JSON: Field[Any] = Field("guided_json", _schema(), None, "A JSON schema for the content.")
GUIDED_REGEX: Field[str | None] = Field(
    "guided_regex", _REGEX, None, "A regular expression that the whole content matches."
)
GUIDED_CHOICE: Field[tuple[str, ...] | None] = Field(
    "guided_choice", _choices(), None, "Texts of which the content is one."
)
GUIDED_GRAMMAR: Field[str | None] = Field(
    "guided_grammar",
    _GRAMMAR,
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

ONE_FORM = _at_most_one(
    {field.name: [] for field in FIELDS}
    | {
        RESPONSE_FORMAT.name: _NO_FORMAT,
        STRUCTURED_OUTPUTS.name: [
            {
                "type": "object",
                "properties": {"json_object": {"enum": [None, False]}},
                "additionalProperties": {"type": "null"},
            }
        ],
    }
)
"""The JSON Schema of bodies that ask for one form at most."""

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
    if not isinstance(inner.get("name"), str | None):
        raise ApiError(f"{name}.json_schema.name must be a string or null", param=name)
    if not isinstance(inner.get("strict"), bool | None):
        raise ApiError(f"{name}.json_schema.strict must be true, false or null", param=name)
    return Structure.of_schema(inner["schema"]), name


def _of_structured_outputs(value: dict[str, Any] | None) -> Asked | None:
    name = STRUCTURED_OUTPUTS.name
    asked = {key: each for key, each in (value or {}).items() if each is not None}
    if asked.get("json_object") is False:
        del asked["json_object"]
    if not asked:
        return None
    if len(asked) > 1 or next(iter(asked)) not in _STRUCTURES:
        raise ApiError(f"{name} must have exactly one of {', '.join(_STRUCTURES)}", param=name)
    if "json_object" in asked:
        if asked["json_object"] is not True:
            raise ApiError(f"{name}.json_object must be true, false or null", param=name)
        return Structure.of_schema(_ANY_OBJECT), name
    try:
        structure, _ = _of_guided({f"guided_{key}": each for key, each in asked.items()})[0]
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
