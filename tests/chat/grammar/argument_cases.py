"""Parameters of tools, each with arguments that meet them, and the formats that write such."""

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

MARKUP = [
    "</parameter>", "<parameter=", "</function>", "<tool_call>", "</tool_call>", "</arg_value>",
    "<arg_key>", "</arg_key>", "<｜DSML｜parameter", "</｜DSML｜parameter>", "</｜DSML｜invoke>",
    "<|close|>", "argument<|sep|>", "<|open|>", "call<|sep|>", '<|"|>', "}", "{", "[", "]", ")",
]  # fmt: skip
PIECES = [
    *MARKUP, "\n", " ", "\t", '"', "'", "\\", ",", ":", "=", "a", "é", "😀", "null", "None", "true",
    "False", "-", "0", "17", ".5", "e9", "\u2028", "\xa0", "name", "other", "fixed",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
PLAIN = st.text(st.sampled_from("abc é\n<>/=\"'\\,:"), max_size=9)

Case = tuple[dict[str, Any], Any]
"""A schema and a value that meets it."""


@dataclass(frozen=True)
class Call:
    """A tool's parameters, and arguments that meet them, in the order of the schema."""

    parameters: dict[str, Any]
    arguments: dict[str, Any] = field(default_factory=dict)


def _strings() -> st.SearchStrategy[Case]:
    fixed = st.lists(TEXTS, min_size=1, max_size=3, unique=True)
    return st.one_of(
        TEXTS.map(lambda text: ({"type": "string"}, text)),
        TEXTS.map(lambda text: ({"type": "string", "minLength": len(text) // 2}, text)),
        PLAIN.map(lambda text: ({"type": "string", "maxLength": len(text) + 1}, text)),
        PLAIN.map(lambda text: ({"type": "string", "maxLength": 900, "minLength": 0}, text)),
        fixed.map(lambda texts: ({"enum": texts}, texts[-1])),
        fixed.map(lambda texts: ({"type": "string", "const": texts[0]}, texts[0])),
        st.sampled_from(["ab", "x-17", "<b>", "</a>"]).map(
            lambda text: ({"type": "string", "pattern": "^([a-z]+(-[0-9]+)?|</?[a-z]>)$"}, text)
        ),
        st.just(({"type": "string", "pattern": "b", "maxLength": 4}, "<b>\n")),
        st.just(({"type": "string", "format": "date"}, "2024-02-29")),
    )


def _scalars() -> st.SearchStrategy[Case]:
    whole = st.integers(-(10**9), 10**9)
    part = st.floats(-1e9, 1e9, allow_subnormal=False).map(lambda value: round(value, 4))
    return st.one_of(
        whole.map(lambda value: ({"type": "integer"}, value)),
        whole.map(lambda value: ({"type": "integer", "minimum": value - 3}, value)),
        whole.map(lambda value: ({"type": "integer", "multipleOf": 5, "maximum": 99}, 95)),
        part.map(lambda value: ({"type": "number"}, value)),
        st.floats(-1e30, 1e30).map(lambda value: ({"type": "number"}, value)),
        st.just(({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, 0.25)),
        st.booleans().map(lambda value: ({"type": "boolean"}, value)),
        st.just(({"type": "null"}, None)),
        st.sampled_from([1, None, True, "b", 2.5]).map(
            lambda value: ({"enum": [1, None, True, "b", 2.5]}, value)
        ),
    )


def _containers(inner: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    def array(case: Case) -> Case:
        return {"type": "array", "items": case[0], "minItems": 1}, [case[1]] * 2

    def mapping(case: Case) -> Case:
        return {"type": "object", "additionalProperties": case[0]}, {"a": case[1], "x y": case[1]}

    def record(cases: tuple[Case, Case]) -> Case:
        (first, one), (second, other) = cases
        properties = {"one": first, "the other": second}
        return (
            {"type": "object", "properties": properties, "required": ["one"]},
            {"one": one, "the other": other},
        )

    return st.one_of(inner.map(array), inner.map(mapping), st.tuples(inner, inner).map(record))


def _unions(inner: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    def union(cases: tuple[Case, Case]) -> Case:
        return {"anyOf": [cases[0][0], cases[1][0]]}, cases[0][1]

    return st.tuples(inner, inner).map(union)


_FLAT = st.one_of(_strings(), _scalars())
_NESTED = st.one_of(_FLAT, _containers(_FLAT))
VALUES = st.one_of(
    _FLAT,
    TEXTS.map(lambda text: ({"type": ["string", "null"]}, text)),
    TEXTS.map(lambda text: ({}, text)),
    _containers(_NESTED),
    _unions(_NESTED),
    st.just(({"type": "object"}, {"k": [None, {"</parameter>": 1.5}]})),
    st.just(({"type": "array"}, [])),
    st.just(({"$ref": "#/$defs/Shape"}, {"kind": "dot"})),
)
_NAMES = ("fixed", "name", "TYPE", "x-y.z", "two words", "größe", "NAME")
_SHAPE = {"type": "object", "properties": {"kind": {"enum": ["dot", "line"]}}}


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """A call of a tool with up to four parameters."""
    names = draw(st.lists(st.sampled_from(_NAMES), max_size=4, unique=True))
    cases = {name: draw(VALUES) for name in names}
    required = [name for name in names if draw(st.booleans())]
    given = [name for name in names if name in required or draw(st.booleans())]
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {name: schema for name, (schema, _) in cases.items()},
        "required": required,
        "$defs": {"Shape": _SHAPE},
    }
    arguments = {name: cases[name][1] for name in given}
    kind = draw(st.sampled_from(["plain", "plain", "open", "typed", "least", "behind a reference"]))
    if kind == "open":
        parameters["additionalProperties"] = True
        arguments["another"] = "text"
    elif kind == "typed":
        parameters["additionalProperties"] = {"type": "integer"}
        arguments["another"] = 5
    elif kind == "least":
        parameters["minProperties"] = parameters["maxProperties"] = len(given)
    elif kind == "behind a reference":
        inner = {key: parameters.pop(key) for key in ("properties", "required")}
        parameters["$defs"]["Arguments"] = inner
        parameters["$ref"] = "#/$defs/Arguments"
    return Call(parameters, arguments)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _xml(arguments: dict[str, Any], python: bool) -> str:
    """As Qwen's templates write: what is no container by Jinja's `string` filter, or as JSON."""
    written = ""
    for name, value in arguments.items():
        raw = isinstance(value, str) or (python and not isinstance(value, dict | list))
        text = str(value) if raw else _text(value)
        written += f"<parameter={name}>\n{text}\n</parameter>\n"
    return written


def _glm(arguments: dict[str, Any], lines: bool) -> str:
    end = "\n" if lines else ""
    written = end
    for name, value in arguments.items():
        text = value if isinstance(value, str) else _text(value)
        written += f"<arg_key>{name}</arg_key>{end}<arg_value>{text}</arg_value>{end}"
    return written


def _dsml(arguments: dict[str, Any], _: bool) -> str:
    written = ""
    for name, value in arguments.items():
        raw = isinstance(value, str)
        text = value if raw else _text(value)
        written += (
            f'<｜DSML｜parameter name="{name}" string="{"true" if raw else "false"}">'
            f"{text}</｜DSML｜parameter>\n"
        )
    return written


_TYPES = {bool: "boolean", int: "number", float: "number", dict: "object", list: "array"}


def _xtml(arguments: dict[str, Any], _: bool) -> str:
    written = ""
    for name, value in arguments.items():
        raw = isinstance(value, str)
        kind = "string" if raw else "null" if value is None else _TYPES[type(value)]
        text = value if raw else _text(value)
        written += (
            f'<|open|>argument key="{name}" type="{kind}"<|sep|>{text}<|close|>argument<|sep|>'
        )
    return written


WRITERS = {"qwen3-xml": _xml, "glm": _glm, "dsml": _dsml, "kimi-k3": _xtml}
"""Arguments as the templates of a format write them; of two ways where there are two."""
ENDS = {
    "qwen3-xml": "\n</parameter>\n",
    "glm": "</arg_value>",
    "dsml": "</｜DSML｜parameter>\n",
    "kimi-k3": "<|close|>argument<|sep|>",
}
"""What ends a value."""
CONTROLS = {
    "qwen3-xml": ["<tool_call>", "</tool_call>"],
    "glm": [
        "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
    ],
    "dsml": ["｜DSML｜"],
    "kimi-k3": ["<|open|>", "<|close|>", "<|sep|>"],
}  # fmt: skip
"""What is a control token in the tokenizers of such models."""
