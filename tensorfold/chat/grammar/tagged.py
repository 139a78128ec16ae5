"""Arguments that stand between tags, one by one: strings as they are, all else in JSON.

Parameters come in the order of the schema, each once, then others that it allows. A string holds
nothing that the format's parser would take for its end, and whatever is written is read back as
the type that its schema asks for: where the parser tells types by the look of the text, a string
never looks like another type of its parameter.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from tensorfold.chat.grammar.automaton import Automaton, TooLarge, both, lengths, without, words
from tensorfold.chat.grammar.cases import Case, Schema, Strings, canonical, conjunction, kind_of
from tensorfold.chat.grammar.notation import Notation, spelled
from tensorfold.chat.grammar.numerals import Numbers, automaton_of
from tensorfold.chat.grammar.pattern import compile_pattern
from tensorfold.chat.grammar.rawtext import counted, free_of_matches, kept_in
from tensorfold.chat.grammar.rules import Ref, Rules, Sequence_, literal
from tensorfold.chat.grammar.schema import Reader
from tensorfold.chat.grammar.values import Frame, ValueRules
from tensorfold.chat.tools.values import kinds_of, parameter, typed, undeclared

_BLANKS = "[ \\t\\r\\n]*"
_STRIPPED = (
    "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]*"
)
"""What Python's `strip` takes."""
_NAME = re.compile(r"[^\s<>\"&](?:[^<>\"&\n]{0,190}[^\s<>\"&])?")
_FREE_NAME = compile_pattern("[A-Za-z0-9_.-]{1,64}", whole=True)
_ONE_LINE = compile_pattern("[^\\n]*", whole=True)
_KINDS = frozenset({"null", "boolean", "number", "array", "object", "string"})
_LINE_END = f"{literal(chr(10))}?"


@dataclass(frozen=True)
class Tags:
    """How a format writes one argument.

    opening: parts, NAME and TYPE in them, between which a line may end
    ending: behind the value
    ends: a pattern of what a value may not hold, also with its ending behind it
    inside: the same for the strings of JSON, which is shorter: it takes a state a letter, and
      every string of other lengths has states of its own
    types: what TYPE is by the kind of a value; without it the schema tells a value's type
    last: whether a line may end behind the last argument
    """

    opening: tuple[str, ...]
    ending: str
    ends: str
    inside: str
    types: Mapping[str, str] | None = None
    last: bool = False


TAGS = {
    "qwen_xml": Tags(
        ("<parameter=NAME>\n",),
        "\n</parameter>\n",
        "(^|\\n)(<parameter=|</function>\\n</tool_call>)"
        f"|</parameter>{_BLANKS}(<parameter=|</function>|</tool_call>)",
        "</parameter>",
    ),
    "glm": Tags(
        ("", "<arg_key>NAME</arg_key>", "<arg_value>"),
        "</arg_value>",
        "</arg_value>|</tool_call>[^<]*<tool_call>",
        "</arg_value>|</tool_call>",
        last=True,
    ),
    "dsml": Tags(
        ('<｜DSML｜parameter name="NAME" string="TYPE">',),
        "</｜DSML｜parameter>\n",
        f"</｜DSML｜parameter>{_BLANKS}(<｜DSML｜parameter|</｜DSML｜invoke)",
        "</｜DSML｜parameter>",
        {kind: "true" if kind == "string" else "false" for kind in sorted(_KINDS)},
    ),
    "xtml": Tags(
        ('<|open|>argument key="NAME" type="TYPE"<|sep|>',),
        "<|close|>argument<|sep|>",
        f"<\\|close\\|>argument<\\|sep\\|>{_BLANKS}(<\\|open\\|>|<\\|close\\|>|$)",
        "<\\|close\\|>argument<\\|sep\\|>",
        {kind: kind for kind in sorted(_KINDS)},
    ),
}


@dataclass(frozen=True)
class _Way:
    """How an argument is read: its value is one of `kinds`, TYPE is `written`.

    declared: the schema that tells the parser its type, which may be one of the `types`
    """

    kinds: frozenset[str]
    written: str
    declared: Mapping[str, Any] = field(default_factory=dict)
    types: frozenset[str] = frozenset()


