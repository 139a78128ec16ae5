"""Calls forced in the formats that have tags around their arguments, walked token by token.

What a grammar lets through is read by the format's own parser as one call whose arguments meet
the schema, and what the templates write of valid arguments, the grammar lets through.
"""

import json
import random
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jsonschema
import numpy as np
import pytest
from argument_cases import CONTROLS, ENDS, MARKUP, PIECES, WRITERS, Call, calls
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tensorfold.chat.grammar.calls import calls_grammar
from tensorfold.chat.grammar.compiler import GrammarCompiler, GrammarError
from tensorfold.chat.grammar.constraint import GrammarConstraint
from tensorfold.chat.tools.interface import Call as ReadCall
from tensorfold.chat.tools.interface import Content, Event, Tool, Tools
from tensorfold.chat.tools.parser import joined
from tensorfold.chat.tools.registry import FORMATS

END = 256
_WORDS = sorted({text.encode() for text in [*PIECES, ">\n", "\n</", '",', "</p", '":', "\n\n"]})


class MarkedBytes:
    """A tokenizer of bytes, some words, and control tokens; text is encoded to bytes."""

    def __init__(self, controls: list[str]) -> None:
        self.controls = controls
        self._words = [word for word in _WORDS if len(word) > 1]
        first = END + 1 + len(self._words)
        self.spellings = dict(zip(range(first, first + len(controls)), controls, strict=True))
        self.control_ids = frozenset({END, *self.spellings})
        self.vocab_size = first + len(controls)
        self.end_ids = frozenset({END})

    def encode(
        self, text: str, *, add_special_tokens: bool = False, control: bool = True
    ) -> list[int]:
        numbers = {spelling: token for token, spelling in self.spellings.items()}
        if not control or not numbers:
            return list(text.encode())
        pieces = re.split(f"({'|'.join(map(re.escape, numbers))})", text)
        return [
            token
            for piece in pieces
            for token in ([numbers[piece]] if piece in numbers else piece.encode())
        ]

    def token_bytes(self, token: int) -> bytes:
        if token < END:
            return bytes([token])
        if token in self.control_ids:
            return self.token_text(token).encode()
        return self._words[token - END - 1]

    def token_text(self, token: int) -> str:
        if token in self.control_ids:
            return self.spellings.get(token, "<end>")
        return self.token_bytes(token).decode(errors="replace")


TOKENIZERS = {
    (name, marked): MarkedBytes(CONTROLS[name] if marked else [])
    for name in WRITERS
    for marked in (True, False)
}
COMPILERS = {
    key: GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.end_ids, seconds=200)
    for key, tokenizer in TOKENIZERS.items()
}
Kind = tuple[str, bool]
KINDS = st.sampled_from(sorted(TOKENIZERS))


def compiled(kind: Kind, tool: Tool, parallel: bool = False) -> Callable[[], GrammarConstraint]:
    shape = FORMATS[kind[0]].shape

    def grammar() -> str:
        return calls_grammar(shape, [tool], TOKENIZERS[kind], parallel=parallel)

    return COMPILERS[kind].compile(grammar, f"{tool} {parallel}")


def compiled_or_not(kind: Kind, tool: Tool) -> Callable[[], GrammarConstraint]:
    """The same; nothing is tested where the only values of a parameter are texts that the markup
    itself forbids."""
    try:
        return compiled(kind, tool)
    except GrammarError as error:
        assume("no arguments" not in str(error))
        raise


def allowed(kind: Kind, constraint: GrammarConstraint) -> set[int]:
    (mask,) = constraint.masks(())
    assert mask is not None
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits[: TOKENIZERS[kind].vocab_size]).tolist())


def endings(name: str, tool: Tool) -> list[str]:
    """What may bring a call nearer to its end."""
    shape = FORMATS[name].shape
    listed = [*(tool.parameters.get("properties") or ()), "another"]
    arguments = [WRITERS[name]({each: ""}, False) for each in listed]
    behind = [shape.closer + shape.after, *(text.removesuffix(ENDS[name]) for text in arguments)]
    return [*'"}]0d ', "a-01", "null", *(ENDS[name] + text for text in behind), *behind]


