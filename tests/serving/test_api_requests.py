"""What a request asks of the engine, and what is refused."""

import json

import pytest
from conversing import CHAT, ROUTES, TEXT, Client, question, whole_text
from scripted import BOS, CONTROLS, IM_END, IM_START, ByteTokenizer, ScriptedEngine, make_service

from tensorfold.chat.prompt import ChatEncoder
from tensorfold.chat.template import ChatTemplate
from tensorfold.checkpoints.interface import GenerationDefaults
from tensorfold.engine.interface import Limits, Sampling
from tensorfold.serving.service import ReplyDefaults


async def asked(path, **fields):
    client = Client()
    await client.ask(path, **fields)
    return client.engine.requests[0]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({}, Sampling()),
        ({"temperature": None, "top_p": None, "top_k": None, "seed": None}, Sampling()),
        ({"temperature": 0.5, "seed": 7}, Sampling(temperature=0.5, seed=7)),
        ({"temperature": "0.5", "seed": "7"}, Sampling(temperature=0.5, seed=7)),
        ({"temperature": -1}, Sampling(temperature=-1.0)),
        ({"seed": -(2**200)}, Sampling(seed=-(2**200))),
        ({"seed": 3.0}, Sampling(seed=3)),
        ({"top_p": 0.9, "top_k": 40, "min_p": 0.1}, Sampling(top_p=0.9, top_k=40, min_p=0.1)),
        ({"top_k": -1}, Sampling()),
        ({"top_k": 10**30}, Sampling()),
        ({"top_p": 7}, Sampling(top_p=7.0)),
        ({"min_p": 1}, Sampling(min_p=1.0)),
        (
            {"presence_penalty": -2, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
            Sampling(presence_penalty=-2.0, frequency_penalty=0.5, repetition_penalty=1.1),
        ),
        ({"logit_bias": {"7": -100, "0": 0.5}}, Sampling(logit_bias=((7, -100.0), (0, 0.5)))),
        ({"logit_bias": {}, "presence_penalty": 0, "min_tokens": 0}, Sampling()),
        ({"min_tokens": 3}, Sampling(min_tokens=3)),
    ],
)
async def test_sampling(path, fields, sampling):
    assert (await asked(path, **fields)).sampling == sampling


def test_defaults_come_from_flags_then_the_checkpoint_then_nothing():
    generation = GenerationDefaults(temperature=0.6, top_k=20)
    assert ReplyDefaults.of(generation) == ReplyDefaults(4096, Sampling(temperature=0.6, top_k=20))
    given = ReplyDefaults.of(generation, max_tokens=5, temperature=0.0, top_p=0.8, min_p=0.1)
    assert given == ReplyDefaults(5, Sampling(temperature=0.0, top_k=20, top_p=0.8, min_p=0.1))
    assert ReplyDefaults.of(GenerationDefaults()) == ReplyDefaults()


async def test_defaults_hold_where_a_request_is_silent():
    defaults = ReplyDefaults(7, Sampling(temperature=0.6, top_k=20))
    client = Client(defaults=defaults)
    await client.ask(TEXT)
    await client.ask(TEXT, temperature=0, max_tokens=9)
    first, second = client.engine.requests
    assert (first.sampling, first.max_tokens) == (Sampling(temperature=0.6, top_k=20), 7)
    assert (second.sampling, second.max_tokens) == (Sampling(temperature=0.0, top_k=20), 9)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 5),
        ({"max_tokens": 0, "max_completion_tokens": 6}, 6),
        ({"max_tokens": None, "max_completion_tokens": "6"}, 6),
        ({"max_tokens": "5"}, 5),
        ({"max_tokens": 5.0}, 5),
    ],
)
async def test_reply_limits(path, fields, limit):
    assert (await asked(path, **fields)).max_tokens == limit


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("fields", [{}, {"max_tokens": 0}, {"max_tokens": None}])
async def test_the_default_limit_fits_the_window(path, fields):
    request = await asked(path, **fields)
    assert request.max_tokens == 4096 - len(request.prompt)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 4096},
        {"max_completion_tokens": 10**30},
        {"content": "x" * 4096},
        {"content": "x" * 5000},
        {"content": "x" * 5000, "max_tokens": 1},
    ],
)
async def test_cases_139_140_a_request_that_does_not_fit(path, stream, fields):
    client = Client()
    fields = dict(fields)
    content = fields.pop("content", "Hi")
    body = {"messages": [{"role": "user", "content": content}], "prompt": content}
    error = await client.refused(path, body | fields | {"stream": stream})
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "invalid_request_error"
    assert error["param"] == ("messages" if path == CHAT else "prompt")
    assert error["message"].startswith("This server's maximum context length is 4096 tokens")
    assert client.engine.requests == []


