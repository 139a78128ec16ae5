"""Replies of every format, in the manner of its templates, and how a test reads one."""

from dataclasses import dataclass
from itertools import pairwise

from tensorfold.chat.tools.interface import Call, Content, Event, Tool, Tools
from tensorfold.chat.tools.parser import joined
from tensorfold.chat.tools.registry import FORMATS

TOOLS = Tools(
    [
        Tool(
            "get_weather",
            {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "exact": {"type": "boolean"},
                    "at": {"type": "object"},
                    "tags": {"type": "array"},
                    "scale": {"type": "number"},
                    "note": {"type": ["string", "null"]},
                },
            },
        ),
        Tool("ping"),
    ]
)
VALUE = '{"city": "Zürich", "days": 2}'


@dataclass(frozen=True)
class Sample:
    """Two calls of a format: get_weather with `VALUE`, then ping with nothing."""

    first: str
    second: str
    before: str = ""
    after: str = ""
    prompt: str = ""

    @property
    def text(self) -> str:
        return self.before + self.first + self.second + self.after


def _json(name, arguments, key="arguments"):
    return '{"name": "' + name + '", "' + key + '": ' + arguments + "}"


_XML = "<parameter=city>\nZürich\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
_GLM = (
    "<arg_key>city</arg_key><arg_value>Zürich</arg_value><arg_key>days</arg_key>"
    "<arg_value>2</arg_value>"
)
_DSML = (
    '<｜DSML｜parameter name="city" string="true">Zürich</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
)
_XTML = (
    '<|open|>argument key="city" type="string"<|sep|>Zürich<|close|>argument<|sep|>'
    '<|open|>argument key="days" type="number"<|sep|>2<|close|>argument<|sep|>'
)

SAMPLES = {
    "hermes": Sample(
        f"<tool_call>\n{_json('get_weather', VALUE)}\n</tool_call>",
        f"\n<tool_call>\n{_json('Ping', '{}')}\n</tool_call>",
    ),
    "nemotron": Sample(
        f"<TOOLCALL>[{_json('get_weather', VALUE)}",
        f", {_json('Ping', '{}')}]</TOOLCALL>",
    ),
    "qwen3-xml": Sample(
        f"<tool_call>\n<function=get_weather>\n{_XML}</function>\n</tool_call>",
        "\n<tool_call>\n<function=Ping>\n</function>\n</tool_call>",
    ),
    "glm": Sample(
        f"<tool_call>get_weather{_GLM}</tool_call>",
        "\n<tool_call>Ping\n</tool_call>",
    ),
    "gemma": Sample(
        '<|tool_call>call:get_weather{city:<|"|>Zürich<|"|>,days:2}<tool_call|>',
        "<|tool_call>call:Ping{}<tool_call|>",
    ),
    "llama3-json": Sample(
        f"<|python_tag|>{_json('get_weather', VALUE, 'parameters')}",
        f"; {_json('Ping', '{}', 'parameters')}",
    ),
    "pythonic": Sample(
        "<|python_start|>[get_weather(city='Zürich', days=2)", ", Ping()]<|python_end|>"
    ),
    "mistral": Sample(f"[TOOL_CALLS]get_weather[ARGS]{VALUE}", "[TOOL_CALLS]Ping[ARGS]{}"),
    "deepseek": Sample(
        f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{VALUE}<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>Ping\n```json\n{}\n```<｜tool▁call▁end｜>",
        before="<｜tool▁calls▁begin｜>",
        after="<｜tool▁calls▁end｜>",
    ),
    "dsml": Sample(
        f'<｜DSML｜invoke name="get_weather">\n{_DSML}</｜DSML｜invoke>\n',
        '<｜DSML｜invoke name="Ping">\n</｜DSML｜invoke>\n',
        before="<｜DSML｜tool_calls>\n",
        after="</｜DSML｜tool_calls>",
    ),
    "kimi": Sample(
        "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        f"{VALUE}<|tool_call_end|>",
        "<|tool_call_begin|>functions.Ping:1<|tool_call_argument_begin|>{}<|tool_call_end|>",
        before="<|tool_calls_section_begin|>",
        after="<|tool_calls_section_end|>",
    ),
    "kimi-k3": Sample(
        f'<|open|>call tool="get_weather" index="1"<|sep|>{_XTML}<|close|>call<|sep|>',
        '<|open|>call tool="Ping" index="2"<|sep|><|close|>call<|sep|>',
        before="<|close|>response<|sep|><|open|>tools<|sep|>",
        after="<|close|>tools<|sep|><|close|>message<|sep|>",
        prompt="<|open|>response<|sep|>",
    ),
    "harmony": Sample(
        "<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        f"<|constrain|>json<|message|>{VALUE}<|call|>",
        "<|start|>assistant to=functions.Ping<|channel|>commentary<|message|>{}<|call|>",
    ),
}
PROSE = {"harmony": "<|channel|>final<|message|>"}
"""What stands before text for the client."""


def read(name, text, *, cut=False, at=None, tools=TOOLS, controls=(), prompt=None):
    """The events of a reply that is cut into pieces at `at`, every letter alone by default."""
    sample = SAMPLES[name]
    parser = FORMATS[name](
        tools, controls=controls, prompt=sample.prompt if prompt is None else prompt
    )
    places = range(1, len(text)) if at is None else sorted(at)
    edges = [0, *(place for place in places if 0 < place < len(text)), len(text)]
    events: list[Event] = []
    for start, end in pairwise(edges):
        events += parser.feed(text[start:end])
    return joined([*events, *parser.finish(cut=cut)])


def calls(events):
    return [event for event in events if isinstance(event, Call)]


def content(events):
    return "".join(event.text for event in events if isinstance(event, Content))
