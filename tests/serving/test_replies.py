"""What a reply looks like on each route, streamed and whole."""

import hashlib
import re

import pytest
from conversing import CHAT, ROUTES, TEXT, Client, finish_reason, streamed_text, whole_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted import IM_END, IM_START, Script, ScriptedEngine, say

SHARED = ("id", "created", "model", "object")


def sha(tokens):
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()[:12]


def saying(text, **how):
    return Client(ScriptedEngine(lambda request: say(text, **how)))


async def test_a_whole_chat_reply():
    client = saying("Hello 東京")
    reply = await client.ask(CHAT, model="nickname")
    assert re.fullmatch("chatcmpl-[0-9a-f]{32}", reply["id"])
    assert (reply["object"], reply["model"]) == ("chat.completion", "nickname")
    assert reply["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello 東京", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    (request,) = client.engine.requests
    assert request.prompt == (
        IM_START, *b"user\nHi", IM_END, *b"\n", IM_START, *b"assistant\n"
    )  # fmt: skip
    assert reply["usage"] == {
        "prompt_tokens": len(prompt) - 11 - 9 - 11,
        "completion_tokens": 13,
        "total_tokens": len(prompt) - 11 - 9 - 11 + 13,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert request.id == reply["id"]


async def test_a_whole_completion():
    client = saying(" there")
    reply = await client.ask(TEXT, model="unknown")
    assert re.fullmatch("cmpl-[0-9a-f]{32}", reply["id"])
    assert (reply["object"], reply["model"]) == ("text_completion", "scripted")
    assert reply["choices"] == [
        {"index": 0, "text": " there", "logprobs": None, "finish_reason": "stop"}
    ]
    assert client.engine.requests[0].prompt == tuple(b"Hi")


@pytest.mark.parametrize("path", ROUTES)
async def test_the_tensorfold_block(path):
    client = saying("Hello")
    tokens = [*b"Hello", IM_END]
    for fields, sampling, drafts in [({}, "greedy", True), ({"draft": False}, "greedy", False),
                                     ({"temperature": 0.7}, "exact", True)]:  # fmt: skip
        reply = await client.ask(path, **fields)
        last = (await client.stream(path, **fields))[-1]
        for block in (reply["tensorfold"], last["tensorfold"]):
            assert list(block) == [
                "engine", "tokens_per_second", "seconds", "time_to_first_token",
                "prefill_seconds", "sampling", "drafts", "token_sha", "rounds", "drafted",
                "accepted", "acceptance_rate", "tokens_per_round",
            ]  # fmt: skip
            assert block["token_sha"] == sha(tokens)
            assert (block["sampling"], block["drafts"]) == (sampling, drafts)
            assert (block["rounds"], block["drafted"], block["accepted"]) == (2, 4, 3)
            assert (block["acceptance_rate"], block["tokens_per_round"]) == (0.75, 3.0)
            assert block["prefill_seconds"] == 0.25
    assert [request.draft for request in client.engine.requests[:3]] == [True, True, False]


@pytest.mark.parametrize("path", ROUTES)
async def test_a_server_without_drafts_tells_so(path):
    client = Client(drafts=False)
    for fields in ({}, {"draft": True}):
        assert (await client.ask(path, **fields))["tensorfold"]["drafts"] is False


@pytest.mark.parametrize("include_usage", [True, False, None])
@pytest.mark.parametrize("path", ROUTES)
async def test_cases_13_14_the_order_of_a_stream(path, include_usage):
    client = saying("one two")
    fields = {} if include_usage is None else {"stream_options": {"include_usage": include_usage}}
    events = await client.stream(path, **fields)
    assert len({tuple(event[name] for name in SHARED) for event in events}) == 1
    counted = [event for event in events if "usage" in event]
    assert counted == [events[-1]]
    usage = counted[0]["usage"]
    assert usage == (await client.ask(path))["usage"]
    if include_usage:
        assert events.pop()["choices"] == []
    assert finish_reason(events) == "stop"
    assert [event for event in events if "tensorfold" in event] == [events[-1]]
    choices = [event["choices"][0] for event in events]
    assert {choice["index"] for choice in choices} == {0}
    if path == CHAT:
        assert events[0]["object"] == "chat.completion.chunk"
        deltas = [choice["delta"] for choice in choices]
        assert (deltas[0], deltas[-1]) == ({"role": "assistant"}, {})
        assert all(set(delta) == {"content"} and delta["content"] for delta in deltas[1:-1])
    else:
        assert events[0]["object"] == "text_completion"
        assert all(choice["text"] for choice in choices[:-1]) and choices[-1]["text"] == ""


@pytest.mark.parametrize("path", ROUTES)
async def test_headers_carry_the_id(path):
    client = saying("x")
    whole = await client.post(path, {"prompt": "x", "messages": [{"role": "user"}]})
    assert whole.headers["x-request-id"] == (await whole.get_json())["id"]
    assert whole.headers["Content-Type"] == "application/json"
    body = {"prompt": "x", "messages": [{"role": "user"}], "stream": True}
    streamed = await client.post(path, body)
    assert (await streamed.get_data()).count(streamed.headers["x-request-id"].encode()) > 1
    assert streamed.headers["Content-Type"].startswith("text/event-stream")
    assert streamed.headers["Cache-Control"] == "no-cache"
    assert streamed.headers["Connection"] == "close"


@pytest.mark.parametrize("path", ROUTES)
async def test_case_16_an_empty_reply_has_content(path):
    client = Client(ScriptedEngine(lambda request: Script(((IM_END,),))))
    assert whole_text(await client.ask(path)) == ""
    events = await client.stream(path)
    assert (streamed_text(events), finish_reason(events)) == ("", "stop")


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_cases_1_4_split_characters(path, size):
    client = saying("naïve 😊 東京", size=size)
    events = await client.stream(path)
    assert streamed_text(events) == whole_text(await client.ask(path)) == "naïve 😊 東京"


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5])
async def test_case_2_a_limit_inside_a_character(path, max_tokens):
    client = saying("😊x")
    reply = await client.ask(path, max_tokens=max_tokens)
    events = await client.stream(path, max_tokens=max_tokens)
    expected = ["", "", "", "😊", "😊x"][max_tokens - 1]
    assert whole_text(reply) == streamed_text(events) == expected
    assert reply["usage"]["completion_tokens"] == max_tokens
    assert reply["choices"][0]["finish_reason"] == finish_reason(events) == "length"