def walk(kind: Kind, tool: Tool, constraint: GrammarConstraint, chance: random.Random) -> list[int]:
    """Tokens that the grammar allows, up to its end: words and markup at random for a while, then
    whatever brings the text to an end."""
    tokenizer = TOKENIZERS[kind]
    ends = endings(kind[0], tool)
    tokens: list[int] = []
    wandering = chance.randrange(60)
    while True:
        choices = allowed(kind, constraint)
        if END in choices and (len(choices) == 1 or chance.random() < 0.5):
            return tokens
        choices.discard(END)
        assert choices and len(tokens) < 6000
        if len(tokens) < wandering and chance.random() < 0.3:
            piece = [chance.choice(sorted(choices))]
        else:
            finishing = chance.random() < (0.95 if len(tokens) >= wandering else 0.5)
            text = chance.choice(ends if finishing else [*PIECES, *MARKUP])
            piece = tokenizer.encode(text, control=finishing or chance.random() < 0.5)
            if len(tokens) >= wandering and piece and piece[0] not in choices:
                closing = sorted(choices.intersection(b'}]"'))
                letters = [token for token in choices if token < 128] or sorted(choices)
                piece = [chance.choice(closing if closing and chance.random() < 0.8 else letters)]
        for token in piece:
            if token not in allowed(kind, constraint):
                break
            constraint.accept(token)
            tokens.append(token)


def read(kind: Kind, tokens: list[int], tools: Tools, chance: random.Random) -> list[Event]:
    """What the format's parser makes of a reply that comes in random pieces."""
    name = kind[0]
    tokenizer = TOKENIZERS[kind]
    prompt = "<|open|>response<|sep|>" if name == "kimi-k3" else ""
    parser = FORMATS[name](tools, controls=tokenizer.controls, prompt=prompt)
    events: list[Event] = []
    plain = b""

    def feed(text: str) -> None:
        cuts = sorted(chance.sample(range(len(text) + 1), min(len(text), chance.randrange(8))))
        for start, end in pairwise([0, *cuts, len(text)]):
            events.extend(parser.feed(text[start:end]))

    for token in tokens:
        if token in tokenizer.control_ids:
            feed(plain.decode())
            plain = b""
            events += parser.feed(tokenizer.token_text(token), control=True)
        else:
            plain += tokenizer.token_bytes(token)
    feed(plain.decode())
    return joined([*events, *parser.finish(cut=False)])


def arguments_of(events: list[Event]) -> list[dict]:
    assert not any(isinstance(event, Content) for event in events), events
    assert all(event.name == "tool" for event in events if isinstance(event, ReadCall))
    return [json.loads(event.arguments) for event in events if isinstance(event, ReadCall)]


@given(kind=KINDS, call=calls(), seed=st.integers(0, 2**32))
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_allowed_is_read_as_a_call_that_meets_the_schema(
    kind: Kind, call: Call, seed: int
) -> None:
    tool = Tool("tool", call.parameters)
    constraint = compiled_or_not(kind, tool)()
    chance = random.Random(seed)
    tokens = walk(kind, tool, constraint, chance)
    text = b"".join(map(TOKENIZERS[kind].token_bytes, tokens)).decode()
    for _ in range(3):
        (arguments,) = arguments_of(read(kind, tokens, Tools([tool]), chance))
        validator = jsonschema.Draft202012Validator(
            call.parameters, format_checker=jsonschema.FormatChecker()
        )
        assert not list(validator.iter_errors(arguments)), (text, arguments)
        listed = call.parameters.get("properties") or {}
        assert [name for name in arguments if name in listed] == [
            name for name in listed if name in arguments
        ], text


def accepts(kind: Kind, constraint: GrammarConstraint, text: str) -> bool:
    """Whether every mask allows the next token of `text`, and at the end an end token."""
    for token in [*TOKENIZERS[kind].encode(text), END]:
        if token not in allowed(kind, constraint):
            return False
        constraint.accept(token)
    return True


def call_text(name: str, arguments: dict, variant: bool) -> str:
    shape = FORMATS[name].shape
    written = WRITERS[name](arguments, variant)
    opening = shape.before + shape.opener + "tool" + shape.after_name
    return opening + written + shape.closer + shape.after


@given(kind=KINDS, call=calls(), variant=st.booleans(), seed=st.integers(0, 2**32))
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_what_a_template_writes_of_valid_arguments_is_allowed_where_it_is_read_as_them(
    kind: Kind, call: Call, variant: bool, seed: int
) -> None:
    tool = Tool("tool", call.parameters)
    text = call_text(kind[0], call.arguments, variant)
    events = read(kind, TOKENIZERS[kind].encode(text), Tools([tool]), random.Random(seed))
    found = [json.loads(event.arguments) for event in events if isinstance(event, ReadCall)]
    # Texts with markup in them, or that look like other types, are read as something else.
    assume(found == [call.arguments] and not narrower(call.arguments))
    assert accepts(kind, compiled(kind, tool)(), text), text


