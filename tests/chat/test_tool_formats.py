"""What single formats make of odd replies."""

import json

import pytest
from call_texts import TOOLS, calls, content, read

from tensorfold.chat.tools.interface import Tool, Tools
from tensorfold.chat.tools.registry import FORMATS, choose_format

NO_CALL = [
    ("llama3-json", '{"a": 1} is a dict'),
    ("llama3-json", "{}"),
    ("llama3-json", '{"parameters": {}}'),
    ("llama3-json", '{"name": "someone", "parameters": {"age": 3}}'),
    ("llama3-json", '[{"name": "ping", "parameters": {}}, {"name": "someone"}]'),
    ("llama3-json", "<|python_tag|>print('hi')"),
    ("hermes", "<tool_call>not JSON</tool_call>"),
    ("hermes", "<tool_call></tool_call>"),
    ("hermes", "<tool_call>"),
    ("hermes", '<tool_call>{"name": "ping", "arguments": {"a": NaN}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "ping", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "two words", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "ping", "arguments": {}} and so on'),
    ("hermes", '```json\n{"name": "someone"}\n```'),
    ("hermes", '```json\n{"name": "ping"}\nand no end'),
    ("hermes", "```python\nprint(1)\n```"),
    ("qwen3-xml", "<tool_call>\n{}\n</tool_call>"),
    ("qwen3-xml", "Use <function=x> or <parameter=y> tags."),
    ("qwen3-xml", "<tool_call>\n<function=ping>\n<parameter=a>\nx"),
    ("qwen3-xml", "<function=ping>\n<parameter=a"),
    ("glm", "<tool_call>two words\n</tool_call>"),
    ("glm", "<tool_call>unknown"),
    ("glm", "<tool_call>ping<arg_key>a</arg_key></tool_call>"),
    ("glm", "<tool_call>ping<arg_key></arg_key><arg_value>1</arg_value></tool_call>"),
    ("gemma", "<|tool_call>call:bad no brace<tool_call|>"),
    ("gemma", "<|tool_call>ping{}<tool_call|>"),
    ("gemma", "<|tool_call>call:ping{a:}<tool_call|>"),
    ("gemma", "<|tool_call>call:ping{a:1<tool_call|>"),
    ("gemma", "<|tool_call>call:ping" + "{a:" * 80 + "1" + "}" * 80 + "<tool_call|>"),
    ("mistral", "[TOOL_CALLS] no JSON at all"),
    ("mistral", "[TOOL_CALLS]ping[ARGS]{'a': 1}"),
    ("mistral", "[TOOL_CALLS] []"),
    ("pythonic", "[1, 2]"),
    ("pythonic", "[a link](https://x)"),
    ("pythonic", "[someone(a=1)]"),
    ("pythonic", "[ping(1)]"),
    ("pythonic", "[ping(a=b)]"),
    ("pythonic", "[ping(a=1), ping"),
    ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"),
    ("deepseek", "<｜tool▁calls▁begin｜>ping<｜tool▁calls▁end｜>"),
    ("dsml", "<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>"),
    ("dsml", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="ping">\nx'),
    ("nemotron", "<TOOLCALL>[]</TOOLCALL>"),
]


@pytest.mark.parametrize(("name", "text"), NO_CALL)
def test_case_35_what_is_no_call_is_content(name, text):
    assert read(name, text) == read(name, text, at=())
    assert content(read(name, text)) == text.rstrip(" ")
    assert calls(read(name, text)) == []


ONE_CALL = [
    ("llama3-json", '{"name": "get_weather", "arguments": {"city": "Tokyo"}}', {"city": "Tokyo"}),
    ("llama3-json", '{"type": "function", "name": "ping", "parameters": {"n": 1}}', {"n": 1}),
    ("hermes", '{"name": "ping", "arguments": {}}', {}),
    ("hermes", '```json\n{"tool": "ping", "args": {"a": 1}}\n```', {"a": 1}),
    ("hermes", '```\n{"call": "ping", "a": 1, "b": [2]}\n```', {"a": 1, "b": [2]}),
    ("hermes", '<tool_call>{"function": "ping", "parameters": {"a": 1}}</tool_call>', {"a": 1}),
    ("hermes", '<tool_call>{"name": "PING", "arguments": null}</tool_call>', {}),
    (
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "ping", "arguments": {"a": 1}}}'
        "</tool_call>",
        {"a": 1},
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {"name": "x"}, "name": "ping"}</tool_call>',
        {"name": "x"},
    ),
    (
        "hermes",
        '<tool_call>{"name": "ping", "arguments": {"c": "if (x) { y } ]"}}</tool_call>',
        {"c": "if (x) { y } ]"},
    ),
    (
        "hermes",
        '<tool_call>{"name": "ping", "arguments": {"c": "a</tool_call>b"}}</tool_call>',
        {"c": "a</tool_call>b"},
    ),
    (
        "hermes",
        '<tool_call>{"name": "ping", "arguments": {"n": 100000000000000000000}}</tool_call>',
        {"n": 10**20},
    ),
    ("qwen3-xml", "<function=ping>\n<parameter=a>\n1\n</parameter>\n</function>", {"a": "1"}),
    (
        "qwen3-xml",
        "<tool_call>\n<function=ping>\n<parameter=a>\n</parameter>\n</function>\n</tool_call>",
        {"a": ""},
    ),
    (
        "qwen3-xml",
        "<tool_call>\n<function=ping>\n<parameter=a>\n  x\n\n</parameter>\n</function>\n"
        "</tool_call>",
        {"a": "  x\n"},
    ),
    (
        "qwen3-xml",
        "<tool_call>\n<function=ping>\n<parameter=a>\n</tool_call>\n</function>\n</parameter> x"
        "\n</parameter>\n</function>\n</tool_call>",
        {"a": "</tool_call>\n</function>\n</parameter> x"},
    ),
    (
        "qwen3-xml",
        "<tool_call><function=ping><parameter=a>x</parameter><parameter=b>y</parameter>"
        "</function></tool_call>",
        {"a": "x", "b": "y"},
    ),
    (
        "qwen3-xml",
        '<tool_call>\n<function=get_weather>\n<parameter=at>\n{"a": {"b": 1}\n'
        "</parameter>\n</function>\n</tool_call>",
        {"at": '{"a": {"b": 1}'},
    ),
    (
        "glm",
        "<tool_call>ping\n<arg_key>a</arg_key>\n<arg_value> x\n</arg_value>\n</tool_call>",
        {"a": " x\n"},
    ),
    (
        "glm",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>a</arg_value>days</arg_key>"
        "<arg_value>3</arg_value></tool_call>",
        {"city": "a", "days": 3},
    ),
    ("glm", "<tool_call>ping<arg_key>a</arg_key><arg_value>celsius</tool_call>", {"a": "celsius"}),
    ("glm", "<tool_call>ping<arg_key>a</arg_key><arg_value>celsius", {"a": "celsius"}),
    (
        "gemma",
        '<|tool_call>call:ping{Basic Chain:{main:[[{n:<|"|>X<|"|>,i:0}]]}}<tool_call|>',
        {"Basic Chain": {"main": [[{"n": "X", "i": 0}]]}},
    ),
    (
        "gemma",
        '<|tool_call>call:ping{a:null,b:1e-05,c:false,d:<|"|>}<tool_call|>{<|"|>}',
        {"a": None, "b": 1e-05, "c": False, "d": "}<tool_call|>{"},
    ),
    ("gemma", "<|tool_call>call:ping{a:bare word}<tool_call|>", {"a": "bare word"}),
    ("pythonic", "[ping(_limit=5)]", {"_limit": 5}),
    (
        "pythonic",
        "[ping(a=None, b=True, c=[1, -2.5], d={'x': (1, 'y')}, e='it\\'s', f=\"\"\"q q\"\"\")]",
        {"a": None, "b": True, "c": [1, -2.5], "d": {"x": [1, "y"]}, "e": "it's", "f": "q q"},
    ),
    (
        "pythonic",
        "[ping(a='\\u6771\\n\\d', b=1_000, c='x' 'y')]",
        {"a": "東\n\\d", "b": 1000, "c": "xy"},
    ),
    ("pythonic", "[ping(a='\\ud83d\\ude0a', b='\\ud83d')]", {"a": "😊", "b": "�"}),
    ("mistral", '[TOOL_CALLS]ping[CALL_ID]123456789[ARGS]{"a": 1}', {"a": 1}),
    ("mistral", '[TOOL_CALLS] [{"name": "ping", "arguments": {"a": 1}, "id": "x"}]', {"a": 1}),
    ("mistral", '[TOOL_CALLS]ping{"a": 1}', {"a": 1}),
    ("dsml", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="ping"/>\n</｜DSML｜tool_calls>', {}),
    (
        "dsml",
        '<｜DSML｜ calls>\n<｜DSML｜ invoke name="ping">\n'
        '<｜DSML｜ parameter name="a" string="true"> x'
        "</｜DSML｜ parameter> \n</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
        {"a": " x</｜DSML｜ parameter> \n"},
    ),
    (
        "harmony",
        ' to=functions.ping<|channel|>commentary <|constrain|>json<|message|>{"a": 1}',
        {"a": 1},
    ),
    (
        "harmony",
        '<|channel|>analysis to=functions.ping<|message|>{"a": "<|call|>"}',
        {"a": "<|call|>"},
    ),
    (
        "kimi-k3",
        '<|open|>tools<|sep|><|open|>call tool="ping" index="1"<|sep|><|open|>argument '
        'key="q&amp;a" type="string"<|sep|>x<|close|>argument<|sep|> y<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
        {"q&a": "x<|close|>argument<|sep|> y"},
    ),
]


