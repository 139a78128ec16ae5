"""Python's calls and literals as JSON, without running Python's own compiler on a model's text."""

import re
from collections.abc import Iterator

from tensorfold.chat.tools.json_calls import read_json
from tensorfold.chat.tools.values import quoted

_NAME = re.compile(r"[A-Za-z_][\w.]*")
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*)?\.?\d+(?:[eE][+-]?\d+)?\.?")
_SPACE = re.compile(r"\s*")
_STRING = re.compile(
    r'"""((?:[^"\\]++|\\.|"(?!""))*+)"""|"((?:[^"\\]++|\\.)*+)"'
    r"|'''((?:[^'\\]++|\\.|'(?!''))*+)'''|'((?:[^'\\]++|\\.)*+)'",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
_CONSTANTS = {
    "True": "true",
    "False": "false",
    "None": "null",
    "true": "true",
    "false": "false",
    "null": "null",
}
_DEPTH = 64


class LiteralReader:
    """Reads a text from its start. Every method raises ValueError where the text is not Python."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def calls(self) -> Iterator[tuple[str, str]]:
        """Each call of a list that is the whole text: its name and its arguments' JSON."""
        self._expect("[")
        while not self._accept("]"):
            name = self._match(_NAME)
            self._expect("(")
            yield name, self._arguments()
            if not self._accept(","):
                self._expect("]")
                break
        if self._at < len(self._text.rstrip()):
            raise ValueError("text behind the list")

    def _arguments(self) -> str:
        items = []
        while not self._accept(")"):
            key = self._match(_NAME)
            self._expect("=")
            items.append(f"{quoted(key)}: {self._value(_DEPTH)}")
            if not self._accept(","):
                self._expect(")")
                break
        return "{" + ", ".join(items) + "}"

    def _value(self, depth: int) -> str:
        """The JSON of the literal that comes next."""
        if not depth:
            raise ValueError("nested too deeply")
        if self._accept("{"):
            return self._items("{", "}", depth)
        if self._accept("["):
            return self._items("[", "]", depth)
        if self._accept("("):
            return self._items("[", ")", depth)
        if self._next() in "\"'":
            return quoted(self._string())
        if found := _NAME.match(self._text, self._at):
            self._at = found.end()
            return _CONSTANTS.get(found[0]) or _fail(found[0])
        number = self._match(_NUMBER).replace("_", "").removeprefix("+")
        try:
            read_json(number)
        except ValueError:
            return repr(float(number))
        return number

    def _items(self, opening: str, closing: str, depth: int) -> str:
        items = []
        while not self._accept(closing):
            key = ""
            if opening == "{":
                key = f"{quoted(self._string())}: "
                self._expect(":")
            items.append(key + self._value(depth - 1))
            if not self._accept(","):
                self._expect(closing)
                break
        return opening + ", ".join(items) + ("}" if opening == "{" else "]")

    def _string(self) -> str:
        """A string, or several that stand side by side."""
        parts = []
        while self._next() and self._next() in "\"'":
            found = _STRING.match(self._text, self._at)
            if not found:
                raise ValueError("a string without an end")
            self._at = found.end()
            inner = next(group for group in found.groups() if group is not None)
            parts.append(_ESCAPE.sub(_unescape, inner))
        text = "".join(parts) if parts else _fail(self._next())
        # A character may be spelled as two surrogates; one alone is no text.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _next(self) -> str:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return self._text[self._at : self._at + 1] or _fail("the end")

    def _accept(self, letter: str) -> bool:
        found = self._next() == letter
        self._at += found
        return found

    def _expect(self, letter: str) -> None:
        if not self._accept(letter):
            _fail(self._next())

    def _match(self, pattern: re.Pattern[str]) -> str:
        self._next()
        found = pattern.match(self._text, self._at)
        if not found:
            return _fail(self._next())
        self._at = found.end()
        return found[0]


def _unescape(found: re.Match[str]) -> str:
    code = found[1]
    if code[0] in "xuU" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code[0] in "01234567":
        return chr(int(code, 8))
    # What is no escape stays as it is written, as Python has it.
    return _PLAIN.get(code, code if code in "\\'\"" else "\\" + code)


def _fail(found: str) -> str:
    raise ValueError(f"unexpected {found}")
