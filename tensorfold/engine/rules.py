"""What acts on one reply's logits before the draw, as a function of the tokens before."""

from collections.abc import Sequence

import numpy as np

from tensorfold.engine.interface import Request
from tensorfold.engine.masks import mask_of
from tensorfold.runtime.head import NO_RULES, RowRules


class Rules:
    """The penalties, biases and masks of one reply (see `Sampling` and `Constraint`)."""

    def __init__(self, request: Request, vocab_size: int):
        self._request, self._vocab_size = request, vocab_size
        self._sampling = request.sampling
        self._penalties = Penalties(request, vocab_size) if _has_penalties(request) else None
        self._constraint = request.constraint() if request.constraint else None
        self.masks_only = not (self._penalties or _asks(request))
        """Whether masks are all, so that rows are drawn where they are computed."""
        self._drawn = 0
        self._no_end = ~mask_of(request.end_ids, vocab_size)

    @staticmethod
    def needed(request: Request) -> bool:
        """Whether a request takes more than sampling settings."""
        masks = request.constraint is not None or request.sampling.min_tokens > 0
        return _asks(request) or masks or _has_penalties(request)

    def anew(self) -> "Rules":
        """The same rules before the reply's first token."""
        return Rules(self._request, self._vocab_size)

    def rows(self, drafts: Sequence[int]) -> list[RowRules]:
        """The rules at the next place and after each of `drafts`, for as long as these may come:
        one to `len(drafts) + 1` of them."""
        masks: Sequence[np.ndarray | None] = [None] * (len(drafts) + 1)
        if self._constraint:
            masks = self._constraint.masks(drafts)
        rows = []
        for i, mask in enumerate(masks):
            factor = shift = None
            if self._penalties:
                factor, shift = self._penalties.after(drafts[:i])
            rows.append(RowRules(factor, shift, self._without_end(mask, i)))
        return rows if self._penalties or self._constraint or self._held else [NO_RULES] * len(rows)

    def accept(self, tokens: Sequence[int]) -> list[int]:
        """The reply's next tokens. Returns those that must come after them, as far as is known."""
        for token in tokens:
            if self._constraint:
                self._constraint.accept(token)
            if self._penalties:
                self._penalties.accept(token)
        self._drawn += len(tokens)
        return list(self._constraint.forced()) if self._constraint else []

    @property
    def _held(self) -> bool:
        return self._drawn < self._sampling.min_tokens

    def _without_end(self, mask: np.ndarray | None, ahead: int) -> np.ndarray | None:
        """The mask without end tokens while the reply is short, unless nothing else may come."""
        if self._drawn + ahead >= self._sampling.min_tokens:
            return mask
        held = self._no_end if mask is None else mask & self._no_end
        return held if held.any() else mask


class Penalties:
    """Repetition, frequency and presence penalties and biases of one reply, token by token."""

    def __init__(self, request: Request, vocab_size: int):
        self._sampling = sampling = request.sampling
        self._counts = np.zeros(vocab_size, np.int32)
        self._factor = np.ones(vocab_size, np.float32)
        self._factor[list(request.prompt)] = sampling.repetition_penalty
        self._bias = np.zeros(vocab_size, np.float32)
        for token, bias in sampling.logit_bias:
            self._bias[token] += np.float32(bias)
        self._shift = self._bias.copy()

    def accept(self, token: int) -> None:
        """The reply's next token."""
        self._counts[token] += 1
        self._factor[token] = self._sampling.repetition_penalty
        self._shift[token] = self._shift_of(token, int(self._counts[token]))

    def after(self, drafts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """(factor, shift), float32 [V], if `drafts` come next."""
        factor, shift = self._factor.copy(), self._shift.copy()
        for token in set(drafts):
            factor[token] = self._sampling.repetition_penalty
            count = int(self._counts[token]) + sum(draft == token for draft in drafts)
            shift[token] = self._shift_of(token, count)
        return factor, shift

    def _shift_of(self, token: int, count: int) -> np.float32:
        each, once = self._sampling.frequency_penalty, self._sampling.presence_penalty
        return np.float32(self._bias[token] - np.float32(each * count + once))


def _asks(request: Request) -> bool:
    """Whether log probabilities are asked for."""
    return request.logprobs is not None or request.prompt_logprobs is not None


def _has_penalties(request: Request) -> bool:
    sampling = request.sampling
    neutral = (
        sampling.repetition_penalty == 1
        and sampling.frequency_penalty == 0
        and sampling.presence_penalty == 0
    )
    return not neutral or bool(sampling.logit_bias)