@pytest.mark.parametrize(("name", "text", "arguments"), ONE_CALL)
def test_one_call(name, text, arguments):
    for at in ((), None):
        (call,) = calls(read(name, text, at=at))
        assert json.loads(call.arguments) == arguments
        assert call.name in ("ping", "get_weather")
        assert content(read(name, text, at=at)) == ""


def test_case_8_letters_and_numbers_stay_as_the_model_wrote_them():
    text = (
        '<tool_call>{"name": "ping", "arguments": {"b": "東京 \\u00e9", "a": 1.10e1 }}</tool_call>'
    )
    (call,) = calls(read("hermes", text))
    assert call.arguments == '{"b": "東京 \\u00e9", "a": 1.10e1 }'


def test_a_call_to_a_tool_nobody_offered_keeps_its_name():
    text = '<tool_call>{"name": "Other.tool", "arguments": {}}</tool_call>'
    assert [call.name for call in calls(read("hermes", text))] == ["Other.tool"]


def test_the_exact_spelling_comes_first():
    tools = Tools([Tool("Ping"), Tool("ping")])
    text = '<tool_call>{"name": "NAME", "arguments": {}}</tool_call>'
    found = [
        calls(read("hermes", text.replace("NAME", name), tools=tools))[0].name
        for name in ("ping", "Ping", "PING")
    ]
    assert found == ["ping", "Ping", "Ping"]


