"""JSON answers and streams of server-sent events."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from quart import Response

DONE = b"data: [DONE]\n\n"
# Line ends to some clients' line splitters, though not to the standard's.
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")


def encode_json(value: Mapping[str, Any]) -> bytes:
    """Compact JSON in UTF-8, on one line whatever a client takes for a line's end."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text = _LINE_ENDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text.encode("utf-8", errors="backslashreplace")


def event(value: Mapping[str, Any]) -> bytes:
    """One event of a stream."""
    return b"data: " + encode_json(value) + b"\n\n"


def json_response(
    value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer in one piece."""
    return Response(
        encode_json(value), status, dict(headers or {}), content_type="application/json"
    )


def stream_response(events: AsyncIterator[bytes], headers: Mapping[str, str]) -> Response:
    """An open stream; the connection closes after its last event."""
    fixed = {"Cache-Control": "no-cache", "Connection": "close", "X-Accel-Buffering": "no"}
    response = Response(
        events, 200, {**fixed, **headers}, content_type="text/event-stream; charset=utf-8"
    )
    response.timeout = None
    return response
