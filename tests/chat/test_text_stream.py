import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tensorfold.chat.pieces import Token
from tensorfold.chat.text_stream import ReplyText, StopFilter

END = 10_000


class Pieces:
    """A tokenizer whose token i is the i-th of the given bytes."""

    def __init__(self, pieces):
        self._pieces = pieces

    def token_bytes(self, token):
        return self._pieces[token]


def run(pieces, stops=(), end=True):
    """The released pieces, and how many tokens were read."""
    text = ReplyText(Pieces(pieces), end_ids=frozenset({END}), stops=stops)
    released = []
    for token in [*range(len(pieces)), *([END] if end else [])]:
        released.append(text_of(text.push(Token(token))))
        if text.stop_string is not None:
            return released, token + 1
    return [*released, text_of(text.finish())], len(pieces) + end


def text_of(pieces):
    return "".join(piece.text for piece in pieces)


def cut(data, places):
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def without_partial_tail(data):
    """What a whole reply decodes to: only an unfinished last character is dropped."""
    for length in range(min(3, len(data)), 0, -1):
        tail = data[-length:]
        lead = tail[0]
        needed = 2 if 0xC2 <= lead <= 0xDF else 3 if 0xE0 <= lead <= 0xEF else 4
        starts = lead >= 0xC2 and lead <= 0xF4
        if starts and length < needed and _may_be_completed(tail, needed):
            return data[:-length].decode("utf-8", errors="replace")
    return data.decode("utf-8", errors="replace")


def _may_be_completed(tail, needed):
    for second in [tail[1]] if len(tail) > 1 else range(0x80, 0xC0):
        candidate = bytes([tail[0], second, *tail[2:]]).ljust(needed, b"\x80")
        try:
            candidate.decode()
        except UnicodeDecodeError:
            continue
        return True
    return False


def reference(text, stops):
    """Read a character at a time; the first completed stop string ends the text."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@pytest.mark.parametrize(
    "pieces",
    [
        [b"\xf0\x9f", b"\x98\x8a"],
        [b"\xf0", b"\x9f", b"\x98", b"\x8a"],
        [b"a\xf0\x9f\x98", b"\x8ab"],
    ],
)
def test_case_1_characters_split_over_tokens_arrive_whole(pieces):
    released, _ = run(pieces)
    assert "".join(released) == b"".join(pieces).decode()
    assert "�" not in "".join(released)


@pytest.mark.parametrize("length", range(5))
def test_case_2_a_reply_cut_inside_a_character_drops_its_tail(length):
    data = "é😊".encode()[: 2 + length]
    released, _ = run([bytes([byte]) for byte in data], end=False)
    assert "".join(released) == ("é😊" if length == 4 else "é")


@settings(deadline=None)
@given(data=st.binary(max_size=40), places=st.lists(st.integers(0, 40)))
@example(data=b"\xe0\x80\x80", places=[1, 2])
@example(data=b"\xed\xa0\x80\xf4\x90", places=[1, 2, 3, 4])
@example(data=b"a\xf0\x9f\x98", places=[2])
@example(data=b"\xff\xc0\xaf\xf0\x9f", places=[3])
@example(data=b"a\xed\xa0", places=[])
@example(data=b"a\xed\xa0", places=[2])
@example(data=b"a\xed", places=[])
def test_any_bytes_read_as_they_would_whole(data, places):
    released, _ = run(cut(data, places))
    assert "".join(released) == without_partial_tail(data)


@settings(deadline=None)
@given(
    text=st.text(st.sampled_from("ab😊c")),
    stops=st.lists(st.text(st.sampled_from("ab😊c"), min_size=1, max_size=4), max_size=4),
    places=st.lists(st.integers(0, 60)),
)
@example(text="The quick brown fox", stops=["own fox"], places=[3, 10, 15])
@example(text="aab", stops=["ab"], places=[1, 2])
@example(text="abcdef", stops=["abcdef", "cd"], places=[])
@example(text="xab", stops=["b", "ab"], places=[])
def test_cases_20_to_25_stop_strings_are_found_however_the_text_is_cut(text, stops, places):
    data = text.encode()
    pieces = cut(data, places)
    released, read = run(pieces, stops)
    expected, stopped = reference(text, stops)
    assert "".join(released) == expected
    if stopped:
        # The last token read is the one that completed the match.
        ended = b"".join(pieces[:read]).decode("utf-8", errors="ignore")
        before = b"".join(pieces[: read - 1]).decode("utf-8", errors="ignore")
        assert reference(ended, stops)[1] and not reference(before, stops)[1]


@settings(deadline=None)
@given(
    text=st.text(st.sampled_from("ab")),
    stops=st.lists(st.text(st.sampled_from("ab"), min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_only_what_may_become_a_stop_string_is_held_back(text, stops):
    stop_filter = StopFilter(stops)
    released = ""
    for i, character in enumerate(text):
        released += stop_filter.push(character)
        if stop_filter.found is not None:
            return
        held = text[len(released) : i + 1]
        longest = max(
            (n for stop in stops for n in range(len(stop)) if text[: i + 1].endswith(stop[:n])),
        )
        assert len(held) == longest


def test_case_23_held_text_is_released_when_it_does_not_match():
    assert run([b"own fo", b"ra"], ["own fox"])[0] == ["", "own fora", "", ""]
    assert run([b"own fo"], ["own fox"])[0] == ["", "", "own fo"]


def test_case_22_a_stop_string_of_several_tokens_leaks_nothing():
    pieces = [b"do it", b"\n", b"Obs", b"ervation", b":", b" more"]
    released, read = run(pieces, ["\nObservation:"])
    assert released == ["do it", "", "", "", ""]
    assert read == 5


def test_nothing_follows_a_stop_string():
    stop_filter = StopFilter(["x"])
    assert stop_filter.push("axb") == "a"
    assert stop_filter.push("more") == ""
    assert stop_filter.finish() == ""


def test_a_stop_string_may_span_bytes_of_a_character():
    released, read = run([b"a\xf0\x9f", b"\x98", b"\x8a", b"b"], ["😊"])
    assert ("".join(released), read) == ("a", 3)


def test_long_stop_strings_take_linear_time():
    stop_filter = StopFilter(["a" * 50_000 + "b"])
    text = stop_filter.push("a" * 200_000)
    assert len(text) == 150_000
    assert text + stop_filter.finish() == "a" * 200_000