@pytest.mark.parametrize("marker", ["<tool_call>", "<function=ping>\n"])
def test_case_41_prose_stays_before_a_call_without_its_opener(marker):
    opener = "" if marker == "<tool_call>" else marker
    text = (
        "I look.\n\n" + (opener or "<tool_call>\n<function=ping>\n") + "</function>\n</tool_call>"
    )
    events = read("qwen3-xml", text)
    assert (content(events), len(calls(events))) == ("I look.", 1)


def test_a_good_call_behind_a_bad_one_is_found():
    text = '<tool_call>{"name": "a", <tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    events = read("hermes", text)
    assert [call.name for call in calls(events)] == ["ping"]
    assert content(events) == '<tool_call>{"name": "a",'


def test_text_between_and_behind_calls_is_kept():
    call = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    events = read("hermes", f"a\n{call}\nb {call}\n")
    assert content(events) == "a\nb"
    events = read("gemma", "a <|tool_call>call:ping{}<tool_call|> b")
    assert content(events) == "a  b"


def test_case_76_harmony_skips_headers_that_are_none():
    text = "<|channel|>??<|end|><|start|>assistant<|channel|>comment<|message|>x<|end|>"
    text += "<|start|>assistant<|channel|>commentary to=python<|message|>print()<|end|>"
    text += "<|start|>assistant<|channel|>final<|message|>Hello<|return|>"
    events = read("harmony", text)
    assert (content(events), calls(events)) == ("Hello", [])


def test_harmony_without_tools_calls_nothing():
    text = ' to=functions.ping<|channel|>commentary<|message|>{"a": 1}'
    events = read("harmony", text, tools=Tools())
    assert (content(events), calls(events)) == ('{"a": 1}', [])


@pytest.mark.parametrize(
    ("template", "controls", "name"),
    [
        ("{{ '<tool_call>' }}", (), "hermes"),
        ("<tool_call>\n<function=example>\n<parameter=x>", (), "qwen3-xml"),
        ("<tool_call>{name}\n<arg_key>", (), "glm"),
        ("<|tool_call>call:x<tool_call|>", (), "gemma"),
        ("<|start_header_id|>", (), "llama3-json"),
        ("<|start_header_id|> [func_name1(params_name1=x)]", (), "pythonic"),
        ("<|python_start|>", (), "pythonic"),
        ("[TOOL_CALLS]", (), "mistral"),
        ("<｜tool▁calls▁begin｜>", (), "deepseek"),
        ("｜DSML｜", (), "dsml"),
        ("<|start|>x<|channel|>y<|message|>", (), "harmony"),
        ("<|tool_calls_section_begin|>", (), "kimi"),
        ("<|open|>x<|close|>", (), "kimi-k3"),
        ("<TOOLCALL>", (), "nemotron"),
        ("", ("[INST]", "[TOOL_CALLS]"), "mistral"),
        ("", (), "hermes"),
    ],
)
def test_a_format_is_told_by_the_template_then_by_the_tokenizer(template, controls, name):
    assert choose_format(None, template, controls).name == name
    assert choose_format("kimi", template, controls).name == "kimi"


def test_an_unknown_format_is_refused_with_the_names():
    with pytest.raises(ValueError, match="unknown tool format 'x'; there are deepseek, dsml"):
        choose_format("x", "", ())
    assert all(FORMATS[name].name == name for name in FORMATS)
    assert [tool.name for tool in TOOLS] == ["get_weather", "ping"]