@pytest.mark.parametrize("path", ROUTES)
async def test_a_window_that_could_be_larger_is_told(path):
    for model_context, more in ((0, "."), (4096, "."), (8192, "--context may allow up to 8192.")):
        client = Client(model_context=model_context)
        error = await client.refused(path, question(path) | {"max_tokens": 5000})
        assert error["message"].endswith(more)
        assert ("--context" in error["message"]) == (more != ".")


async def test_a_request_may_fill_the_window_to_its_last_token():
    client = Client()
    await client.ask(TEXT, prompt="x" * 4095)
    await client.ask(TEXT, prompt="x" * 4090, max_tokens=6)
    assert [request.max_tokens for request in client.engine.requests] == [1, 6]


async def test_case_137_short_prompts():
    client = Client()
    assert whole_text(await client.ask(TEXT, prompt="h")) == "Hello"


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("Hi", tuple(b"Hi")),
        (["Hi"], tuple(b"Hi")),
        ([1, 2], (1, 2)),
        ([1, 2.0], (1, 2)),
        ([[1, 2]], (1, 2)),
        ("<|im_start|>a", (IM_START, *b"a")),
        ("<bos>a", (BOS, *b"a")),
    ],
)
async def test_completion_prompts(prompt, tokens):
    assert (await asked(TEXT, prompt=prompt)).prompt == tokens


@pytest.mark.parametrize("prompt", ["Hi", "<bos>Hi"])
async def test_case_130_one_first_token(prompt):
    assert (await asked(TEXT, prompt=prompt, add_special_tokens=True)).prompt == (BOS, *b"Hi")


@pytest.mark.parametrize(
    "prompt",
    [None, "", [], [""], [[]], ["a", ""], [[1], []], ["a", 3], 3, {}, [1, "a"], [1.5], [True],
     [None], [-1], [ByteTokenizer.vocab_size], [10**30], [["a"]], [1, [2]]],
)  # fmt: skip
async def test_bad_prompts(prompt):
    client = Client()
    error = await client.refused(TEXT, {"prompt": prompt})
    assert error["param"] == "prompt"
    assert "prompt" in error["message"]
    assert client.engine.requests == []


async def test_token_ids_out_of_range_name_the_range():
    error = await Client().refused(TEXT, {"prompt": [5000]})
    assert f"0 to {ByteTokenizer.vocab_size - 1}" in error["message"]


