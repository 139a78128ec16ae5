"""The gate of a required call, as an engine uses it."""

import numpy as np
import pytest
from call_texts import SAMPLES, calls, read
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizer import SmallTokenizer

from tensorfold.chat.tools.gate import CallGate, Spellings
from tensorfold.chat.tools.registry import FORMATS
from tensorfold.engine.masks import allows

TOKENIZER = SmallTokenizer()
SPELLINGS = Spellings(TOKENIZER, TOKENIZER.vocab_size + 40)
NAMES = ("get_weather", "get_news", "größe")
BOUNDED = ("dsml", "gemma", "harmony", "hermes", "pythonic")


def allowed(mask):
    return [token for token in range(SPELLINGS.vocab_size) if allows(mask, token)]


@pytest.mark.parametrize("name", BOUNDED)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_whatever_is_drawn_a_call_to_an_offered_tool_begins(name, data):
    shape = FORMATS[name].shape
    gate = CallGate(SPELLINGS, shape, NAMES)
    tokens = []
    while (mask := gate.masks([])[0]) is not None:
        choices = allowed(mask)
        token = data.draw(st.sampled_from(choices))
        assert not (forced := gate.forced()) or forced[0] == token
        gate.accept(token)
        tokens.append(token)
    text = b"".join(map(TOKENIZER.token_bytes, tokens)).decode()
    assert text in {shape.before + shape.opener + each + shape.after_name for each in NAMES}


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_masks_after_drafts_are_those_that_come_without(data):
    shape = FORMATS["hermes"].shape
    ahead = CallGate(SPELLINGS, shape, NAMES)
    drafts, masks = [], []
    for _ in range(data.draw(st.integers(0, 40))):
        masks.append(ahead.masks([])[0])
        choices = [5, 6] if masks[-1] is None else allowed(masks[-1])
        drafts.append(data.draw(st.sampled_from(choices)))
        ahead.accept(drafts[-1])
    masks.append(ahead.masks([])[0])
    found = CallGate(SPELLINGS, shape, NAMES).masks(drafts)
    assert len(found) == len(masks)
    for one, other in zip(found, masks, strict=True):
        assert (one is None and other is None) or np.array_equal(one, other)


def test_a_draft_that_is_not_allowed_ends_the_masks():
    gate = CallGate(SPELLINGS, FORMATS["hermes"].shape, NAMES)
    forced = gate.forced()
    assert len(gate.masks([*forced[:3], forced[0], forced[0]])) == 4


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_forced_call_is_read_as_one(name):
    shape = FORMATS[name].shape
    arguments = {"gemma": "", "python": "", "json": "{}"}.get(shape.arguments, "")
    text = shape.before + shape.opener + "ping" + shape.after_name + arguments + shape.closer
    events = read(name, text + shape.after, prompt=SAMPLES[name].prompt)
    assert [call.name for call in calls(events)] == ["ping"]


class Fixed:
    """A constraint that allows one token."""

    def __init__(self, token):
        self.token = token
        self.seen = []

    def masks(self, drafts):
        return [SPELLINGS.mask([self.token])] * (len(drafts) + 1)

    def forced(self):
        return [self.token]

    def accept(self, token):
        self.seen.append(token)


def test_what_holds_the_arguments_takes_over_behind_the_name():
    made = []

    def arguments(name):
        made.append((name, Fixed(7)))
        return made[-1][1]

    gate = CallGate(SPELLINGS, FORMATS["hermes"].shape, ["ping"], arguments)
    ahead = CallGate(SPELLINGS, FORMATS["hermes"].shape, ["ping"])
    opening = []
    while (mask := ahead.masks([])[0]) is not None:
        opening.append(allowed(mask)[0])
        ahead.accept(opening[-1])
    assert [allowed(mask) for mask in gate.masks([*opening, 7])[-2:]] == [[7], [7]]
    for token in opening:
        gate.accept(token)
    assert gate.forced() == [7]
    gate.accept(7)
    name, constraint = made[-1]
    assert name == "ping" and constraint.seen == [7]
