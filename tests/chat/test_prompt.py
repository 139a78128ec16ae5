import pytest
import template_texts
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizer import CONTROLS, SmallTokenizer
from transformers import PreTrainedTokenizerFast

from tensorfold.chat.messages import read_messages
from tensorfold.chat.prompt import ChatEncoder, ControlSpellings
from tensorfold.chat.template import ChatTemplate

TOKENIZER = SmallTokenizer()
IDS = {text: TOKENIZER.whole.token_to_id(text) for text in CONTROLS}
SPECIAL = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
TEMPLATES = {
    name: ChatTemplate(getattr(template_texts, name), SPECIAL)
    for name in ("CHATML", "THINKING", "HEADERS", "FILTERS")
}
ENCODERS = {name: ChatEncoder(template, TOKENIZER) for name, template in TEMPLATES.items()}
SPECIAL_PIECES = [*CONTROLS, "<|im_", "_end|>", "<", "|>", "\n", " ", "\U000f0000", "\U000f0001"]
TEXTS = st.lists(st.one_of(st.sampled_from(SPECIAL_PIECES), st.text(max_size=4))).map("".join)


def text_of(tokens):
    return b"".join(map(TOKENIZER.token_bytes, tokens)).decode()


def controls_in(tokens):
    return [TOKENIZER.token_text(token) for token in tokens if token in TOKENIZER.control_ids]


def user(text):
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("name", TEMPLATES)
@settings(deadline=None)
@given(text=st.text())
def test_ordinary_text_encodes_as_the_rendered_text_does(name, text):
    messages = read_messages(user(text))
    plain = TEMPLATES[name].render(messages)
    assert ENCODERS[name].encode(messages) == TOKENIZER.encode(plain)


def test_tokens_are_those_of_transformers():
    fast = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER.whole, **SPECIAL)
    messages = read_messages(user(" Hello 東京 the then \n") + user("the quick"))
    for name, encoder in ENCODERS.items():
        expected = fast.apply_chat_template(
            messages,
            chat_template=getattr(template_texts, name),
            add_generation_prompt=True,
            return_dict=False,
        )
        assert encoder.encode(messages) == expected


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("around", ["{}", "A{}B", " {}\n{} ", "{}x", "\n\n{}"])
def test_cases_127_128_control_tokens_in_messages_are_text(role, control, around):
    encoder = ENCODERS["CHATML"]
    text = around.replace("{}", control)
    first = {"role": "user", "content": "q"}
    messages = read_messages([first, {"role": role, "content": text}])
    tokens = encoder.encode(messages)
    harmless = encoder.encode(read_messages([first, {"role": role, "content": "x"}]))
    assert controls_in(tokens) == controls_in(harmless)
    assert text in text_of(tokens)


@pytest.mark.parametrize("control", ["<|im_end|>", "</tool_call>", "<｜end▁of▁sentence｜>"])
def test_case_128_control_tokens_in_calls_and_results_are_text(control):
    def conversation(text):
        function = {"name": text, "arguments": {"a": [text], text: 1}}
        return read_messages(
            [
                {"role": "user", "content": "q"},
                {"role": "assistant", "tool_calls": [{"function": function}]},
                {"role": "tool", "content": text, "name": text},
            ]
        )

    encoder = ENCODERS["THINKING"]
    tokens = encoder.encode(conversation(control))
    assert controls_in(tokens) == controls_in(encoder.encode(conversation("x")))
    assert text_of(tokens).count(control) > 3


@pytest.mark.parametrize("ascii_only", ["true", "false"])
def test_control_tokens_in_json_are_text_whatever_its_form(ascii_only):
    source = "<|im_start|>{{ messages[0] | tojson(ensure_ascii=FLAG) }}<|im_end|>"
    source = source.replace("FLAG", ascii_only)
    encoder = ChatEncoder(ChatTemplate(source, {}), TOKENIZER)
    tokens = encoder.encode(read_messages(user("é <|im_end|> \U000f0000")))
    assert controls_in(tokens) == ["<|im_start|>", "<|im_end|>"]
    assert text_of(tokens).count("<|im_end|>") == 2


def test_control_tokens_in_template_variables_are_text():
    encoder = ChatEncoder(ChatTemplate("<|im_start|>{{ tone }}", {}), TOKENIZER)
    tokens = encoder.encode(read_messages(user("x")), variables={"tone": "a<|im_end|>"})
    assert controls_in(tokens) == ["<|im_start|>"]


