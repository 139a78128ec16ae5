"""Reasoning in replies: its split from the content, its budget, its guard against loops."""

import asyncio

import pytest
from conversing import CHAT, TEXT, Client
from scripted import CONTROLS, IM_END, TEMPLATE, ByteTokenizer, Script, ScriptedEngine

from tensorfold.chat.prompt import ChatEncoder
from tensorfold.chat.template import ChatTemplate
from tensorfold.serving.service import ReplyDefaults

OPENING, CLOSING = (256 + CONTROLS.index(text) for text in ("<think>", "</think>"))
ASKED = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
OPENS = TEMPLATE.replace(ASKED, ASKED + "{{ '<think>\n' }}")
"""Opens the reasoning whatever it is asked."""
CHOOSES = TEMPLATE.replace(
    ASKED, ASKED + "{{ '<think>\n\n</think>\n\n' if enable_thinking is false else '<think>\n' }}"
)


def says(text: str, *, end: bool = True, size: int = 1) -> Script:
    """A script in which the spellings of control tokens are those tokens."""
    tokens = ByteTokenizer().encode(text) + [IM_END] * end
    return Script(tuple(tuple(tokens[i : i + size]) for i in range(0, len(tokens), size)))


def thinker(text: str, template: str = OPENS, size: int = 1, end: bool = True, **service) -> Client:
    chat = ChatEncoder(ChatTemplate(template, {}), ByteTokenizer())
    engine = ScriptedEngine(lambda request: says(text, size=size, end=end))
    return Client(engine, chat=chat, **service)


async def both_ways(client: Client, **fields: object) -> tuple[str, str, dict]:
    """Reasoning, content and usage, which a stream must share with a whole reply."""
    reply = await client.ask(CHAT, **fields)
    message = reply["choices"][0]["message"]
    events = await client.stream(CHAT, **fields)
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    streamed = [
        "".join(delta.get(name, "") for delta in deltas)
        for name in ("reasoning_content", "content")
    ]
    found = [message.get("reasoning_content", ""), message["content"] or ""]
    assert streamed == found
    assert [event["usage"] for event in events if "usage" in event] == [reply["usage"]]
    reasons = [c["finish_reason"] for event in events for c in event["choices"]]
    assert reasons[-1] == reply["choices"][0]["finish_reason"]
    return found[0], found[1], reply["usage"]


def thought(usage: dict) -> int:
    return usage["completion_tokens_details"]["reasoning_tokens"]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("template", "said", "reasoning", "content", "tokens"),
    [
        (OPENS, "why?</think>\n\nYes.", "why?", "Yes.", 5),
        (OPENS, "a\n b </think>Yes.", "a\n b ", "Yes.", 6),
        (OPENS, " a\n b</think>\n\n\n  Yes.\n", " a\n b", "  Yes.\n", 6),
        (OPENS, "never done", "never done", "", 10),
        (OPENS, "</think>\n\nAt once.", "", "At once.", 1),
        (OPENS, "é</think>é", "é", "é", 3),
        (TEMPLATE, "<think>\nwhy?</think>\n\nYes.", "why?", "Yes.", 7),
        (TEMPLATE, "\n <think>why?</think>Yes.", "why?", "Yes.", 8),
        (TEMPLATE, "<think></think>\n\nYes.", "", "Yes.", 2),
        (TEMPLATE, "<think>half", "half", "", 5),
        (TEMPLATE, "Yes.", "", "Yes.", 0),
        (TEMPLATE, "  Yes.", "", "  Yes.", 0),
        (TEMPLATE, " \n", "", " \n", 0),
        (TEMPLATE, "Yes, <think>.", "", "Yes, <think>.", 0),
        (TEMPLATE, "Stray </think> marker", "", "Stray </think> marker", 0),
        (TEMPLATE, "<response>Hello world", "", "<response>Hello world", 0),
    ],
)
async def test_cases_68_74_77_reasoning_is_split_off(
    template, said, reasoning, content, tokens, size
):
    found = await both_ways(thinker(said, template, size))
    assert found[:2] == (reasoning, content)
    assert thought(found[2]) == tokens


async def test_letters_that_spell_a_marker_are_text():
    quoted = "".join(chr(byte) for byte in b"<think>is it </think> over?")
    engine = ScriptedEngine(lambda request: Script(tuple((b,) for b in [*quoted.encode(), IM_END])))
    chat = ChatEncoder(ChatTemplate(OPENS, {}), ByteTokenizer())
    reasoning, content, _ = await both_ways(Client(engine, chat=chat))
    assert (reasoning, content) == (quoted, "")


async def test_a_reply_cut_in_its_reasoning_has_no_content():
    reasoning, content, usage = await both_ways(thinker("why? why?</think>Yes."), max_tokens=4)
    assert (reasoning, content) == ("why?", "")
    assert thought(usage) == usage["completion_tokens"] == 4


async def test_case_26_stop_strings_do_not_hide_the_marker():
    client = thinker("a</think>b</thX")
    assert (await both_ways(client, stop=["</thX", "nk>b</th!"]))[:2] == ("a", "b")


