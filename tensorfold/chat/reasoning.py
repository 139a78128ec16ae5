"""Reasoning: the markers around it, whether a prompt opens it, and its split from the content.

A marker is the model's own token. The same letters written as ordinary tokens, in a quotation or
in code, are text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tensorfold.chat.pieces import CallPiece, Part, Piece
from tensorfold.checkpoints.interface import Tokenizer

_PAIRS = (
    ("<think>", "</think>", ""),
    ("<|channel>", "<channel|>", "thought\n"),
    ("[THINK]", "[/THINK]", ""),
    ("<seed:think>", "</seed:think>", ""),
    ("◁think▷", "◁/think▷", ""),
    ("<|START_THINKING|>", "<|END_THINKING|>", ""),
)


@dataclass(frozen=True)
class Markers:
    """The tokens around a model's reasoning, and the text that `opening` stands before, if any."""

    opening: int
    closing: int
    header: str = ""


def find_markers(tokenizer: Tokenizer, template: str = "") -> Markers | None:
    """The model's markers: those its template writes first of all, else those it has tokens for."""
    found: list[tuple[bool, int, Markers]] = []
    for opening, closing, header in _PAIRS:
        ids = [tokenizer.encode(text) for text in (opening, closing)]
        if all(len(each) == 1 and each[0] in tokenizer.control_ids for each in ids):
            written = opening not in template and closing not in template
            found.append((written, len(found), Markers(ids[0][0], ids[1][0], header)))
    return min(found, key=lambda each: each[:2])[2] if found else None


def opens_reasoning(
    prompt: Sequence[int], markers: Markers, end_ids: frozenset[int]
) -> bool | None:
    """Whether a reply to `prompt` begins inside its reasoning; None when the prompt leaves it open.

    The prompt's last turn decides: what comes after the last token that ends one.
    """
    for token in reversed(prompt):
        if token == markers.opening:
            return True
        if token == markers.closing:
            return False
        if token in end_ids:
            return None
    return None


class ReasoningSplit:
    """Tells the reasoning of one reply from its content; a `Stage`.

    The reply begins inside (`opened`), after it (False) or may open it first (None). Markers and
    the line ends behind a block are shown to nobody, nor is the one that a closing marker comes
    after; their tokens count as reasoning through the closing marker.
    """

    def __init__(self, markers: Markers, opened: bool | None) -> None:
        self._markers = markers
        self._inside = opened is True
        self._may_open = opened is not True
        self._header = ""
        self._after = False
        self._line_end = ""
        """A line end inside the block that may be the closing marker's."""
        self._blank: list[Piece] = []

    def push(self, part: Part) -> list[Part]:
        """What is decided once `part` has come."""
        if isinstance(part, CallPiece):
            return [*self._release(), part]
        marker = part.tokens[0].id if len(part.tokens) == 1 and part.text else None
        if self._inside:
            return self._reason(part, marker)
        if self._may_open and marker == self._markers.opening:
            self._inside = True
            self._may_open = False
            self._header = self._markers.header or "\n"
            before = [piece.unseen("reasoning") for piece in self._blank]
            self._blank = []
            return [*before, part.unseen("reasoning")]
        if self._may_open and not part.text.strip():
            self._blank.append(part)
            return []
        self._may_open = False
        return [*self._release(), *self._say(part)]

    def finish(self, cut: bool) -> list[Part]:
        """The rest."""
        return self._release()

    def _release(self) -> list[Part]:
        blank, self._blank = self._blank, []
        return [*blank, *self._line_ends()]

    def _line_ends(self) -> list[Part]:
        line_end, self._line_end = self._line_end, ""
        return [Piece(line_end, (), "reasoning")] if line_end else []

    def _reason(self, part: Piece, marker: int | None) -> list[Part]:
        if marker == self._markers.closing:
            self._inside = False
            self._after = True
            self._line_end = ""
            return [part.unseen("reasoning")]
        if not part.text:
            # The token that ends the reply, or a character that it breaks off.
            return [part.unseen()]
        text = part.text
        # The line that the opening marker stands on is the marker's own.
        while self._header and text:
            if text[0] != self._header[0]:
                self._header = ""
                break
            text, self._header = text[1:], self._header[1:]
        before = self._line_ends() if text else []
        if text.endswith("\n"):
            text, self._line_end = text[:-1], "\n"
        return [*before, Piece(text, part.unseen().tokens, "reasoning")]

    def _say(self, part: Piece) -> list[Part]:
        if not self._after:
            return [part]
        text = part.text.lstrip("\n")
        self._after = not text
        return [Piece(text, part.tokens) if text else part.unseen()]
