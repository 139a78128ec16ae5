import threading
from collections.abc import Callable

import numpy as np
import pytest

from tensorfold.chat.grammar.compiler import GrammarCompiler, GrammarError
from tensorfold.chat.grammar.constraint import GrammarConstraint
from tensorfold.chat.grammar.structure import MOST_SOURCE, Structure
from tensorfold.checkpoints.interface import Checkpoint, Tokenizer


@pytest.fixture(scope="module")
def tokenizer(default_checkpoint: Checkpoint) -> Tokenizer:
    return default_checkpoint.tokenizer


def compiler(tokenizer: Tokenizer, **changes: float) -> GrammarCompiler:
    # A vocabulary padded beyond the tokenizer's, as many models have it.
    return GrammarCompiler(
        tokenizer,
        tokenizer.vocab_size + 40,
        tokenizer.end_ids,
        **changes,  # type: ignore[arg-type]
    )


def allowed(constraint: GrammarConstraint) -> set[int]:
    (mask,) = constraint.masks(())
    assert mask is not None and mask.dtype == np.uint32
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def test_a_grammar_is_compiled_once_while_it_is_kept(tokenizer: Tokenizer) -> None:
    made: list[str] = []

    def make(text: str) -> Callable[[], str]:
        def grammar() -> str:
            made.append(text)
            return f'root ::= "{text}"'

        return grammar

    compiling = compiler(tokenizer, kept=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        compiling.compile(make(text), text)
    assert made == ["a", "b", "c", "b"]


def test_replies_have_constraints_of_their_own(tokenizer: Tokenizer) -> None:
    make = compiler(tokenizer).compile(lambda: 'root ::= "ab" [0-9]', "x")
    first, second = make(), make()
    first.accept(tokenizer.encode("ab")[0])
    assert allowed(first) == {tokenizer.encode(str(digit))[0] for digit in range(10)}
    assert allowed(second) == {tokenizer.encode("a")[0], tokenizer.encode("ab")[0]}


def test_compiling_is_bounded_in_time(tokenizer: Tokenizer) -> None:
    compiling = compiler(tokenizer, seconds=0.3)
    go = threading.Event()

    def slow() -> str:
        go.wait(60)
        return 'root ::= "a"'

    for key in "ab":
        with pytest.raises(GrammarError, match=r"longer than 0\.3 seconds"):
            compiling.compile(slow, key)
    with pytest.raises(GrammarError, match="still being compiled"):
        compiling.compile(slow, "c")
    go.set()
    patient = compiler(tokenizer)
    assert patient.compile(slow, "d")().masks(()) is not None


def test_masks_leave_the_constraint_where_it_was(tokenizer: Tokenizer) -> None:
    structure = Structure.of_schema({"type": "object", "properties": {"name": {"const": "Ada"}}})
    constraint = compiler(tokenizer).compile(structure.grammar, "x")()
    tokens = tokenizer.encode('{"name": "Ada"}')
    whole = constraint.masks(tokens)
    assert len(whole) == len(tokens) + 1
    assert len(constraint.masks([*tokens[:2], tokenizer.encode("!")[0], *tokens[2:]])) == 3
    for place, token in enumerate(tokens):
        (mask,) = constraint.masks(())
        expected = whole[place]
        assert mask is not None and expected is not None
        assert np.array_equal(mask, expected)
        constraint.accept(token)
    assert allowed(constraint) == set(tokenizer.end_ids)


def test_what_is_forced_is_allowed(tokenizer: Tokenizer) -> None:
    word = "a rather long property name"
    schema = {"type": "object", "properties": {word: {"type": "integer"}}, "required": [word]}
    constraint = compiler(tokenizer).compile(Structure.of_schema(schema).grammar, "x")()
    for token in tokenizer.encode('{"'):
        constraint.accept(token)
    forced = list(constraint.forced())
    assert b"".join(map(tokenizer.token_bytes, forced)).decode() == word
    assert len(constraint.masks(forced)) == len(forced) + 1
    assert constraint.forced() == forced


def test_control_tokens_are_no_text(tokenizer: Tokenizer) -> None:
    constraint = compiler(tokenizer).compile(lambda: "root ::= [^x]*", "x")()
    found = allowed(constraint)
    assert found & tokenizer.control_ids == tokenizer.end_ids
    assert max(found) < tokenizer.vocab_size
    with pytest.raises(ValueError, match="does not follow"):
        constraint.accept(tokenizer.encode("x")[0])


@pytest.mark.parametrize(
    ("structure", "reason"),
    [
        (Structure("grammar", "root ::= missing"), "not defined"),
        (Structure("grammar", "x" * (MOST_SOURCE + 1)), "characters"),
        (Structure("grammar", 'root ::= "\\x00" "a"{5,2}'), "xgrammar refuses"),
        (Structure("regex", "(?=a)b"), "lookaround"),
        (Structure("regex", "[]"), "no text"),
        (Structure.of_schema({"a" * 200_000: 1}), "characters"),
    ],
)
def test_reasons(structure: Structure, reason: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(GrammarError, match=reason):
        compiler(tokenizer).compile(structure.grammar, "x")