BAD_FIELDS = [
    *[("temperature", value) for value in (True, "warm", "", "nan", "1_0", [], {}, 10**400)],
    *[("top_p", value) for value in (False, "x", [0.5])],
    *[("top_k", value) for value in (1.5, "x", True, "1.5", {})],
    *[("min_p", value) for value in (-0.1, 1.1, True, "x")],
    *[("seed", value) for value in (1.5, True, "x", [], "1e3")],
    *[("max_tokens", value) for value in (-1, 1.5, True, "x", {}, "-3")],
    *[("max_completion_tokens", value) for value in (-1, 1.5, False, "many")],
    *[("stop", value) for value in ("", [""], ["a", ""], 3, [3], {}, ["a", None], "x" * 5000)],
    ("stop", ["a"] * 257),
    *[("ignore_eos", value) for value in (1, "true", [])],
    *[("stream", value) for value in (1, "true", {})],
    *[("draft", value) for value in (0, "no")],
    *[("stream_options", value) for value in (True, [], "x", {"include_usage": 1})],
    *[("n", value) for value in (0, 17, -1, 1.5, "two", True)],
    *[("model", value) for value in (3, [], {})],
    ("response_format", {"type": "sound"}),
    ("response_format", "text"),
    ("guided_json", {"not": {}}),
    ("guided_regex", "("),
    ("structured_outputs", {"json": {}, "regex": "a"}),
    ("guided_choice", []),
    ("guided_grammar", "root ::= a"),
    *[
        ("logit_bias", value)
        for value in (
            {"x": 1},
            {"-1": 1},
            {"01": 1},
            {"1": "5"},
            {"1": 101},
            {"1": None},
            {str(10**8): 1},
            [1],
            "x",
            {str(i): 1 for i in range(1025)},
        )
    ],
    *[("frequency_penalty", value) for value in (2.1, -3, "0.5", True)],
    *[("presence_penalty", value) for value in (2.1, -3, {}, False)],
    *[("repetition_penalty", value) for value in (0, -1, 101, "1", True)],
    ("logprobs", "yes"),
    ("prompt_logprobs", 21),
    ("best_of", 2),
    *[("min_tokens", value) for value in (-1, 1.5, True, "x")],
    *[("stop_token_ids", value) for value in (3, "x", [1, "a"], [True], [10**6], [-1], [1] * 257)],
    *[("return_token_ids", value) for value in (1, "yes")],
    *[("priority", value) for value in ("high", "BACKGROUND", "", 0.5, [], True)],
    *[("cache_salt", value) for value in (1, {})],
]
BAD_CHAT_FIELDS = [
    ("tools", {}),
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}),
    ("tool_choice", 3),
    ("functions", [{"name": "f"}]),
    *[("reasoning_effort", value) for value in ("hard", "", 1, True, {})],
    *[("top_logprobs", value) for value in (2, 21, -1, True, "2")],
    *[("logprobs", value) for value in (1, 0, [])],
    ("prompt_logprobs", 0),
    ("modalities", ["text", "audio"]),
    ("chat_template_kwargs", []),
    ("chat_template_kwargs", "x"),
    ("chat_template_kwargs", {"enable_thinking": "yes"}),
    ("chat_template_kwargs", {"messages": []}),
    ("chat_template_kwargs", {"tools": [{}]}),
    ("messages", []),
    ("messages", None),
]
BAD_TEXT_FIELDS = [
    ("suffix", "x"),
    ("add_special_tokens", 1),
    *[("echo", value) for value in (1, "true")],
    *[("logprobs", value) for value in (21, -1, True, "2", 1.5)],
    *[("prompt_logprobs", value) for value in (-1, True, "2")],
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        *[(path, *field) for path in ROUTES for field in BAD_FIELDS],
        *[(CHAT, *field) for field in BAD_CHAT_FIELDS],
        *[(TEXT, *field) for field in BAD_TEXT_FIELDS],
    ],
)
async def test_bad_fields_are_named_before_a_stream_opens(path, name, value, stream):
    client = Client()
    error = await client.refused(path, question(path) | {"stream": stream} | {name: value})
    assert error["param"] == name
    assert name in error["message"]
    assert client.engine.requests == []


HARMLESS = {
    "user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto",
    "prompt_cache_key": "k", "safety_identifier": "s", "verbosity": "low", "prediction": None,
    "parallel_tool_calls": True, "reasoning_effort": "low", "moderation": {}, "audio": None,
    "web_search_options": {}, "tools": [], "tool_choice": "none", "response_format": None,
    "logprobs": False, "top_logprobs": None, "logit_bias": {}, "frequency_penalty": 0.0,
    "presence_penalty": 0, "repetition_penalty": 1.0, "n": 1, "best_of": 1, "echo": False,
    "return_token_ids": False,
    "suffix": None, "modalities": ["text"], "min_tokens": 0, "stream_options": None,
    "stop": None, "function_call": "auto", "priority": "background", "unheard_of": [1],
}  # fmt: skip


@pytest.mark.parametrize("path", ROUTES)
async def test_fields_that_change_nothing_are_accepted(path):
    client = Client()
    await client.ask(path, **HARMLESS)
    await client.ask(path)
    first, second = client.engine.requests
    assert (first.prompt, first.sampling, first.max_tokens, first.end_ids) == (
        second.prompt, second.sampling, second.max_tokens, second.end_ids
    )  # fmt: skip


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        ({}, {IM_END}),
        ({"stop_token_ids": []}, {IM_END}),
        ({"stop_token_ids": [65, 66]}, {IM_END, 65, 66}),
        ({"stop_token_ids": [65], "ignore_eos": True}, {65}),
        ({"ignore_eos": True}, set()),
    ],
)
async def test_tokens_that_end_a_reply(path, fields, ends):
    assert (await asked(path, **fields)).end_ids == ends


