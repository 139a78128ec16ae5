"""Ends that a client or the server's limits bring: by id, by time, for want of a place."""

import json
import time
from http.client import HTTPResponse

import pytest
from conversing import CHAT, ROUTES, TEXT, Client, question, read_error, read_events
from scripted import ScriptedEngine, make_service, say
from test_sockets import open_request, wait_until

from tensorfold.engine.interface import EngineFull
from tensorfold.serving.app import create_app
from tensorfold.serving.server import serve_in_background


@pytest.fixture
def engine():
    return ScriptedEngine(lambda request: say("x" * 3000, delay=0.01))


@pytest.fixture
def url(engine):
    with serve_in_background(create_app(make_service(engine))) as server:
        yield server.url
    engine.close()


def read_answer(connection):
    """(status, headers, body) of an answer whose connection may stay open."""
    connection.settimeout(20)
    with connection, HTTPResponse(connection) as response:
        response.begin()
        return response.status, response.headers, response.read()


def cancel(url, reply_id):
    return read_answer(open_request(url, f"/v1/requests/{reply_id}/cancel", {}))


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [True, False])
def test_a_request_is_cancelled_by_its_id(engine, url, path, stream):
    connection = open_request(url, path, question(path) | {"stream": stream})
    wait_until(lambda: engine.requests, 2)
    time.sleep(0.05)
    reply_id = engine.requests[0].id
    status, _, data = cancel(url, reply_id)
    assert (status, json.loads(data)) == (200, {"id": reply_id, "status": "cancelled"})
    wait_until(lambda: engine.finished == {reply_id: "cancelled"}, 0.5)
    status, headers, data = read_answer(connection)
    if stream:
        events = read_events(data)
        assert (status, events[0]["id"]) == (200, reply_id)
        error = events[-1]["error"]
    else:
        assert headers["x-should-retry"] == "false"
        error = read_error(status, data, 499)
    assert (error["message"], error["code"]) == ("the request was cancelled", "request_cancelled")
    assert cancel(url, reply_id)[0] == 404


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [True, False])
def test_a_request_is_cancelled_by_the_client_s_own_id(engine, url, path, stream):
    other = open_request(url, path, question(path) | {"max_tokens": 20})
    mine = [
        open_request(url, path, question(path) | {"stream": stream}, name=name)
        for name in ("mine", "mine", "else")
    ]
    wait_until(lambda: len(engine.requests) == 4, 2)
    assert cancel(url, "mine")[0] == 200
    for connection in mine[:2]:
        status, _, data = read_answer(connection)
        error = read_events(data)[-1]["error"] if stream else read_error(status, data, 499)
        assert error["code"] == "request_cancelled"
    assert read_answer(other)[0] == 200
    assert cancel(url, "mine")[0] == 404
    assert cancel(url, "else")[0] == 200
    assert read_answer(mine[2])[0] == (200 if stream else 499)


def test_the_others_go_on(engine, url):
    connections = [open_request(url, TEXT, {"prompt": "x", "max_tokens": 20}) for _ in range(3)]
    wait_until(lambda: len(engine.requests) == 3, 2)
    assert cancel(url, engine.requests[1].id)[0] == 200
    statuses = sorted(read_answer(connection)[0] for connection in connections)
    assert statuses == [200, 200, 499]


def test_every_choice_of_a_request_is_cancelled(engine, url):
    connection = open_request(url, CHAT, question(CHAT) | {"n": 3})
    wait_until(lambda: len(engine.requests) == 3, 2)
    assert cancel(url, engine.requests[0].id)[0] == 200
    assert read_answer(connection)[0] == 499
    wait_until(lambda: list(engine.finished.values()) == ["cancelled"] * 3, 1)


async def test_an_unknown_id_is_not_found():
    client = Client()
    reply = await client.ask(CHAT)
    for reply_id in ("chatcmpl-0", reply["id"]):
        error = await client.refused(f"/v1/requests/{reply_id}/cancel", {}, 404)
        assert error["param"] == "id" and reply_id in error["message"]
    assert (await client.get("/v1/requests/x/cancel")).status_code == 405


@pytest.mark.parametrize("path", ROUTES)
async def test_a_request_may_take_no_longer_than_the_server_lets_it(path):
    engine = ScriptedEngine(lambda request: say("x" * 3000, delay=0.01))
    client = Client(engine, request_timeout=0.2)
    response = await client.post(path, question(path))
    error = read_error(response.status_code, await response.get_data(), 504)
    assert error["code"] == "request_timeout"
    assert error["message"] == "the request took longer than 0.2 s: ask for fewer tokens"
    assert response.headers["x-should-retry"] == "false"
    events = await client.stream(path)
    assert events[-1]["error"]["code"] == "request_timeout"
    assert len(events) > 5
    wait_until(lambda: list(engine.finished.values()) == ["cancelled"] * 2, 1)


async def test_time_in_the_queue_counts_and_a_reply_in_time_is_whole():
    engine = ScriptedEngine(lambda request: say("x", wait=60))
    client = Client(engine, request_timeout=0.1)
    await client.refused(TEXT, question(TEXT), 504)
    engine.script = lambda request: say("fine")
    assert (await client.ask(TEXT))["choices"][0]["text"] == "fine"
    time.sleep(0.15)
    assert list(engine.finished.values()) == ["cancelled", "stop"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_full_queue_says_when_to_come_again(stream):
    client = Client()

    def full(request, deliver, *, joins):
        raise EngineFull("4 replies wait already, and 4 may (--max-queue)")

    client.engine.submit = full
    response = await client.post(CHAT, question(CHAT) | {"stream": stream})
    error = read_error(response.status_code, await response.get_data(), 503)
    assert error["message"] == "4 replies wait already, and 4 may (--max-queue)"
    assert error["type"] == "server_error"
    assert int(response.headers["Retry-After"]) > 0
    assert "x-should-retry" not in response.headers
