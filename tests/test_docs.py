"""README and docs name only what there is, and everything of some kinds that there is."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorfold import cli
from tensorfold.serving import (
    chat_completions,
    completions,
    form,
    generation,
    structured_output,
    tokenize,
)
from tensorfold.serving.fields import Field, Unsupported

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = ("serve", "pull", "convert", "chat", "verify", "bench", "info")
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.M | re.S)
INLINE = re.compile(r"`([^`\n]+)`")


def code(text: str) -> Iterator[str]:
    """Every line in a fenced block, and every inline piece of code."""
    for block in FENCE.findall(text):
        yield from block.splitlines()
    yield from INLINE.findall(FENCE.sub("", text))


def all_code() -> list[str]:
    return [piece for page in PAGES for piece in code(page.read_text())]


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def command_flags(command: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0
    return flags_in(capsys.readouterr().out)


def benchmark_flags(name: str) -> set[str]:
    """The benchmarks are not installed: they run from the project's folder."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
    return flags_in(subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout)


def test_commands_and_flags_exist(capsys: pytest.CaptureFixture[str]) -> None:
    known = {name: command_flags(name, capsys) for name in COMMANDS}
    made = {"serve": known["serve"], "bench": benchmark_flags("serving")}
    made["peers"] = benchmark_flags("peers")
    modules = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    run = {name for piece in all_code() for name in re.findall(r"-m benchmarks\.(\w+)", piece)}
    assert run <= modules
    others = (benchmark_flags(name) for name in run)
    anywhere = set().union(*known.values(), *made.values(), *others)
    for piece in all_code():
        for command, rest in re.findall(r"(?<![\w./-])tensorfold ([a-z]+)(.*)", piece):
            assert command in COMMANDS, piece
            assert flags_in(rest) <= known[command], piece
        if target := re.match(r'make (serve|bench|peers) ARGS="(.*)"', piece):
            assert flags_in(target[2]) <= made[target[1]], piece
        assert flags_in(piece) <= anywhere, piece


def test_every_command_is_in_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    listed = re.findall(r"^    ([a-z]+) ", capsys.readouterr().out, re.M)
    assert sorted(listed) == sorted(COMMANDS)
    readme = (ROOT / "README.md").read_text()
    assert all(f"`tensorfold {name} " in readme for name in listed)


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {name for piece in all_code() for name in re.findall(r"\bmake ([a-z]+)", piece)}
    assert named <= targets


def test_paths_exist() -> None:
    path = re.compile(r"(?<![\w./~-])(?:tensorfold|tests|docs|benchmarks)/[\w./-]+")
    for page in PAGES:
        text = page.read_text()
        for piece in code(text):
            for name in path.findall(piece):
                assert (ROOT / name.rstrip(".")).exists(), f"{page.name}: {name}"
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert all(f"({page.relative_to(ROOT)})" in readme for page in PAGES[1:])


def test_environment_variables_are_those_that_are_read() -> None:
    source = "\n".join(
        path.read_text()
        for path in (ROOT / "tensorfold").rglob("*")
        if path.suffix in (".py", ".cc", ".h")
    )
    read: set[str] = set()
    for pattern in (
        r'environ\.get\(\s*"([A-Z_]+)"',
        r'environ\["([A-Z_]+)"\]',
        r'"([A-Z_]+)" (?:not )?in os\.environ',
        r'getenv\("([A-Z_]+)"\)',
        r"huggingface_hub\.constants\.(HF_[A-Z_]+)",
    ):
        read |= set(re.findall(pattern, source))
    table = re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "README.md").read_text(), re.M)
    assert sorted(table) == sorted(read)
    variable = re.compile(r"\b(?:TENSORFOLD|JAX|HF)_[A-Z_]+\b")
    assert {name for page in PAGES for name in variable.findall(page.read_text())} <= read


def test_every_request_field_is_in_the_api_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    modules = (generation, chat_completions, completions, form, structured_output, tokenize)
    for module in modules:
        for value in vars(module).values():
            for field in value if isinstance(value, tuple) else (value,):
                if isinstance(field, Field | Unsupported):
                    quoted = rf"[`\"]{field.name}[`\"]"
                    assert re.search(quoted, page), f"{module.__name__}: {field.name}"
