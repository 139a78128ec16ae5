"""Schemas by keyword, each with values to try: most in tables, from which many schemas are made.

Properties of the values are in the order of their schema, whole numbers are ints, and no value has
a property or an item that its schema does not speak of: what JSON Schema says of such values holds
exactly. `REFUSED` has schemas that can't be enforced, and the word that the refusal must name.
"""

import itertools
from collections.abc import Iterator
from typing import Any

Entry = tuple[Any, list[Any]]

OF_EVERY_KIND: list[Any] = [
    None, True, False, 0, 1, -1, 7, 1.5, -0.25, "", "a", "abc", "é", "a\"b\\c", "line\nend", "1",
    [], [1], ["a"], [None, True], {}, {"a": 1}, {"b": "x"}, {"a": "x", "b": None},
]  # fmt: skip
"""What any schema may be tried with; it must never accept one of these wrongly."""


def _types() -> Iterator[Entry]:
    kinds = ["null", "boolean", "integer", "number", "string", "array", "object"]
    values = [None, True, False, 0, 12, -3, 2.5, "", "x", [], [1, "a"], {}, {"k": [None]}]
    for kind in kinds:
        yield {"type": kind}, values
    for pair in itertools.combinations(kinds, 2):
        yield {"type": list(pair)}, values
    yield True, values
    yield {}, values
    yield {"title": "Anything", "description": "at all", "x-note": 1, "$comment": "none"}, values


def _values() -> Iterator[Entry]:
    listed: list[Any] = [
        None, True, False, 0, -7, 3.25, "", "yes", "nö", 'say "hi"', "back\\slash", "two\nlines",
        [], [1, [2]], {}, {"a": 1}, {"a": {"b": [True]}}, "</script>", "\u2028", "😀",
    ]  # fmt: skip
    for value in listed:
        yield {"const": value}, listed
    for size in (1, 2, 3, 5, 8):
        yield {"enum": listed[:size]}, listed
        yield {"enum": listed[-size:]}, listed
    for kind in ("string", "integer", "number", "array", "object", "null", "boolean"):
        yield {"type": kind, "enum": listed}, listed
    yield {"enum": [1, 2, 3, 4, 5, 6], "minimum": 3, "maximum": 5}, [1, 2, 3, 4, 5, 6]
    yield {"enum": ["a", "ab", "abc"], "maxLength": 2}, ["a", "ab", "abc"]
    yield {"enum": ["a", "b", "ab"], "pattern": "^a"}, ["a", "b", "ab"]
    yield {"const": 4, "enum": [3, 4, 5]}, [3, 4, 5]
    yield {"enum": [1, 2, 3], "multipleOf": 2}, [1, 2, 3]
    yield {"enum": [[1], [1, 2], ["a"]], "items": {"type": "integer"}, "minItems": 2}, [
        [1], [1, 2], ["a"],
    ]  # fmt: skip
    yield {"enum": [{"a": 1}, {"a": "x"}], "properties": {"a": {"type": "string"}}}, [
        {"a": 1}, {"a": "x"},
    ]  # fmt: skip


