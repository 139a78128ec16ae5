import pytest
import template_texts

from tensorfold.chat.template import ChatTemplate
from tensorfold.chat.traits import EFFORTS, Traits

SPECIAL = {"bos_token": "<|begin_of_text|>", "eos_token": "</s>"}


def traits(source):
    return ChatTemplate(source, SPECIAL).traits


@pytest.mark.parametrize(
    ("name", "leading", "later", "repeated"),
    [
        ("CHATML", True, True, True),
        ("THINKING", True, True, True),
        ("HEADERS", True, True, True),
        ("ALTERNATING", False, False, False),
        ("FILTERS", False, False, True),
    ],
)
def test_system_messages_and_turns(name, leading, later, repeated):
    found = traits(getattr(template_texts, name))
    assert (found.leading_system, found.later_system) == (leading, later)
    assert found.repeated_user is repeated


CALLS = "{% for m in messages %}{% for c in m.tool_calls or [] %}CALL{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("call", "as_text"),
    [
        ("{{ c.function.arguments | tojson }}", False),
        ("{{ '```json\n' + c['function']['arguments'] + '```' }}", True),
        ("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}", False),
        ("{% if c.function.arguments is string %}{{ c.function.arguments }}"
         "{% else %}{{ c.function.arguments | tojson }}{% endif %}", False),
        ("{% if c.function.arguments is mapping %}{{ raise_exception('text, please') }}"
         "{% endif %}{{ c.function.arguments }}", True),
        ("{{ raise_exception('no calls') }}", False),
        ("", False),
    ],
)  # fmt: skip
def test_the_form_of_arguments(call, as_text):
    assert traits(CALLS.replace("CALL", call)).text_arguments is as_text


CHAIN = (
    "{% if enable_thinking %}{% if reasoning_effort == 'low' %}l{% elif reasoning_effort == 'high' "
    "%}h{% else %}{% set level = 'max' %}{{ level }}{% endif %}{% endif %}"
)


@pytest.mark.parametrize(
    ("source", "efforts"),
    [
        ("", ()),
        ("{{ 'high' }}", ()),
        ("{{ reasoning_effort | default('medium') }}", ()),
        ("{{ reasoning_effort }}", ()),
        (CHAIN, ("low", "high", "max")),
        ("{% if reasoning_effort not in [\"low\", 'medium'] %}{{ raise_exception('?') }}"
         "{% endif %}", ("low", "medium")),
    ],
)  # fmt: skip
def test_the_levels_a_template_names(source, efforts):
    assert traits(source).efforts == efforts


HEARD = {
    ("low", "high", "max"): ("low", "low", "high", "high", "max", "max"),
    ("low", "medium", "xhigh"): ("low", "low", "medium", "xhigh", "xhigh", "xhigh"),
    ("low", "medium", "high"): ("low", "low", "medium", "high", "high", "high"),
    (): ("minimal", "low", "medium", "high", "xhigh", "xhigh"),
}


@pytest.mark.parametrize("named", HEARD)
def test_an_effort_is_heard_as_the_nearest_level(named):
    found = Traits(efforts=named)
    assert tuple(found.hears(effort) for effort in EFFORTS) == HEARD[named]
