"""A chat in the terminal with any server that speaks the chat completions API."""

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.text import Text

_CONNECT_SECONDS = 10.0
_HELP = "/reset starts over · /system TEXT sets the system prompt · /quit leaves"


class ChatFailed(Exception):
    """A reply that could not be had; the message is one line."""


@dataclass(frozen=True)
class Piece:
    """A piece of a reply's text, or its last event's `tensorfold` block."""

    text: str = ""
    tokens_per_second: float | None = None


def chat(
    base_url: str,
    model: str | None = None,
    *,
    system: str | None = None,
    api_key: str | None = None,
    console: Console | None = None,
    read_line: Callable[[], str] | None = None,
) -> int:
    """Talk with the server at `base_url` (with or without /v1) until /quit; an exit status, 1 if
    there is no server.

    Ctrl-C stops a reply, and leaves when no reply is being written.
    """
    console = console or Console()
    read_line = read_line or (lambda: console.input("[bold cyan]> [/]"))
    try:
        _find(base_url)
    except ChatFailed as error:
        console.print(Text(f"error: {error}", style="red"), soft_wrap=True)
        return 1
    conversation = _Conversation(base_url, model, api_key)
    conversation.reset(system)
    console.print(_HELP, style="dim")
    while True:
        try:
            line = read_line().strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return 0
        command, _, rest = line.partition(" ")
        if command in ("/quit", "/exit"):
            return 0
        if command == "/reset":
            conversation.reset(system)
            console.print("new conversation", style="dim")
        elif command == "/system":
            system = rest.strip() or None
            conversation.reset(system)
            console.print("new conversation with this system prompt", style="dim")
        elif command.startswith("/") and " " not in command and command[1:].isalpha():
            console.print(f"no such command: {command}. {_HELP}", style="dim", markup=False)
        elif line:
            _take_turn(conversation, line, console)


class _Conversation:
    """The messages so far, and where the next reply comes from."""

    def __init__(self, base_url: str, model: str | None, api_key: str | None) -> None:
        self._base_url = base_url
        self._model = model
        self._api_key = api_key
        self.messages: list[dict[str, str]] = []

    def reset(self, system: str | None) -> None:
        """Forget everything but the system prompt."""
        self.messages = [] if system is None else [{"role": "system", "content": system}]

    def reply(self) -> Generator[Piece, None, None]:
        """Stream the next reply. Raises `ChatFailed`."""
        body: dict[str, Any] = {"messages": self.messages, "stream": True}
        if self._model is not None:
            body["model"] = self._model
        return stream_chat(self._base_url, body, api_key=self._api_key)


def _take_turn(conversation: _Conversation, line: str, console: Console) -> None:
    conversation.messages.append({"role": "user", "content": line})
    said = ""
    speed: float | None = None
    started = time.monotonic()
    ending = ""
    try:
        with contextlib.closing(conversation.reply()) as pieces:
            for piece in pieces:
                said += piece.text
                speed = speed if piece.tokens_per_second is None else piece.tokens_per_second
                # Models write brackets and colons of their own: nothing of it is markup.
                console.print(Text(piece.text), end="", soft_wrap=True)
    except KeyboardInterrupt:
        ending = "stopped"
    except ChatFailed as error:
        ending = f"error: {error}"
    if said:
        console.print()
        conversation.messages.append({"role": "assistant", "content": said})
    else:
        # Without a reply the question was not part of the conversation either.
        conversation.messages.pop()
    seconds = f"{time.monotonic() - started:.1f} s"
    rate = "" if speed is None else f"{speed:.1f} tokens/s · "
    style = "red" if ending.startswith("error") else "dim"
    console.print(Text(ending or rate + seconds, style=style))


def stream_chat(
    base_url: str, body: dict[str, Any], *, api_key: str | None = None
) -> Generator[Piece, None, None]:
    """The pieces of a streamed chat completion. Raises `ChatFailed`."""
    connection, path = _connect(base_url)
    headers = {"Content-Type": "application/json"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    try:
        connection.request("POST", f"{path}/chat/completions", json.dumps(body), headers)
        if connection.sock is not None:
            # A long prompt or a busy server may keep quiet for longer than any timeout.
            connection.sock.settimeout(None)
        with connection.getresponse() as response:
            if response.status != 200:
                raise ChatFailed(_error_message(response.read(), response.status))
            for line in response:
                if line.startswith(b"data: [DONE]"):
                    return
                if line.startswith(b"data:"):
                    yield _read_event(line[len(b"data:") :])
        raise ChatFailed("the server closed the stream before its end")
    except (OSError, http.client.HTTPException) as error:
        raise ChatFailed(_one_line(f"can't talk to {base_url}: {error}")) from error
    finally:
        connection.close()


def _find(base_url: str) -> None:
    """Raise `ChatFailed` where nothing listens."""
    connection, _ = _connect(base_url)
    try:
        connection.connect()
    except OSError as error:
        raise ChatFailed(_one_line(f"can't talk to {base_url}: {error}")) from error
    finally:
        connection.close()


def _connect(base_url: str) -> tuple[http.client.HTTPConnection, str]:
    try:
        parts = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ChatFailed(f"not an address of a server: {base_url}") from error
    if not host or parts.scheme not in ("http", "https"):
        raise ChatFailed(f"not an address of a server: {base_url}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    path = parts.path.rstrip("/")
    return kind(host, port, timeout=_CONNECT_SECONDS), path if path.endswith(
        "/v1"
    ) else f"{path}/v1"


def _read_event(data: bytes) -> Piece:
    try:
        event = json.loads(data)
    except ValueError as error:
        raise ChatFailed("the server sent an event that is not JSON") from error
    if event.get("error"):
        raise ChatFailed(_one_line(str(event["error"].get("message"))))
    delta = event["choices"][0]["delta"] if event.get("choices") else {}
    rate = (event.get("tensorfold") or {}).get("tokens_per_second")
    return Piece(delta.get("content") or "", rate)


def _error_message(data: bytes, status: int) -> str:
    try:
        return _one_line(json.loads(data)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered with status {status}"


def _one_line(text: str) -> str:
    return " ".join(str(text).split())
