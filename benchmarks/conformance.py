"""How faithfully tool calls are read: the recorded outputs of `canitoolcall`, replayed.

Every fixture is read from the installed package, cut in many ways and read through the stages that
serve chat replies; the package's own checks judge what came of it. `make conformance` prints the
score.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from canitoolcall.checks import case_status, run_checks
from canitoolcall.fixtures import Family, Fixture, load_families, load_fixtures
from canitoolcall.results import Observation, ParseResult, Status, StreamAccumulator

from benchmarks.conformance_tokens import (
    Written,
    control_tokens,
    letters,
    reasoning_markers,
    written,
)
from tensorfold.chat.pieces import Part, Piece, Stages, Token
from tensorfold.chat.reasoning import Markers, ReasoningSplit
from tensorfold.chat.tools.interface import Tool, Tools
from tensorfold.chat.tools.registry import FORMATS
from tensorfold.chat.tools.stage import CallReading, ToolCalls

EVERY_SPLIT = 150
"""Fixtures up to this length are cut in two at every place; longer ones at random places."""
RANDOM_CUTS = 20

_FORMATS = {
    "qwen3-hermes": "hermes",
    "qwen3-xml": "qwen3-xml",
    "glm": "glm",
    "gemma4": "gemma",
    "mistral": "mistral",
    "gpt-oss": "harmony",
    "Kimi-K3": "kimi-k3",
    "Kimi-K2": "kimi",
    "Llama-3": "llama3-json",
    "Llama-4": "pythonic",
    "DeepSeek-V3-0324": "deepseek",
    "DeepSeek-V3.1": "deepseek",
    "DeepSeek": "dsml",
}
"""By family, or by the beginning of the model's name where a family has several formats."""


@dataclass(frozen=True)
class Case:
    """A fixture, and the format of its model."""

    fixture: Fixture
    family: Family
    format: str

    @property
    def prompt(self) -> str:
        """The end of the prompt that the output came behind."""
        if self.fixture.generation_prompt is not None:
            return self.fixture.generation_prompt
        models = {model.repo: model for model in self.family.reference_models}
        model = models.get(self.fixture.models[0])
        return (model.default_generation_prompt if model else None) or ""

    @property
    def tools(self) -> Tools:
        """The offered tools."""
        functions = [tool["function"] for tool in self.fixture.tools]
        return Tools(Tool(each["name"], each.get("parameters") or {}) for each in functions)


@cache
def cases() -> tuple[Case, ...]:
    """Every fixture of the installed package."""
    families = load_families()
    return tuple(
        Case(fixture, families[fixture.family], _format(fixture)) for fixture in load_fixtures()
    )


def _format(fixture: Fixture) -> str:
    model = fixture.models[0].split("/")[-1]
    return _FORMATS[next((name for name in _FORMATS if model.startswith(name)), fixture.family)]


def judge(case: Case) -> tuple[Status, str]:
    """A fixture's status, however its output is cut, and what is wrong with it."""
    whole = replay(case, written(case.fixture, case.format))
    streams: dict[ParseResult, str] = {}
    for name, pieces in ways(case):
        streams.setdefault(replay(case, pieces), name)
    seen = Observation(nonstream=whole, streams={name: read for read, name in streams.items()})
    rows = run_checks(case.fixture, case.family, seen)
    bad = [f"{row.check} ({row.strategy}): {row.detail}" for row in rows if row.detail]
    return case_status(rows), "; ".join(bad)