def _numbers() -> Iterator[Entry]:
    whole = [-1000, -101, -100, -99, -11, -10, -9, -1, 0, 1, 2, 9, 10, 11, 19, 99, 100, 101, 12345]
    parts = [-10.5, -1.25, -0.5, -0.01, 0.5, 0.01, 1.25, 1.5, 9.99, 10.5, 99.9, 100.25]
    for low, high in [
        (0, None), (1, None), (-5, None), (10, None), (100, None), (99, None), (None, 0), (None, 9),
        (None, -1), (None, 100), (0, 10), (-10, 10), (1, 1), (9, 11), (95, 105), (-100, -10),
        (0, 0), (7, 12345), (-1, 0), (2, 9),
    ]:  # fmt: skip
        bounds: dict[str, Any] = {}
        if low is not None:
            bounds["minimum"] = low
        if high is not None:
            bounds["maximum"] = high
        yield {"type": "integer", **bounds}, [*whole, 1.5, "1"]
        yield {"type": "number", **bounds}, whole + parts
    for low, high in [(0, None), (None, 0), (-1, 1), (9, 11), (0, 100), (-11, -9)]:
        bounds = {}
        if low is not None:
            bounds["exclusiveMinimum"] = low
        if high is not None:
            bounds["exclusiveMaximum"] = high
        yield {"type": "integer", **bounds}, whole
        yield {"type": "number", **bounds}, whole + parts
    for low, high in [(0.5, 1.5), (-0.5, 0.5), (1.25, 10.5), (-1.25, -0.01), (0.01, 99.9)]:
        yield {"type": "number", "minimum": low, "maximum": high}, whole + parts
        strict = {"exclusiveMinimum": low, "exclusiveMaximum": high}
        yield {"type": "number", **strict}, whole + parts
        yield {"type": "integer", "minimum": low, "maximum": high}, whole
    for multiple in (1, 2, 3, 5, 7, 10, 25, 100):
        yield {"type": "integer", "multipleOf": multiple}, whole
    yield {"type": "integer", "multipleOf": 3, "minimum": 5, "maximum": 20}, whole
    yield {"type": "number", "multipleOf": 5}, [*whole, 2.5]
    yield {"type": "number", "multipleOf": 0.5 / 5}, [0, 1, 0.5, 0.25, 2.5]
    yield {"minimum": 3}, [*whole, "a", None, [], {}]
    yield {"type": ["integer", "null"], "maximum": 5}, [*whole, None]
    yield {"type": "integer", "format": "int32"}, [0, 2**31 - 1, -(2**31)]


