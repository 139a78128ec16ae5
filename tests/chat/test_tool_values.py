"""Texts as the JSON values that a schema declares."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfold.chat.tools.values import any_json, parameter, typed

INTEGER, NUMBER, BOOLEAN = {"type": "integer"}, {"type": "number"}, {"type": "boolean"}
OBJECT, ARRAY, STRING = {"type": "object"}, {"type": "array"}, {"type": "string"}
MAYBE = {"type": ["string", "null"]}
ROOT = {"$defs": {"Point": OBJECT, "Loop": {"$ref": "#/$defs/Loop"}, "a/b": INTEGER}}

TYPED = [
    ("5", INTEGER, 5),
    (" 5\n", INTEGER, 5),
    ("3.0", INTEGER, 3),
    ("-3.0", INTEGER, -3),
    ("1e20", INTEGER, 10**20),
    ("100000000000000000000", INTEGER, 10**20),
    ("25e-1", INTEGER, "25e-1"),
    ("250e-1", INTEGER, 25),
    ("3.5", INTEGER, "3.5"),
    ("007", INTEGER, "007"),
    ("1_000", INTEGER, "1_000"),
    ("\u0663\u0664", INTEGER, "\u0663\u0664"),
    ("five", INTEGER, "five"),
    ("", INTEGER, ""),
    ("1e999999999", INTEGER, "1e999999999"),
    ("1e20", NUMBER, 1e20),
    ("-0.5", NUMBER, -0.5),
    ("NaN", NUMBER, "NaN"),
    ("1e999", NUMBER, "1e999"),
    ("Infinity", NUMBER, "Infinity"),
    ("true", BOOLEAN, True),
    ("False", BOOLEAN, False),
    ("yes", BOOLEAN, "yes"),
    ("1", BOOLEAN, "1"),
    ("null", {"type": "null"}, None),
    ("None", MAYBE, None),
    ("gym", MAYBE, "gym"),
    ("5", MAYBE, "5"),
    ("5", STRING, "5"),
    (" x\n", STRING, " x\n"),
    ('{"a": 1}', STRING, '{"a": 1}'),
    ("null", STRING, "null"),
    ("5", {}, "5"),
    ("true", {"description": "untyped"}, "true"),
    ('{"a": [1, null]}', OBJECT, {"a": [1, None]}),
    ("{'a': True, 'b': None}", OBJECT, {"a": True, "b": None}),
    ('{"a": 1', OBJECT, '{"a": 1'),
    ("{1: 2}", OBJECT, "{1: 2}"),
    ("[1]", OBJECT, "[1]"),
    ('["a", "b"]', ARRAY, ["a", "b"]),
    ("('a',)", ARRAY, "('a',)"),
    ("[" * 100_000, ARRAY, "[" * 100_000),
    ("5", {"anyOf": [INTEGER, {"type": "null"}]}, 5),
    ("x", {"anyOf": [INTEGER, STRING]}, "x"),
    ("[1]", {"oneOf": [STRING, ARRAY]}, [1]),
    ("5", {"type": "integer", "nullable": True}, 5),
    ("null", {"type": "integer", "nullable": True}, None),
    ("2", {"enum": [1, 2]}, 2),
    ("2", {"enum": ["1", "2"]}, "2"),
    ("true", {"const": True}, True),
    ('{"x": 1}', {"$ref": "#/$defs/Point"}, {"x": 1}),
    ("7", {"$ref": "#/$defs/a~1b"}, 7),
    ("7", {"$ref": "#/$defs/Loop"}, "7"),
    ("7", {"$ref": "#/$defs/None"}, "7"),
    ("7", {"$ref": "https://x"}, "7"),
]


@pytest.mark.parametrize(("text", "schema", "value"), TYPED)
def test_cases_43_49_and_50_the_declared_type_decides(text, schema, value):
    found = json.loads(typed(text, schema, ROOT))
    assert found == value
    assert type(found) is type(value)


@given(st.text(), st.sampled_from([STRING, {}, OBJECT, ARRAY, INTEGER, BOOLEAN, MAYBE]))
def test_every_text_becomes_json_and_strings_keep_their_letters(text, schema):
    found = json.loads(typed(text, schema, {}))
    assert found == text or schema not in (STRING, {})
    assert isinstance(found, str) or text.strip()


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=8))
def test_json_stays_json(value):
    assert json.loads(any_json(json.dumps(value))) == value


def test_a_surrogate_without_its_half_is_escaped():
    assert typed("\ud83d", STRING, {}) == '"\\ud83d"'


def test_a_parameter_is_found_wherever_the_schema_declares_it():
    behind = {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"n": INTEGER, "any": True}}}}
    assert parameter(behind, "n") == INTEGER
    assert parameter(behind, "any") == parameter(behind, "other") == {}
    either = {"anyOf": [{"properties": {"n": INTEGER}}, {"properties": {"n": BOOLEAN}}]}
    assert [typed(text, parameter(either, "n"), either) for text in ("5", "True", "x")] == [
        "5", "true", '"x"',
    ]  # fmt: skip
    others = {"properties": {"n": {}}, "additionalProperties": NUMBER}
    assert (parameter(others, "n"), parameter(others, "m")) == ({}, NUMBER)
