"""What holds a reply while it thinks: a budget of tokens, a guard against loops; and what follows.

A constraint on the reasoning and one on the answer come one after the other here. Where the
reasoning ends is a function of the tokens before, so drafts and batches change nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tensorfold.chat.reasoning import Markers
from tensorfold.checkpoints.interface import Tokenizer
from tensorfold.engine.interface import Constraint
from tensorfold.engine.masks import allows, mask_of

LONGEST_CYCLE = 8
REPEATS = 256
EARLIEST = 64


@dataclass(frozen=True)
class ThinkingRules:
    """What a reply's reasoning is held to.

    opened: whether the reply begins inside its reasoning; None when it may open it
    budget: the reply's token that is replaced by the closing while it still thinks; 0 is none
    guard: close a block that repeats a cycle of at most 8 tokens for 256 tokens, from the
        reply's 64th token on
    closing: the tokens that close a block by force
    blank: whether a token is blank, as those before an opening marker may be; none is where an
        answer is constrained, whose own the blanks would be
    """

    markers: Markers
    opened: bool | None
    closing: tuple[int, ...]
    blank: Callable[[int], bool] = lambda token: False
    budget: int = 0
    guard: bool = False


def closing_tokens(tokenizer: Tokenizer, markers: Markers, *, blank_line: bool) -> tuple[int, ...]:
    """A line end, the closing marker and, if wanted, a blank line."""
    after = _text_tokens(tokenizer, "\n\n") if blank_line else []
    return (*_text_tokens(tokenizer, "\n"), markers.closing, *after)


def _text_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of exactly `text`, without the space that some tokenizers put first."""
    ids = tokenizer.encode(text, control=False)
    while ids and b"".join(map(tokenizer.token_bytes, ids)) != text.encode():
        ids = ids[1:]
    return ids


@dataclass(frozen=True)
class Thinking:
    """How far a reply has come: immutable, so that drafts can be tried on it.

    written: the reply's tokens so far; last: its latest ones inside the block, newest first
    runs: for each length of a cycle, how many tokens in a row were those of one cycle before
    forced: what is left of the closing; loop: the cycle that the guard saw
    """

    rules: ThinkingRules
    phase: Literal["before", "inside", "answer"]
    written: int = 0
    last: tuple[int, ...] = ()
    runs: tuple[int, ...] = (0,) * LONGEST_CYCLE
    forced: tuple[int, ...] = ()
    loop: int | None = None

    @classmethod
    def start(cls, rules: ThinkingRules) -> "Thinking":
        """Before the reply's first token."""
        phases: dict[bool | None, Literal["before", "inside", "answer"]] = {
            True: "inside",
            False: "answer",
            None: "before",
        }
        return cls(rules, phases[rules.opened])._checked()

    def after(self, token: int) -> "Thinking":
        """Once `token` has come."""
        now = replace(self, written=self.written + 1)
        if self.forced:
            left = self.forced[1:]
            return replace(now, forced=left, phase=self.phase if left else "answer")
        if self.phase == "before":
            if token == self.rules.markers.opening:
                return replace(now, phase="inside")._checked()
            return now if self.rules.blank(token) else replace(now, phase="answer")
        if self.phase == "inside" and token == self.rules.markers.closing:
            return replace(now, phase="answer")
        return now._watched(token)._checked() if self.phase == "inside" else now

    def _watched(self, token: int) -> "Thinking":
        if not self.rules.guard:
            return self
        runs = tuple(
            run + 1 if place < len(self.last) and self.last[place] == token else 0
            for place, run in enumerate(self.runs)
        )
        return replace(self, runs=runs, last=(token, *self.last)[:LONGEST_CYCLE])

    def _checked(self) -> "Thinking":
        """With the closing forced from here on, if it is due."""
        if self.phase != "inside":
            return self
        for cycle, run in enumerate(self.runs, 1):
            if run >= REPEATS and self.written - REPEATS - cycle >= EARLIEST:
                return replace(self, forced=self.rules.closing, loop=cycle)
        if 0 < self.rules.budget <= self.written + 1:
            return replace(self, forced=self.rules.closing)
        return self


class ThinkingConstraint:
    """Holds the reasoning to its rules and what follows to `answer`; a `Constraint`.

    end_ids: not allowed inside the block when an answer must follow
    """

    def __init__(
        self,
        rules: ThinkingRules,
        answer: Constraint | None,
        vocab_size: int,
        end_ids: frozenset[int] = frozenset(),
    ) -> None:
        if answer is not None:
            rules = replace(rules, blank=lambda token: False)
        self._state = Thinking.start(rules)
        self._answer = answer
        self._vocab_size = vocab_size
        self._thoughts: np.ndarray | None = None
        if answer is not None:
            self._thoughts = ~mask_of(end_ids, vocab_size)

    def masks(self, drafts: Sequence[int]) -> list[np.ndarray | None]:
        """See `Constraint.masks`."""
        return self._masks(self._state, drafts)

    def forced(self) -> Sequence[int]:
        """See `Constraint.forced`."""
        if self._state.forced:
            return self._state.forced
        if self._state.phase == "answer" and self._answer is not None:
            return self._answer.forced()
        return ()

    def accept(self, token: int) -> None:
        """See `Constraint.accept`."""
        before = self._state
        self._state = before.after(token)
        answers = before.phase == "answer" or (
            before.phase == "before" and self._state.phase == "answer"
        )
        if answers and self._answer is not None:
            self._answer.accept(token)

    def _masks(self, state: Thinking, drafts: Sequence[int]) -> list[np.ndarray | None]:
        found: list[np.ndarray | None] = []
        for place in range(len(drafts) + 1):
            rest = drafts[place:]
            if state.phase == "answer":
                return [*found, *self._answer_masks(rest)]
            if state.phase == "before" and self._answer is not None:
                return [*found, *self._first_masks(state, rest)]
            mask = self._thoughts
            if state.forced:
                mask = mask_of(state.forced[:1], self._vocab_size)
            found.append(mask)
            if not rest or not allows(mask, rest[0]):
                break
            state = state.after(rest[0])
        return found

    def _answer_masks(self, drafts: Sequence[int]) -> Sequence[np.ndarray | None]:
        if self._answer is None:
            return [None] * (len(drafts) + 1)
        return self._answer.masks(drafts)

    def _first_masks(self, state: Thinking, drafts: Sequence[int]) -> list[np.ndarray | None]:
        """Where the reply may open its reasoning or begin the answer."""
        opening = state.rules.markers.opening
        first, *others = self._answer_masks(drafts)
        if first is not None:
            first = first | mask_of((opening,), self._vocab_size)
        if drafts and drafts[0] == opening:
            others = self._masks(state.after(opening), drafts[1:])
        return [first, *others]


def thinking_constraint(
    rules: ThinkingRules | None,
    answer: Callable[[], Constraint] | None,
    vocab_size: int,
    end_ids: frozenset[int],
) -> Callable[[], Constraint] | None:
    """What makes the constraint of each reply; None when nothing constrains it."""
    held = rules is not None and rules.opened is not False
    if rules is None or not held or (answer is None and not (rules.budget or rules.guard)):
        return answer
    return lambda: ThinkingConstraint(rules, answer() if answer else None, vocab_size, end_ids)


def loop_seen(rules: ThinkingRules, tokens: Sequence[int]) -> int | None:
    """The length of the cycle for which the guard closed a reply's reasoning, if it did."""
    state = Thinking.start(rules)
    for token in tokens:
        if state.loop is not None or state.phase == "answer":
            break
        state = state.after(token)
    return state.loop