STOPS = [
    ("The quick brown fox", ["own fox"], "The quick br", 19),
    ("do\nObservation: x", "\nObservation:", "do", 15),
    ("ABCDEFGHIJ", ["DEFGHIJ"], "ABC", 10),
    ("aaab", ["aab", "zzz"], "a", 4),
    ("held bac", ["back"], "held bac", 9),
    ("x😊y", ["😊"], "x", 5),
    ("stop", ["stop"], "", 4),
    ("abcdef", ["abcdef", "cd"], "ab", 4),
    ("line\u2028two\x85", ["zz"], "line\u2028two\x85", 13),
]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(("said", "stop", "text", "count"), STOPS)
async def test_cases_20_to_25_stop_strings(path, size, said, stop, text, count):
    client = saying(said, size=size)
    reply = await client.ask(path, stop=stop)
    events = await client.stream(path, stop=stop)
    assert whole_text(reply) == streamed_text(events) == text
    assert reply["choices"][0]["finish_reason"] == finish_reason(events) == "stop"
    tokens = [*said.encode(), IM_END][:count]
    for end in (reply, events[-1]):
        assert end["usage"]["completion_tokens"] == count
        assert end["tensorfold"]["token_sha"] == sha(tokens)


@pytest.mark.parametrize("path", ROUTES)
async def test_a_stop_string_ends_the_engines_work(path):
    client = saying("a stop" + "!" * 500, delay=0.01)
    await client.ask(path, stop="stop")
    await client.stream(path, stop="stop")
    assert set(client.engine.finished.values()) == {"cancelled"}