@dataclass
class TaggedArguments:
    """Adds rules for the arguments of calls to one tool.

    markup: the terminals of a template's text
    """

    rules: Rules
    parameters: Mapping[str, Any]
    tags: Tags
    markup: Callable[[str], Sequence_]

    def __post_init__(self) -> None:
        self._reader = Reader(self.parameters)
        self._kept = free_of_matches(self.tags.ends)
        self._values = ValueRules(
            self.rules, self._reader, Notation(free_of_matches(self.tags.inside))
        )
        self._ending = self.markup(self.tags.ending)
        self._ending_of_line = self.markup(self.tags.ending.removeprefix("\n"))
        self._names: set[str] = set()
        # Rules are known by the identities of their cases, so these must stay.
        self._cases: list[Case] = []

    def rule(self) -> Ref:
        """All the arguments of a call. Raises `SchemaError`, `TooLarge`."""
        cases = self._reader.cases(conjunction([self.parameters, {"type": "object"}]))
        self._names = {
            name
            for case in cases
            for name in (*case.required, *(n for layer in case.objects for n, _ in layer.named))
        }
        end = (_LINE_END,) if self.tags.last else ()
        frame = Frame((), end, end)

        def make() -> Iterator[Sequence_]:
            for case in cases:
                yield (self._values.members(case, self._argument(case), self._other, frame),)

        return self.rules.named(("arguments", self._values.document), "arguments", make)

    def _argument(self, case: Case) -> Callable[[str], Iterator[Sequence_]]:
        def written(name: str) -> Iterator[Sequence_]:
            if _NAME.fullmatch(name):
                declared = parameter(self.parameters, name)
                for way in self._ways(declared):
                    opening = self._opening(
                        way, lambda part: self.markup(part.replace("NAME", name))
                    )
                    yield (*opening, self._text(self._reader.value(case, name), way))

        return written

    def _other(self, names: Automaton, schema: Schema) -> Iterator[Sequence_]:
        """An argument of any other name, of those that no parser can misread."""
        free = without(both(names, _FREE_NAME), words(self._names))

        def named(part: str) -> Sequence_:
            before, name, after = part.partition("NAME")
            chosen = (self.rules.bare(free),) if name else ()
            return (*self.markup(before), *chosen, *self.markup(after))

        for way in self._ways(undeclared(self.parameters)):
            yield (*self._opening(way, named), self._text(schema, way))

    def _opening(self, way: _Way, named: Callable[[str], Sequence_]) -> Sequence_:
        parts = [named(part.replace("TYPE", way.written)) for part in self.tags.opening]
        opening = parts[0]
        for part in parts[1:]:
            opening = (*opening, _LINE_END, *part)
        return opening

    def _ways(self, declared: Mapping[str, Any]) -> Iterator[_Way]:
        if self.tags.types is not None:
            for written in dict.fromkeys(self.tags.types.values()):
                kinds = {kind for kind, each in self.tags.types.items() if each == written}
                yield _Way(frozenset(kinds), written)
            return
        types = kinds_of(declared, self.parameters) - {"string"}
        kinds = {"number" if each == "integer" else each for each in types}
        yield _Way(frozenset({"string", *kinds}), "", declared, types)

    def _text(self, schema: Schema, way: _Way) -> Ref:
        """A value that meets `schema`, and what ends it."""
        key = ("text", self._values.document, canonical(schema), way.kinds, canonical(way.declared))
        return self.rules.named(key, "t", lambda: self._texts(schema, way))

    def _texts(self, schema: Schema, way: _Way) -> Iterator[Sequence_]:
        for case in self._reader.cases(schema):
            if case.values is not None:
                for value in self._reader.values(case):
                    yield from self._listed(value, way)
                continue
            kinds = case.kinds & way.kinds
            if "string" in kinds:
                yield from self._strings(case.strings, way)
            constants = ["null"] * ("null" in kinds) + ["true", "false"] * ("boolean" in kinds)
            for each in (spelling for text in constants for spelling in self._constants(text)):
                yield (literal(each), *self._ending)
            if "number" in kinds:
                yield (self._number(case.numbers, way), *self._ending)
            part = replace(case, kinds=kinds & {"array", "object"})
            self._cases.append(part)
            yield from ((*each, *self._ending) for each in self._values.case(part))

    def _strings(self, asked: Strings, way: _Way) -> Iterator[Sequence_]:
        kept = _unlike(self._kept, way.types)
        automaton = kept_in(kept, asked)
        if automaton is not None:
            yield (self.rules.bare(automaton, self._ending),)
        elif self._ending == self._ending_of_line:
            yield from counted(self.rules, kept, asked.least, asked.most, self._ending)
        elif asked.least == asked.most:
            lines = both(kept, _ONE_LINE)
            yield from counted(self.rules, lines, asked.least, asked.most, self._ending)
        else:
            # The line end before the tag is counted as the string's own: if it may be either, a
            # grammar takes very long to compile. The longest string goes without one.
            yield from counted(self.rules, kept, asked.least + 1, asked.most, self._ending_of_line)

    def _constants(self, text: str) -> tuple[str, ...]:
        """The spellings of null, true or false: where types go by the schema, templates may have
        written Python's."""
        python = {"null": "None", "true": "True", "false": "False"}
        return (text,) if self.tags.types is not None else (text, python[text])

    def _number(self, numbers: Numbers, way: _Way) -> Ref:
        if way.types and "number" not in way.types:
            numbers = replace(numbers, whole=True)
        if not numbers.plain:
            return self.rules.bare(_short(automaton_of(numbers)))
        whole = numbers.whole
        return self.rules.named(
            ("short", whole), "short", lambda: iter([_WHOLE if whole else _ANY])
        )

    def _listed(self, value: Any, way: _Way) -> Iterator[Sequence_]:
        """Exactly `value`, in the spellings that are read as it."""
        if kind_of(value) not in way.kinds:
            return
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if isinstance(value, dict | list):
            written = spelled(value, self._values.notation)
            if written is not None and self._reads(text, value, way):
                yield (*written, *self._ending)
            return
        for each in self._constants(text) if value is None or isinstance(value, bool) else (text,):
            if self._kept.matches(each) and self._reads(each, value, way):
                yield (literal(each), *self._ending)

    def _reads(self, text: str, value: Any, way: _Way) -> bool:
        if self.tags.types is not None:
            return True
        return canonical(json.loads(typed(text, way.declared, self.parameters))) == canonical(value)


