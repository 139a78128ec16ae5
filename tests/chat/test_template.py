import json
import time
from pathlib import Path

import pytest
import template_texts
from transformers.utils.chat_template_utils import render_jinja_template

from tensorfold.chat.messages import read_messages
from tensorfold.chat.template import (
    MAX_TEMPLATE_BYTES,
    ChatTemplate,
    ChatTemplateError,
    read_template_file,
)

SPECIAL = {"bos_token": "<|begin_of_text|>", "eos_token": "</s>"}
USER = {"role": "user", "content": ' Größe? <b>東京</b> & "x" 😊\n'}
ASSISTANT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\n  Yes, of course.  "}
CALLS = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "weather", "arguments": {"z": "東京", "a": [1, 2.5, None, True]}},
        }
    ],
}
TOOL = {"role": "tool", "content": '{"t": 21}', "tool_call_id": "call_1"}
SYSTEM = {"role": "system", "content": "Be brief."}
CONVERSATIONS = {
    "question": [USER],
    "turns": [USER, ASSISTANT, USER],
    "system": [SYSTEM, USER, ASSISTANT, USER],
    "tools": [SYSTEM, USER, CALLS, TOOL, ASSISTANT, USER],
    "long": [USER, ASSISTANT] * 4 + [USER],
    "assistant_last": [USER, ASSISTANT, USER, ASSISTANT],
}


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", ["CHATML", "THINKING", "HEADERS", "ALTERNATING", "FILTERS"])
@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False}])
def test_text_is_what_transformers_renders(name, conversation, variables):
    source = getattr(template_texts, name)
    messages = read_messages(CONVERSATIONS[conversation])
    try:
        (expected,), _ = render_jinja_template(
            [messages], chat_template=source, add_generation_prompt=True, **SPECIAL, **variables
        )
    except Exception as error:
        with pytest.raises(ChatTemplateError, match=str(error)[:20]):
            ChatTemplate(source, SPECIAL).render(messages, variables=variables)
        return
    assert ChatTemplate(source, SPECIAL).render(messages, variables=variables) == expected


def test_case_131_tojson_writes_json_as_python_does():
    value = {"b": ["é", 1.0, None], "a": {"<": "'&'"}}
    template = ChatTemplate("{{ messages[0].v | tojson }}", {})
    expected = json.dumps(value, ensure_ascii=False)
    assert template.render([{"role": "user", "content": "", "v": value}]) == expected


def test_messages_are_not_changed_by_rendering():
    messages = read_messages(CONVERSATIONS["tools"])
    before = json.dumps(messages)
    ChatTemplate(template_texts.THINKING, SPECIAL).render(messages)
    assert json.dumps(messages) == before


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('not like this') }}",
        "{{ messages[0].content.nothing.at_all }}",
        "{{ 1 / 0 }}",
        "{{ messages[0]['content'] + 1 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(10**9) %}{{ i }}{% endfor %}",
    ],
)
def test_whatever_a_template_raises_is_one_kind_of_error(source):
    with pytest.raises(ChatTemplateError, match="refused"):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% for a in b %}", "{% nonsense %}"])
def test_malformed_templates_fail_when_opened(source):
    with pytest.raises(ChatTemplateError, match="malformed"):
        ChatTemplate(source, {})


ENDLESS = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in X %}" * 12 + "{% endfor %}" * 12,
        "{% for a in X %}" * 12 + "{{ loop.last }}x" + "{% endfor %}" * 12,
        "{% macro m(n) %}{% for a in X %}{{ m(n - 1) if n else '' }}{% endfor %}{% endmacro %}"
        "{{ m(40) }}",
        "{% set f = namespace(n=0) %}{% for a in X recursive %}{{ loop(X) if loop.depth < 30 }}"
        "{% endfor %}",
        "{{ [1] | map('string') | join }}{% for a in 'x' * 9000 %}{% for b in 'x' * 9000 %}"
        "{% for c in 'x' * 9000 %}{% endfor %}{% endfor %}{% endfor %}",
    ],
)
def test_a_template_that_would_run_for_years_is_stopped(source, monkeypatch):
    monkeypatch.setattr("tensorfold.chat.template.RENDER_SECONDS", 0.05)
    template = ChatTemplate(source.replace("X", ENDLESS), {})
    started = time.monotonic()
    with pytest.raises(ChatTemplateError, match=r"took more than 0\.05 seconds"):
        template.render([{"role": "user", "content": "x"}])
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    "source",
    ["{{ 'x' * 10**9 }}", "{{ 10 ** 10 ** 10 }}", "{{ [0] * 99999 }}", "{{ 99999 * 'x' }}"],
)
def test_operations_that_take_long_by_themselves_are_refused(source):
    with pytest.raises(ChatTemplateError, match="large operand"):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])


def test_a_template_that_writes_without_end_is_stopped(monkeypatch):
    monkeypatch.setattr("tensorfold.chat.template._MOST_CHARACTERS", 1000)
    template = ChatTemplate("{% for a in range(9999) %}{{ 'x' * 100 }}{% endfor %}", {})
    with pytest.raises(ChatTemplateError, match="too much text"):
        template.render([{"role": "user", "content": "x"}])


def test_small_arithmetic_and_loops_mean_what_they_do_elsewhere():
    source = (
        "{{ 3 * 4 }}{{ 2 ** 5 }}{{ 'ab' * 2 }}{{ 1.5 * 2 }}"
        "{% for a in [1, 2, 3] %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}"
        "{{ loop.previtem }}{{ loop.nextitem }};{% else %}none{% endfor %}"
        "{% for a in missing %}{% else %}none{% endfor %}"
        "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "x"}]
    (expected,), _ = render_jinja_template([messages], chat_template=source)
    assert ChatTemplate(source, {}).render(messages) == expected


def test_templates_may_pass_any_name_to_their_macros():
    source = "{% macro m(context, obj) %}{{ context }}{{ obj }}{% endmacro %}"
    template = ChatTemplate(source + "{{ m(context='a', obj='b') }}", {})
    assert template.render([{"role": "user", "content": "x"}]) == "ab"


def test_template_files(tmp_path: Path):
    file = tmp_path / "chat.jinja"
    file.write_text("{{ 'é' }}", encoding="utf-8")
    assert read_template_file(file) == "{{ 'é' }}"
    file.write_text(" \n")
    assert read_template_file(file) is None
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ChatTemplateError, match="UTF-8"):
        read_template_file(file)
    file.write_bytes(b"x" * MAX_TEMPLATE_BYTES)
    assert len(read_template_file(file) or "") == MAX_TEMPLATE_BYTES
    file.write_bytes(b"x" * (MAX_TEMPLATE_BYTES + 1))
    with pytest.raises(ChatTemplateError, match="16 MiB"):
        read_template_file(file)
    with pytest.raises(ChatTemplateError, match="can't read"):
        read_template_file(tmp_path / "missing")