def _strings() -> Iterator[Entry]:
    texts = ["", "a", "ab", "abc", "abcd", "é", "éé", "😀", "\n", '"', "\\", "a\tb", "x" * 40]
    for least, most in [(0, 0), (1, None), (2, 3), (0, 1), (3, 3), (None, 2), (5, None), (0, 39)]:
        bounds: dict[str, Any] = {}
        if least is not None:
            bounds["minLength"] = least
        if most is not None:
            bounds["maxLength"] = most
        yield {"type": "string", **bounds}, texts
    yield {"type": "string", "minLength": 3, "maxLength": 300}, [*texts, "y" * 300, "y" * 301]
    tried = {
        "^a": ["a", "abc", "ba", ""], "a$": ["a", "ba", "ab"], "a": ["a", "xay", "b"],
        "^a|b$": ["ac", "cb", "c"], "^(a|b)$": ["a", "b", "ab"], "^[a-z]+$": ["a", "A", "abc1"],
        "^[A-Z][a-z]*$": ["Ada", "ada", "A"], "^[0-9]{3}$": ["123", "12", "1234"],
        "^[0-9]{2,4}$": ["1", "12", "1234", "12345"], "^a{2,}$": ["a", "aa", "aaaa"],
        "^\\d+$": ["1", "12a", "007"], "^\\w+$": ["a_1", "a-b"], "^\\S+$": ["ab", "a b"],
        "^[^a]+$": ["b", "a", "b\nc", 'q"q'], "^.$": ["a", "ab", "\n", '"', "é"],
        "^(ab)*$": ["", "ab", "aba", "abab"], "^a?b$": ["b", "ab", "aab"],
        "^\\$[0-9]+\\.[0-9]{2}$": ["$1.50", "$1.5", "1.50"], "^(?:x|yz)+$": ["x", "yzx", "y"],
        "^[\\w.-]+@[\\w-]+\\.[a-z]{2,}$": ["a.b@c.de", "a@b", "@c.de"],
        "^#[0-9a-fA-F]{6}$": ["#00ff7F", "#00ff7", "00ff7f"], "^\\\\": ["\\x", "x"],
        "^\"[^\"]*\"$": ['"a"', '""', "a", '"'], "^\\s*$": ["", " \t", "\n", "a"],
        "^[\\]\\-^]$": ["]", "-", "^", "a"], "^\\u0041\\x42$": ["AB", "ab"], "": ["", "x"],
        "^(red|green|blue)( (light|dark))?$": ["red", "blue dark", "red  light", "yellow"],
        "^([01][0-9]|2[0-3]):[0-5][0-9]$": ["23:59", "24:00", "7:30"], "^$": ["", "a"],
        "(^a|b)c": ["ac", "xbc", "xac"], "^[à-ü]+$": ["é", "e"], "x*": ["", "y"],
        "^(a+)+b$": ["aab", "aa"], "^\\/[a-z/]*$": ["/a/b", "a"], "^[\\d.]+?$": ["1.2", "a"],
    }  # fmt: skip
    for pattern, samples in tried.items():
        yield {"type": "string", "pattern": pattern}, samples
    yield {"pattern": "^[a-z]+$", "maxLength": 3}, ["abc", "abcd", "A", 1, None]
    yield (
        {"type": "string", "pattern": "^[\\x20-\\x7E]+$", "maxLength": 8},
        ["12345678", "123456789"],
    )
    for least, most in [(0, 3), (2, 4), (3, None)]:
        bounds = {"minLength": least} | ({} if most is None else {"maxLength": most})
        for pattern in ("a", "^b", "[0-9]$", "^[^x]*$"):
            yield {"type": "string", "pattern": pattern, **bounds}, [
                "a", "ba", "ab1", "b1", "bbb1", "bab12", "xx", "x", "",
            ]  # fmt: skip
    formats = {
        "date": ["2024-02-29", "2023-02-29", "1999-12-31", "2024-13-01", "2024-1-1", "1900-02-29"],
        "date-time": ["2024-02-29T23:59:59Z", "2024-01-01T00:00:00.5+02:00", "2024-01-01", "x"],
        "ipv4": ["127.0.0.1", "255.255.255.255", "256.1.1.1", "1.2.3", "01.2.3.4"],
        "ipv6": ["::1", "2001:db8::8a2e:370:7334", "1:2:3:4:5:6:7:8", "1::2::3", "12345::"],
        "uuid": ["123e4567-e89b-12d3-a456-426614174000", "123e4567", "x" * 36],
        "email": ["ada@example.org", "a.b+c@d-e.co.uk", "nobody"],
    }  # fmt: skip
    for name, samples in formats.items():
        yield {"type": "string", "format": name}, samples
    yield {"type": ["string", "integer"], "format": "date"}, ["2024-02-29", "x", 3]


