"""A request's body as JSON, with everything that is not JSON refused before a field is read."""

import asyncio
import json
import re
from typing import Any, NoReturn

from quart import Request

from tensorfold.serving.errors import ApiError

MAX_BODY_BYTES = 32 * 1024 * 1024
_MAX_DEPTH = 128
_LARGE = 256 * 1024
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_body(request: Request) -> dict[str, Any]:
    """The request's body, whatever its Content-Type says; an empty one is an empty object."""
    data: bytes = await request.get_data(cache=False, as_text=False)  # type: ignore[assignment]
    if len(data) > _LARGE:
        return await asyncio.to_thread(parse_body, data)
    return parse_body(data)


def parse_body(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`. Raises `ApiError`."""
    if not data.strip():
        return {}
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ApiError(f"the body is not valid UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise ApiError("the body is nested too deeply") from None
    except ValueError as error:
        raise ApiError(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError("the body must be a JSON object")
    # Python's parser lets half a surrogate pair through, and nothing after it could be encoded.
    check_surrogates = _SURROGATE_ESCAPE.search(data) is not None
    for name, item in value.items():
        _check(name, name, check_surrogates)
        _check(item, name, check_surrogates)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _check(value: object, name: str, surrogates: bool) -> None:
    """Refuse nesting that later steps could not walk, and text that is not Unicode."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below += [*item.keys(), *item.values()]
            elif isinstance(item, list):
                below += item
            elif surrogates and isinstance(item, str) and not _is_unicode(item):
                raise ApiError(
                    "the body holds half a surrogate pair, which is not text",
                    param=name if _is_unicode(name) else None,
                )
        level = below
        if not level:
            return
    raise ApiError(f"{name} is nested too deeply", param=name)


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
