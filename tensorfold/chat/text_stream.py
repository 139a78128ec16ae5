"""A reply's text while its tokens arrive: whole characters only, cut before a stop string.

What has been released is never taken back, and all released text joined is the same however the
tokens arrive. The first stop string to be completed wins, and of several completed by the same
character the longest: that depends on the text alone, never on how it is cut into tokens.
"""

import codecs
from collections.abc import Sequence

from tensorfold.checkpoints.interface import Tokenizer


class _StopString:
    """Watches a text for one string, a character at a time (Knuth, Morris and Pratt)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        """How many characters of `text` the watched text ends with."""
        self._shorter = [0] * len(text)
        length = 0
        for i in range(1, len(text)):
            while length and text[i] != text[length]:
                length = self._shorter[length - 1]
            length += text[i] == text[length]
            self._shorter[i] = length

    def advance(self, character: str) -> bool:
        """Take the next character and say whether it completes the string."""
        while self.matched and self.text[self.matched] != character:
            self.matched = self._shorter[self.matched - 1]
        self.matched += self.text[self.matched] == character
        return self.matched == len(self.text)


class StopFilter:
    """Lets text through up to the first stop string, holding back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.found: str | None = None
        """The stop string that ended the text."""
        self._held = ""
        self._watches = [_StopString(text) for text in dict.fromkeys(stops)]

    def push(self, text: str) -> str:
        """The text that can be released now; nothing after a stop string was found."""
        if self.found is not None:
            return ""
        if not self._watches:
            return text
        pending = self._held + text
        for i, character in enumerate(text, start=len(self._held) + 1):
            complete = [watch.text for watch in self._watches if watch.advance(character)]
            if complete:
                self.found = max(complete, key=len)
                self._held = ""
                return pending[: i - len(self.found)]
        cut = len(pending) - max(watch.matched for watch in self._watches)
        self._held = pending[cut:]
        return pending[:cut]

    def finish(self) -> str:
        """The text held back, which no stop string completed."""
        held, self._held = self._held, ""
        return held


class ReplyText:
    """The text of one reply, a token at a time."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        end_ids: frozenset[int] = frozenset(),
        stops: Sequence[str] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._filter = StopFilter(stops)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text; the token pushed last completed it."""
        return self._filter.found

    def push(self, token: int) -> str:
        """The text that `token` releases; the token that ends the reply adds none."""
        if token in self._end_ids:
            return ""
        return self._filter.push(self._decoder.decode(self._tokenizer.token_bytes(token)))

    def finish(self) -> str:
        """The rest of the text; an incomplete character at its end is dropped."""
        return self._filter.finish()