def ways(case: Case) -> Iterator[tuple[str, list[Written]]]:
    """The output in pieces, in many ways; control tokens stay whole.

    Where the letters of a call's markers tell what they are, the output is also read as that of a
    tokenizer without tokens for them, and then cut inside of them too.
    """
    tokens = written(case.fixture, case.format)
    forms = {"tokens": tokens}
    if spelled := letters(case.fixture, case.format):
        forms["letters"] = spelled
    chance = random.Random(case.fixture.id)
    for form, pieces in forms.items():
        places = _places(pieces)
        yield f"{form}: one letter at a time", cut_at(pieces, places)
        few = form == "letters" or len(case.fixture.raw_output) > EVERY_SPLIT
        chosen = chance.sample(places, min(RANDOM_CUTS, len(places))) if few else places
        for place in chosen:
            yield f"{form}: in two at {place}", cut_at(pieces, [place])
        for _ in range(RANDOM_CUTS // 4):
            some = sorted(chance.sample(places, chance.randint(0, min(30, len(places)))))
            yield f"{form}: at {some}", cut_at(pieces, some)


def _places(pieces: Sequence[Written]) -> list[int]:
    """Where the text may be cut: everywhere but in control tokens."""
    places = []
    start = 0
    for piece in pieces:
        end = start + len(piece.text)
        places += [start] if piece.token is not None else range(start, end)
        start = end
    return [place for place in places if place > 0]


def cut_at(pieces: Sequence[Written], places: Sequence[int]) -> list[Written]:
    """The pieces with their texts cut at these places."""
    cut: list[Written] = []
    start = 0
    for piece in pieces:
        end = start + len(piece.text)
        inside = [place - start for place in places if start < place < end]
        edges = [0, *inside, len(piece.text)]
        cut += [Written(piece.text[a:b], piece.token) for a, b in pairwise(edges)]
        start = end
    return cut


def replay(case: Case, pieces: Sequence[Written]) -> ParseResult:
    """What a client gets of a reply that comes in these pieces."""
    controls = control_tokens(case.fixture, case.format)
    markers = reasoning_markers(controls)
    used = {piece.token for piece in pieces}
    if all(token not in used for token in controls if token not in markers):
        controls = {token: text for token, text in controls.items() if token in markers}
    reading = CallReading(FORMATS[case.format], case.tools, controls=controls, prompt=case.prompt)
    stages = Stages([*_reasoning(case, controls), ToolCalls(reading)])
    parts: list[Part] = []
    for piece in pieces:
        parts += stages.push(
            [Piece(piece.text, (Token(-1 if piece.token is None else piece.token),))]
        )
    parts += stages.finish("truncated" in case.fixture.tags)
    tokens = [token for part in parts for token in part.tokens]
    if len(tokens) != len(pieces):
        raise AssertionError(f"{len(pieces)} tokens became {len(tokens)}")
    return _as_client(parts)


def _reasoning(case: Case, controls: dict[int, str]) -> list[ReasoningSplit]:
    """What splits off the reasoning, where the format has no channels."""
    markers = reasoning_markers(controls)
    if FORMATS[case.format].channels or not markers:
        return []
    opening, closing = (controls[token] for token in markers)
    opened, closed = case.prompt.rfind(opening), case.prompt.rfind(closing)
    header = "thought\n" if case.format == "gemma" else ""
    inside = None if opened == closed else opened > closed
    return [ReasoningSplit(Markers(*markers, header), inside)]


def _as_client(parts: Sequence[Part]) -> ParseResult:
    client = StreamAccumulator()
    content = "".join(
        part.text for part in parts if isinstance(part, Piece) and part.kind == "content"
    )
    called = any(not isinstance(part, Piece) for part in parts)
    # Blanks beside calls are no content, in the server's replies too.
    client.add_content(content if content.strip() or not called else None)
    for part in parts:
        if not isinstance(part, Piece):
            client.add_tool_call(part.index, part.name, part.arguments)
        elif part.kind == "reasoning":
            client.add_reasoning(part.text)
    return client.result()


def main() -> None:
    """Print the score."""
    scores: dict[str, Counter[Status]] = {}
    for case in cases():
        status, detail = judge(case)
        scores.setdefault(case.format, Counter())[status] += 1
        if detail:
            print(f"{status.value}: {case.fixture.id}: {detail}")
    print(f"{'format':14}{'pass':>6}{'soft':>6}{'fail':>6}")
    for name, score in [*scores.items(), ("all", sum(scores.values(), Counter()))]:
        columns = (score[Status.PASS], score[Status.SOFT_PASS], score[Status.FAIL])
        print(f"{name:14}" + "".join(f"{number:6}" for number in columns))


if __name__ == "__main__":
    main()
