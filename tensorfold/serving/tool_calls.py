"""The tool fields of a chat request: what is offered, what must be called, and how calls are read.

Fields as in OpenAI's chat completions (`tools`, `tool_choice`, `parallel_tool_calls`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorfold.chat.pieces import Stage
from tensorfold.chat.tools.gate import CallGate
from tensorfold.chat.tools.interface import Tool, Tools
from tensorfold.chat.tools.stage import CallReading, ToolCalls
from tensorfold.engine.interface import Constraint
from tensorfold.serving.errors import ApiError
from tensorfold.serving.fields import Body, Field, Kind, boolean
from tensorfold.serving.service import Service

_MOST_TOOLS = 4096
_PROMPT_END = 16


def _functions() -> Kind[tuple[dict[str, Any], ...]]:
    """Function tools, each with a name; without parameters they take none."""

    def read(value: object, name: str) -> tuple[dict[str, Any], ...]:
        if not isinstance(value, list) or len(value) > _MOST_TOOLS:
            raise ApiError(
                f"{name} must be a list of at most {_MOST_TOOLS} tools, or null", param=name
            )
        return tuple(_read_tool(tool, f"{name}[{i}]") for i, tool in enumerate(value))

    function = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "pattern": r"\S"},
            "description": {"type": ["string", "null"]},
            "parameters": {"type": ["object", "null"], "description": "A JSON schema."},
        },
    }
    item = {
        "type": "object",
        "required": ["type", "function"],
        "properties": {"type": {"const": "function"}, "function": function},
    }
    return Kind(read, {"type": "array", "maxItems": _MOST_TOOLS, "items": item})


def _read_tool(tool: object, name: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise ApiError(f"{name} must be an object", param=name)
    if tool.get("type") != "function":
        raise ApiError(f'{name}.type must be "function"', param=f"{name}.type")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise ApiError(f"{name}.function must be an object", param=f"{name}.function")
    if not isinstance(function.get("name"), str) or not function["name"].strip():
        raise ApiError(f"{name}.function.name must be a name", param=f"{name}.function.name")
    if not isinstance(function.get("description"), str | None):
        field = f"{name}.function.description"
        raise ApiError(f"{field} must be a string or null", param=field)
    parameters = function.get("parameters")
    if parameters is None:
        # Templates look into the parameters.
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        field = f"{name}.function.parameters"
        raise ApiError(f"{field} must be an object or null", param=field)
    return tool | {"function": function | {"parameters": parameters}}


@dataclass(frozen=True)
class _Choice:
    """What `tool_choice` asks for. `names`: of those tools only, None for all."""

    mode: str = "auto"
    names: tuple[str, ...] | None = None


def _choice() -> Kind[_Choice]:
    """A mode, a function, or OpenAI's allowed_tools."""

    def read(value: object, name: str) -> _Choice:
        if value in ("none", "auto", "required"):
            return _Choice(str(value))
        if isinstance(value, dict) and value.get("type") == "function":
            return _Choice("required", (_function_name(value, name),))
        if isinstance(value, dict) and value.get("type") == "allowed_tools":
            return _read_allowed(value.get("allowed_tools"), f"{name}.allowed_tools")
        raise ApiError(
            f'{name} must be "none", "auto", "required", a function '
            '({"type": "function", "function": {"name": ...}}), allowed_tools or null',
            param=name,
        )

    function = {
        "type": "object",
        "required": ["type", "function"],
        "properties": {
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}},
            },
        },
    }
    allowed = {
        "type": "object",
        "required": ["type", "allowed_tools"],
        "properties": {
            "type": {"const": "allowed_tools"},
            "allowed_tools": {
                "type": "object",
                "required": ["mode", "tools"],
                "properties": {
                    "mode": {"enum": ["auto", "required"]},
                    "tools": {"type": "array", "minItems": 1, "items": function},
                },
            },
        },
    }
    modes = {"enum": ["none", "auto", "required"]}
    return Kind(read, {"anyOf": [modes, function, allowed], "default": "auto"})


def _read_allowed(value: object, name: str) -> _Choice:
    if not isinstance(value, dict) or value.get("mode") not in ("auto", "required"):
        raise ApiError(f'{name} must be an object with a mode, "auto" or "required"', param=name)
    tools = value.get("tools")
    if not isinstance(tools, list) or not tools:
        raise ApiError(f"{name}.tools must be a non-empty list", param=name)
    return _Choice(value["mode"], tuple(_function_name(tool, name) for tool in tools))


def _function_name(value: object, name: str) -> str:
    function = value.get("function") if isinstance(value, dict) else None
    found = function.get("name") if isinstance(function, dict) else None
    if not isinstance(found, str):
        raise ApiError(f"{name} must name a function", param=name)
    return found


TOOLS: Field[tuple[dict[str, Any], ...]] = Field(
    "tools", _functions(), (), "The functions that the model may call."
)
TOOL_CHOICE: Field[_Choice] = Field(
    "tool_choice", _choice(), _Choice(), "Whether and which functions are called."
)
PARALLEL_TOOL_CALLS = Field(
    "parallel_tool_calls", boolean(), True, "Whether a reply may have several calls."
)


@dataclass(frozen=True)
class ToolUse:
    """What a request says of tools.

    offered: whether it has any, shown or not
    shown: the tools that the template is given; none with `tool_choice` none
    required: the reply is a call to one of them
    """

    offered: bool = False
    shown: tuple[dict[str, Any], ...] = ()
    required: bool = False
    parallel: bool = True

    @property
    def tools(self) -> Tools:
        """The tools by name, with their schemas."""
        functions = [tool["function"] for tool in self.shown]
        return Tools(Tool(each["name"], each["parameters"]) for each in functions)


def read_tool_use(body: Body) -> ToolUse:
    """Read the tool fields, once a request. Raises `ApiError`."""
    shown = TOOLS.of(body)
    choice = TOOL_CHOICE.of(body)
    parallel = PARALLEL_TOOL_CALLS.of(body)
    names = {tool["function"]["name"] for tool in shown}
    for name in choice.names or ():
        if name not in names:
            raise ApiError(
                f"tool_choice names {name[:64]!r}, which is not in tools", param=TOOL_CHOICE.name
            )
    if choice.names is not None:
        shown = tuple(tool for tool in shown if tool["function"]["name"] in choice.names)
    if choice.mode == "required" and not shown:
        raise ApiError("tool_choice asks for a call, and tools is empty", param=TOOL_CHOICE.name)
    if choice.mode == "none":
        shown = ()
    return ToolUse(
        offered=bool(names), shown=shown, required=choice.mode == "required", parallel=parallel
    )


def call_stages(
    service: Service, use: ToolUse, prompt: Sequence[int], messages: Sequence[Mapping[str, Any]]
) -> Callable[[], Sequence[Stage]]:
    """What makes the stages that find a reply's calls: none where no reply has any."""
    if not use.shown and not service.tool_format.channels:
        return tuple
    reading = CallReading(
        service.tool_format,
        use.tools,
        controls=service.control_spellings,
        prompt="".join(map(service.tokenizer.token_text, prompt[-_PROMPT_END:])),
        parallel=use.parallel,
        calls_before=sum(len(message.get("tool_calls") or ()) for message in messages),
    )
    return lambda: (ToolCalls(reading),)


def call_constraint(service: Service, use: ToolUse) -> Callable[[], Constraint] | None:
    """What makes each reply a call where the request asks for one."""
    if not use.required:
        return None
    names = tuple(dict.fromkeys(tool["function"]["name"] for tool in use.shown))
    return lambda: CallGate(service.spellings, service.tool_format.shape, names)
