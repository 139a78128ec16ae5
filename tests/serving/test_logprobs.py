"""Log probabilities, echoes and token ids on both routes, streamed and whole."""

import json

import pytest
from conversing import CHAT, ROUTES, TEXT, Client, streamed_text, whole_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted import IM_END, ScriptedEngine, row, say


def saying(text, **how):
    return Client(ScriptedEngine(lambda request: say(text, **how)))


def chat_fields(path, count):
    return {"logprobs": True, "top_logprobs": count} if path == CHAT else {"logprobs": count}


def only(reply):
    (choice,) = reply["choices"]
    return choice


def streamed_rows(path, events):
    """The rows of all chunks, and the text sent by the chunk that each came with."""
    rows, text = [], ""
    for choice in (choice for event in events for choice in event["choices"]):
        text += choice["text"] if path == TEXT else choice["delta"].get("content", "")
        found = choice["logprobs"]
        if found is not None and path == CHAT:
            rows += [(entry, text) for entry in found["content"]]
        elif found is not None:
            rows += [(entry, text) for entry in zip(*found.values(), strict=True)]
    return rows


def whole_rows(path, reply):
    found = only(reply)["logprobs"]
    return found["content"] if path == CHAT else list(zip(*found.values(), strict=True))


async def test_case_89_rows_of_a_chat_reply():
    reply = await saying("é!").ask(CHAT, **chat_fields(CHAT, 3))
    first, second, third, end = whole_rows(CHAT, reply)
    top = [
        {"token": "bytes:\\xc1", "logprob": -0.5, "bytes": [0xC1]},
        {"token": "bytes:\\xc2", "logprob": -1.5, "bytes": [0xC2]},
        {"token": "bytes:\\xc3", "logprob": -2.5, "bytes": [0xC3]},
    ]
    assert first == top[2] | {"top_logprobs": top}
    assert second["bytes"] == [0xA9]
    assert (third["token"], third["bytes"], third["logprob"]) == ("!", [33], -2.5)
    assert (end["token"], end["bytes"]) == ("<|im_end|>", None)
    assert [one["token"] for one in end["top_logprobs"]] == [
        "bytes:\\xff", "<|im_start|>", "<|im_end|>"
    ]  # fmt: skip
    joined = bytes(byte for one in (first, second, third) for byte in one["bytes"])
    assert joined.decode() == whole_text(reply) == "é!"


async def test_rows_of_a_completion():
    reply = await saying("é!").ask(TEXT, logprobs=2)
    assert only(reply)["logprobs"] == {
        "tokens": ["bytes:\\xc3", "bytes:\\xa9", "!", "<|im_end|>"],
        "token_logprobs": [-2.5] * 4,
        "top_logprobs": [
            {"bytes:\\xc1": -0.5, "bytes:\\xc2": -1.5, "bytes:\\xc3": -2.5},
            {"bytes:\\xa7": -0.5, "bytes:\\xa8": -1.5, "bytes:\\xa9": -2.5},
            {"\x1f": -0.5, " ": -1.5, "!": -2.5},
            {"bytes:\\xff": -0.5, "<|im_start|>": -1.5, "<|im_end|>": -2.5},
        ],
        "text_offset": [0, 0, 1, 2],
    }


async def test_case_92_logprobs_are_sent_only_when_asked_for():
    for path, fields in [(CHAT, {}), (CHAT, {"logprobs": False, "top_logprobs": None}),
                         (TEXT, {}), (TEXT, {"logprobs": False})]:  # fmt: skip
        client = saying("ab")
        assert only(await client.ask(path, **fields))["logprobs"] is None
        events = await client.stream(path, **fields)
        assert {c["logprobs"] for event in events for c in event["choices"]} == {None}
        assert [request.logprobs for request in client.engine.requests] == [None, None]


@pytest.mark.parametrize(
    ("path", "fields", "count"),
    [(CHAT, {"logprobs": True}, 0), (CHAT, {"logprobs": True, "top_logprobs": 20}, 20),
     (TEXT, {"logprobs": 0}, 0), (TEXT, {"logprobs": 20}, 20)],
)  # fmt: skip
async def test_what_the_engine_is_asked_for(path, fields, count):
    client = saying("ab")
    reply = await client.ask(path, **fields)
    assert client.engine.requests[0].logprobs == count
    if path == CHAT:
        assert [len(one["top_logprobs"]) for one in whole_rows(path, reply)] == [count] * 3
    elif not count:
        # The token itself is always among them.
        assert only(reply)["logprobs"]["top_logprobs"][0] == {"a": -2.5}


