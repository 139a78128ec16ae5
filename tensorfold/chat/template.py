"""Chat templates: the Jinja program of a checkpoint that writes a conversation as one text.

Templates are written for transformers' environment, so every setting, filter and global here means
the same as there; the tests compare the two on real templates.
"""

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tensorfold.chat.messages import Message

MAX_TEMPLATE_BYTES = 16 * 1024 * 1024
_RENDER_SECONDS = 30.0
RESERVED_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""What every template is given, and no request may set."""


class ChatTemplateError(ValueError):
    """A template that can't be read, or that refuses a conversation; the message says why."""


class ChatTemplate:
    """A compiled chat template with the special tokens it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ChatTemplateError(f"the chat template is malformed: {error}") from error
        self.later_system = self._renders_later_system()

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation's text; `variables` are the request's own, none of them reserved."""
        context = {
            **self._special_tokens,
            **(variables or {}),
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        deadline = time.monotonic() + _RENDER_SECONDS
        pieces = []
        try:
            for piece in self._template.generate(context):
                pieces.append(piece)
                if time.monotonic() > deadline:
                    raise ChatTemplateError("the chat template took too long")
        except ChatTemplateError:
            raise
        except Exception as error:
            # A template is a program over the client's data: whatever it raises is about the two.
            reason = str(error) or type(error).__name__
            raise ChatTemplateError(f"the chat template refused the messages: {reason}") from error
        return "".join(pieces)

    def _renders_later_system(self) -> bool:
        """Whether a system message after the first turn appears in the text."""
        probe = "probe of a later system message"
        turns = (("user", "a"), ("assistant", "b"), ("system", probe), ("user", "c"))
        try:
            return probe in self.render([{"role": role, "content": text} for role, text in turns])
        except ChatTemplateError:
            return False


def read_template_file(path: Path) -> str | None:
    """The text of a `--chat-template` file; None when it is empty, which turns chat off."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TEMPLATE_BYTES + 1)
    except OSError as error:
        raise ChatTemplateError(f"can't read the chat template {path}: {error}") from error
    if len(data) > MAX_TEMPLATE_BYTES:
        raise ChatTemplateError(f"the chat template {path} is larger than 16 MiB")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ChatTemplateError(f"the chat template {path} is not UTF-8: {error}") from error
    return text if text.strip() else None


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[jinja2.ext.loopcontrols, _GenerationBlock],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}`: training code marks the assistant's text with it; serving prints it."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares the attribute as a plain set

    def parse(self, parser: Parser) -> jinja2.nodes.Node:
        """Read the block up to its end tag, in a scope of its own as a call block has."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_print")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _print(self, caller: Any) -> str:
        return str(caller())


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML and sorts keys, which models were not trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
