"""Masks hold the tokens that they are made of."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorfold.engine.masks import allows, mask_of
from tensorfold.ops.rules import words_of


@given(vocab_size=st.integers(1, 200), tokens=st.frozensets(st.integers(0, 250)))
def test_a_mask_allows_its_tokens_and_no_others(vocab_size: int, tokens: frozenset[int]) -> None:
    mask = mask_of(tokens, vocab_size)
    assert mask.dtype == np.uint32 and mask.shape == (words_of(vocab_size),)
    allowed = {token for token in range(32 * len(mask)) if allows(mask, token)}
    assert allowed == {token for token in tokens if token < vocab_size}
    assert {token for token in range(vocab_size) if not allows(~mask, token)} == allowed
    assert all(allows(None, token) for token in tokens)
    # As the draw reads it (ops/rules.py).
    bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")
    assert set(np.flatnonzero(bits).tolist()) == allowed


@given(st.integers(1, 2000))
def test_the_words_hold_the_vocabulary_and_no_more(vocab_size: int) -> None:
    assert 0 <= 32 * words_of(vocab_size) - vocab_size < 32
