"""Asking a test client, and reading its streams strictly."""

import json
from typing import Any

from scripted import ScriptedEngine, make_service

from tensorfold.serving.app import create_app

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ROUTES = (CHAT, TEXT)


class Client:
    """A test client of one scripted engine."""

    def __init__(self, engine: ScriptedEngine | None = None, **service: object) -> None:
        self.engine = engine or ScriptedEngine()
        self.app = create_app(make_service(self.engine, **service))
        self._client = self.app.test_client()

    async def get(self, path: str) -> Any:
        return await self._client.get(path)

    async def send(self, path: str, data: bytes, **how: Any) -> Any:
        return await self._client.post(path, data=data, **how)

    async def post(self, path: str, body: object) -> Any:
        return await self.send(path, json.dumps(body).encode())

    async def ask(self, path: str, **fields: object) -> dict[str, Any]:
        """A whole reply."""
        response = await self.post(path, question(path) | fields)
        assert response.status_code == 200, await response.get_data()
        return json.loads(await response.get_data())

    async def stream(self, path: str, **fields: object) -> list[dict[str, Any]]:
        """A stream's events, without the last."""
        response = await self.post(path, question(path) | {"stream": True} | fields)
        assert response.status_code == 200, await response.get_data()
        return read_events(await response.get_data())

    async def refused(self, path: str, body: object, status: int = 400) -> dict[str, Any]:
        """The error a request is answered with."""
        response = await self.post(path, body)
        return read_error(response.status_code, await response.get_data(), status)


def question(path: str) -> dict[str, Any]:
    """A request that is answered."""
    return {"messages": [{"role": "user", "content": "Hi"}]} if path == CHAT else {"prompt": "Hi"}


def read_error(status: int, data: bytes, expected: int = 400) -> dict[str, Any]:
    assert status == expected, data
    body = json.loads(data)
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str) and body["error"]["message"]
    return body["error"]


def read_events(data: bytes) -> list[dict[str, Any]]:
    events = data.decode().split("\n\n")
    assert events.pop() == ""
    assert events.pop() == "data: [DONE]"
    assert all(event.startswith("data: ") and len(event.splitlines()) == 1 for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def whole_text(reply: dict[str, Any]) -> str:
    (choice,) = reply["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def streamed_text(events: list[dict[str, Any]]) -> str:
    choices = [choice for event in events for choice in event.get("choices", [])]
    return "".join(
        choice["text"] if "text" in choice else choice["delta"].get("content", "")
        for choice in choices
    )


def finish_reason(events: list[dict[str, Any]]) -> str | None:
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    return reasons[-1]
