"""Whole, streamed, drafted, serial and concurrent replies of a real engine, under every feature."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from conversing import CHAT, TEXT, Client
from scripted import ByteTokenizer
from tiny import open_step, tiny_checkpoint

from tensorfold.chat.prompt import ChatEncoder
from tensorfold.chat.template import ChatTemplate
from tensorfold.chat.tools.qwen_xml import QwenXmlParser
from tensorfold.engine.start import start_engine
from tensorfold.engine.thread import ThreadEngine

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"on": {"type": "boolean"}, "level": {"enum": [1, 2, 3]}},
                "required": ["on", "level"],
            },
        },
    }
    for name in ("lamp", "fan")
]
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "b"]}, "list": {"type": "array", "maxItems": 3}},
    "required": ["kind", "list"],
}
TALK = [{"role": "user", "content": "lamp lamp lamp, on and on and on and on"}]
FEATURES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a grammar": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    },
    "any object": {"response_format": {"type": "json_object"}},
    "a required call": {"tools": TOOLS, "tool_choice": "required"},
    "a named call": {
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "fan"}},
        "parallel_tool_calls": False,
    },
    "a call between tags": {"tools": TOOLS, "tool_choice": "required"},
    "a thinking budget": {"thinking_budget": 7},
    "stop strings": {"stop": ["a", "\x00", "e", "1"]},
    "penalties": {
        "presence_penalty": 0.6,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.2,
        "logit_bias": {"97": 2.5, "32": -100},
        "min_tokens": 12,
    },
    "several choices": {"n": 3},
    "choices under a grammar": {"n": 2, "guided_regex": "(on|off)( (on|off)){3,9}"},
}
SAMPLINGS = {"greedy": {"temperature": 0}, "sampled": {"temperature": 0.9, "seed": 5}}
OPENS = (
    "{% for message in messages %}{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>' }}{% endif %}"
)


@pytest.fixture(scope="module")
def engine() -> Iterator[ThreadEngine]:
    checkpoint = tiny_checkpoint(num_hidden_layers=1, vocab_size=ByteTokenizer.vocab_size)
    engine = start_engine(open_step(checkpoint, lanes=4, context=512, buckets=(8, 32)))
    yield engine
    engine.close()


def client_of(engine: ThreadEngine, feature: str) -> Client:
    if feature == "a call between tags":
        return Client(engine, tool_format=QwenXmlParser)
    if feature != "a thinking budget":
        return Client(engine)
    chat = ChatEncoder(ChatTemplate(OPENS, {}), ByteTokenizer())
    return Client(engine, chat=chat)


def told(choice: dict[str, Any]) -> dict[str, Any]:
    """What a client has of a whole choice."""
    message = choice.get("message", choice)
    calls = [call["function"] for call in message.get("tool_calls") or []]
    return {
        "tokens": choice["token_ids"],
        "text": message.get("content", message.get("text")) or "",
        "reasoning": message.get("reasoning_content") or "",
        "calls": [(call["name"], json.loads(call["arguments"])) for call in calls],
        "reason": choice["finish_reason"],
    }


def joined(events: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """The same of a stream."""
    found = {"tokens": [], "text": "", "reasoning": "", "reason": None}
    calls: dict[int, list[str]] = {}
    for choice in (each for event in events for each in event.get("choices", ())):
        if choice["index"] != index:
            continue
        delta = choice.get("delta", choice)
        found["tokens"] += choice.get("token_ids") or []
        found["text"] += delta.get("content", delta.get("text")) or ""
        found["reasoning"] += delta.get("reasoning_content") or ""
        found["reason"] = choice.get("finish_reason") or found["reason"]
        for call in delta.get("tool_calls") or ():
            parts = calls.setdefault(call["index"], ["", ""])
            parts[0] += call["function"].get("name") or ""
            parts[1] += call["function"].get("arguments") or ""
    return found | {"calls": [(name, json.loads(text)) for name, text in calls.values()]}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("feature", FEATURES)
async def test_a_reply_is_the_same_however_it_comes(
    engine: ThreadEngine, feature: str, sampling: str
) -> None:
    client = client_of(engine, feature)
    body = FEATURES[feature] | SAMPLINGS[sampling]
    body |= {"max_tokens": 60, "return_token_ids": True, "messages": TALK}
    choices = range(body.get("n", 1))
    serial = await client.ask(CHAT, draft=False, **body)
    wanted = [told(choice) for choice in serial["choices"]]
    assert len(wanted) == len(choices) and all(each["tokens"] for each in wanted)
    others = [
        client.ask(TEXT, prompt="on and on and on", max_tokens=30, temperature=1.0, seed=seed)
        for seed in range(3)
    ]
    drafted = await client.ask(CHAT, **body)
    events = await client.stream(CHAT, **body)
    *_, beside, serial_stream, drafted_stream = await asyncio.gather(
        *others,
        client.ask(CHAT, **body),
        client.stream(CHAT, draft=False, **body),
        client.stream(CHAT, **body),
    )
    for reply in (drafted, beside):
        assert [told(choice) for choice in reply["choices"]] == wanted
    for stream in (events, serial_stream, drafted_stream):
        assert [joined(stream, index) for index in choices] == wanted


async def test_drafts_were_tried(engine: ThreadEngine) -> None:
    """The tests above are about something."""
    assert engine.stats().drafted > 50
    assert engine.stats().accepted > 10
