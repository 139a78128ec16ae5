"""The `Tokenizer` of the interface over the `tokenizers` package.

Two pipelines share one vocabulary: the full one, for text a template wrote, and one without the
control tokens, for text a user wrote. Neither is changed after it is built, so the ids of a text
depend on nothing but the text and the two flags of `encode`.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from .interface import CheckpointError

_MARKER = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")

_HTML = re.compile(
    "</?(?:a|b|blockquote|body|br|button|caption|center|code|dd|del|div|dl|dt|em|figcaption|figure|"
    "footer|form|h[1-6]|head|header|hr|html|i|iframe|img|input|ins|kbd|label|li|link|main|mark|meta|"
    "nav|ol|option|p|pre|q|s|samp|script|section|select|small|span|strike|strong|style|sub|summary|"
    "sup|table|tbody|td|template|textarea|tfoot|th|thead|title|tr|tt|u|ul|var|video) ?/?>"
)

_SPACE_MARK = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def is_control(spelling: str, special: bool) -> bool:
    """Whether an added token is markup that only a template may write.

    Every token flagged special is. So are the unflagged ones spelled like a marker, `<think>`,
    `<tool_call>`, `<|fim_prefix|>` or `[INST]`: a user who writes one means its letters. HTML's
    elements, which some vocabularies hold as words, and runs of spaces are text.
    """
    if special:
        return True
    return bool(_MARKER.fullmatch(spelling)) and not _HTML.fullmatch(spelling)


def _byte_of_letter() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_LETTER = _byte_of_letter()


def _steps(component: Any) -> list[dict[str, Any]]:
    """A decoder's settings, sequences flattened."""
    if component is None:
        return []
    waiting, found = [json.loads(component.__getstate__())], []
    while waiting:
        step = waiting.pop(0)
        if step["type"] == "Sequence":
            waiting = step["decoders"] + waiting
        else:
            found.append(step)
    return found


def _strips_space(steps: list[dict[str, Any]]) -> bool:
    """Whether a decoder drops a space at the start of the text."""
    return any(
        (step["type"] == "Strip" and step["content"] == " " and step["start"] > 0)
        or (step["type"] == "Metaspace" and step["prepend_scheme"] != "never")
        for step in steps
    )


def set_frame(tokenizer: tokenizers.Tokenizer, before: int | None, after: int | None) -> None:
    """Make `add_special_tokens=True` put `before` before a text and `after` after it, if any."""
    found = {"bos": before, "eos": after}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[
            *([] if before is None else ["bos"]),
            "$A",
            *([] if after is None else ["eos"]),
        ],
        special_tokens=[
            {"id": name, "ids": [token], "tokens": [name]}
            for name, token in found.items()
            if token is not None
        ],
    )


