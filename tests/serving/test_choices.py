"""Several replies to a request: prompts in a list, and `n` choices of each."""

import asyncio
import json

import pytest
from conversing import CHAT, ROUTES, TEXT, Client, question
from scripted import ScriptedEngine, say

from tensorfold.engine.seeds import derive_seed


def by_seed(request):
    """A reply that says which seed it was asked for with, in its own time."""
    return say(f"<{request.sampling.seed}>", delay=0.0005)


def texts(reply):
    return [c["text"] if "text" in c else c["message"]["content"] for c in reply["choices"]]


def streamed_texts(events, count):
    found = [""] * count
    for event in events:
        for choice in event["choices"]:
            delta = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            found[choice["index"]] += delta
    return found


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("n", [1, 2, 16])
async def test_choices_are_the_replies_of_their_own_seeds(path, n):
    client = Client(ScriptedEngine(by_seed))
    reply = await client.ask(path, n=n, seed=40)
    assert [choice["index"] for choice in reply["choices"]] == list(range(n))
    assert texts(reply) == [f"<{40 + i}>" for i in range(n)]
    for i in range(n):
        assert texts(await client.ask(path, seed=40 + i)) == [texts(reply)[i]]


@pytest.mark.parametrize("path", ROUTES)
async def test_derived_seeds_count_up_too(path):
    client = Client(ScriptedEngine(by_seed), seed_salt=9)
    reply = await client.ask(path, n=3)
    derived = derive_seed(client.engine.requests[0].prompt, 9)
    # The engine derives the first one itself.
    assert texts(reply) == ["<None>", f"<{derived + 1}>", f"<{derived + 2}>"]


@pytest.mark.parametrize("path", ROUTES)
async def test_cases_19_91_streams_of_choices_are_complete(path):
    client = Client(ScriptedEngine(by_seed))
    fields = {"n": 5, "seed": 7}
    events = await client.stream(path, **fields)
    whole = await client.ask(path, **fields)
    assert streamed_texts(events, 5) == texts(whole)
    choices = [choice for event in events for choice in event["choices"]]
    for i in range(5):
        reasons = [c["finish_reason"] for c in choices if c["index"] == i]
        assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    ended = {c["index"]: c["tensorfold"] for c in choices if "tensorfold" in c}
    assert [ended[i]["token_sha"] for i in range(5)] == [
        choice["tensorfold"]["token_sha"] for choice in whole["choices"]
    ]
    assert [event["usage"] for event in events if "usage" in event] == [whole["usage"]]
    if path == CHAT:
        opening = [event["choices"][0] for event in events[:5]]
        assert [choice["index"] for choice in opening] == list(range(5))
        assert {json.dumps(choice["delta"]) for choice in opening} == {'{"role": "assistant"}'}


async def test_usage_counts_a_prompt_once_and_every_reply():
    reply = await Client(ScriptedEngine(by_seed)).ask(TEXT, prompt=["ab", [1, 2, 3]], n=3, seed=1)
    assert reply["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 6 * 4,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 6},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        (["a", "bc"], [b"a", b"bc"]),
        ([[1], [2, 3]], [b"\1", b"\2\3"]),
        (["a", [2, 3], "c"], [b"a", b"\2\3", b"c"]),
    ],
)
async def test_prompts_in_a_list_are_choices_in_order(prompt, prompts):
    client = Client(ScriptedEngine(lambda request: say(bytes(request.prompt) + b"!")))
    for n in (1, 2):
        reply = await client.ask(TEXT, prompt=prompt, n=n)
        assert texts(reply) == [one.decode() + "!" for one in prompts for _ in range(n)]
        events = await client.stream(TEXT, prompt=prompt, n=n)
        assert streamed_texts(events, n * len(prompts)) == texts(reply)


async def test_a_request_has_at_most_1024_replies():
    client = Client()
    error = await client.refused(TEXT, {"prompt": ["a"] * 65, "n": 16})
    assert error["param"] == "prompt"
    assert client.engine.requests == []


async def test_one_prompt_that_does_not_fit_refuses_all():
    client = Client()
    error = await client.refused(TEXT, {"prompt": ["a", "b" * 5000]})
    assert error["code"] == "context_length_exceeded"
    assert client.engine.requests == []


@pytest.mark.parametrize("path", ROUTES)
async def test_a_choice_that_fails_fails_the_request(path):
    def script(request):
        failing = request.sampling.seed == 8
        error = "broken" if failing else None
        return say("x" * 5, end=False, delay=0.01, error=error)

    client = Client(ScriptedEngine(script))
    body = question(path) | {"n": 3, "seed": 7}
    assert (await client.refused(path, body, 500))["message"] == "broken"
    events = await client.stream(path, n=3, seed=7)
    assert events[-1]["error"]["message"] == "broken"


@pytest.mark.parametrize("path", ROUTES)
async def test_a_full_engine_takes_no_choice(path):
    class Full(ScriptedEngine):
        def submit(self, request, deliver, *, joins):
            assert joins == bool(self.requests)
            if len(self.requests) == 2:
                from tensorfold.engine.interface import EngineFull

                raise EngineFull("too many requests wait")
            super().submit(request, deliver, joins=joins)

    client = Client(Full(lambda request: say("x" * 1000, delay=0.01)))
    error = await client.refused(path, question(path) | {"n": 3}, 503)
    assert error["type"] == "server_error"
    while len(client.engine.finished) < 2:
        await asyncio.sleep(0.01)
    assert set(client.engine.finished.values()) == {"cancelled"}
