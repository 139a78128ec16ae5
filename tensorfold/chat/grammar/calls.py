"""Tool calls as a grammar: one or more calls in a format's own markup, arguments by their schemas.

Control tokens of the markup stand in the grammar as tokens, since no text is ever encoded to them.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial

from tensorfold.chat.grammar.automaton import TooLarge
from tensorfold.chat.grammar.cases import SchemaError, conjunction
from tensorfold.chat.grammar.rules import WS, Ref, Rules, Sequence_, Symbol, literal
from tensorfold.chat.grammar.schema import Reader
from tensorfold.chat.grammar.tagged import TAGS, TaggedArguments
from tensorfold.chat.grammar.values import ValueRules
from tensorfold.chat.tools.interface import CallShape, Tool
from tensorfold.checkpoints.interface import Tokenizer

_OBJECT = {"type": "object"}
_NUMBERS = (":0", 'index="1"')
"""How formats number the first call of a reply."""


def has_grammar(shape: CallShape) -> bool:
    """Whether the arguments of a format can be described here."""
    return shape.arguments == "json" or shape.arguments in TAGS


def calls_grammar(
    shape: CallShape,
    tools: Sequence[Tool],
    tokenizer: Tokenizer,
    *,
    parallel: bool,
    blanks_first: bool = False,
) -> str:
    """The grammar, in GBNF, of a reply that is calls to `tools` and nothing else.

    parallel: several calls may follow each other, where the format does not number them
    Raises `SchemaError` for parameters that can't be enforced, naming the tool.
    """
    rules = Rules()

    def call() -> Iterator[tuple[Symbol, ...]]:
        for tool in tools:
            arguments = _arguments(rules, shape, tool, tokenizer)
            opening = markup(shape.opener + tool.name + shape.after_name, tokenizer)
            yield (*opening, arguments, *markup(shape.closer, tokenizer))

    one = rules.named("call", "call", call)
    reply: list[Symbol] = [*markup(shape.before, tokenizer), one]
    if parallel and not any(number in shape.after_name for number in _NUMBERS):
        between = markup(shape.between, tokenizer)
        again = rules.named("again", "again", lambda: iter([(*between, one)]))
        reply.append(Ref(again.name, 0, None))
    reply += markup(shape.after, tokenizer)
    text = rules.text((WS, *reply) if blanks_first else tuple(reply))
    if text is None:
        raise SchemaError("no arguments can meet the parameters of any tool")
    return text


def _arguments(rules: Rules, shape: CallShape, tool: Tool, tokenizer: Tokenizer) -> Ref:
    parameters = dict(tool.parameters)
    if not any(parameters.get(keyword) for keyword in parameters if keyword != "type"):
        # A tool that names no parameters takes none.
        parameters["additionalProperties"] = False
    try:
        if shape.arguments in TAGS:
            tags = TAGS[shape.arguments]
            text = partial(markup, tokenizer=tokenizer)
            return TaggedArguments(rules, parameters, tags, text).rule()
        asked = conjunction([parameters, _OBJECT])
        return ValueRules(rules, Reader(parameters)).value(asked)
    except SchemaError as error:
        raise SchemaError(f"the parameters of {tool.name}: {error}") from None
    except TooLarge:
        raise SchemaError(f"the parameters of {tool.name} need too many states") from None


def markup(text: str, tokenizer: Tokenizer) -> Sequence_:
    """The terminals of a template's text, its control tokens as tokens."""
    found: list[Symbol] = []
    plain = b""
    for token in tokenizer.encode(text) if text else ():
        if token in tokenizer.control_ids:
            found += [literal(plain.decode())] if plain else []
            found.append(f"Token({token})")
            plain = b""
        else:
            plain += tokenizer.token_bytes(token)
    return (*found, *([literal(plain.decode())] if plain else []))


def calls_key(
    shape: CallShape, tools: Sequence[Tool], *, parallel: bool, blanks_first: bool
) -> str:
    """A text that is equal for calls with equal grammars of one tokenizer."""
    described = [[tool.name, tool.parameters] for tool in tools]
    return f"calls {shape} {parallel} {blanks_first} {json.dumps(described)}"
