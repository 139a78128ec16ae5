"""A byte-level BPE tokenizer trained on a few sentences, with control tokens as models have."""

import json
from functools import cached_property

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

CONTROLS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|eot_id|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<｜end▁of▁sentence｜>",
)
_CORPUS = [
    "The quick brown fox jumps over the lazy dog while the server writes the reply.",
    "system user assistant tool message content <|im_start|> im_end think the the then there",
    "def main():\n    print('hello world')\n\n\nif x < 3 and y > 4: return {'a': [1, 2]}",
    "größer 東京 東京 😊 naïve \n\n\n\n    text text text",
] * 4


class SmallTokenizer:
    """Implements the Tokenizer protocol with the `tokenizers` library."""

    def __init__(self) -> None:
        plain = tokenizers.Tokenizer(models.BPE())
        plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        plain.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=600,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        plain.train_from_iterator(_CORPUS, trainer)
        self._plain = plain
        self.whole = tokenizers.Tokenizer.from_str(plain.to_str())
        self.whole.add_special_tokens(list(CONTROLS))
        self.bos_id = self.whole.token_to_id("<|begin_of_text|>")
        self.end_ids = frozenset({self.whole.token_to_id("<|im_end|>")})
        self.control_ids = frozenset(self.whole.token_to_id(text) for text in CONTROLS)

    @property
    def vocab_size(self) -> int:
        return self.whole.get_vocab_size()

    def encode(
        self, text: str, *, add_special_tokens: bool = False, control: bool = True
    ) -> list[int]:
        tokenizer = self.whole if control else self._plain
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        return [self.bos_id, *ids] if add_special_tokens else ids

    @cached_property
    def _bytes_of(self) -> dict[str, int]:
        # The printable stand-ins of byte-level BPE, in the order of its definition.
        kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
        moved = [byte for byte in range(256) if byte not in kept]
        table = {chr(byte): byte for byte in kept}
        return table | {chr(256 + i): byte for i, byte in enumerate(moved)}

    def token_bytes(self, token: int) -> bytes:
        text = self.token_text(token)
        if token in self.control_ids:
            return text.encode()
        return bytes(self._bytes_of[character] for character in text)

    def token_text(self, token: int) -> str:
        text = self.whole.id_to_token(token)
        assert isinstance(text, str), json.dumps(token)
        return text
