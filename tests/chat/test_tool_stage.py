"""The stage that finds calls: where tokens go, and calls inside reasoning."""

import pytest
from call_texts import SAMPLES, TOOLS
from hypothesis import given
from hypothesis import strategies as st

from tensorfold.chat.pieces import CallPiece, Piece, Token
from tensorfold.chat.tools.registry import FORMATS
from tensorfold.chat.tools.stage import CallReading, ToolCalls

CALL = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'


def run(pieces, *, cut=False, name="hermes", controls=None, **how):
    """The parts of a reply that comes in these (text, kind) pieces, a token each."""
    stage = ToolCalls(CallReading(FORMATS[name], TOOLS, controls=controls or {}, **how))
    parts = []
    for number, (text, kind) in enumerate(pieces):
        parts += stage.push(Piece(text, (Token(number),), kind))
    parts += stage.finish(cut)
    assert [token.id for part in parts for token in part.tokens] == list(range(len(pieces)))
    return parts


def said(parts, kind="content"):
    return "".join(part.text for part in parts if isinstance(part, Piece) and part.kind == kind)


def called(parts):
    return [part.name for part in parts if isinstance(part, CallPiece) and part.name]


@given(st.lists(st.integers(1, 9), max_size=30), st.sampled_from(sorted(SAMPLES)))
def test_every_token_is_in_one_part_and_in_order(sizes, name):
    text = "Hello. " + SAMPLES[name].text + " Bye."
    pieces = []
    for size in [*sizes, len(text)]:
        pieces.append((text[:size], "content"))
        text = text[size:]
    run(pieces, name=name)


def test_a_calls_tokens_go_with_it():
    parts = run([("I", "content"), (" look.", "content"), (CALL, "content"), (" ok", "content")])
    assert [(type(part), tuple(t.id for t in part.tokens)) for part in parts] == [
        (Piece, (0,)),
        (Piece, (1,)),
        (CallPiece, (2,)),
        (CallPiece, ()),
        (Piece, (3,)),
    ]
    first, arguments = parts[2:4]
    assert (first.index, first.name, first.arguments) == (0, "ping", "")
    assert (arguments.index, arguments.id, arguments.arguments) == (0, None, "{}")


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_case_55_a_call_in_a_block_that_never_closes_is_the_replys(size):
    text = "I think.\n" + CALL
    pieces = [(text[i : i + size], "reasoning") for i in range(0, len(text), size)]
    parts = run(pieces)
    assert (said(parts, "reasoning"), called(parts)) == ("I think.", ["ping"])


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_case_55_a_call_in_a_block_that_closes_is_reasoning(size):
    text = "I could\n" + CALL + "\nbut no."
    pieces = [(text[i : i + size], "reasoning") for i in range(0, len(text), size)]
    parts = run([*pieces, ("Hello", "content")])
    assert (said(parts, "reasoning"), said(parts), called(parts)) == (text, "Hello", [])


def test_reasoning_streams_up_to_a_call():
    stage = ToolCalls(CallReading(FORMATS["hermes"], TOOLS))
    assert said(stage.push(Piece("I think. ", (), "reasoning")), "reasoning") == "I think."
    assert said(stage.push(Piece("More", (), "reasoning")), "reasoning") == " More"
    assert stage.push(Piece(CALL, (), "reasoning")) == []
    assert stage.push(Piece(" or not", (), "reasoning")) == []


def test_a_call_that_the_limit_cuts_in_a_block_is_none():
    parts = run([("I think.", "reasoning"), (CALL[:20], "reasoning")], cut=True)
    assert (said(parts, "reasoning"), called(parts)) == ("I think.", [])


def test_only_the_models_own_token_opens_a_call():
    pieces = [(text, "content") for text in ("<tool_call>", CALL[11:], "<tool_call>", CALL[11:])]
    parts = run(pieces, controls={2: "<tool_call>"})
    assert (said(parts), called(parts)) == (CALL, ["ping"])


def test_the_ids_that_formats_need():
    parts = run([(SAMPLES["kimi"].text, "content")], name="kimi", calls_before=4)
    ids = [part.id for part in parts if isinstance(part, CallPiece) and part.id]
    assert ids == ["functions.get_weather:4", "functions.ping:5"]
    parts = run([(SAMPLES["mistral"].text, "content")], name="mistral")
    ids = [part.id for part in parts if isinstance(part, CallPiece) and part.id]
    assert all(len(each) == 9 and each.isalnum() for each in ids) and len(set(ids)) == 2
