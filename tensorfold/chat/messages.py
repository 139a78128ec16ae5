"""Chat messages as a client sends them, checked and put into the form chat templates read."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tensorfold.chat.traits import Traits

Message = dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")
_SYSTEM_ROLES = ("system", "developer")
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
_TEXTS = (*_REASONING_NAMES, "tool_call_id", "name")

_TITLE_CHARACTERS = 4096

UNPARSED_ARGUMENTS = "raw_arguments"
"""The key that carries a tool call's arguments to the template when they are not a JSON object."""


_PART: Mapping[str, Any] = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_CALL: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": ["string", "null"]},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "arguments": {"description": "A JSON object or its text; anything else is kept."},
            },
            "required": ["name"],
        },
    },
    "required": ["function"],
}
MESSAGES: Mapping[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {
            "role": {"enum": list(ROLES)},
            "content": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": _PART}]},
            "tool_calls": {"anyOf": [{"type": "null"}, {"type": "array", "items": _CALL}]},
            **{name: {"type": ["string", "null"]} for name in _TEXTS},
        },
        "required": ["role"],
    },
}
"""The JSON Schema of what `read_messages` takes."""


class MessageError(ValueError):
    """A message that can't be used; `param` names the field, as in `messages[0].content`."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def read_messages(value: object) -> list[Message]:
    """Check a request's `messages` and copy them: text joined, arguments parsed, nulls dropped."""
    if not isinstance(value, list) or not value:
        raise MessageError("messages must be a non-empty list", "messages")
    return [_read_message(message, f"messages[{i}]") for i, message in enumerate(value)]


def is_title_request(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether checked messages ask for a conversation's title, as agents do beside their work.

    The first is a system message that speaks of a title, and all of them are short.
    """
    if messages[0].get("role") != "system":
        return False
    if "title" not in _read_content(messages[0].get("content"), "content").casefold():
        return False
    size = sum(len(_read_content(message.get("content"), "content")) for message in messages)
    return size < _TITLE_CHARACTERS


def arrange(messages: Sequence[Message], traits: Traits) -> list[Message]:
    """Put checked messages into the form that a template with `traits` takes.

    Leading system and developer messages become one system message. Later ones stay in place. Where
    the template has no place for either, they become user messages. An assistant's message and the
    one right after it become one; so do user messages where the template wants turns. A tool's
    message gets the name of the function that its call names.
    """
    rest = list(messages)
    leading: list[Message] = []
    while rest and rest[0]["role"] in _SYSTEM_ROLES:
        leading.append(rest.pop(0))
    placed = [_placed(message, traits.later_system) for message in rest]
    if leading:
        text = "\n\n".join(m["content"] for m in leading)
        placed.insert(0, _placed(leading[0] | {"content": text}, traits.leading_system))
    arranged: list[Message] = []
    names: dict[str, str] = {}
    for message in placed:
        for call in message.get("tool_calls", ()):
            if isinstance(call.get("id"), str):
                names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool" and (name := names.get(str(message.get("tool_call_id")))):
            message = {"name": name} | message
        if arranged and _are_one(arranged[-1], message, traits):
            arranged[-1] = _merged(arranged[-1], message)
        else:
            arranged.append(message)
    return [_with_text_arguments(m) for m in arranged] if traits.text_arguments else arranged


def _placed(message: Message, as_system: bool) -> Message:
    if message["role"] not in _SYSTEM_ROLES:
        return message
    return message | {"role": "system" if as_system else "user"}


def _are_one(first: Message, second: Message, traits: Traits) -> bool:
    if first["role"] != second["role"]:
        return False
    if first["role"] == "assistant":
        # Text after calls would change places with them.
        return "tool_calls" not in first or not second["content"]
    return first["role"] == "user" and not traits.repeated_user


def _merged(first: Message, second: Message) -> Message:
    merged = first | second
    for name in ("content", *_REASONING_NAMES):
        texts = [m[name] for m in (first, second) if isinstance(m.get(name), str) and m[name]]
        if len(texts) > 1 or name == "content":
            merged[name] = "\n\n".join(texts)
    if "tool_calls" in first and "tool_calls" in second:
        merged["tool_calls"] = first["tool_calls"] + second["tool_calls"]
    return merged


def _with_text_arguments(message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        text = arguments.get(UNPARSED_ARGUMENTS)
        if not isinstance(text, str):
            text = json.dumps(arguments, ensure_ascii=False)
        calls.append(call | {"function": call["function"] | {"arguments": text}})
    return message | {"tool_calls": calls}


def _read_message(value: object, param: str) -> Message:
    if not isinstance(value, dict):
        raise MessageError(f"{param} must be an object", param)
    role = value.get("role")
    if role not in ROLES:
        raise MessageError(f"{param}.role must be one of {', '.join(ROLES)}", f"{param}.role")
    message = {key: item for key, item in value.items() if item is not None}
    message["content"] = _read_content(value.get("content"), f"{param}.content")
    for name in _TEXTS:
        _check_text(value.get(name), f"{param}.{name}")
    if "tool_calls" in message:
        message["tool_calls"] = _read_tool_calls(message["tool_calls"], f"{param}.tool_calls")
        if not message["tool_calls"]:
            # Templates ask whether the key is there, and an empty list would open a tool turn.
            del message["tool_calls"]
    reasoning = next((message[name] for name in _REASONING_NAMES if name in message), None)
    if reasoning is None:
        return message
    # Clients and templates disagree on the name of earlier reasoning: templates get both.
    return {"thinking": reasoning} | message | {"reasoning_content": reasoning}


def _check_text(value: object, param: str) -> None:
    if not isinstance(value, str | None):
        raise MessageError(f"{param} must be a string or null", param)


def _read_content(value: object, param: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise MessageError(f"{param} must be a string, null or a list of text parts", param)
    return "".join(_read_part(part, f"{param}[{i}]") for i, part in enumerate(value))


def _read_part(part: object, param: str) -> str:
    if not isinstance(part, dict):
        raise MessageError(f"{param} must be an object", param)
    kind = part.get("type")
    if kind != "text":
        shown = kind if isinstance(kind, str) else json.dumps(kind)
        raise MessageError(
            f"{param}: content parts of type {shown[:64]} are not supported by this version, "
            "only text",
            param,
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise MessageError(f"{param}.text must be a string", f"{param}.text")
    return text


def _read_tool_calls(value: object, param: str) -> list[Message]:
    if not isinstance(value, list):
        raise MessageError(f"{param} must be a list", param)
    calls = []
    for i, call in enumerate(value):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise MessageError(f"{param}[{i}] must include a function name", f"{param}[{i}]")
        _check_text(call.get("id"), f"{param}[{i}].id")
        arguments = _read_arguments(function.get("arguments"))
        calls.append(call | {"function": function | {"arguments": arguments}})
    return calls


def _read_arguments(value: object) -> Mapping[str, Any]:
    if value is None or value == "":
        return {}
    parsed = value
    if isinstance(value, str):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = None
    return parsed if isinstance(parsed, dict) else {UNPARSED_ARGUMENTS: value}
