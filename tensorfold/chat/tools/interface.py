"""What the parsers of tool calls share: the tools offered, the events, a call's written form."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

_NAME = re.compile(r"[\w.:/-]{1,256}")


@dataclass(frozen=True)
class Content:
    """More of the text that the client reads: the reply's characters from `start` to `end`."""

    text: str
    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Reasoning:
    """More reasoning, from formats whose channels hold reasoning, text and calls alike."""

    text: str
    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Call:
    """A whole call, decided at `end`: the name as it was offered, and the arguments, the text of
    a JSON object."""

    name: str
    arguments: str
    end: int = field(default=0, compare=False)


Event = Content | Reasoning | Call


@dataclass(frozen=True)
class Tool:
    """A function that the client offers; `parameters` is a JSON schema of an object."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


class Tools:
    """The offered tools, found by name."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._all = tuple(tools)
        self._exact = {tool.name: tool for tool in self._all}
        self._folded: dict[str, Tool] = {}
        for tool in self._all:
            self._folded.setdefault(tool.name.casefold(), tool)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._all)

    def find(self, name: str) -> Tool | None:
        """The tool a model means by `name`: its exact spelling first, then whatever its case."""
        return self._exact.get(name) or self._folded.get(name.casefold())

    def call(self, name: str, arguments: str) -> Call | None:
        """A call by the offered spelling. A tool nobody offered keeps its name, if it is one: the
        client tells the model of its mistake. None for text that is no name."""
        name = name.strip()
        if tool := self.find(name):
            return Call(tool.name, arguments)
        return Call(name, arguments) if _NAME.fullmatch(name) else None

    def schema(self, name: str) -> Mapping[str, Any]:
        """The parameters' schema of a tool, empty for one that nobody offered."""
        tool = self.find(name.strip())
        return tool.parameters if tool else {}


@dataclass(frozen=True)
class CallShape:
    """How a format writes a call, for a grammar that forces one.

    A call is `opener`, the name, `after_name`, the arguments, `closer`. Calls of one reply stand
    between `before` and `after`, `between` two of them. `arguments` says how they are written:

    json: one JSON object
    qwen_xml: `<parameter=KEY>\\nVALUE\\n</parameter>\\n` for each
    glm: `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` for each
    dsml: `<｜DSML｜parameter name="KEY" string="true|false">VALUE</｜DSML｜parameter>\\n` for each
    gemma: `KEY:VALUE,KEY:VALUE`, strings between `<|"|>`
    python: `KEY=VALUE, KEY=VALUE`, Python's literals
    xtml: `<|open|>argument key="KEY" type="TYPE"<|sep|>VALUE<|close|>argument<|sep|>` for each
    """

    opener: str
    after_name: str
    closer: str
    arguments: Literal["json", "qwen_xml", "glm", "dsml", "gemma", "python", "xtml"] = "json"
    before: str = ""
    between: str = ""
    after: str = ""


class ToolFormat(Protocol):
    """Reads one reply. The events joined are the same however the text is cut."""

    def feed(self, text: str, control: bool = False) -> list[Event]:
        """What `text`, the next of the reply, decides. `control`: it is one control token."""
        ...

    def finish(self, *, cut: bool) -> list[Event]:
        """The rest, when the reply has ended: with the model's end token or a stop string, or
        `cut` by the reply limit, where a call that is not whole vanishes with its text."""
        ...
