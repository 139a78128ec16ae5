from functools import cache
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from small_checkpoints import (
    CONTROL,
    MARKERS,
    TEXTS,
    WORDS,
    byte_level_tokenizer,
    gguf_tokenizer_metadata,
    sentence_piece_metadata,
)
from tokenizers import normalizers, pre_tokenizers

from tensorfold.checkpoints.gguf_tokenizer import build_tokenizer, special_tokens
from tensorfold.checkpoints.interface import Checkpoint, CheckpointError
from tensorfold.checkpoints.tokenizer import TextTokenizer

# The word rules as these models' own tokenizer.json has them.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT4O = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]
)


def split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
RULES = {
    "gpt-2": GPT2,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]),
    "llama-bpe": split_by(LLAMA3),
    "lfm2": split_by(LLAMA3),
    "gpt-4o": split_by(GPT4O),
    "qwen2": split_by(QWEN2),
    "qwen35": split_by(QWEN35),
}


@cache
def pair(name: str) -> tuple[tokenizers.Tokenizer, TextTokenizer]:
    """A tokenizer with the rule `name`, and what is built from its GGUF metadata."""
    own = byte_level_tokenizer(RULES[name], size=700, ignore_merges=name in ("llama-bpe", "lfm2"))
    if name.startswith("qwen"):
        own.normalizer = normalizers.NFC()
    return own, build_tokenizer(gguf_tokenizer_metadata(own, name))


@pytest.mark.parametrize("name", RULES)
def test_ids_are_those_of_the_models_own_tokenizer(name: str) -> None:
    own, ours = pair(name)
    for text in TEXTS:
        assert ours.encode(text) == own.encode(text, add_special_tokens=False).ids


PIECES = st.sampled_from([*CONTROL, *MARKERS, *WORDS, *TEXTS, "'S", "'ll", "e\u0301", "12345"])


@settings(deadline=None)
@given(name=st.sampled_from(list(RULES)), parts=st.lists(PIECES | st.text(max_size=6), max_size=6))
def test_ids_agree_on_any_text(name: str, parts: list[str]) -> None:
    own, ours = pair(name)
    text = "".join(parts)
    assert ours.encode(text) == own.encode(text, add_special_tokens=False).ids


def test_default_rule() -> None:
    own = byte_level_tokenizer(GPT2)
    ours = build_tokenizer(gguf_tokenizer_metadata(own, "default"))
    for text in TEXTS:
        assert b"".join(map(ours.token_bytes, ours.encode(text))) == text.encode()
    cut = ours._full.pre_tokenizer.pre_tokenize_str("ab: 1234")
    assert [text for text, _ in cut] == ["ab", ":", "Ġ", "123", "4"]


@pytest.mark.parametrize(
    ("metadata", "before", "after"),
    [
        ({}, [], []),
        ({"tokenizer.ggml.add_bos_token": True}, ["<|im_start|>"], []),
        ({"tokenizer.ggml.pre": "llama-bpe"}, ["<|im_start|>"], []),
        ({"tokenizer.ggml.add_eos_token": True}, [], ["<|im_end|>"]),
        (
            {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False},
            [],
            [],
        ),
    ],
)
def test_frame(metadata: dict[str, Any], before: list[str], after: list[str]) -> None:
    own, _ = pair("gpt-2")
    ours = build_tokenizer(gguf_tokenizer_metadata(own, "gpt-2") | metadata)
    ids = ours.encode("hello", add_special_tokens=True)
    inner = ours.encode("hello")
    assert [ours.token_text(token) for token in ids] == [
        *before,
        *map(ours.token_text, inner),
        *after,
    ]


def test_the_end_of_a_message_is_none_where_replies_have_several() -> None:
    own = byte_level_tokenizer(GPT2)
    own.add_special_tokens(["<|end|>", "<|call|>"])
    ends = build_tokenizer(gguf_tokenizer_metadata(own, "gpt-4o")).end_ids
    assert {own.token_to_id("<|end|>"), own.token_to_id("<|call|>")} <= ends
    own.add_special_tokens(["<|return|>"])
    ends = build_tokenizer(gguf_tokenizer_metadata(own, "gpt-4o")).end_ids
    assert {own.token_to_id("<|return|>"), own.token_to_id("<|call|>")} <= ends
    assert own.token_to_id("<|end|>") not in ends


