"""Replies under grammars, required calls and thinking budgets: the same however they are run."""

import json
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tiny import ByteTokenizer, shared_step

from tensorfold.chat.grammar.calls import calls_grammar, calls_key
from tensorfold.chat.grammar.compiler import GrammarCompiler
from tensorfold.chat.grammar.structure import Structure
from tensorfold.chat.reasoning import Markers
from tensorfold.chat.thinking import ThinkingRules, closing_tokens, thinking_constraint
from tensorfold.chat.tools.hermes import HermesParser
from tensorfold.chat.tools.interface import Tool
from tensorfold.engine.interface import Constraint, Request, Sampling
from tensorfold.engine.scheduler import RowLimits
from tensorfold.engine.verify import Traced, run_together

VOCABULARY, END, LIMIT = 300, 257, 90
TOKENIZER = ByteTokenizer(VOCABULARY)
MARKERS = Markers(258, 259)
PERSON = {
    "type": "object",
    "properties": {
        "first name": {"enum": ["Ada", "Alan", "Grace"]},
        "is a mathematician": {"type": "boolean"},
        "born": {"type": "integer", "minimum": 1800, "maximum": 1999},
    },
    "required": ["first name", "is a mathematician", "born"],
}
Make = Callable[[], Constraint]


@pytest.fixture(scope="module")
def constraints() -> dict[str, Make]:
    compiler = GrammarCompiler(TOKENIZER, VOCABULARY, TOKENIZER.end_ids)

    def compiled(structure: Structure) -> Make:
        return compiler.compile(structure.grammar, structure.source)

    schema = compiled(Structure.of_schema(PERSON))
    choice = compiled(Structure.of_choices(["the first answer", "the second answer", "neither"]))
    tools = [Tool("describe_person", PERSON), Tool("ping", {"type": "object", "properties": {}})]
    shape = HermesParser.shape
    call = compiler.compile(
        lambda: calls_grammar(shape, tools, TOKENIZER, parallel=False),
        calls_key(shape, tools, parallel=False, blanks_first=False),
    )

    def thinking(budget: int, answer: Make | None) -> Make:
        closing = closing_tokens(TOKENIZER, MARKERS, blank_line=answer is None)
        rules = ThinkingRules(MARKERS, True, closing, budget=budget, guard=True)
        made = thinking_constraint(rules, answer, VOCABULARY, TOKENIZER.end_ids)
        assert made is not None
        return made

    return {
        "schema": schema,
        "choice": choice,
        "regex": compiled(Structure("regex", "(ab|cd)+ [0-9]{3}-[0-9]{3} (yes|no)!")),
        "call": call,
        "budget": thinking(9, None),
        "budget then schema": thinking(9, schema),
        "budget then call": thinking(4, call),
    }


def requests_under(constraints: dict[str, Make]) -> list[Request]:
    """Two of each, greedy and drawn, to a prompt from which some of the reply can be copied."""
    prompt = (256, *b'{"first name": "Ada", "is a mathematician": true, "born": 1815} the first')
    return [
        Request(
            f"{name} at {temperature}",
            prompt,
            Sampling(temperature=temperature, seed=seed, min_tokens=3),
            LIMIT,
            TOKENIZER.end_ids,
            constraint=make,
        )
        for seed, (name, make) in enumerate(constraints.items())
        for temperature in (0.0, 1.0)
    ]


def run(requests: list[Request], stagger: int = 0) -> dict[str, Traced]:
    step = shared_step()
    limits = RowLimits.of_buckets(step.buckets, 0.25)
    return run_together(step, requests, limits, stagger)


def text_of(tokens: tuple[int, ...]) -> str:
    return b"".join(map(TOKENIZER.token_bytes, tokens)).decode(errors="replace")


def test_drafted_serial_and_concurrent_replies_are_equal(constraints: dict[str, Make]) -> None:
    requests = requests_under(constraints)
    serial = {}
    for request in requests:
        serial |= run([replace(request, draft=False)])
    for request in requests:
        assert run([request])[request.id] == serial[request.id], request.id
    order = np.random.default_rng(3)
    for stagger in (0, 3):
        shuffled = [requests[index] for index in order.permutation(len(requests))]
        assert run(shuffled, stagger) == serial
        mixed = [replace(request, draft=index % 2 == 0) for index, request in enumerate(shuffled)]
        assert run(mixed, stagger) == serial


def test_replies_are_of_their_form(constraints: dict[str, Make]) -> None:
    requests = requests_under(constraints)
    replies = run(requests)
    texts = {
        request.id: (replies[request.id].tokens, text_of(replies[request.id].tokens))
        for request in requests
    }
    for name, (tokens, text) in texts.items():
        form, thoughts = name.split(" at ")[0], ""
        if form.startswith("budget"):
            thoughts, _, text = text.partition("<259>")
            closing = tokens.index(MARKERS.closing)
            budget = 4 if "call" in form else 9
            assert closing == budget or thoughts[-1:] != "\n"
        ended = tokens[-1] == END
        text = text.removesuffix("<257>")
        if form.endswith("schema") and ended:
            person = json.loads(text)
            assert list(person) == PERSON["required"]
            assert 1800 <= person["born"] <= 1999
        elif form.endswith("call") and ended:
            assert re.match(r'<tool_call>\n\{"name": "(ping|describe_person)"', text)
            assert text.endswith("}\n</tool_call>")
        elif form == "choice":
            assert text in ("the first answer", "the second answer", "neither")
        elif form == "regex" and ended:
            assert re.fullmatch("(ab|cd)+ [0-9]{3}-[0-9]{3} (yes|no)!", text)
        assert ended or len(tokens) == LIMIT
    assert sum(tokens[-1] == END for tokens, _ in texts.values()) >= 4