def _arrays() -> Iterator[Entry]:
    lists: list[Any] = [[], [1], [1, 2], [1, 2, 3], ["a"], [1, "a"], [[1]], [None], [1, 2, 3, 4]]
    for kind in ("integer", "string", "null", "array"):
        yield {"type": "array", "items": {"type": kind}}, lists
    for least, most in [(0, 0), (1, None), (2, 2), (0, 2), (1, 3), (None, 1), (3, None)]:
        bounds: dict[str, Any] = {}
        if least is not None:
            bounds["minItems"] = least
        if most is not None:
            bounds["maxItems"] = most
        yield {"type": "array", **bounds}, lists
        yield {"type": "array", "items": {"type": "integer"}, **bounds}, lists
    pair = [{"type": "integer"}, {"type": "string"}]
    tuples: list[Any] = [[], [1], [1, "a"], ["a", 1], [1, 2]]
    yield {"type": "array", "prefixItems": pair}, tuples
    yield {"type": "array", "prefixItems": pair, "items": False}, [*tuples, [1, "a", 2]]
    yield {"type": "array", "prefixItems": pair, "items": False, "minItems": 2}, tuples
    yield {"prefixItems": pair, "items": {"type": "null"}}, [*tuples, [1, "a", None], [1, "a", 2]]
    yield (
        {"prefixItems": pair, "minItems": 3, "maxItems": 4},
        [*tuples, [1, "a", 2], [1, "a", 2, 3]],
    )
    yield {"type": "array", "prefixItems": pair, "unevaluatedItems": False}, [*tuples, [1, "a", 2]]
    yield (
        {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        [["a"], ["a", "b"], ["c"]],
    )
    yield {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}, [
        [[True]], [[], [False]], [[1]], [True],
    ]  # fmt: skip
    yield {"items": {"type": "integer"}}, [[1], ["a"], "text", None]
    yield {"type": "array", "items": False}, [[], [1]]
    yield {"type": "array", "items": {}, "uniqueItems": False}, [[], [1, 1]]
    yield {"type": "array", "items": {}, "uniqueItems": True, "maxItems": 1}, [[], [1], [1, 1]]


def _objects() -> Iterator[Entry]:
    a, b = {"type": "integer"}, {"type": "string"}
    both = {"a": a, "b": b}
    maps: list[Any] = [
        {}, {"a": 1}, {"b": "x"}, {"a": 1, "b": "x"}, {"a": "x"}, {"b": 1}, {"a": 1, "b": 2},
        {"a": None},
    ]  # fmt: skip
    for needed in ([], ["a"], ["b"], ["a", "b"]):
        yield {"type": "object", "properties": both, "required": needed}, maps
        closed = {"additionalProperties": False}
        more = [*maps, {"a": 1, "c": 2}]
        yield {"type": "object", "properties": both, "required": needed, **closed}, more
        extra = {"additionalProperties": {"type": "boolean"}}
        beside = [*maps, {"a": 1, "c": True}, {"c": False}, {"a": 1, "b": "x", "c": 3}]
        yield {"type": "object", "properties": both, "required": needed, **extra}, beside
    for least, most in [(1, None), (0, 1), (1, 1), (2, 2), (None, 0)]:
        bounds: dict[str, Any] = {}
        if least is not None:
            bounds["minProperties"] = least
        if most is not None:
            bounds["maxProperties"] = most
        yield {"type": "object", "properties": both, **bounds}, maps
    yield (
        {"type": "object", "maxProperties": 2},
        [{}, {"x": 1}, {"x": 1, "y": 2}, {"x": 1, "y": 2, "z": 3}],
    )
    yield {"type": "object", "minProperties": 1}, [{}, {"x": 1}]
    yield {"type": "object", "required": ["z"]}, [{}, {"z": 1}, {"z": [], "y": 2}, {"y": 1}]
    yield {"properties": {"a": a}, "required": ["a", "z"]}, [{"a": 1}, {"a": 1, "z": 2}, 3, "x"]
    yield (
        {"type": "object", "additionalProperties": a},
        [{}, {"x": 1}, {"x": 1, "y": 2}, {"x": "1"}],
    )
    yield {"type": "object", "properties": both, "additionalProperties": True}, [
        *maps, {"a": 1, "zz": [1]}, {"ab": 1}, {"a": "x", "c": 1},
    ]  # fmt: skip
    yield (
        {"type": "object", "patternProperties": {"^score$": a}},
        [{"score": 1}, {"score": "x"}, {}],
    )
    yield {"type": "object", "patternProperties": {"^s": a}, "additionalProperties": False}, [
        {"score": 1}, {"sum": 2, "s": 3}, {"score": "x"}, {"x": 1},
    ]  # fmt: skip
    yield {"type": "object", "patternProperties": {"^s": a, "e$": {"minimum": 5}}}, [
        {"s": 1}, {"se": 7}, {"se": 1}, {"e": 7}, {"e": 1}, {"e": "x"},
    ]  # fmt: skip
    yield {"properties": {"sa": b}, "patternProperties": {"^s": {"maxLength": 2}}}, [
        {"sa": "ab"}, {"sa": "abc"}, {"sa": 1}, {"sb": "ab"}, {"sb": "abc"},
    ]  # fmt: skip
    yield {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, [{"ab": 1}, {"A": 1}, {}]
    yield {"type": "object", "propertyNames": {"maxLength": 2}}, [{"ab": 1}, {"abc": 1}]
    yield {"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": a}, [
        {"x": 1}, {"y": 2}, {"z": 1}, {"x": "1"},
    ]  # fmt: skip
    yield {"type": "object", "properties": both, "dependentRequired": {"a": ["b"]}}, maps
    yield {"type": "object", "properties": both, "dependencies": {"b": ["a"]}}, maps
    longer = {"properties": {"b": {"minLength": 2}}}
    yield {"properties": both, "dependentSchemas": {"a": longer}}, [
        *maps, {"a": 1, "b": "xy"},
    ]  # fmt: skip
    yield {"type": "object", "properties": both, "unevaluatedProperties": False}, [*maps, {"c": 1}]
    yield {"type": "object", "properties": {"a": False, "b": b}}, maps
    yield {"type": "object", "properties": {'q"uote': a, "nl\n": b, "ü": a}}, [
        {'q"uote': 1}, {"nl\n": "x"}, {"ü": 2}, {'q"uote': 1, "nl\n": "x", "ü": 2}, {"ü": "x"},
    ]  # fmt: skip
    nested = {
        "type": "object",
        "properties": {"in": {"type": "object", "properties": both, "required": ["a"]}},
    }
    yield nested, [{}, {"in": {"a": 1}}, {"in": {}}, {"in": {"a": 1, "b": "x"}}, {"in": 1}]
    many = {f"p{number}": a for number in range(12)}
    yield (
        {"type": "object", "properties": many},
        [{"p0": 1, "p11": 2}, {f"p{n}": n for n in range(12)}],
    )


def _combined() -> Iterator[Entry]:
    integer, text = {"type": "integer"}, {"type": "string"}
    scalars: list[Any] = [None, True, 0, 3, 5, 2.5, "", "abc", "abcdef", []]
    for left, right in itertools.combinations(
        [integer, text, {"type": "null"}, {"minimum": 3}, {"maxLength": 3}, {"enum": [3, "abc"]}], 2
    ):
        yield {"anyOf": [left, right]}, scalars
        yield {"allOf": [left, right]}, scalars
    yield {"anyOf": [{"minimum": 3}, text], "type": "integer"}, scalars
    yield {"oneOf": [integer, text]}, scalars
    yield {"oneOf": [{"const": 1}, {"const": 2}, {"type": "string"}]}, [1, 2, 3, "x"]
    yield {"oneOf": [{"maximum": 0, **integer}, {"minimum": 3, **integer}]}, [-1, 0, 1, 3, 9]
    yield {"oneOf": [{"pattern": "^a", **text}, {"pattern": "^b", **text}]}, ["ax", "bx", "cx"]
    shapes = {
        "oneOf": [
            {
                "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}},
                "required": ["kind", "r"],
            },
            {"properties": {"kind": {"const": "box"}, "w": integer}, "required": ["kind", "w"]},
        ],
        "type": "object",
    }
    yield shapes, [
        {"kind": "circle", "r": 1.5}, {"kind": "box", "w": 2}, {"kind": "box", "r": 1},
        {"kind": "circle"}, {},
    ]  # fmt: skip
    yield (
        {
            "allOf": [
                {"properties": {"a": integer}, "required": ["a"]},
                {"properties": {"b": text, "a": {"minimum": 3}}},
            ],
            "type": "object",
        },
        [{"a": 3}, {"a": 1}, {"a": 4, "b": "x"}, {"a": 4, "b": 1}, {"b": "x"}],
    )
    yield {
        "type": "object", "properties": {"a": integer, "b": text},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }, [{}, {"a": 1}, {"b": "x"}, {"a": 1, "b": "x"}]  # fmt: skip
    yield {"not": False, "type": "integer"}, scalars
    yield {"allOf": [{"maxLength": 4}, {"minLength": 2}, {"pattern": "^a"}], **text}, [
        "a", "ab", "abcd", "abcde", "bcd",
    ]  # fmt: skip
    yield (
        {"anyOf": [{"type": "array", "items": integer}, {"type": "object"}]},
        [[1], ["a"], {"x": 1}],
    )
    for depth in (1, 2, 3):
        schema: Any = integer
        good: Any = 1
        bad: Any = "x"
        for _ in range(depth):
            schema = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
            good, bad = {"v": good}, {"v": bad}
        yield schema, [good, bad, {}]


def _references() -> Iterator[Entry]:
    node = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
        "required": ["v"],
    }
    chains = [{"v": 1}, {"v": 1, "next": {"v": 2}}, {"v": 1, "next": {}}, {"next": {"v": 1}}]
    yield {"$defs": {"node": node}, "$ref": "#/$defs/node"}, chains
    yield (
        {"definitions": {"n": {"type": "integer"}}, "items": {"$ref": "#/definitions/n"}},
        [[1], ["a"]],
    )
    yield {"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n", "minimum": 3}, [1, 3, "a"]
    yield {"type": "array", "items": {"$ref": "#"}}, [[], [[]], [[[]], []], [1]]
    yield (
        {
            "$defs": {
                "a/b": {"type": "null"},
                "c~d": {"type": "boolean"},
                "e f": {"type": "string"},
            },
            "prefixItems": [
                {"$ref": "#/$defs/a~1b"},
                {"$ref": "#/$defs/c~0d"},
                {"$ref": "#/$defs/e%20f"},
            ],
        },
        [[None, True, "x"], [None, 1], [1]],
    )
    tree = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/tree"}}]}
    yield {"$defs": {"tree": tree}, "$ref": "#/$defs/tree"}, [1, [1, [2, []]], ["a"], "a"]
    even = {
        "type": "object",
        "properties": {"odd": {"$ref": "#/$defs/odd"}},
        "additionalProperties": False,
    }
    odd = {
        "type": "object",
        "properties": {"even": {"$ref": "#/$defs/even"}},
        "additionalProperties": False,
    }
    yield {"$defs": {"even": even, "odd": odd}, "$ref": "#/$defs/even"}, [
        {}, {"odd": {}}, {"odd": {"even": {}}}, {"even": {}}, {"odd": {"odd": {}}},
    ]  # fmt: skip
    # A branch that never ends is no way out, and must not be walked into.
    endless = {
        "type": "object",
        "properties": {"in": {"$ref": "#/$defs/endless"}},
        "required": ["in"],
    }
    yield (
        {"$defs": {"endless": endless}, "anyOf": [{"$ref": "#/$defs/endless"}, {"type": "null"}]},
        [None, {}],
    )


def _by_hand() -> Iterator[Entry]:
    person = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
            "joined": {"type": "string", "format": "date"},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    yield person, [
        {"name": "Ada", "age": 36}, {"name": "", "age": 36}, {"name": "Ada", "age": 200},
        {"age": 3},
        {"name": "Ada", "age": 36, "tags": ["x", "y"], "joined": "1843-10-18"},
        {"name": "Ada", "age": 36, "tags": ["1", "2", "3", "4"]},
        {"name": "Ada", "age": 36, "joined": "yesterday"}, {"name": "Ada", "age": 36, "x": 1},
    ]  # fmt: skip
    call = {
        "type": "object",
        "properties": {
            "name": {"enum": ["get_weather", "search"]},
            "arguments": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F", None]}},
                "required": ["city"],
            },
        },
        "required": ["name", "arguments"],
    }
    yield call, [
        {"name": "search", "arguments": {"city": "東京"}},
        {"name": "find", "arguments": {"city": "x"}},
        {"name": "search", "arguments": {}},
        {"name": "search", "arguments": {"city": "x", "unit": None}},
    ]  # fmt: skip
    rows = {
        "type": "array",
        "minItems": 1,
        "items": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
    }
    yield rows, [[[1, 2]], [[1, 2], [0.5, -3]], [], [[1]], [[1, 2, 3]]]
    maybe = {
        "type": "object",
        "properties": {"value": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]}},
        "required": ["value"],
    }
    yield maybe, [{"value": 3}, {"value": None}, {"value": -1}, {}]


