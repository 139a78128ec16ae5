"""Calls written as JSON, whatever their keys are called.

A call is an object with a name under name, tool, function or call, and its arguments under
arguments, args or parameters. Without those the other keys are the arguments. Arguments keep the
model's own text: key order, numbers and escapes.
"""

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from tensorfold.chat.tools.interface import Call, Tools

NAME_KEYS = ("name", "tool", "function", "call")
ARGUMENT_KEYS = ("arguments", "args", "parameters")
OTHER_KEYS = ("type", "id")
_BLANKS = re.compile(r"[ \t\r\n]*")


def read_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError, also for NaN and nesting that is too deep."""
    try:
        return _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def as_json(value: Any) -> str:
    """A value's JSON, with its letters as they are. Raises ValueError for infinities and NaN."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # A surrogate without its other half is no UTF-8, but may be escaped.
    return text if _is_text(text) else json.dumps(value, allow_nan=False)


def is_object(text: str) -> bool:
    """Whether a text is a JSON object."""
    try:
        return isinstance(read_json(text), dict)
    except ValueError:
        return False


def calls_in(text: str, tools: Tools, *, offered: bool = False) -> list[Call]:
    """The calls that a JSON text is: one, or a list of them. None unless all of it is calls;
    `offered`: and unless every name was offered."""
    try:
        value = read_json(text)
        items = [text] if isinstance(value, dict) else _items(text)
        calls = [_call(item, tools) for item in items]
    except ValueError:
        return []
    whole = [call for call in calls if call and not (offered and not tools.find(call.name))]
    return whole if len(whole) == len(calls) else []


def _call(text: str, tools: Tools) -> Call | None:
    members = _members(text)
    name_key = next((key for key in NAME_KEYS if key in members), None)
    if name_key is None:
        return None
    if name_key == "function" and members[name_key].startswith("{"):
        return _call(members[name_key], tools)
    name = read_json(members[name_key])
    if not isinstance(name, str):
        return None
    given = next((members[key] for key in ARGUMENT_KEYS if key in members), None)
    if given is None and tools.find(name.strip()):
        loose = {k: v for k, v in members.items() if k not in (name_key, *OTHER_KEYS)}
        given = "{" + ", ".join(f"{as_json(key)}: {item}" for key, item in loose.items()) + "}"
    if given == "null":
        given = "{}"
    return tools.call(name, given) if given and given.startswith("{") else None


def _members(text: str) -> dict[str, str]:
    """An object's values as they are written, by key. Raises ValueError for anything else."""
    members = {}
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("not an object")
    at = _skip(text, at + 1)
    while text[at] != "}":
        key, at = scanstring(text, at + 1)
        at = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, at)
        members[key] = text[at:end]
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at
    return members


def _items(text: str) -> list[str]:
    """A list's values as they are written."""
    items = []
    at = _skip(text, _skip(text, 0) + 1)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        items.append(text[at:end])
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at
    return items


def _skip(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
