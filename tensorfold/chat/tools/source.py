"""A reply that is read while it is written: a parser's `yield` waits for more of it.

Every method that may have to wait is a generator, used with `yield from`. Text is looked at a
bounded number of times, however it is cut into pieces, so reading takes time linear in the reply.

Markers that are control tokens of the tokenizer (`controls`) are found only where such a token
was written. The same letters from ordinary tokens are the model quoting them.
"""

import re
from collections.abc import Callable, Collection, Generator
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]

BLANKS = " \t\r\n"
_BLANKS = re.compile(r"[ \t\r\n]{0,256}")
_ONLY_BLANKS = re.compile(r"[ \t\r\n]*\Z")


class Source:
    """The text that was written and not yet read."""

    def __init__(self, controls: Collection[str] = ()) -> None:
        self.ended = False
        """The reply has ended: nothing comes after the unread text."""
        self._controls = frozenset(controls)
        self._text = ""
        self._at = 0
        self._start = 0
        """The place of `_text` in the reply."""
        self._places: set[int] = set()
        """Where control tokens stand in the reply."""
        self._kept: list[str] | None = None
        """What was read since `mark`."""

    def feed(self, text: str, control: bool) -> None:
        """Add what was written; `control` says that it is one control token."""
        self._start += self._at
        self._text = self._text[self._at :] + text
        self._at = 0
        if control:
            self._places.add(self._start + len(self._text) - len(text))

    @property
    def place(self) -> int:
        """How many characters of the reply were read."""
        return self._start + self._at

    @property
    def at_end(self) -> bool:
        """Whether the reply has ended and only blanks are left."""
        return self.ended and _ONLY_BLANKS.match(self._text, self._at) is not None

    def ahead(self, count: int) -> str:
        """The next characters that are there, at most `count`; they stay unread."""
        return self._text[self._at : self._at + count]

    def drop(self) -> None:
        """Read all that is there."""
        self.take(len(self._text) - self._at)

    def take(self, count: int) -> str:
        """Read `count` characters that are there."""
        piece = self._text[self._at : self._at + count]
        self._at += count
        if self._kept is not None:
            self._kept.append(piece)
        return piece

    def cut_off(self, markers: tuple[str, ...], least: int) -> bool:
        """Forget the beginning of a marker, of at least so many letters, that ends what is there;
        whether there was one."""
        begun = self._begun(markers)
        if begun >= least:
            self._text = self._text[:-begun]
        return begun >= least

    def mark(self) -> None:
        """Remember what is read from here, for `rewind`."""
        self._kept = []

    def unmark(self) -> None:
        """Nothing needs to be read again."""
        self._kept = None

    def marked(self) -> str:
        """What was read since `mark`."""
        return "".join(self._kept or ())

    def rewind(self, keep: int) -> str:
        """Go back to `keep` characters after `mark`, and give those."""
        read = self.marked()
        self._kept = None
        rest = read[keep:]
        self._start += self._at - len(rest)
        self._text = rest + self._text[self._at :]
        self._at = 0
        return read[:keep]

    def until(
        self,
        *markers: str,
        most: int | None = None,
        release: Callable[[str], None] | None = None,
    ) -> Steps[tuple[str, str]]:
        """The text before the first of `markers`, which stays unread, and that marker; "" for the
        marker when the reply ends first, or none is found in `most` characters (then nothing is
        read). With `release` the text goes there as it comes. No marker may begin another."""
        pattern = _pattern(markers)
        pieces: list[str] = []
        release = release or pieces.append
        longest = max(map(len, markers))
        while True:
            found = self._search(pattern)
            ready = (found.start() if found else len(self._text)) - self._at
            if most is not None:
                # A marker that begins in time may still be incomplete.
                too_far = ready > most if found else self.ended or ready >= most + longest
                if too_far:
                    return "", ""
            if found or self.ended:
                release(self.take(ready))
                return "".join(pieces), found[0] if found else ""
            if most is None:
                release(self.take(ready - self._begun(markers)))
            yield

    def follows(self, *options: str) -> Steps[str]:
        """Which of `options` comes next, after blanks; "" for none. Reads nothing."""
        while True:
            blanks = _BLANKS.match(self._text, self._at)
            at = blanks.end() if blanks else self._at
            for option in options:
                if self._text.startswith(option, at) and self._true(option, at):
                    return option
            rest = self._text[at : at + max(map(len, options))]
            undecided = not rest or any(
                option.startswith(rest) for option in options if option not in self._controls
            )
            if self.ended or not undecided:
                return ""
            yield

    def accept(self, *options: str) -> Steps[str]:
        """Read blanks and whichever of `options` follows them; nothing when none does."""
        option = yield from self.follows(*options)
        if option:
            self.take(self._text.index(option, self._at) - self._at + len(option))
        return option

    def blanks(self) -> Steps[None]:
        """Read blanks, up to something else."""
        while True:
            while (found := _BLANKS.match(self._text, self._at)) and found.end() > self._at:
                self.take(found.end() - self._at)
            if self.ended or self._at < len(self._text):
                return
            yield

    def json(self) -> Steps[str]:
        """The text of the JSON object or list that starts here, which its brackets end; "" when
        the reply ends inside it. Only json.loads can say that it is JSON."""
        return self.bracketed("{}[]", '"')

    def bracketed(self, brackets: str, quotes: str) -> Steps[str]:
        """The text from the bracket that stands here to the one that closes it, where `quotes`
        begin strings with backslashes in them; "" when the reply ends inside it."""
        outside = _any_of(brackets + quotes)
        quote = ""
        depth = 0
        pieces: list[str] = []
        while True:
            at = self._at
            while at < len(self._text):
                found = (_any_of(quote + "\\") if quote else outside).search(self._text, at)
                if not found:
                    at = len(self._text)
                    break
                if found[0] == "\\":
                    if found.end() == len(self._text):
                        at = found.start()
                        break
                    at = found.end() + 1
                    continue
                at = found.end()
                if found[0] in quotes:
                    quote = "" if quote else found[0]
                else:
                    depth += 1 if brackets.index(found[0]) % 2 == 0 else -1
                    if depth <= 0:
                        pieces.append(self.take(at - self._at))
                        return "".join(pieces)
            pieces.append(self.take(at - self._at))
            if self.ended:
                return ""
            yield

    def _search(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        at = self._at
        while found := pattern.search(self._text, at):
            if self._true(found[0], found.start()):
                return found
            at = found.start() + 1
        return None

    def _true(self, marker: str, at: int) -> bool:
        """Whether the marker at `at` is one, and not letters that spell a control token."""
        return marker not in self._controls or self._start + at in self._places

    def _begun(self, markers: tuple[str, ...]) -> int:
        """How many characters at the end may be the beginning of a marker."""
        pattern, longest = _beginnings(markers, self._controls)
        found = pattern.search(self._text, max(self._at, len(self._text) - longest))
        return len(self._text) - found.start() if found else 0


@lru_cache(maxsize=256)
def _beginnings(markers: tuple[str, ...], controls: frozenset[str]) -> tuple[re.Pattern[str], int]:
    """What ends with the beginning of a marker that is written in letters, and its longest."""
    spelled = [marker for marker in markers if marker not in controls]
    starts = {marker[:end] for marker in spelled for end in range(1, len(marker))}
    ordered = sorted(starts, key=len, reverse=True)
    pattern = f"(?:{'|'.join(map(re.escape, ordered))})\\Z" if ordered else r"(?!)"
    return re.compile(pattern), max(map(len, starts), default=0)


@lru_cache(maxsize=256)
def _pattern(markers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, markers)))


@lru_cache(maxsize=16)
def _any_of(letters: str) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(letters)}]")
