"""The chat in the terminal, against the real server."""

import io

import pytest
from rich.console import Console
from scripted import IM_START, Script, ScriptedEngine, make_service, say

from tensorfold.serving.app import create_app
from tensorfold.serving.server import serve_in_background
from tensorfold.serving.terminal import ChatFailed, chat, stream_chat


@pytest.fixture
def engine():
    return ScriptedEngine()


@pytest.fixture
def url(engine):
    with serve_in_background(create_app(make_service(engine))) as server:
        yield server.url
    engine.close()


def talk(url, *lines, status=0, **how):
    """What the terminal shows for some lines."""
    typed = iter(lines)

    def read_line():
        line = next(typed, EOFError)
        if isinstance(line, type):
            raise line
        return line

    shown = io.StringIO()
    console = Console(file=shown, width=200, force_terminal=False)
    assert chat(url, console=console, read_line=read_line, **how) == status
    return shown.getvalue()


def turns(engine):
    """The messages of each request, as their prompts spell them."""
    texts = [
        "".join(chr(t) if t < 256 else "#" if t == IM_START else "" for t in request.prompt)
        for request in engine.requests
    ]
    return [[turn.strip() for turn in text.split("#")[1:-1]] for text in texts]


def test_a_conversation(engine, url):
    engine.script = lambda request: say("[b]Hi[/b] :smile:\nthere")
    shown = talk(url, "one", "  ", "two", "/reset", "three", "/quit", "four")
    assert shown.count("[b]Hi[/b] :smile:\nthere") == 3
    assert shown.count("tokens/s") == 3
    said = "assistant\n[b]Hi[/b] :smile:\nthere"
    assert turns(engine) == [
        ["user\none"],
        ["user\none", said, "user\ntwo"],
        ["user\nthree"],
    ]


def test_system_prompts(engine, url):
    talk(url, "a", "/system Be brief.", "b", "/reset", "c", "/system", "d", system="First.")
    assert [turn[0] for turn in turns(engine)] == [
        "system\nFirst.",
        "system\nBe brief.",
        "system\nBe brief.",
        "user\nd",
    ]


def test_unknown_commands_are_not_sent(engine, url):
    assert "no such command: /nonsense" in talk(url, "/nonsense")
    assert engine.requests == []


def test_errors_are_one_line_and_leave_the_conversation(engine, url):
    engine.script = lambda request: Script((), error="no\nmemory")
    shown = talk(url, "one", "x" * 5000)
    assert "error: no memory\n" in shown
    assert "error: This server's maximum context length is 4096 tokens" in shown
    engine.script = lambda request: say("fine")
    talk(url, "two")
    assert turns(engine)[-1] == ["user\ntwo"]


def test_an_interrupted_reply_stays_in_the_conversation(engine, url, monkeypatch):
    engine.script = lambda request: say("x" * (5 if engine.requests[1:] else 1000), delay=0.01)
    printed = []
    plain = Console.print

    def print_and_interrupt(self, *objects, **how):
        plain(self, *objects, **how)
        if how.get("end") == "" and engine.requests:
            printed.append(objects)
            if len(printed) == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(Console, "print", print_and_interrupt)
    shown = talk(url, "one", "two")
    assert "stopped" in shown
    second = turns(engine)[1]
    assert second[0] == "user\none" and second[2] == "user\ntwo"
    assert second[1].startswith("assistant\nx")
    assert next(iter(engine.finished.values())) == "cancelled"


def test_leaving_by_interrupt(url):
    assert talk(url, KeyboardInterrupt)


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:1", "127.0.0.1:1", "ftp://x", "http://[", ""]
)
def test_servers_that_are_not_there(address):
    shown = talk(address, status=1)
    assert shown.startswith("error: ") and len(shown.splitlines()) == 1


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_addresses_with_and_without_v1(url, ending):
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    pieces = list(stream_chat(url + ending, body, api_key="k"))
    assert "".join(piece.text for piece in pieces) == "Hello"
    with pytest.raises(ChatFailed, match="messages"):
        list(stream_chat(url + ending, {"stream": True}))


def test_a_model_is_asked_for_by_name(engine, url):
    assert "Hello" in talk(url, "one", model="nickname")