def test_special_tokens_and_ends() -> None:
    own, ours = pair("gpt-2")
    metadata = gguf_tokenizer_metadata(own, "gpt-2")
    assert special_tokens(metadata) == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert ours.bos_id == own.token_to_id("<|im_start|>")
    assert ours.end_ids == {own.token_to_id("<|im_end|>"), own.token_to_id("<|endoftext|>")}
    more = metadata | {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 10**6}
    assert build_tokenizer(more).end_ids == ours.end_ids | {5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pre": "new"}, "'new' is not supported"),
        ({"pre": None}, "None is not supported"),
        ({"model": "bert"}, "'bert' is not supported"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "twice"),
        ({"token_type": np.ones(3, np.int32)}, "3 token types"),
        ({"merges": ["a b", "zz qq"]}, "damaged tokenizer"),
        ({"model": "llama"}, "scores"),
    ],
)
def test_damaged_metadata(change: dict[str, Any], message: str) -> None:
    own, _ = pair("gpt-2")
    metadata = gguf_tokenizer_metadata(own, "gpt-2")
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(CheckpointError, match=message):
        build_tokenizer(metadata)


@cache
def sentence_pieces(prefix: bool) -> tuple[sentencepiece.SentencePieceProcessor, TextTokenizer]:
    metadata = sentence_piece_metadata() | {"tokenizer.ggml.add_space_prefix": prefix}
    model = sentencepiece_model_pb2.ModelProto()
    columns = [metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "scores")]
    for text, kind, score in zip(*columns, strict=True):
        # SentencePiece sees user-defined pieces after spaces are marked.
        piece = text.replace(" ", "▁") if kind == 4 else text
        model.pieces.add(piece=piece, type=int(kind), score=float(score))
    model.trainer_spec.model_type = 2
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.vocab_size = len(columns[0])
    model.normalizer_spec.add_dummy_prefix = prefix
    model.normalizer_spec.remove_extra_whitespaces = False
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    return processor, build_tokenizer(metadata)


WORD_TEXT = st.text("helo wrd<>/tabé\n\t▁", max_size=30) | st.text(max_size=8)


@settings(deadline=None)
@given(prefix=st.booleans(), text=WORD_TEXT)
def test_sentence_piece_ids_are_its_own(prefix: bool, text: str) -> None:
    own, ours = sentence_pieces(prefix)
    # The library drops NUL, reads the space mark as a space, and does not prefix what follows a
    # user-defined piece, as llama.cpp does.
    assume("\0" not in text and "▁" not in text)
    # Nor does it join the prefix with a first space into the user-defined piece of two.
    assume(not prefix or not any(each in " " + text for each in ("  ", "\n\n", "<table>")))
    assert ours.encode(text) == own.encode(text)


def test_digits_of_the_default_model(default_checkpoint: Checkpoint) -> None:
    tokenizer = default_checkpoint.tokenizer
    pieces = [tokenizer.token_text(token) for token in tokenizer.encode("In 2024: 3.14")]
    assert pieces == ["In", " ", "2", "0", "2", "4", ":", " ", "3", ".", "1", "4"]
    assert len(tokenizer.encode("<|im_start|>")) == 1
    assert len(tokenizer.encode("<|im_start|>", control=False)) > 1
    assert tokenizer.encode("x", add_special_tokens=True) == tokenizer.encode("x")
    assert not tokenizer.control_ids & set(
        tokenizer.encode("".join(map(tokenizer.token_text, tokenizer.control_ids)), control=False)
    )


# The model's vocabulary has no token for these bytes, and drops them as its own tokenizer does.
ABSENT = {4, 6, 19, 20, 22, 29, 192, 193, 241, 242, *range(245, 256)}


@settings(deadline=None)
@given(text=st.text() | st.sampled_from(TEXTS), control=st.booleans())
def test_bytes_of_the_default_model(
    default_checkpoint: Checkpoint, text: str, control: bool
) -> None:
    assume(not ABSENT & set(text.encode()))
    tokenizer = default_checkpoint.tokenizer
    ids = tokenizer.encode(text, control=control)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
