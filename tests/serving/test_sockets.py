"""The application on Hypercorn, over real sockets: clients that leave, and the `openai` client."""

import json
import random
import socket
import struct
import time
from urllib.parse import urlsplit

import openai
import pytest
from conversing import CHAT, ROUTES, TEXT, question, read_error, read_events, streamed_text
from scripted import Script, ScriptedEngine, make_service, say

from tensorfold.serving.app import create_app
from tensorfold.serving.server import serve_in_background


@pytest.fixture
def engine():
    return ScriptedEngine()


@pytest.fixture
def url(engine):
    with serve_in_background(create_app(make_service(engine))) as server:
        yield server.url
    engine.close()


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def open_request(url, path, body, extra=b"", name=None):
    """A socket that has sent a request, with the client's own name for it if one is given."""
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
    head += f"X-Request-Id: {name}\r\n\r\n" if name else "\r\n"
    connection.sendall(head.encode() + data + extra)
    return connection


def read_all(connection):
    connection.settimeout(20)
    with connection, connection.makefile("rb") as file:
        head = b"".join(iter(file.readline, b"\r\n"))
        return int(head.split()[1]), head, file.read()


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.005)


@pytest.mark.parametrize("answered", [True, False])
def test_a_connection_is_closed_when_its_client_has_closed_it(engine, url, answered):
    engine.script = lambda request: say("Hello", wait=0.0 if answered else 60)
    with open_request(url, CHAT, question(CHAT)) as connection:
        connection.settimeout(5)
        if answered:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        wait_until(lambda: engine.requests, 2)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


LEAVING = {
    "queued or prefilling": say("never", wait=60),
    "decoding": say("x" * 3000, delay=0.01),
}


@pytest.mark.parametrize("when", LEAVING)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("how", ["close", "reset", "half close"])
def test_a_client_that_leaves_ends_its_reply(engine, url, path, stream, when, how):
    engine.script = lambda request: LEAVING[when]
    connection = open_request(url, path, question(path) | {"stream": stream})
    wait_until(lambda: engine.requests, 2)
    time.sleep(0.05)
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half close":
        connection.shutdown(socket.SHUT_WR)
    else:
        connection.close()
    wait_until(lambda: list(engine.finished.values()) == ["cancelled"], 0.8)
    connection.close()


def test_fifty_clients_that_hang_up_at_random_moments(engine, url):
    draw = random.Random(50)
    scripts = {}
    engine.script = lambda request: scripts[request.prompt[0]]
    connections = []
    for i in range(50):
        scripts[i] = draw.choice(list(LEAVING.values()))
        body = {"prompt": [i], "stream": draw.random() < 0.5, "max_tokens": 3500}
        connections.append(open_request(url, TEXT, body))
        if draw.random() < 0.5:
            connections.pop(draw.randrange(len(connections))).close()
        time.sleep(draw.random() * 0.02)
    draw.shuffle(connections)
    for connection in connections:
        connection.close()
        time.sleep(draw.random() * 0.01)
    # A client that left before its request was read never reached the engine.
    time.sleep(0.3)
    reached = len(engine.requests)
    assert reached > 25
    wait_until(lambda: list(engine.finished.values()) == ["cancelled"] * reached, 2)
    engine.script = lambda request: say("fine")
    status, _, data = read_all(open_request(url, TEXT, {"prompt": "x", "stream": True}))
    assert (status, streamed_text(read_events(unchunked(data)))) == (200, "fine")


def unchunked(data):
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return body


@pytest.mark.parametrize("path", ROUTES)
def test_a_stream_closes_its_connection_after_the_last_event(url, path):
    status, head, data = read_all(open_request(url, path, question(path) | {"stream": True}))
    assert status == 200
    assert b"connection: close" in head.lower()
    assert streamed_text(read_events(unchunked(data))) == "Hello"


def test_text_arrives_while_it_is_written(engine, client):
    client.completions.create(model="m", prompt="x")
    engine.script = lambda request: say("abc", delay=0.5)
    started = time.monotonic()
    times = [
        time.monotonic() - started
        for chunk in client.completions.create(model="m", prompt="x", stream=True)
        if chunk.choices[0].text
    ]
    assert len(times) == 3
    assert times[0] < 0.45 < times[1]


def test_case_157_a_chunked_body(url):
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port))
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        b'Connection: close\r\n\r\n8\r\n{"prompt\r\n6\r\n":"x"}\r\n0\r\n\r\n'
    )
    status, _, data = read_all(connection)
    assert (status, json.loads(data)["object"]) == (200, "text_completion")


def test_bodies_that_are_too_large_are_refused_before_they_are_read(url):
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port))
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 33554433\r\n\r\n{"
    )
    status, head, data = read_all(connection)
    read_error(status, data, 413)
    assert b"connection: close" in head.lower()


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/models", TEXT, "/tokenize"])
def test_an_early_refusal_keeps_the_connection(url, path):
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.settimeout(5)
        for _ in range(3):
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode())
            connection.sendall(b"Content-Length: 12\r\n\r\n")
            time.sleep(0.05)
            connection.sendall(b'{"prompt":3}')
            answer = b""
            while b'"code":null}}' not in answer:
                answer += connection.recv(4096) or pytest.fail("closed")
            assert int(answer.split()[1]) in (400, 404, 405)


def test_openai_chat(engine, client):
    engine.script = lambda request: say("Hello 😊")
    messages = [{"role": "user", "content": "Hi"}]
    reply = client.chat.completions.create(model="m", messages=messages)
    assert reply.choices[0].message.content == "Hello 😊"
    assert reply.usage is not None and reply.usage.completion_tokens == 11
    chunks = list(
        client.chat.completions.create(
            model="m", messages=messages, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "Hello 😊"
    assert chunks[-1].usage == reply.usage
    assert [c.choices[0].finish_reason for c in chunks[-3:-1]] == [None, "stop"]


def test_openai_chat_stream_helper(client):
    messages = [{"role": "user", "content": "Hi"}]
    with client.chat.completions.stream(model="m", messages=messages) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello"
    assert final.choices[0].finish_reason == "stop"


def test_openai_completions_and_models(client):
    reply = client.completions.create(model="m", prompt="x", stop="l")
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("He", "stop")
    chunks = client.completions.create(model="m", prompt="x", stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "Hello"
    assert [model.id for model in client.models.list()] == ["scripted", "nickname"]


@pytest.mark.parametrize("stream", [True, False])
def test_openai_errors(engine, client, stream):
    messages = [{"role": "user", "content": "x" * 5000}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=messages, stream=stream)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="m", input="x")
    engine.script = lambda request: Script((tuple(b"ab"),), error="broken")
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.APIError, match="broken"):
        list(client.chat.completions.create(model="m", messages=messages, stream=stream))
    asked = len(engine.requests)
    with pytest.raises(openai.InternalServerError):
        client.with_options(max_retries=2).completions.create(model="m", prompt="x")
    assert len(engine.requests) == asked + 1


async def test_openai_async_client(url):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": "Hi"}]
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        text = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(text) == "Hello"


def test_a_client_that_reads_slowly_gets_the_whole_reply(engine, url):
    engine.script = lambda request: say("y" * 3000, size=3)
    connection = open_request(url, CHAT, question(CHAT) | {"stream": True})
    time.sleep(0.3)
    assert streamed_text(read_events(unchunked(read_all(connection)[2]))) == "y" * 3000
