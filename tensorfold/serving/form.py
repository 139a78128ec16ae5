"""The form of replies: where their reasoning ends, and what comes after it must match."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tensorfold.chat.pieces import Stage
from tensorfold.chat.reasoning import Markers, ReasoningSplit, opens_reasoning
from tensorfold.chat.thinking import ThinkingRules, closing_tokens, thinking_constraint
from tensorfold.engine.interface import Constraint
from tensorfold.serving.errors import ApiError
from tensorfold.serving.fields import Body, Field, integer
from tensorfold.serving.generation import Prompt, ReplyOptions
from tensorfold.serving.service import Service
from tensorfold.serving.structured_output import compile_calls, compile_structure, read_structure
from tensorfold.serving.tool_calls import TOOL_CHOICE, ToolUse

THINKING_BUDGET = Field(
    "thinking_budget",
    integer(0),
    0,
    "The token at which reasoning is closed if it goes on; 0 takes the server's.",
)


async def held_to_form(
    service: Service, body: Body, use: ToolUse, options: ReplyOptions, prompt: Prompt
) -> tuple[ReplyOptions, Prompt]:
    """A chat's options and prompt, its reasoning split off and held to its rules, and what
    follows constrained as the body asks. Raises `ApiError`."""
    budget = THINKING_BUDGET.of(body) or service.defaults.thinking_budget
    markers = service.markers
    opened: bool | None = False
    if markers is not None:
        opened = opens_reasoning(prompt.tokens, markers, service.end_ids)
    thinks = opened is not False
    options, constraint = await matching(service, body, options, thinks=thinks)
    if use.required:
        if constraint is not None:
            raise ApiError(
                "tool_choice asks for a call, and a form of the content can't be combined with it",
                param=TOOL_CHOICE.name,
            )
        # Without a grammar the call begins as it must, and its arguments are the model's own.
        held = await compile_calls(service, use, blanks_first=thinks)
        constraint = held or prompt.constraint
    if markers is None:
        return options, replace(prompt, constraint=constraint)
    rules = ThinkingRules(
        markers,
        opened,
        closing_tokens(service.tokenizer, markers, blank_line=constraint is None),
        partial(_is_blank, service),
        budget,
        service.defaults.loop_guard,
    )
    return options, replace(
        prompt,
        stages=partial(_stages, markers, opened, prompt.stages),
        constraint=thinking_constraint(
            rules, constraint, service.engine.limits.vocab_size, service.end_ids
        ),
        thinking=rules if rules.guard else None,
    )


async def matching(
    service: Service, body: Body, options: ReplyOptions, *, thinks: bool = False
) -> tuple[ReplyOptions, Callable[[], Constraint] | None]:
    """A request's options, and the constraint that makes its content match what the body asks.

    `thinks`: the content may come after reasoning. Raises `ApiError`.
    """
    asked = read_structure(body)
    if asked is None:
        return options, None
    # The content ends when it is complete, and nothing could follow it.
    options = replace(options, ignore_eos=False)
    return options, await compile_structure(service, asked, blanks_first=thinks)


def unopened(service: Service, tokens: Sequence[int], variables: Mapping[str, Any]) -> list[int]:
    """What closes the reasoning that a template opens although it was asked not to."""
    if variables.get("enable_thinking") is not False or service.markers is None:
        return []
    if opens_reasoning(tokens, service.markers, service.end_ids) is not True:
        return []
    return list(closing_tokens(service.tokenizer, service.markers, blank_line=True))


def _stages(
    markers: Markers, opened: bool | None, others: Callable[[], Sequence[Stage]]
) -> Sequence[Stage]:
    return (ReasoningSplit(markers, opened), *others())


def _is_blank(service: Service, token: int) -> bool:
    return not service.tokenizer.token_bytes(token).strip()
