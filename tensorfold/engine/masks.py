"""Masks over the vocabulary: token t is bit t % 32 of word t // 32, set where it may come."""

from collections.abc import Iterable

import numpy as np

from tensorfold.ops.rules import words_of


def mask_of(tokens: Iterable[int], vocab_size: int) -> np.ndarray:
    """The mask, uint32 [words_of(vocab_size)], of these tokens alone.

    Tokens that the vocabulary does not have are left out: a model's may be smaller than its
    tokenizer's, of which the end tokens are.
    """
    mask = np.zeros(words_of(vocab_size), np.uint32)
    for token in tokens:
        if token < vocab_size:
            mask[token // 32] |= np.uint32(1 << token % 32)
    return mask


def allows(mask: np.ndarray | None, token: int) -> bool:
    """Whether `token` of the vocabulary may come; None allows every one."""
    return mask is None or bool(mask[token // 32] >> np.uint32(token % 32) & 1)