@pytest.mark.parametrize("path", ROUTES)
async def test_min_tokens_past_the_limit_are_refused(path):
    error = await Client().refused(path, question(path) | {"min_tokens": 6, "max_tokens": 5})
    assert error["param"] == "min_tokens"
    assert (await asked(path, min_tokens=5, max_tokens=5)).sampling.min_tokens == 5


@pytest.mark.parametrize("path", ROUTES)
async def test_priority_and_cache_salt(path):
    plain = await asked(path)
    assert (plain.background, plain.cache_salt) == (False, "")
    given = await asked(path, priority="background", cache_salt="mine")
    assert (given.background, given.cache_salt) == (True, "mine")
    for priority in ("foreground", 0, -1, None):
        assert not (await asked(path, priority=priority)).background
    for priority in (1, 2.0, 10**30):
        assert (await asked(path, priority=priority)).background
    error = await Client().refused(path, question(path) | {"priority": "high"})
    assert error["message"] == (
        'priority must be an integer, "background" or "foreground", or null'
    )


def system(text):
    return [{"role": "system", "content": text}, {"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("fields", "background"),
    [
        ({"messages": system("Write a short Title for this chat")}, True),
        ({"messages": system([{"type": "text", "text": "a title, please"}])}, True),
        ({"messages": system("Be brief")}, False),
        ({"messages": [{"role": "user", "content": "Write a title"}]}, False),
        ({"messages": system("a title") + system("x" * 4100)}, False),
        ({"messages": [*system("a title"), {"role": "assistant", "content": None}]}, True),
        ({"messages": system("a title"), "tools": [], "tool_choice": None}, True),
        ({"messages": system("a title"), "tools": [{"type": "function", "function":
          {"name": "f"}}], "tool_choice": "none"}, False),
    ],
)  # fmt: skip
async def test_title_requests_are_background_work(fields, background):
    limits = Limits(context=10_000, vocab_size=ByteTokenizer.vocab_size, lanes=1)
    client = Client(ScriptedEngine(limits=limits))
    await client.ask(CHAT, **fields)
    assert client.engine.requests[0].background is background


@pytest.mark.parametrize("path", ROUTES)
async def test_cases_29_59_92_null_is_absent_everywhere(path):
    names = {name for name, _ in [*BAD_FIELDS, *BAD_CHAT_FIELDS, *BAD_TEXT_FIELDS]}
    client = Client()
    await client.ask(path, **dict.fromkeys(names - {"messages"}))
    assert len(client.engine.requests) == 1


async def test_tools_are_left_out_when_none_may_be_called():
    tools = [{"type": "function", "function": {"name": "f"}}]
    with_tools = await asked(CHAT, tools=tools, tool_choice="none")
    assert with_tools.prompt == (await asked(CHAT)).prompt


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        (None, "none/none"),
        ({}, "none/none"),
        ({"enable_thinking": False}, "false/none"),
        ({"enable_thinking": None}, "none/none"),
        ({"thinking": True}, "true/none"),
        ({"thinking": {"type": "disabled"}}, "false/none"),
        ({"thinking": {"type": "enabled"}}, "true/none"),
        ({"thinking": {"type": "adaptive"}}, "none/none"),
        ({"thinking": {"type": ["enabled"]}}, "none/none"),
        ({"thinking": 1}, "none/none"),
        ({"thinking": True, "enable_thinking": False}, "false/none"),
        ({"tone": "dry"}, "none/dry"),
    ],
)
async def test_template_variables(kwargs, text):
    source = "{{ (enable_thinking | default(none)) | tojson | replace('null', 'none') }}/" + (
        "{{ tone | default('none') }}"
    )
    encoder = ChatEncoder(ChatTemplate(source, {}), ByteTokenizer())
    client = Client(chat=encoder)
    await client.ask(CHAT, chat_template_kwargs=kwargs)
    assert bytes(client.engine.requests[0].prompt).decode() == text


# It names two levels, and writes no word that it does not know.
LEVELS = (
    "{{ enable_thinking | default('-') }}/"
    "{{ {'low': 'low', 'high': 'high'}[reasoning_effort] if reasoning_effort in ['low', 'high'] "
    "else (reasoning_effort or '-') | length }}"
)


