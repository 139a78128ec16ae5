from hypothesis import given
from hypothesis import strategies as st

from tensorfold.chat.pieces import CallPiece, Piece, Stages, Token, join


def tokens(*ids):
    return tuple(map(Token, ids))


def test_neighbours_of_a_kind_are_joined():
    parts = [
        Piece("", tokens(1)),
        Piece("a", tokens(2), "reasoning"),
        Piece("", tokens(3), "reasoning"),
        Piece("", tokens(4)),
        Piece("b", tokens(5)),
        Piece("c", ()),
        CallPiece(0, "", "id", "name", tokens(6)),
        CallPiece(0, "{", tokens=tokens(7)),
        Piece("", tokens(8)),
        CallPiece(1, "", "id2", "name", tokens(9)),
        Piece("", tokens(10)),
    ]
    assert join(parts) == [
        Piece("a", tokens(1, 2, 3, 4), "reasoning"),
        Piece("bc", tokens(5)),
        CallPiece(0, "", "id", "name", tokens(6)),
        CallPiece(0, "{", tokens=tokens(7, 8)),
        CallPiece(1, "", "id2", "name", tokens(9, 10)),
    ]
    assert join([Piece("", tokens(1)), Piece("", tokens(2))]) == [Piece("", tokens(1, 2))]


class Holding:
    """A stage that lets text through in pairs of parts."""

    def __init__(self):
        self.held = []

    def push(self, part):
        self.held.append(part)
        if len(self.held) < 2:
            return []
        held, self.held = self.held, []
        return held

    def finish(self, cut):
        held, self.held = self.held, []
        return [*held, Piece("cut" if cut else "end")]


@given(st.lists(st.text(max_size=2)), st.integers(0, 3), st.booleans())
def test_what_one_stage_decides_the_next_reads(texts, count, cut):
    stages = Stages([Holding() for _ in range(count)])
    decided = [part for text in texts for part in stages.push([Piece(text)])]
    decided += stages.finish(cut)
    assert [part.text for part in decided] == texts + ["cut" if cut else "end"] * count
