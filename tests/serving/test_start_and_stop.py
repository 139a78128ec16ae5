"""Starting and stopping."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from conversing import CHAT, question, read_error, read_events, streamed_text
from scripted import ScriptedEngine, make_service, say
from test_sockets import open_request, read_all, unchunked, wait_until

from tensorfold.serving.app import create_app
from tensorfold.serving.server import serve, serve_in_background

PROGRAM = """
import sys
from scripted import ScriptedEngine, make_service, say
from tensorfold.serving.app import create_app
from tensorfold.serving.server import serve

engine = ScriptedEngine(lambda request: say("x" * 20, delay=float(sys.argv[1])))
serve(
    create_app(make_service(engine)),
    "127.0.0.1",
    0,
    grace_seconds=float(sys.argv[2]),
    ready=lambda url: print(url, flush=True),
)
engine.close()
print("back", sorted(engine.finished.values()))
"""


@pytest.fixture
def start():
    started = []

    def run(delay, grace):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(delay), str(grace)],
            cwd=Path(__file__).parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process, process.stdout.readline().strip()

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_stop_lets_replies_finish(start, name):
    process, url = start(0.05, 10)
    connection = open_request(url, CHAT, question(CHAT) | {"stream": True})
    time.sleep(0.3)
    process.send_signal(getattr(signal, name))
    assert streamed_text(read_events(unchunked(read_all(connection)[2]))) == "x" * 20
    output, _ = process.communicate(timeout=10)
    assert (output, process.returncode) == ("back ['stop']\n", 0)


def test_a_stop_ends_replies_that_take_too_long(start):
    process, url = start(1, 0.5)
    connection = open_request(url, CHAT, question(CHAT) | {"stream": True})
    time.sleep(0.5)
    stopped = time.monotonic()
    process.send_signal(signal.SIGTERM)
    events = read_events(unchunked(read_all(connection)[2]))
    assert events[-1]["error"]["message"] == "the server stopped the reply"
    output, _ = process.communicate(timeout=10)
    assert (output, process.returncode) == ("back ['cancelled']\n", 0)
    assert time.monotonic() - stopped < 3


def test_a_second_signal_does_not_wait(start):
    process, url = start(1, 30)
    connection = open_request(url, CHAT, question(CHAT) | {"stream": True})
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None, "the reply may finish"
    stopped = time.monotonic()
    process.send_signal(signal.SIGINT)
    events = read_events(unchunked(read_all(connection)[2]))
    assert events[-1]["error"]["message"] == "the server stopped the reply"
    output, _ = process.communicate(timeout=10)
    assert (output, process.returncode) == ("back ['cancelled']\n", 0)
    assert time.monotonic() - stopped < 3


@pytest.mark.parametrize(
    "body", [b"Content-Length: 1000\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"]
)
def test_a_stop_answers_a_request_that_is_not_all_there(start, body):
    process, url = start(0, 0.5)
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n".encode() + body)
    time.sleep(0.3)
    stopped = time.monotonic()
    process.send_signal(signal.SIGTERM)
    status, _, data = read_all(connection)
    error = read_error(status, data, 503)
    assert error["message"] == "the server stopped before all of the body came"
    output, _ = process.communicate(timeout=10)
    assert (output, process.returncode) == ("back []\n", 0)
    assert 0.5 < time.monotonic() - stopped < 2


def test_idle_connections_do_not_delay_a_stop():
    with serve_in_background(create_app(make_service(ScriptedEngine()))) as server:
        host, port = server.url.removeprefix("http://").split(":")
        idle = socket.create_connection((host, int(port)))
        kept = open_request(server.url, CHAT, question(CHAT))
        assert b"200" in kept.recv(100)
        stopped = time.monotonic()
    assert time.monotonic() - stopped < 0.9
    idle.close()
    kept.close()


def test_an_engine_may_outlive_its_server():
    engine = ScriptedEngine(lambda request: say("x" * 50, delay=0.02))
    with serve_in_background(create_app(make_service(engine)), grace_seconds=0) as server:
        connection = open_request(server.url, CHAT, question(CHAT))
        wait_until(lambda: engine.requests, 2)
    assert read_all(connection)[0] == 503
    wait_until(lambda: list(engine.finished.values()) == ["cancelled"], 1)
    engine.close()


def test_an_address_in_use_is_an_error():
    app = create_app(make_service(ScriptedEngine()))
    with serve_in_background(app) as server, pytest.raises(OSError, match="in use"):
        serve(app, "127.0.0.1", int(server.url.rsplit(":", 1)[1]))


def test_ipv6_addresses():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with serve_in_background(create_app(make_service(ScriptedEngine())), "::1") as server:
        assert server.url.startswith("http://[::1]:")
        with urllib.request.urlopen(f"{server.url}/health") as response:
            assert json.load(response)["status"] == "ok"
