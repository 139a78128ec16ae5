"""Chat templates: the Jinja program of a checkpoint that writes a conversation as one text.

Templates are written for transformers' environment, so every setting, filter and global here means
the same as there; the tests compare the two on real templates.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tensorfold.chat.messages import Message
from tensorfold.chat.traits import probe

MAX_TEMPLATE_BYTES = 16 * 1024 * 1024
RENDER_SECONDS = 10.0
_MOST_CHARACTERS = 64 * 1024 * 1024
_LARGEST_OPERAND = 10_000
_WATCH = "tensorfold_watch"
"""The name of a rendering's `_Watch` among its variables, and of the filter around loops."""
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
            self._template = _Environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ChatTemplateError(f"the chat template is malformed: {error}") from error
        self.traits = probe(self._probed, source)

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
        watch = _Watch(time.monotonic() + RENDER_SECONDS)
        pieces = []
        try:
            for piece in self._template.generate({**context, _WATCH: watch}):
                watch.write(len(piece))
                pieces.append(piece)
        except ChatTemplateError:
            raise
        except Exception as error:
            # A template is a program over the client's data: whatever it raises is about the two.
            reason = str(error) or type(error).__name__
            raise ChatTemplateError(f"the chat template refused the messages: {reason}") from error
        return "".join(pieces)

    def _probed(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
    ) -> str | None:
        try:
            return self.render([dict(message) for message in messages], variables=variables)
        except ChatTemplateError:
            return None


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


class _Watch:
    """Ends a rendering that takes too long or writes too much."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._written = 0

    def step(self) -> None:
        """Called at every turn of a loop and every call."""
        if time.monotonic() > self._deadline:
            raise ChatTemplateError(f"the chat template took more than {RENDER_SECONDS:g} seconds")

    def write(self, characters: int) -> None:
        """Called with every piece of text."""
        self.step()
        self._written += characters
        if self._written > _MOST_CHARACTERS:
            raise ChatTemplateError("the chat template wrote too much text")


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which no template runs for longer than its watch allows.

    Every loop and every call asks the watch; repeats and powers, which take their time within one
    operation, may not be large.
    """

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[jinja2.ext.loopcontrols, _GenerationBlock],
        )
        self.filters["tojson"] = _to_json
        self.filters[_WATCH] = _watched
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _WATCH, [], [], None, None, lineno=loop.iter.lineno)
        return tree

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Jinja's hook for calls."""
        context[_WATCH].step()
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Jinja's hook for the operators named above."""
        sizes = [
            value if isinstance(value, int) else len(value)
            for value in (left, right)
            if isinstance(value, int | str | list | tuple)
        ]
        if any(abs(size) > _LARGEST_OPERAND for size in sizes):
            raise jinja2.TemplateError(f"{operator} with a large operand")
        return super().call_binop(context, operator, left, right)


@jinja2.pass_context
def _watched(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    """What a loop goes through, asking the watch at every turn."""
    watch = context[_WATCH]
    for item in items:
        watch.step()
        yield item


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}`: training code marks the assistant's text with it; serving prints it."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares the attribute as a plain set

    def parse(self, parser: Parser) -> nodes.Node:
        """Read the block up to its end tag, in a scope of its own as a call block has."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_print")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

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
