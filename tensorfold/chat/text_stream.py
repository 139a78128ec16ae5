"""A reply's text while its tokens arrive: whole characters only, cut before a stop string.

What has been released is never taken back, and all released text joined is the same however the
tokens arrive. The first stop string to be completed wins, and of several completed by the same
character the longest: that depends on the text alone, never on how it is cut into tokens.
"""

import codecs
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tensorfold.chat.pieces import Piece, Token
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
    """The text of one reply, a token at a time, in pieces that begin where a token's text does.

    Stop strings are looked for in the text after the first `min_tokens` tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        end_ids: frozenset[int] = frozenset(),
        stops: Sequence[str] = (),
        min_tokens: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self._unchecked = min_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._incomplete: tuple[Token, ...] = ()
        """Tokens whose last character has begun and not ended."""
        self._filter = StopFilter(stops)
        self._held: deque[Piece] = deque()
        self._free = 0
        """How many characters of the held pieces can't be part of a stop string."""
        self._length = 0
        """Of the text decoded so far, in characters."""

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text; the token pushed last completed it."""
        return self._filter.found

    def push(self, token: Token) -> list[Piece]:
        """The pieces that `token` releases; the token that ends the reply adds no text."""
        for piece in self._decode(token):
            self._hold(piece)
        self._unchecked -= 1
        return self._release()

    def finish(self) -> list[Piece]:
        """The rest of the text; an incomplete character at its end is dropped."""
        if self._incomplete:
            tail = self._decoder.getstate()[0]
            # The decoder waits for the rest of a surrogate, which would be no character either.
            broken = tail[:1] == b"\xed" and tail[1:2] >= b"\xa0"
            text = self._decoder.decode(b"", final=True) if broken else ""
            self._hold(Piece(text, self._incomplete))
            self._incomplete = ()
        self._free += len(self._filter.finish())
        return self._release()

    def _hold(self, piece: Piece) -> None:
        """Keep a piece until it is known that no stop string cuts it."""
        self._held.append(piece)
        self._length += len(piece.text)
        checked = self._unchecked <= 0
        self._free += len(self._filter.push(piece.text) if checked else piece.text)

    def _decode(self, token: Token) -> Iterator[Piece]:
        data = b"" if token.id in self._end_ids else self._tokenizer.token_bytes(token.id)
        if self._incomplete and data and not 0x80 <= data[0] < 0xC0:
            # The character before is broken off, and this token's text begins a piece.
            yield Piece(self._decoder.decode(b"", final=True), self._incomplete)
            self._incomplete = ()
        token = replace(token, offset=self._length)
        text = self._decoder.decode(data)
        if not self._decoder.getstate()[0]:
            yield Piece(text, (*self._incomplete, token))
            self._incomplete = ()
        elif text:
            yield Piece(text, self._incomplete)
            self._incomplete = (token,)
        else:
            self._incomplete += (token,)

    def _release(self) -> list[Piece]:
        pieces = []
        while self._held and len(self._held[0].text) <= self._free:
            piece = self._held.popleft()
            self._free -= len(piece.text)
            pieces.append(piece)
        if self.stop_string is not None and self._held:
            text = "".join(piece.text for piece in self._held)[: self._free]
            pieces.append(Piece(text, tuple(t for piece in self._held for t in piece.tokens)))
            self._held.clear()
        return pieces