async def test_case_94_a_token_that_cannot_be_has_a_finite_row(monkeypatch):
    monkeypatch.setattr("scripted.row", lambda token, count: row(token, 0).__class__(
        token, float("-inf"), 9, ((0, float("-inf")),)))  # fmt: skip
    for path in ROUTES:
        reply = await saying("a").ask(path, **chat_fields(path, 1))
        assert "-9999.0" in json.dumps(reply) and "nfinity" not in json.dumps(reply)


@pytest.mark.parametrize("path", ROUTES)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None
)
@given(
    data=st.binary(max_size=12).map(lambda data: data + "é😊".encode() + data),
    size=st.integers(1, 5),
    stop=st.lists(st.text(st.sampled_from("ab😊"), min_size=1, max_size=3), max_size=2),
    limit=st.integers(1, 40),
)
async def test_rows_come_with_the_chunk_that_completes_their_text(path, data, size, stop, limit):
    client = saying(data, size=size)
    fields = chat_fields(path, 2) | {"stop": stop, "max_tokens": limit, "return_token_ids": True}
    reply = await client.ask(path, **fields)
    events = await client.stream(path, **fields)
    tokens = [*data, IM_END][: reply["usage"]["completion_tokens"]]
    rows = streamed_rows(path, events)
    assert [entry for entry, _ in rows] == whole_rows(path, reply)
    assert len(rows) == len(tokens)
    text = whole_text(reply)
    for i, (_, sent) in enumerate(rows):
        # What the tokens up to this one say by themselves, as far as it is part of the reply.
        said = bytes(token for token in tokens[: i + 1] if token < 256)
        complete = said.decode(errors="ignore") if _is_text(data) else ""
        assert sent.startswith(complete[: len(text)])
    choices = [choice for event in events for choice in event["choices"]]
    assert [token for choice in choices for token in choice.get("token_ids", [])] == tokens
    assert only(reply)["token_ids"] == tokens


def _is_text(data):
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("path", ROUTES)
async def test_case_91_choices_send_their_own_rows_once(path):
    def script(request):
        return say("abcdefgh"[: request.sampling.seed])

    client = Client(ScriptedEngine(script))
    fields = chat_fields(path, 1) | {"n": 4, "seed": 2}
    whole = await client.ask(path, **fields)
    events = await client.stream(path, **fields)
    for i, choice in enumerate(whole["choices"]):
        mine = [{"choices": [c for c in event["choices"] if c["index"] == i]} for event in events]
        one = {"choices": [choice]}
        assert [entry for entry, _ in streamed_rows(path, mine)] == whole_rows(path, one)
        assert len(whole_rows(path, one)) == 2 + i + 1


async def test_token_ids_of_the_prompt():
    client = saying("ab")
    chat = await client.ask(CHAT, return_token_ids=True)
    assert tuple(chat["prompt_token_ids"]) == client.engine.requests[0].prompt
    first, *rest = await client.stream(CHAT, return_token_ids=True)
    assert first["prompt_token_ids"] == chat["prompt_token_ids"]
    assert not any("prompt_token_ids" in event for event in rest)
    text = only(await client.ask(TEXT, return_token_ids=True))
    assert (text["prompt_token_ids"], text["token_ids"]) == ([*b"Hi"], [*b"ab", IM_END])
    first, *rest = await client.stream(TEXT, return_token_ids=True)
    assert (only(first)["prompt_token_ids"], only(first)["text"]) == ([*b"Hi"], "")
    assert "token_ids" not in only(await client.ask(TEXT))