@pytest.mark.parametrize("path", ROUTES)
async def test_ignore_eos_writes_end_tokens_into_the_text(path):
    client = Client(ScriptedEngine(lambda request: Script(((*b"a", IM_END, *b"bcd"),))))
    fields = {"ignore_eos": True, "max_tokens": 4}
    reply = await client.ask(path, **fields)
    events = await client.stream(path, **fields)
    assert whole_text(reply) == streamed_text(events) == "a<|im_end|>bc"
    assert reply["choices"][0]["finish_reason"] == finish_reason(events) == "length"
    assert whole_text(await client.ask(path, stop="|>b", **fields)) == "a<|im_end"


@pytest.mark.parametrize("path", ROUTES)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None
)
@given(
    data=st.binary(max_size=20),
    size=st.integers(1, 6),
    stop=st.text(st.sampled_from("ab"), min_size=1, max_size=3),
)
async def test_streams_equal_whole_replies(path, data, size, stop):
    client = saying(data + b"abab", size=size)
    reply = await client.ask(path, stop=stop)
    events = await client.stream(path, stop=stop)
    assert streamed_text(events) == whole_text(reply)
    assert events[-1]["usage"] == reply["usage"]
    assert events[-1]["tensorfold"]["token_sha"] == reply["tensorfold"]["token_sha"]
    assert finish_reason(events) == reply["choices"][0]["finish_reason"]


@pytest.mark.parametrize("path", ROUTES)
async def test_case_10_an_engine_that_fails(path):
    client = Client(ScriptedEngine(lambda request: Script(((*b"abc",),), error="out of memory")))
    error = await client.refused(path, {"messages": [{"role": "user"}], "prompt": "x"}, 500)
    assert (error["type"], error["message"]) == ("server_error", "out of memory")
    events = await client.stream(path)
    assert events[-1]["error"]["type"] == "server_error"
    assert events[-1]["error"]["message"] == "out of memory"
    assert streamed_text(events[:-1]) == "abc"
    # The next request is served.
    client.engine.script = lambda request: say("fine")
    assert whole_text(await client.ask(path)) == "fine"


@pytest.mark.parametrize("path", ROUTES)
async def test_a_fault_inside_the_server_is_an_error_not_a_silence(path, caplog):
    client = Client(ScriptedEngine(lambda request: Script(((*b"ab", 9999),))))
    body = {"messages": [{"role": "user"}], "prompt": "x"}
    error = await client.refused(path, body, 500)
    assert error["type"] == "server_error"
    events = await client.stream(path)
    assert events[-1]["error"]["type"] == "server_error"
    assert "IndexError" in caplog.text


@pytest.mark.parametrize("path", ROUTES)
async def test_a_closed_engine_is_unavailable(path):
    client = saying("x")
    client.engine.close()
    for stream in (True, False):
        body = {"messages": [{"role": "user"}], "prompt": "x", "stream": stream}
        error = await client.refused(path, body, 503)
        assert error["type"] == "server_error"


@pytest.mark.parametrize("path", ROUTES)
async def test_an_engine_that_closes_during_a_reply(path):
    import asyncio

    client = saying("x" * 100, delay=0.05)
    body = {"messages": [{"role": "user"}], "prompt": "x"}
    whole = asyncio.create_task(client.refused(path, body, 503))
    streamed = asyncio.create_task(client.stream(path))
    while len(client.engine.requests) < 2:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(client.engine.close)
    assert (await whole)["type"] == "server_error"
    assert (await streamed)[-1]["error"]["type"] == "server_error"


async def test_concurrent_replies_keep_their_own_text():
    import asyncio

    def script(request):
        return say(bytes(request.prompt) * 20, delay=0.001)

    client = Client(ScriptedEngine(script))
    prompts = [f"<{i}>" for i in range(20)]
    replies = await asyncio.gather(
        *(client.ask(TEXT, prompt=prompt) for prompt in prompts),
        *(client.stream(TEXT, prompt=prompt) for prompt in prompts),
    )
    texts = [whole_text(r) if isinstance(r, dict) else streamed_text(r) for r in replies]
    assert texts == [prompt * 20 for prompt in prompts] * 2