def narrower(value: Any, inside: bool = False) -> bool:
    """Whether a value has a text that is left out although its parser could read it: one with a
    tag's beginning in JSON, or that only begins like JSON."""
    if isinstance(value, dict):
        return any(narrower(each, True) for pair in value.items() for each in pair)
    if isinstance(value, list):
        return any(narrower(each, True) for each in value)
    return isinstance(value, str) and (
        ("<" in value) if inside else value.strip()[:1] in ("{", "[")
    )


XML = ("qwen3-xml", True)
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2, "maxLength": 40},
        "days": {"type": "integer", "maximum": 9},
        "code": {"type": "string", "minLength": 3, "maxLength": 3},
        "unit": {"enum": ["C", "F", None]},
    },
    "required": ["city"],
}
_OPENED = "<tool_call>\n<function=tool>\n"
_CLOSED = "</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ([("city", "Oslo")], True),
        ([("city", "a </parameter> b")], False),
        ([("city", "Oslo\nby night"), ("days", "9"), ("code", "a b"), ("unit", "None")], True),
        ([("city", "O")], False),
        ([("city", "O" * 39)], True),
        ([("city", "O" * 41)], False),
        ([("city", "Oslo"), ("code", "abcd")], False),
        ([("city", "Oslo"), ("days", "10")], False),
        ([("city", "Oslo"), ("days", "two")], False),
        ([("city", "Oslo"), ("unit", "K")], False),
        ([("city", "Oslo"), ("town", "x")], False),
        ([("days", "2")], False),
        ([("days", "2"), ("city", "Oslo")], False),
        ([("city", "Oslo"), ("city", "Bern")], False),
        ([], False),
    ],
)
def test_parameters_are_the_offered_ones_once_and_in_order(
    arguments: list[tuple[str, str]], fits: bool
) -> None:
    written = "".join(f"<parameter={name}>\n{text}\n</parameter>\n" for name, text in arguments)
    constraint = compiled(XML, Tool("tool", WEATHER))()
    assert accepts(XML, constraint, _OPENED + written + _CLOSED) == fits


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("if a < b:\n    print('</parameter>')\n", True),
        ("</parameter>\n\n</function", True),
        ("</parameter>\n\n</function>", False),
        ("</parameter><parameter=x>", False),
        ("<parameter=x>", False),
        ("a <parameter=x>", True),
        ("a\n</function>", True),
        ("a\n</function>\n</tool_call", True),
    ],
)
def test_a_string_may_speak_of_tags_where_the_parser_reads_on(value: str, fits: bool) -> None:
    tool = Tool("tool", {"type": "object", "properties": {"code": {"type": "string"}}})
    text = _OPENED + f"<parameter=code>\n{value}\n</parameter>\n" + _CLOSED
    assert accepts(XML, compiled(XML, tool)(), text) == fits
    if fits:
        events = read(XML, TOKENIZERS[XML].encode(text), Tools([tool]), random.Random(1))
        assert arguments_of(events) == [{"code": value}]


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_calls_follow_each_other_only_in_parallel(name: str) -> None:
    kind, shape = (name, True), FORMATS[name].shape
    tool = Tool("tool", {"type": "object", "properties": {"on": {"type": "boolean"}}})
    one = shape.opener + "tool" + shape.after_name + WRITERS[name]({"on": True}, False)
    two = f"{one}{shape.closer}{shape.between}{one}{shape.closer}"
    text = shape.before + two + shape.after
    # Kimi K3 numbers its calls.
    parallel = name != "kimi-k3"
    assert accepts(kind, compiled(kind, tool, parallel=True)(), text) == parallel
    assert not accepts(kind, compiled(kind, tool)(), text)
    events = read(kind, TOKENIZERS[kind].encode(text), Tools([tool]), random.Random(1))
    assert arguments_of(events) == [{"on": True}] * 2


@pytest.mark.parametrize("name", sorted(WRITERS))
@pytest.mark.parametrize("keyword", ["uniqueItems", "not", "contains"])
def test_what_cannot_be_enforced_is_refused_by_name(name: str, keyword: str) -> None:
    value = True if keyword == "uniqueItems" else {"type": "null"}
    tool = Tool("tool", {"type": "object", "properties": {"a": {"type": "array", keyword: value}}})
    with pytest.raises(GrammarError, match=f'the parameters of tool: .*"{keyword}"'):
        compiled((name, True), tool)
