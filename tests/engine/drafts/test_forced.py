"""Forced text goes before everything else, and only where drafts are wanted."""

from dataclasses import replace

import pytest

from tensorfold.engine.drafts.copies import CopySource
from tensorfold.engine.drafts.drafting import Drafting
from tensorfold.engine.drafts.forced import ForcedSource
from tensorfold.engine.drafts.source import DraftSource
from tensorfold.engine.drafts.widths import StepTimes
from tensorfold.engine.interface import Request, Sampling
from tensorfold.engine.reply import Reply
from tensorfold.engine.thread import make_reply

BUCKETS = (1, 8)
REQUEST = Request("", (1, 2, 3, 4) * 6, Sampling(), 20)


def reply_of(request: Request, forced: list[int]) -> Reply:
    reply = make_reply(request, lambda event: None, 16)
    reply.append(1)
    reply.forced = forced
    return reply


def proposed(sources: list[DraftSource] | None, reply: Reply) -> list[int]:
    drafting = Drafting(BUCKETS, sources, StepTimes(BUCKETS, learns=False))
    return drafting.propose([reply], 8)[0]


@pytest.mark.parametrize("sources", [None, [CopySource(), ForcedSource()]])
def test_forced_text_goes_before_copies(sources: list[DraftSource] | None) -> None:
    assert proposed(sources, reply_of(REQUEST, [9, 8])) == [9, 8]
    assert proposed(sources, reply_of(REQUEST, list(range(15)))) == list(range(7))
    assert proposed(sources, reply_of(REQUEST, []))[:3] == [2, 3, 4]


def test_who_wants_no_drafts_gets_none() -> None:
    assert proposed(None, reply_of(replace(REQUEST, draft=False), [9, 8])) == []
    assert proposed([], reply_of(REQUEST, [9, 8])) == []


def test_the_last_token_is_no_draft() -> None:
    assert proposed(None, reply_of(replace(REQUEST, max_tokens=3), [9, 8])) == [9]
