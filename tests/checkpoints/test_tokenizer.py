import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from small_checkpoints import (
    CONTROL,
    MARKERS,
    TEXTS,
    WORDS,
    byte_level_tokenizer,
    sentence_piece_metadata,
)
from tokenizers import decoders, models, pre_tokenizers

from tensorfold.checkpoints.gguf_tokenizer import build_tokenizer
from tensorfold.checkpoints.interface import CheckpointError, Tokenizer
from tensorfold.checkpoints.tokenizer import TextTokenizer, is_control, set_frame

PIECES = st.sampled_from([*CONTROL, *MARKERS, *WORDS, "<|im_", "end|>", "hello", " ", "é", "你"])
MIXED = st.lists(PIECES | st.text(max_size=5), max_size=8).map("".join)


@cache
def source() -> tokenizers.Tokenizer:
    return byte_level_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False))


@cache
def byte_level() -> TextTokenizer:
    return TextTokenizer(source(), bos_id=source().token_to_id("<|im_start|>"))


@cache
def sentence_piece() -> TextTokenizer:
    return build_tokenizer(sentence_piece_metadata())


def joined(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, ids))


@given(text=MIXED, control=st.booleans())
def test_bytes_of_the_tokens_are_the_text(text: str, control: bool) -> None:
    tokenizer = byte_level()
    assert joined(tokenizer, tokenizer.encode(text, control=control)) == text.encode()


@given(text=st.text(max_size=20) | st.sampled_from(TEXTS), control=st.booleans())
def test_sentence_piece_adds_spaces_before_words_only(text: str, control: bool) -> None:
    tokenizer = sentence_piece()
    assert tokenizer.strips_leading_space
    ids = tokenizer.encode(text, control=control)
    # The space mark itself stands for a space.
    expected = text.replace("▁", " ").encode()
    if not set(ids) & set(tokenizer._added):
        assert joined(tokenizer, ids) == (b" " if text else b"") + expected


@given(text=MIXED)
def test_ids_are_the_packages_own(text: str) -> None:
    assert byte_level().encode(text) == source().encode(text).ids


@given(text=MIXED)
def test_plain_text_has_no_control_token(text: str) -> None:
    tokenizer = byte_level()
    assert not tokenizer.control_ids & set(tokenizer.encode(text, control=False))


def test_what_is_control() -> None:
    tokenizer = byte_level()
    spelled = {tokenizer.token_text(token) for token in tokenizer.control_ids}
    assert spelled == {*CONTROL, *MARKERS}
    for text in ("<tool_call>", "</think>", "<|fim_pad|>", "[/INST]", "<｜end▁of▁text｜>"):
        assert is_control(text, special=False)
    for text in ("<table>", "</h1>", "<br />", "  ", "\n", "<", "<<x>>", "word"):
        assert not is_control(text, special=False)
        assert is_control(text, special=True)


def test_control_tokens_in_plain_text_are_letters() -> None:
    tokenizer = byte_level()
    assert len(tokenizer.encode("<|im_end|>")) == 1
    plain = tokenizer.encode("<|im_end|>", control=False)
    assert len(plain) > 1
    assert plain == tokenizer.encode("<|im_end|", control=False) + tokenizer.encode(">")


def test_words_keep_their_ids_in_plain_text() -> None:
    tokenizer = byte_level()
    for word in WORDS:
        assert tokenizer.encode(word, control=False) == tokenizer.encode(word)
        assert tokenizer.token_text(tokenizer.encode(word)[0]) == word


@pytest.mark.parametrize("control", [True, False])
def test_encode_does_not_depend_on_earlier_calls(control: bool) -> None:
    whole = byte_level_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False))
    bos = whole.token_to_id("<|im_start|>")
    set_frame(whole, bos, None)
    tokenizer = TextTokenizer(whole, bos_id=bos)
    text = "hello <|im_end|>    x"
    bare = tokenizer.encode(text, control=control)
    for _ in range(3):
        framed = tokenizer.encode(text, add_special_tokens=True, control=control)
        assert framed == [bos, *bare]
        assert tokenizer.encode(text, control=control) == bare
    assert tokenizer.encode("", add_special_tokens=True) == [bos]


@pytest.mark.parametrize("control", [True, False])
def test_other_threads_run_while_a_long_text_is_encoded(control: bool) -> None:
    tokenizer, text = byte_level(), "hello there " * 200_000
    with ThreadPoolExecutor(1) as threads:
        encoded = threads.submit(tokenizer.encode, text, control=control)
        turns = 0
        while not encoded.done():
            time.sleep(0.001)
            turns += 1
    # One, before and after, if the encoder kept them from running.
    assert turns > 10
    assert text.encode().startswith(joined(tokenizer, encoded.result()[:30]))


def test_truncation_and_padding_are_ignored() -> None:
    whole = byte_level_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False))
    whole.enable_truncation(2)
    whole.enable_padding(length=64)
    text = TEXTS[0]
    assert TextTokenizer(whole).encode(text) == byte_level().encode(text)


def test_control_tokens_reached_by_merges_are_spelled_out() -> None:
    vocabulary = {each: token for token, each in enumerate(["<", "s", ">", "<s", "<s>"])}
    whole = tokenizers.Tokenizer(models.BPE(vocabulary, [("<", "s"), ("<s", ">")]))
    whole.decoder = decoders.Replace("▁", " ")
    whole.add_special_tokens(["<s>"])
    tokenizer = TextTokenizer(whole)
    assert tokenizer.encode("<s>") == [4]
    assert tokenizer.encode("<s>s", control=False) == [0, 1, 2, 1]


def test_unused_ids_and_lone_surrogates() -> None:
    tokenizer = byte_level()
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert tokenizer.token_bytes(-1) == b""
    assert tokenizer.token_bytes(2**40) == b""
    with pytest.raises(ValueError, match="surrogates"):
        tokenizer.encode("a\ud800")


def test_byte_tokens() -> None:
    tokenizer = sentence_piece()
    ids = tokenizer.encode("é")
    assert [tokenizer.token_bytes(token) for token in ids] == [b" ", b"\xc3", b"\xa9"]
    assert tokenizer.token_text(ids[1]) == "�"
    # Spelled in text, a byte token is its letters.
    assert joined(tokenizer, tokenizer.encode("<0x41>")) == b" <0x41>"


def test_unknown_decoders_are_refused() -> None:
    whole = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0}))
    whole.decoder = decoders.WordPiece()
    with pytest.raises(CheckpointError, match="WordPiece"):
        TextTokenizer(whole)