@pytest.mark.parametrize("prompt", ["Hé<|im_end|>", [72, 0xC3, 0xA9, IM_END]])
async def test_echo(prompt):
    client = saying(" ab")
    assert whole_text(await client.ask(TEXT, prompt=prompt, echo=True)) == "Hé<|im_end|> ab"
    events = await client.stream(TEXT, prompt=prompt, echo=True)
    assert streamed_text(events) == "Hé<|im_end|> ab"
    assert only(events[0])["text"] == "Hé<|im_end|>"
    several = await client.ask(TEXT, prompt=["x", "y"], echo=True, n=2)
    assert [c["text"] for c in several["choices"]] == ["x ab", "x ab", "y ab", "y ab"]


async def test_echo_with_logprobs_has_the_prompts_rows():
    client = saying("ab")
    fields = {"prompt": "Héy", "echo": True, "logprobs": 1}
    reply = await client.ask(TEXT, **fields)
    assert client.engine.requests[0].prompt_logprobs == 1
    found = only(reply)["logprobs"]
    assert found["tokens"] == ["H", "bytes:\\xc3", "bytes:\\xa9", "y", "a", "b", "<|im_end|>"]
    assert found["token_logprobs"] == [None] + [-2.5] * 6
    assert found["top_logprobs"][0] is None
    assert found["top_logprobs"][3] == {"w": -0.5, "y": -2.5}
    assert found["text_offset"] == [0, 1, 1, 2, 3, 4, 5]
    events = await client.stream(TEXT, **fields)
    assert [entry for entry, _ in streamed_rows(TEXT, events)] == whole_rows(TEXT, reply)
    assert streamed_text(events) == whole_text(reply) == "Héyab"


@pytest.mark.parametrize("limits", [{"max_tokens": 0}, {"max_completion_tokens": 0}])
async def test_an_echo_of_no_reply_tokens_scores_the_prompt(limits):
    client = saying("ab")
    fields = {"prompt": [[1, 2], [3]], "echo": True, "logprobs": 2} | limits
    reply = await client.ask(TEXT, **fields)
    assert [c["text"] for c in reply["choices"]] == ["\1\2", "\3"]
    assert [c["logprobs"]["token_logprobs"] for c in reply["choices"]] == [[None, -2.5], [None]]
    assert [c["finish_reason"] for c in reply["choices"]] == ["length", "length"]
    events = await client.stream(TEXT, **fields | {"prompt": "xy"})
    assert streamed_text(events) == "xy"
    assert [entry[0] for entry, _ in streamed_rows(TEXT, events)] == ["x", "y"]
    assert all(request.max_tokens == 1 for request in client.engine.requests)


async def test_prompt_logprobs():
    client = saying("ab")
    reply = await client.ask(TEXT, prompt="Hi!", prompt_logprobs=2)
    assert only(reply)["prompt_logprobs"] == [
        None,
        {
            "105": {"logprob": -2.5, "rank": 3, "decoded_token": "i"},
            "103": {"logprob": -0.5, "rank": 1, "decoded_token": "g"},
            "104": {"logprob": -1.5, "rank": 2, "decoded_token": "h"},
        },
        {
            "33": {"logprob": -2.5, "rank": 3, "decoded_token": "!"},
            "31": {"logprob": -0.5, "rank": 1, "decoded_token": "\x1f"},
            "32": {"logprob": -1.5, "rank": 2, "decoded_token": " "},
        },
    ]
    assert next(iter(only(reply)["prompt_logprobs"][1])) == "105"
    assert only(reply)["logprobs"] is None
    alone = await client.ask(TEXT, prompt=[5], prompt_logprobs=0)
    assert only(alone)["prompt_logprobs"] == [None]
    assert "prompt_logprobs" not in only(await client.ask(TEXT))
    for fields in ({"stream": True}, {"echo": True}):
        error = await client.refused(TEXT, {"prompt": "x", "prompt_logprobs": 1} | fields)
        assert error["param"] == "prompt_logprobs"


@pytest.mark.parametrize("path", ROUTES)
async def test_stop_strings_count_after_min_tokens(path):
    client = saying("ab.cd.ef.")
    texts = {0: "ab", 2: "ab", 3: "ab.cd", 5: "ab.cd", 6: "ab.cd.ef", 9: "ab.cd.ef."}
    for min_tokens, text in texts.items():
        fields = {"stop": ".", "min_tokens": min_tokens}
        reply = await client.ask(path, **fields)
        assert whole_text(reply) == streamed_text(await client.stream(path, **fields)) == text
