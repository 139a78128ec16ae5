"""Every schema of the set, with valid and invalid values walked token by token."""

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from schema_set import OF_EVERY_KIND, REFUSED, SCHEMAS, Entry

from tensorfold.chat.grammar.compiler import GrammarCompiler, GrammarError
from tensorfold.chat.grammar.constraint import GrammarConstraint
from tensorfold.chat.grammar.structure import Structure
from tensorfold.checkpoints.interface import Checkpoint, Tokenizer
from tensorfold.engine.masks import allows


@pytest.fixture(scope="module")
def tokenizer(default_checkpoint: Checkpoint) -> Tokenizer:
    return default_checkpoint.tokenizer


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.end_ids)


def compiled(compiler: GrammarCompiler, schema: Any) -> Callable[[], GrammarConstraint]:
    structure = Structure.of_schema(schema)
    return compiler.compile(structure.grammar, structure.source)


def accepts(constraint: GrammarConstraint, tokenizer: Tokenizer, text: str) -> bool:
    """Whether every mask allows the next token of `text`, and at the end an end token."""
    tokens = [*tokenizer.encode(text, control=False), min(tokenizer.end_ids)]
    masks = constraint.masks(tokens)
    for place, token in enumerate(tokens):
        if not allows(masks[place], token):
            return False
        constraint.accept(token)
    return True


def judge(schema: Any) -> jsonschema.protocols.Validator:
    return jsonschema.Draft202012Validator(
        _in_new_terms(schema), format_checker=jsonschema.FormatChecker()
    )


def _in_new_terms(schema: Any) -> Any:
    """Draft 7's `dependencies` by its later name; the judge knows one draft."""
    if not isinstance(schema, dict) or "dependencies" not in schema:
        return schema
    renamed = {name: value for name, value in schema.items() if name != "dependencies"}
    return renamed | {"dependentRequired": schema["dependencies"]}


def test_there_are_enough() -> None:
    assert len({json.dumps(schema) for schema, _ in SCHEMAS}) >= 300


@pytest.mark.parametrize("part", range(8))
def test_valid_values_are_accepted_and_invalid_ones_refused(
    part: int, compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    for schema, values in SCHEMAS[part::8]:
        check(compiler, tokenizer, (schema, values))


def check(compiler: GrammarCompiler, tokenizer: Tokenizer, entry: Entry) -> None:
    schema, values = entry
    validator = judge(schema)
    if not any(map(validator.is_valid, [*values, *OF_EVERY_KIND])):
        with pytest.raises(GrammarError, match="no value"):
            compiled(compiler, schema)
        return
    make = compiled(compiler, schema)
    for value in values:
        found = accepts(make(), tokenizer, json.dumps(value, ensure_ascii=False))
        assert found == validator.is_valid(value), (schema, value)
        spread = json.dumps(value, ensure_ascii=False, indent=2)
        assert accepts(make(), tokenizer, spread) == found, (schema, value)
    for value in OF_EVERY_KIND:
        if not validator.is_valid(value):
            text = json.dumps(value, ensure_ascii=False)
            assert not accepts(make(), tokenizer, text), (schema, value)


@pytest.mark.parametrize(("schema", "word"), REFUSED, ids=[str(s)[:60] for s, _ in REFUSED])
def test_what_cannot_be_enforced_is_refused_by_name(
    schema: Any, word: str, compiler: GrammarCompiler
) -> None:
    with pytest.raises(GrammarError, match=word.replace("$", r"\$")):
        compiled(compiler, schema)