async def test_a_stop_string_ends_the_reasoning_too():
    assert (await both_ways(thinker("one two</think>b"), stop=["two"]))[:2] == ("one ", "")


async def test_case_73_replies_at_once_and_raw_completions_share_nothing():
    client = thinker("why?</think>Yes.")
    replies = await asyncio.gather(*(both_ways(client) for _ in range(4)), client.ask(TEXT))
    assert all(reply[:2] == ("why?", "Yes.") for reply in replies[:4])
    assert replies[4]["choices"][0]["text"] == "why?</think>Yes."


@pytest.mark.parametrize("template", [OPENS, CHOOSES])
async def test_thinking_is_off_on_request(template):
    client = thinker("Yes.", template)
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert (await both_ways(client, **off))[:2] == ("", "Yes.")
    prompt = client.engine.requests[0].prompt
    assert prompt[-3:] == (CLOSING, 10, 10)
    assert prompt.count(OPENING) == 1
    tokens = await client.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]} | off)
    assert tuple((await tokens.get_json())["tokens"]) == prompt


async def test_an_earlier_turns_marker_says_nothing_of_this_one():
    client = thinker("Yes.", TEMPLATE)
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>"},
        {"role": "user", "content": "Hi"},
    ]
    assert (await both_ways(client, messages=history))[:2] == ("", "Yes.")


async def test_logprobs_are_the_answers_own():
    reply = await thinker("why?</think>\n\nYes").ask(CHAT, logprobs=True)
    rows = reply["choices"][0]["logprobs"]["content"]
    assert [row["token"] for row in rows if row["bytes"]][:3] == ["Y", "e", "s"]


@pytest.mark.parametrize(
    ("budget", "reasoning", "content"),
    [
        (1, "", "abcdefgh"),
        (4, "abc", "defgh"),
        (5, "abcd", "efgh"),
        (100, "abcdefgh", ""),
        (0, "abcdefgh", ""),
    ],
)
async def test_a_budget_closes_the_reasoning(budget, reasoning, content):
    found = await both_ways(thinker("abcdefgh"), thinking_budget=budget)
    assert found[:2] == (reasoning, content)


async def test_a_budget_leaves_shorter_reasoning_alone():
    client = thinker("abc</think>\nYes.")
    for budget in (5, 6, 100):
        assert (await both_ways(client, thinking_budget=budget))[:2] == ("abc", "Yes.")
    assert (await both_ways(client, thinking_budget=3))[:2] == ("ab", "c</think>\nYes.")


async def test_a_budget_counts_from_the_replys_own_opening():
    client = thinker("<think>abcdefgh", TEMPLATE)
    assert (await both_ways(client, thinking_budget=4))[:2] == ("ab", "cdefgh")
    assert (await both_ways(thinker("abcdefgh", TEMPLATE), thinking_budget=4))[:2] == (
        "",
        "abcdefgh",
    )


async def test_the_servers_budget_is_the_default():
    client = thinker("abcdefgh", defaults=ReplyDefaults(thinking_budget=4))
    assert (await both_ways(client))[:2] == ("abc", "defgh")
    assert (await both_ways(client, thinking_budget=0))[:2] == ("abc", "defgh")
    assert (await both_ways(client, thinking_budget=5))[:2] == ("abcd", "efgh")


@pytest.mark.parametrize("budget", [-1, 1.5, "many", True, []])
async def test_malformed_budgets_are_refused(budget):
    error = await thinker("x").refused(
        CHAT, {"messages": [{"role": "user", "content": "Hi"}], "thinking_budget": budget}
    )
    assert error["param"] == "thinking_budget"


@pytest.mark.parametrize("cycle", ["a", "ab", "abcabcd", "abcdefgh"])
@pytest.mark.parametrize("lead", [0, 64, 80])
async def test_the_guard_closes_a_loop(cycle, lead):
    period = 7 if cycle == "abcabcd" else len(cycle)
    client = thinker(
        "".join(chr(40 + i % 71) for i in range(lead)) + cycle * 600,
        defaults=ReplyDefaults(loop_guard=True),
    )
    reply = await client.ask(CHAT, max_tokens=1000)
    assert reply["tensorfold"]["loop"] == {"period": period}
    usage = reply["usage"]
    # The block is left 256 repeated tokens after the cycle's first, if that is 64 tokens in.
    assert thought(usage) == max(lead, 64) + period + 256 + 2


@pytest.mark.parametrize("said", ["abcdefghi" * 100, "ab" * 100 + "c" + "ab" * 100])
async def test_the_guard_lets_other_reasoning_be(said):
    client = thinker(said, defaults=ReplyDefaults(loop_guard=True))
    reply = await client.ask(CHAT, max_tokens=900)
    assert "loop" not in reply["tensorfold"]
    assert reply["choices"][0]["message"]["reasoning_content"] == said[:900]


async def test_the_guard_watches_reasoning_only():
    client = thinker("</think>" + "a" * 600, defaults=ReplyDefaults(loop_guard=True))
    reply = await client.ask(CHAT, max_tokens=500)
    assert reply["choices"][0]["message"]["content"] == "a" * 499
