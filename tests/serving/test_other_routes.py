"""Models, health, tokenize, and what HTTP itself is answered with."""

import json

import pytest
from conversing import CHAT, TEXT, Client, question, read_error
from scripted import BOS, IM_END, IM_START

from tensorfold import __version__
from tensorfold.serving.body import MAX_BODY_BYTES


async def test_models():
    body = await (await Client().get("/v1/models")).get_json()
    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == ["scripted", "nickname"]
    assert body["data"][0] == {
        "id": "scripted",
        "object": "model",
        "created": 1700000000,
        "owned_by": "tensorfold",
        "context_length": 4096,
        "max_model_len": 4096,
    }


@pytest.mark.parametrize("path", ["/", "/health", "/v1/health", "/health?reset_peak=1"])
async def test_health(path):
    client = Client(backend="cpu", device="A small machine")
    data = await (await client.get(path)).get_data()
    assert json.loads(data) == {
        "status": "ok",
        "model": "scripted",
        "model_ids": ["scripted", "nickname"],
        "max_batch_size": 8,
        "warming": False,
        "memory": {},
        "live": {
            "connections": 0,
            "waiting": 0,
            "decode_tokens_per_second": 12.3,
            "prefill_tokens_per_second": 0.0,
        },
        "version": __version__,
        "backend": "cpu",
        "device": "A small machine",
    }
    assert list(json.loads(data)) == [
        "status", "model", "model_ids", "max_batch_size", "warming", "memory", "live", "version",
        "backend", "device",
    ]  # fmt: skip
    assert "device" not in json.loads(await (await Client().get(path)).get_data())


@pytest.mark.parametrize(
    "path", ["/models", "/v1/models", "/v1/models/", "/models//", "/models?a=1"]
)
async def test_paths_with_and_without_v1(path):
    assert (await Client().get(path)).status_code == 200


@pytest.mark.parametrize(
    "path", ["/chat/completions", "/v1/chat/completions/", CHAT + "?beta=true"]
)
async def test_post_paths_with_and_without_v1(path):
    assert (await Client().post(path, question(CHAT))).status_code == 200


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/v2/models", "/v1/v1/models", "//"])
async def test_unknown_paths(path):
    client = Client()
    for response in (await client.get(path), await client.post(path, {})):
        if path != "//":
            error = read_error(response.status_code, await response.get_data(), 404)
            assert "unknown path" in error["message"]


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/v1/detokenize"])
async def test_wrong_methods(path):
    client = Client()
    response = await client.get(path)
    read_error(response.status_code, await response.get_data(), 405)
    assert "POST" in response.headers["Allow"]
    response = await client.post("/v1/models", {})
    read_error(response.status_code, await response.get_data(), 405)
    assert "GET" in response.headers["Allow"]


async def test_large_bodies():
    client = Client()
    fitting = json.dumps({"prompt": "Hi", "user": ""}).encode()
    fitting = fitting[:-2] + b"x" * (MAX_BODY_BYTES - len(fitting)) + fitting[-2:]
    response = await client.send(TEXT, fitting)
    assert response.status_code == 200
    response = await client.send(TEXT, fitting + b" ")
    read_error(response.status_code, await response.get_data(), 413)


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_the_content_type_does_not_matter(content_type):
    headers = {} if content_type is None else {"Content-Type": content_type}
    response = await Client().send(TEXT, b'{"prompt": "Hi"}', headers=headers)
    assert response.status_code == 200


async def test_tokenize_prompts():
    client = Client()
    body = await (await client.post("/tokenize", {"prompt": "<bos>é"})).get_json()
    assert body == {"count": 3, "max_model_len": 4096, "tokens": [BOS, *"é".encode()]}
    fields = {"prompt": "a<|im_end|>", "add_special_tokens": False, "return_token_strs": True}
    body = await (await client.post("/v1/tokenize", fields)).get_json()
    assert (body["tokens"], body["token_strs"]) == ([97, IM_END], ["a", "<|im_end|>"])


async def test_tokenize_messages_gives_what_the_chat_route_runs():
    client = Client()
    messages = [{"role": "user", "content": "A<|im_end|>B"}]
    await client.ask(CHAT, messages=messages)
    body = await (await client.post("/v1/tokenize", {"messages": messages})).get_json()
    assert tuple(body["tokens"]) == client.engine.requests[0].prompt
    fields = {"messages": messages, "add_generation_prompt": False}
    shorter = await (await client.post("/tokenize", fields)).get_json()
    assert shorter["tokens"] == body["tokens"][: len(shorter["tokens"])]
    assert body["tokens"][len(shorter["tokens"])] == IM_START


@pytest.mark.parametrize("tokens", [[*b"caf\xc3", 0xA9, IM_END], [[*b"caf\xc3", 0xA9, IM_END]]])
async def test_detokenize(tokens):
    body = await (await Client().post("/v1/detokenize", {"tokens": tokens})).get_json()
    assert body == {"prompt": "café<|im_end|>"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"prompt": "x", "add_special_tokens": 1}, "add_special_tokens"),
        ("/tokenize", {"prompt": "x", "return_token_strs": "y"}, "return_token_strs"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}], "tools": [{}]}, "tools[0].type"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [1, True]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [[1], [2]]}, "tokens"),
    ],
)
async def test_tokenize_refusals(path, body, param):
    assert (await Client().refused(path, body))["param"] == param