# Longer numbers would be no numbers to the parser, and a model that repeats digits comes to an end.
_WHOLE: Sequence_ = ('"-"?', '("0" | [1-9] [0-9]{0,39})')
_ANY: Sequence_ = (*_WHOLE, '("." [0-9]{1,40})?', "([eE] ([+]? [1]? [0-9]{1,2} | [-] [0-9]{1,3}))?")
_MOST_DIGITS = 24
_FEW_STATES = 300


def _short(numerals: Automaton) -> Automaton:
    """Those of few digits, where that takes few states."""
    try:
        found = both(numerals, lengths(0, _MOST_DIGITS))
    except TooLarge:
        return numerals
    return numerals if found.empty or len(found.rows) > _FEW_STATES else found


_LOOKS = {
    "null": "null|None",
    "boolean": "true|True|false|False",
    "integer": "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?",
    "object": "\\{[\\s\\S]*",
    "array": "\\[[\\s\\S]*",
}


@cache
def _unlike(kept: Automaton, types: frozenset[str]) -> Automaton:
    """The texts of `kept` that look like no value of `types`."""
    looks = [_LOOKS["integer" if each == "number" else each] for each in sorted(types)]
    if not looks:
        return kept
    pattern = f"{_STRIPPED}({'|'.join(looks)}){_STRIPPED}"
    return without(kept, compile_pattern(pattern, whole=True))