def _ids(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    """The text's tokens. A batch of it, since other threads run while batches are encoded, and
    without places in the text, which take as long again."""
    found: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return found


class TextTokenizer:
    """A `Tokenizer` over a `tokenizers.Tokenizer`, which must not be changed afterwards."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        bos_id: int | None = None,
        end_ids: Iterable[int] = (),
    ):
        """Raises CheckpointError for a tokenizer whose tokens' bytes can't be told."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._full = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._added = {token: each.content for token, each in added.items()}
        self._control = frozenset(
            token for token, each in added.items() if is_control(each.content, each.special)
        )
        self._bos = bos_id
        self._ends = frozenset(end_ids)
        self._size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self._choose_decoder()
        self._build_plain([each for token, each in added.items() if token not in self._control])
        self._find_frame()

    def save(self, path: Path) -> None:
        """Write the whole pipeline as a tokenizer.json; `bos_id` and `end_ids` are not in it."""
        self._full.save(str(path))

    def _choose_decoder(self) -> None:
        """How the spelling of a token in the vocabulary maps to bytes."""
        steps = _steps(self._full.decoder)
        kinds = {step["type"] for step in steps}
        marked = "Metaspace" in kinds or any(
            step["type"] == "Replace" and step["pattern"].get("String") == _SPACE_MARK
            for step in steps
        )
        self._byte_level = "ByteLevel" in kinds
        if not self._byte_level and not marked:
            names = ", ".join(sorted(kinds)) or "none"
            raise CheckpointError(f"tokenizer decoder is not supported: {names}")
        self._byte_fallback = "ByteFallback" in kinds
        self._strips = not self._byte_level and _strips_space(steps)

    def _build_plain(self, ordinary: list[tokenizers.AddedToken]) -> None:
        """The pipeline without control tokens; the vocabulary itself is shared, not copied."""
        full = self._full
        plain = tokenizers.Tokenizer(full.model)
        if full.normalizer is not None:
            plain.normalizer = full.normalizer
        if full.pre_tokenizer is not None:
            plain.pre_tokenizer = full.pre_tokenizer
        plain.add_tokens(ordinary)
        # An added token outside the model's vocabulary is numbered by how many came before it,
        # which leaving some out changes.
        self._renumbered: dict[int, int] = {}
        for each in ordinary:
            here, true = plain.token_to_id(each.content), full.token_to_id(each.content)
            if here == true or here is None or true is None:
                continue
            if plain.model.id_to_token(here) is not None:
                raise CheckpointError(
                    f"added token {each.content!r} has no place in the vocabulary"
                )
            self._renumbered[here] = true
        self._plain = plain

    def _find_frame(self) -> None:
        """The tokens that the post-processor puts before and after any text."""
        inner = self._full.encode("a", add_special_tokens=False).ids
        outer = self._full.encode("a", add_special_tokens=True).ids
        for start in range(len(outer) - len(inner) + 1):
            if outer[start : start + len(inner)] == inner:
                self._before, self._after = outer[:start], outer[start + len(inner) :]
                return
        raise CheckpointError("tokenizer post-processor changes the text's own tokens")

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return self._size

    @property
    def bos_id(self) -> int | None:
        """The token that `encode(..., add_special_tokens=True)` may put first."""
        return self._bos

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a reply, as the tokenizer's own files say."""
        return self._ends

    @property
    def control_ids(self) -> frozenset[int]:
        """Tokens that ordinary text never encodes to; see `is_control`."""
        return self._control

    @property
    def strips_leading_space(self) -> bool:
        """Whether decoding a whole text drops one space at its start.

        SentencePiece vocabularies encode "Hello" as "▁Hello", whose bytes are " Hello": the joined
        `token_bytes` of such a text have one space more than the text.
        """
        return self._strips

    def encode(
        self, text: str, *, add_special_tokens: bool = False, control: bool = True
    ) -> list[int]:
        """The ids of `text`. With `control=False`, control tokens spelled in it are plain text.

        Raises UnicodeEncodeError, a ValueError, for a lone surrogate.
        """
        text.encode()
        ids = _ids(self._full, text) if control else self._encode_plain(text)
        return [*self._before, *ids, *self._after] if add_special_tokens else ids

    def _encode_plain(self, text: str) -> list[int]:
        ids: list[int] = []
        for token in _ids(self._plain, text):
            token = self._renumbered.get(token, token)
            # Merges of letters can reach a control token that is also in the model's vocabulary.
            ids += self._letters(token) if token in self._control else [token]
        return ids

    def _letters(self, token: int) -> list[int]:
        """A token's spelling, one token a character."""
        ids: list[int] = []
        for letter in self._full.model.id_to_token(token) or "":
            whole = self._full.model.token_to_id(letter)
            names = [f"<0x{byte:02X}>" for byte in letter.encode()]
            found = [whole] if whole is not None else map(self._full.model.token_to_id, names)
            ids += [each for each in found if each is not None]
        return ids

    def token_text(self, token: int) -> str:
        """A token's spelling in text, "�" for bytes that are no text; "" for an unused id."""
        return self.token_bytes(token).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token adds to the text; none for an unused id.

        See `strips_leading_space` for the start of a SentencePiece text.
        """
        spelling = self._added.get(token)
        if spelling is not None:
            if not self._byte_level and token not in self._control:
                spelling = spelling.replace(_SPACE_MARK, " ")
            return spelling.encode()
        # The model numbers tokens with 32 bits.
        piece = self._full.id_to_token(token) if 0 <= token < self._size else None
        if piece is None:
            return b""
        if self._byte_level:
            if all(letter in _BYTE_OF_LETTER for letter in piece):
                return bytes(_BYTE_OF_LETTER[letter] for letter in piece)
            return str(piece).encode()
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        return str(piece).replace(_SPACE_MARK, " ").encode()
