"""A compiled grammar as a constraint on one reply."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorfold.checkpoints.interface import Tokenizer
from tensorfold.ops.rules import words_of


@dataclass(frozen=True)
class Vocabulary:
    """What a grammar's masks are over: the model's `vocab_size` tokens, of which some end."""

    tokenizer: Tokenizer
    vocab_size: int
    end_ids: frozenset[int]


class GrammarConstraint:
    """Keeps a reply to a grammar; a `Constraint` of the engine.

    An end token is allowed exactly when the text so far is complete.
    """

    def __init__(self, compiled: Any, vocabulary: Vocabulary) -> None:
        """`compiled` is an `xgrammar.CompiledGrammar`."""
        import xgrammar

        self._vocabulary = vocabulary
        self._matcher = xgrammar.GrammarMatcher(
            compiled, override_stop_tokens=sorted(vocabulary.end_ids)
        )
        self._forced: list[int] | None = None

    def masks(self, drafts: Sequence[int]) -> list[np.ndarray | None]:
        """See `Constraint.masks`."""
        matcher = self._matcher
        words = words_of(self._vocabulary.vocab_size)
        buffer = np.empty((len(drafts) + 1, words), np.int32)
        found: list[np.ndarray | None] = []
        taken = 0
        for place in range(len(drafts) + 1):
            narrowed = matcher.fill_next_token_bitmask(buffer, place)
            found.append(buffer[place].view(np.uint32) if narrowed else None)
            if place == len(drafts) or not matcher.accept_token(drafts[place]):
                break
            taken += 1
            if matcher.is_terminated():
                break
        if taken:
            matcher.rollback(taken)
        return found

    def forced(self) -> list[int]:
        """The tokens of the text that must come next, as the tokenizer writes it.

        The last one is left out: what follows the text may be part of the model's own token.
        """
        if self._forced is None:
            text = "" if self._matcher.is_terminated() else self._matcher.find_jump_forward_string()
            tokens = self._vocabulary.tokenizer.encode(text, control=False) if text else []
            self._forced = tokens[:-1]
        return self._forced

    def accept(self, token: int) -> None:
        """See `Constraint.accept`. Raises `ValueError` for a token that no mask allowed."""
        if not self._matcher.accept_token(token):
            raise ValueError(f"token {token} does not follow the grammar")
        self._forced = None
