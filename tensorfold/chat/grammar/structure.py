"""What a reply can be asked to match, and the grammar it comes to."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tensorfold.chat.grammar.automaton import TooLarge
from tensorfold.chat.grammar.cases import Schema, SchemaError
from tensorfold.chat.grammar.pattern import PatternError, compile_pattern
from tensorfold.chat.grammar.rules import WS, Ref, Rules, literal
from tensorfold.chat.grammar.schema import Reader
from tensorfold.chat.grammar.values import ValueRules

MOST_CHOICES = 4096
MOST_SOURCE = 128 * 1024
"""Characters of a schema, pattern or grammar."""


@dataclass(frozen=True)
class Structure:
    """One grammar, by what it was asked for: equal structures have equal grammars.

    source: a schema or a list of choices as JSON text, a regular expression, or a grammar
    """

    kind: Literal["json", "regex", "choice", "grammar"]
    source: str

    @classmethod
    def of_schema(cls, schema: Schema) -> "Structure":
        """JSON that meets a schema; the order of its properties counts."""
        return cls("json", json.dumps(schema, ensure_ascii=False))

    @classmethod
    def of_choices(cls, choices: Sequence[str]) -> "Structure":
        """One of some texts."""
        return cls("choice", json.dumps(list(choices), ensure_ascii=False))

    def grammar(self, *, blanks_first: bool = False) -> str:
        """The grammar, in GBNF. Raises `SchemaError` for what can't be enforced.

        blanks_first: JSON may begin with blanks, as it does after reasoning
        """
        if len(self.source) > MOST_SOURCE:
            raise SchemaError(f"it has more than {MOST_SOURCE} characters")
        try:
            if self.kind == "json":
                return json_grammar(json.loads(self.source), blanks_first=blanks_first)
            if self.kind == "choice":
                return _choice_grammar(json.loads(self.source))
            if self.kind == "regex":
                return _regex_grammar(self.source)
        except PatternError as error:
            raise SchemaError(str(error)) from None
        except TooLarge:
            raise SchemaError("its patterns, formats and lengths need too many states") from None
        except RecursionError:
            raise SchemaError("it is nested too deeply") from None
        return self.source


def json_grammar(schema: Schema | Mapping[str, Any], *, blanks_first: bool = False) -> str:
    """The grammar of the JSON texts that meet `schema`. Raises `SchemaError`, `TooLarge`."""
    rules = Rules()
    value = ValueRules(rules, Reader(schema)).value(schema)
    text = rules.text((WS, value) if blanks_first else (value,))
    if text is None:
        raise SchemaError("no value can meet the schema")
    return text


def _choice_grammar(choices: Sequence[str]) -> str:
    if not 0 < len(choices) <= MOST_CHOICES:
        raise SchemaError(f"there must be 1 to {MOST_CHOICES} choices")
    return "root ::= " + " | ".join(map(literal, dict.fromkeys(choices)))


def _regex_grammar(source: str) -> str:
    rules = Rules()
    text = rules.text((Ref(rules.bare(compile_pattern(source, whole=True)).name),))
    if text is None:
        raise SchemaError("no text can match the pattern")
    return text