def test_templates_still_read_the_real_text():
    """A template that splits at `</think>` writes its own marks around the client's words."""
    answer = "<think>\nbecause <|im_end|>\n</think>\n\nyes"
    messages = read_messages([*user("q"), {"role": "assistant", "content": answer}])
    tokens = ENCODERS["THINKING"].encode(messages)
    assert text_of(tokens) == TEMPLATES["THINKING"].render(messages)
    turn = ["<|im_start|>", "<|im_end|>"]
    expected = [*turn, "<|im_start|>", "<think>", "</think>", "<|im_end|>", "<|im_start|>"]
    assert controls_in(tokens) == expected


@settings(deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
def test_any_text_reaches_the_model_as_text(texts):
    roles = ["user", "assistant"] * 2
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    harmless = [message | {"content": "x"} for message in messages]
    encoder = ENCODERS["CHATML"]
    tokens = encoder.encode(read_messages(messages))
    assert text_of(tokens) == TEMPLATES["CHATML"].render(read_messages(messages))
    assert controls_in(tokens) == controls_in(encoder.encode(read_messages(harmless)))


@settings(deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_trimming_and_splitting_templates_keep_their_turns(texts):
    messages = [{"role": "user", "content": text} for text in texts]
    harmless = [message | {"content": "x"} for message in messages]
    for name in ("HEADERS", "THINKING"):
        tokens = ENCODERS[name].encode(read_messages(messages))
        expected = ENCODERS[name].encode(read_messages(harmless))
        assert controls_in(tokens) == controls_in(expected)


def test_merges_across_the_edge_of_a_message_are_kept():
    source = "<|im_start|>th{{ messages[0].content }}en<|im_end|>"
    encoder = ChatEncoder(ChatTemplate(source, {}), TOKENIZER)
    assert encoder.encode(read_messages(user("e th"))) == TOKENIZER.encode(
        "<|im_start|>the then<|im_end|>"
    )
    quoted = encoder.encode(read_messages(user("e <think> th")))
    assert quoted[1:-1] == TOKENIZER.encode("the <think> then", control=False)


def test_case_130_the_template_alone_writes_the_first_token():
    tokens = ENCODERS["HEADERS"].encode(read_messages(user("<|begin_of_text|>hi")))
    assert tokens.count(TOKENIZER.bos_id) == 1


def test_spellings_are_found_leftmost_and_longest():
    class Nested(SmallTokenizer):
        def token_text(self, token):
            return {1: "<a>", 2: "<a>b", 3: "[x", 4: ""}[token]

    tokenizer = Nested()
    tokenizer.control_ids = frozenset({1, 2, 3, 4})
    spellings = ControlSpellings(tokenizer)
    assert list(spellings.find("<<a>bc<a>[[x")) == [(1, 5), (6, 9), (10, 12)]
    assert not spellings.spelled_in("<ab[")
    tokenizer.control_ids = frozenset()
    assert not ControlSpellings(tokenizer).spelled_in("<a>")


TOOL_TEMPLATE = (
    "<|im_start|>system\n{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}<|im_end|>"
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.name }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}"
    "{{ call.function.name }}{{ call.function.arguments | tojson }}"
    "{% endfor %}<|im_end|>{% endfor %}"
)


@pytest.mark.parametrize("control", CONTROLS)
def test_case_128_control_tokens_in_tools_calls_and_names(control):
    schema = {"type": "object", "properties": {f"p{control}": {"description": control}}}
    tools = [
        {"type": "function", "function": {"name": f"f{control}", "parameters": schema}},
        {"type": "function", "function": {"name": "g", "description": f" {control}\n"}},
    ]
    call = {"function": {"name": f"f{control}", "arguments": {f"p{control}": [control]}}}
    messages = read_messages(
        [
            {"role": "user", "content": "x", "name": control},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": control, "name": f"f{control}"},
        ]
    )
    encoder = ChatEncoder(ChatTemplate(TOOL_TEMPLATE, {}), TOKENIZER)
    tokens = encoder.encode(messages, tools=tools)
    assert controls_in(tokens) == ["<|im_start|>", "<|im_end|>"] * 4
    assert text_of(tokens) == ChatTemplate(TOOL_TEMPLATE, {}).render(messages, tools=tools)


def test_case_67_the_order_of_keys_in_tools_and_arguments_is_kept():
    properties = {"z": {"type": "string"}, "a": {"type": "integer"}, "m": {}}
    tools = [{"type": "function", "function": {"parameters": {"properties": properties}}}]
    call = {"function": {"name": "f", "arguments": '{"z": 1, "a": {"y": 2, "b": 3}, "m": null}'}}
    messages = read_messages([{"role": "assistant", "tool_calls": [call]}])
    text = ChatTemplate(TOOL_TEMPLATE, {}).render(messages, tools=tools)
    assert '{"z": {"type": "string"}, "a": {"type": "integer"}, "m": {}}' in text
    assert 'f{"z": 1, "a": {"y": 2, "b": 3}, "m": null}' in text
