import json
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


@pytest.mark.parametrize(
    ("name", "kept"),
    [("CHATML", True), ("THINKING", True), ("HEADERS", True), ("ALTERNATING", False)],
)
def test_later_system_messages_are_probed(name, kept):
    assert ChatTemplate(getattr(template_texts, name), SPECIAL).later_system is kept


def test_a_template_that_drops_later_system_messages_does_not_render_them():
    source = (
        "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert not ChatTemplate(source, {}).later_system


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