@pytest.mark.parametrize(
    ("fields", "server", "told"),
    [
        ({}, None, "-/1"),
        ({"reasoning_effort": None}, None, "-/1"),
        ({"reasoning_effort": "none"}, None, "False/1"),
        ({"reasoning_effort": "minimal"}, None, "True/low"),
        ({"reasoning_effort": "medium"}, None, "True/high"),
        ({"reasoning_effort": "max"}, None, "True/high"),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}}, None, "True/low"),
        ({"chat_template_kwargs": {"reasoning_effort": "none"}}, None, "False/1"),
        ({"chat_template_kwargs": {"reasoning_effort": "hard"}}, None, "True/4"),
        ({"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "low"}}, None,
         "True/high"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, None,
         "False/1"),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, None,
         "True/1"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"thinking": False}}, None,
         "False/1"),
        ({}, "low", "True/low"),
        ({}, "none", "False/1"),
        ({"reasoning_effort": "high"}, "none", "True/high"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "low", "False/1"),
    ],
)  # fmt: skip
async def test_reasoning_effort(fields, server, told):
    encoder = ChatEncoder(ChatTemplate(LEVELS, {}), ByteTokenizer())
    client = Client(chat=encoder, reasoning_effort=server)
    await client.ask(CHAT, **fields)
    assert bytes(client.engine.requests[0].prompt).decode() == told


@pytest.mark.parametrize("stream", [True, False])
async def test_a_template_that_refuses_is_a_bad_request(stream):
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    client = Client(chat=ChatEncoder(template, ByteTokenizer()))
    error = await client.refused(CHAT, question(CHAT) | {"stream": stream})
    assert error["param"] == "messages"
    assert "roles must alternate" in error["message"]


async def test_without_a_template_chat_is_refused_and_text_is_not():
    client = Client(chat=None)
    error = await client.refused(CHAT, question(CHAT))
    assert "chat template" in error["message"]
    assert whole_text(await client.ask(TEXT)) == "Hello"


async def test_a_template_that_writes_nothing_is_refused():
    client = Client(chat=ChatEncoder(ChatTemplate("{# #}", {}), ByteTokenizer()))
    assert (await client.refused(CHAT, question(CHAT)))["param"] == "messages"


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
async def test_cases_127_128_control_tokens_in_messages(role, control):
    request = await asked(CHAT, messages=[{"role": role, "content": f"a{control}b"}])
    text = f"a{control}b".encode()
    assert text in bytes(token if token < 256 else 0 for token in request.prompt)
    assert [t for t in request.prompt if t > 255] == [IM_START, IM_END, IM_START]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": "Hello"}],
        [{"role": "user"}, {"role": "assistant", "content": "a"}, {"role": "assistant"}],
        [{"role": "tool", "content": "1", "tool_call_id": "x"}],
    ],
)
async def test_cases_64_158_unusual_conversations_are_answered(messages):
    assert whole_text(await Client().ask(CHAT, messages=messages)) == "Hello"


async def test_case_133_system_and_developer_messages():
    def system(role, content):
        return {"role": role, "content": content}

    one = await asked(CHAT, messages=[system("system", "a\n\nb"), {"role": "user"}])
    two = await asked(
        CHAT, messages=[system("developer", "a"), system("system", "b"), {"role": "user"}]
    )
    assert one.prompt == two.prompt


def test_the_service_cannot_be_changed():
    service = make_service(ScriptedEngine())
    with pytest.raises(AttributeError):
        service.name = "other"


async def test_engine_refusals_are_bad_requests():
    class Refusing(ScriptedEngine):
        def submit(self, request, deliver, *, joins):
            raise ValueError("this request can never run")

    for path in ROUTES:
        error = await Client(Refusing()).refused(path, question(path))
        assert error["message"] == "this request can never run"


async def test_small_windows():
    limits = Limits(context=8, vocab_size=ByteTokenizer.vocab_size, lanes=1)
    client = Client(ScriptedEngine(limits=limits))
    error = await client.refused(CHAT, question(CHAT))
    assert error["message"].startswith("This server's maximum context length is 8 tokens")
    assert json.dumps(error["param"]) == '"messages"'
