"""The recorded outputs of `canitoolcall`, read at many splits (`benchmarks/conformance.py`).

Outputs of up to 150 characters are cut in two at every place, longer ones at 20 random places,
and all of them into single letters and at random sets of places.
"""

from dataclasses import replace

import pytest
from canitoolcall.results import Status

from benchmarks.conformance import cases, judge
from tensorfold.chat.tools.registry import FORMATS

OTHERWISE = {
    # The blanks around Gemma's calls are content, as another fixture of the same kind has it.
    "gemma4/vllm-text-before-call": Status.SOFT_PASS,
    # Magistral 2506 spells its markers in ordinary letters, which are text here.
    "mistral/vllm-v11-think-text": Status.FAIL,
}
"""Fixtures that are answered otherwise on purpose (docs/conformance.md)."""


@pytest.mark.parametrize("name", sorted({case.format for case in cases()}))
def test_every_fixture_is_read_as_recorded_however_it_is_cut(name):
    for case in cases():
        if case.format == name:
            status, detail = judge(case)
            assert status is OTHERWISE.get(case.fixture.id, Status.PASS), (case.fixture.id, detail)


def test_the_package_has_all_its_fixtures():
    assert len(cases()) >= 469
    assert {case.format for case in cases()} == set(FORMATS) - {"nemotron"}


def test_a_parser_of_another_format_is_found_out():
    hermes = [case for case in cases() if case.format == "hermes" and case.fixture.expected]
    called = [case for case in hermes if case.fixture.expected.tool_calls]
    assert all(judge(replace(case, format="mistral"))[0] is Status.FAIL for case in called[:5])
