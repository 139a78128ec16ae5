from hypothesis import given
from hypothesis import strategies as st

from tensorfold.chat.pieces import Piece, Stages, Token
from tensorfold.chat.reasoning import Markers, ReasoningSplit

MARKERS = Markers(1, 2)


def split(pieces, opened=True):
    """The reasoning and the content of pieces; the numbers 1 and 2 are the markers."""
    stages = Stages([ReasoningSplit(MARKERS, opened)])
    parts = []
    for piece in pieces:
        text, token = ("<m>", piece) if isinstance(piece, int) else (piece, 0)
        parts += stages.push([Piece(text, (Token(token),))])
    parts += stages.finish(False)
    return tuple(
        "".join(part.text for part in parts if part.kind == kind)
        for kind in ("reasoning", "content")
    )


def test_the_markers_own_lines_are_no_reasoning():
    assert split([1, "\na\n", 2, "\n\nb"], opened=None) == ("a", "b")
    assert split([" a\n b \n\n", 2, "c"]) == (" a\n b \n", "c")


@given(st.text("a\n ", max_size=6), st.booleans())
def test_only_one_line_end_before_the_marker_is_its_own(text, closes):
    text = "x" + text
    expected = text.removesuffix("\n") if closes else text
    ways = [[text], list(text)]
    assert [split([*way, *([2] if closes else [])]) for way in ways] == [(expected, "")] * 2