SCHEMAS: list[Entry] = [
    *_types(), *_values(), *_numbers(), *_strings(), *_arrays(), *_objects(), *_combined(),
    *_references(), *_by_hand(),
]  # fmt: skip

REFUSED: list[tuple[Any, str]] = [
    ({"not": {"type": "integer"}}, "not"),
    ({"if": {"type": "integer"}, "then": {"minimum": 3}}, "if"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": {"type": "integer"}}, "contains"),
    ({"contains": True, "minContains": 2}, "contains"),
    ({"type": "string", "format": "idn-email"}, "format"),
    ({"type": "string", "format": "no-such"}, "format"),
    ({"type": "string", "pattern": "^(?!a)b"}, "pattern"),
    ({"type": "string", "pattern": "(?<=a)b"}, "pattern"),
    ({"type": "string", "pattern": "\\bword\\b"}, "pattern"),
    ({"type": "string", "pattern": "(a)\\1"}, "pattern"),
    ({"type": "string", "pattern": "\\p{L}"}, "pattern"),
    ({"type": "string", "pattern": "("}, "pattern"),
    ({"type": "string", "pattern": "a)"}, "pattern"),
    ({"type": "string", "pattern": "[a"}, "pattern"),
    ({"type": "string", "pattern": "a**"}, "pattern"),
    ({"type": "string", "pattern": "(a|b)*a(a|b){20}"}, "pattern"),
    ({"type": "string", "pattern": 3}, "pattern"),
    ({"patternProperties": {"(": {}}}, "patternProperties"),
    ({"type": "number", "multipleOf": 0.3}, "multipleOf"),
    ({"type": "number", "multipleOf": 0}, "multipleOf"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}, "oneOf"),
    ({"oneOf": []}, "oneOf"),
    ({"anyOf": {}}, "anyOf"),
    ({"$ref": "https://example.org/schema"}, "$ref"),
    ({"$ref": "#/$defs/missing"}, "$ref"),
    ({"$ref": "#"}, "$ref"),
    ({"allOf": [{"$ref": "#"}]}, "$ref"),
    ({"$dynamicRef": "#node"}, "$dynamicRef"),
    ({"type": "string", "nullable": True}, "nullable"),
    ({"type": "hiccup"}, "type"),
    ({"type": []}, "type"),
    ({"type": 3}, "type"),
    ({"enum": []}, "enum"),
    ({"enum": "abc"}, "enum"),
    ({"minimum": "3"}, "minimum"),
    ({"minimum": 3, "exclusiveMinimum": True}, "exclusiveMinimum"),
    ({"minLength": -1}, "minLength"),
    ({"maxItems": 1.5}, "maxItems"),
    ({"properties": [1]}, "properties"),
    ({"required": "a"}, "required"),
    ({"type": "object", "minProperties": 3}, "minProperties"),
    ({"patternProperties": {letter: {} for letter in "abcdef"}}, "patternProperties"),
    ({"items": 3}, "schema"),
    ({"properties": {"a": "string"}}, "schema"),
    ({"unheardOf": 1}, "unheardOf"),
    (False, "no value"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "no value"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "no value"),
    ({"allOf": [{"type": "string"}, {"type": "null"}]}, "no value"),
    ({"type": "array", "items": False, "minItems": 1}, "no value"),
    ({"properties": {"in": {"$ref": "#"}}, "required": ["in"], "type": "object"}, "no value"),
    ({"properties": {"a": False}, "required": ["a"], "type": "object"}, "no value"),
    ({"type": "string", "pattern": "^a", "const": "b"}, "no value"),
    (3, "schema"),
    ("text", "schema"),
]  # fmt: skip
