"""What chat templates treat differently, found out by rendering a few messages once."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
"""How hard a model is asked to think, least first."""

_WORD = "probed-word"
Render = Callable[[Sequence[Mapping[str, Any]], Mapping[str, Any]], str | None]
"""The text of messages with variables, or None when the template refuses them."""


@dataclass(frozen=True)
class Traits:
    """What a template takes.

    leading_system, later_system: a system message before and after the first turn
    repeated_user: two user messages in a row
    text_arguments: the arguments of a tool call as JSON text, and not as a mapping
    efforts: the levels of reasoning effort that it tells apart by name, least first
    """

    leading_system: bool = True
    later_system: bool = True
    repeated_user: bool = True
    text_arguments: bool = False
    efforts: tuple[str, ...] = ()

    def hears(self, effort: str) -> str:
        """The level the template is told: the nearest it names, of two as near the higher."""
        if not self.efforts:
            return "xhigh" if effort == "max" else effort
        asked = EFFORTS.index(effort)

        def distance(level: str) -> tuple[int, int]:
            place = EFFORTS.index(level)
            return abs(place - asked), -place

        return min(self.efforts, key=distance)


def probe(render: Render, source: str) -> Traits:
    """The traits of the template that `render` runs and whose text is `source`."""

    def shows(*turns: tuple[str, str], **variables: Any) -> bool:
        text = render([{"role": role, "content": said} for role, said in turns], variables)
        return text is not None and _WORD in text

    user, reply, system = ("user", "a"), ("assistant", "b"), ("system", _WORD)
    names_any = "reasoning_effort" in source and not shows(
        user, reasoning_effort=_WORD, enable_thinking=True, thinking=True
    )
    as_mapping, as_text = {_WORD: 1}, f'{{"{_WORD}": 1}}'
    return Traits(
        leading_system=shows(system, user),
        later_system=shows(user, reply, system, user),
        repeated_user=shows(user, ("user", _WORD)),
        text_arguments=not _shows_call(render, as_mapping) and _shows_call(render, as_text),
        efforts=tuple(level for level in EFFORTS if names_any and _names(source, level)),
    )


def _shows_call(render: Render, arguments: object) -> bool:
    call = {
        "id": "call00000",
        "type": "function",
        "function": {"name": "f", "arguments": arguments},
    }
    text = render(
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "b", "name": "f", "tool_call_id": "call00000"},
        ],
        {},
    )
    return text is not None and _WORD in text


def _names(source: str, level: str) -> bool:
    return re.search(f"(['\"]){level}\\1", source) is not None
