"""The application: the table of routes, and what holds for all of them."""

import asyncio
import logging
from functools import partial
from typing import Any

from quart import Quart, Response, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from tensorfold.serving.answer import CONNECTION
from tensorfold.serving.body import MAX_BODY_BYTES
from tensorfold.serving.cancel import cancel
from tensorfold.serving.chat_completions import chat_completions
from tensorfold.serving.completions import completions
from tensorfold.serving.counts import Counts
from tensorfold.serving.errors import ApiError, server_error
from tensorfold.serving.health import health
from tensorfold.serving.metrics import UNMATCHED, metrics
from tensorfold.serving.models import models
from tensorfold.serving.openapi import openapi
from tensorfold.serving.reply import Connection
from tensorfold.serving.service import Service
from tensorfold.serving.sse import json_response
from tensorfold.serving.tokenize import detokenize, tokenize, tokenizer_info

# Every path also works without /v1.
ROUTES = (
    ("GET", "", health),
    ("GET", "/health", health),
    ("GET", "/models", models),
    ("POST", "/chat/completions", chat_completions),
    ("POST", "/completions", completions),
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
    ("GET", "/tokenizer_info", tokenizer_info),
    ("GET", "/openapi.json", openapi),
    ("POST", "/requests/<id>/cancel", cancel),
    ("GET", "/metrics", metrics),
)

_log = logging.getLogger(__name__)


class App(Quart):
    """The application, which ends a connection's replies with the connection.

    Quart cancels a handler whose client has gone, but a handler can miss that: when the client goes
    as its body is read, or before anybody reads the stream. Around the whole application every
    case is the same.
    """

    def __init__(self, counts: Counts) -> None:
        super().__init__("tensorfold", static_folder=None)
        self._counts = counts
        self._open: set[Connection] = set()
        self._ending = asyncio.Event()

    async def asgi_app(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await super().asgi_app(scope, receive, send)
            return
        connection = Connection(dict(scope["headers"]).get(b"x-request-id", b"").decode("latin1"))
        self._open.add(connection)
        scope["path"] = scope["path"].rstrip("/") or "/"
        scope["state"] = {**scope.get("state", {}), CONNECTION: connection}

        async def watch() -> Any:
            message = await receive()
            if message["type"] == "http.disconnect":
                self._counts.disconnections += connection.end()
            return message

        try:
            await super().asgi_app(scope, watch, send)
        finally:
            self._open.discard(connection)
            connection.end()

    def cancel(self, reply_id: str) -> bool:
        """Stop the replies of the requests with this id, ours or the client's own; False if none is
        running or waiting."""
        return any([connection.cancel(reply_id) for connection in self._open])

    async def read_whole_request(self) -> None:
        """Wait for the rest of a request's body. Raises `ApiError` if the server stops first."""
        # An answer that overtakes its request's body costs the client the connection.
        body = asyncio.ensure_future(request.get_data())
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait({body, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not body.done():
                raise server_error("the server stopped before all of the body came", 503)
            await body
        finally:
            body.cancel()
            ending.cancel()

    def end_replies(self) -> None:
        """Stop every reply; each connection then sends its last words and closes."""
        self._ending.set()
        for connection in self._open:
            connection.end()


def create_app(service: Service) -> App:
    """The application that serves `service`."""
    app = App(service.counts)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    # A long reply is not a stuck one, and clients that leave end their replies themselves.
    app.config["RESPONSE_TIMEOUT"] = None
    app.url_map.merge_slashes = False
    for method, path, handler in ROUTES:
        for prefix in ("", "/v1"):
            app.add_url_rule(
                prefix + path or "/",
                endpoint=f"{method} {prefix}{path}",
                view_func=partial(handler, service),
                methods=[method],
            )
    app.before_request(app.read_whole_request)
    app.after_request(partial(_count, service.counts))
    app.register_error_handler(ApiError, _answer_api_error)
    app.register_error_handler(HTTPException, _answer_http_error)
    app.register_error_handler(Exception, _answer_fault)
    return app


async def _count(counts: Counts, response: Response) -> Response:
    rule = request.url_rule
    path = UNMATCHED if rule is None else rule.rule.removeprefix("/v1") or "/"
    counts.answers[path, response.status_code] += 1
    return response


async def _answer_api_error(error: ApiError) -> Response:
    return json_response(error.envelope(), error.status, error.headers)


async def _answer_http_error(error: HTTPException) -> Response:
    """Errors of HTTP itself, in the form of the API's own."""
    status = error.code or 500
    headers = {}
    if status == 404:
        message = f"unknown path {request.path}"
    elif status == 405:
        message = f"{request.path} does not take {request.method}"
    elif status == 413:
        message = f"the body is larger than {MAX_BODY_BYTES // 2**20} MiB"
        headers["Connection"] = "close"
    else:
        message = error.description or error.name
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        headers["Allow"] = ", ".join(sorted(error.valid_methods))
    return json_response(ApiError(message, status=status).envelope(), status, headers)


async def _answer_fault(error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.path, exc_info=error)
    return await _answer_api_error(server_error("the server failed to answer the request"))
