"""The tokenizer that GGUF metadata describes, as a pipeline of the `tokenizers` package.

`tokenizer.ggml.model` is "gpt2" (byte-level BPE with a list of merges, cut into words by the rule
that `tokenizer.ggml.pre` names) or "llama" (SentencePiece BPE, where scores rank the merges).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from .interface import CheckpointError
from .tokenizer import TextTokenizer, set_frame

_SPACE_MARK = "▁"


class _Kind(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    CONTROL = 3
    USER_DEFINED = 4


@dataclass(frozen=True)
class _Words:
    """How text is cut into words before byte-level BPE.

    Each of `cuts` splits what the one before left whole. `whole_words`: a word that is in the
    vocabulary is that token, whatever the merges say.
    """

    cuts: tuple[str, ...]
    compose: bool = False
    whole_words: bool = False
    add_bos: bool = False


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _modern(digits: str, marks: str = "") -> str:
    """The rule of Llama 3 and its kin; `marks` adds combining marks to the letters."""
    letters = rf"[\p{{L}}{marks}]+"
    symbols = rf" ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*"
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letters}|{digits}|{symbols}|{_TAIL}"


_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?:{_CONTRACTIONS})?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?:{_CONTRACTIONS})?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)
"""The rule of GPT-4o and gpt-oss."""

_LLAMA3 = _Words((_modern(r"\p{N}{1,3}"),), whole_words=True, add_bos=True)
_WORDS = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "lfm2": _LLAMA3,
    "gpt-4o": _Words((_CASED,)),
    "tekken": _Words((_TEKKEN,), whole_words=True, add_bos=True),
    "qwen2": _Words((_modern(r"\p{N}"),), compose=True),
    "qwen35": _Words((_modern(r"\p{N}", r"\p{M}"),), compose=True),
    "smollm": _Words((r"\p{N}", _GPT2)),
    "gpt-2": _Words((_GPT2,)),
    "default": _Words((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
}

_ENDS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "</s>",
        "<eos>",
        "<EOT>",
        "[EOT]",
    }
)

_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


@dataclass(frozen=True)
class _Vocabulary:
    """`tokens` by id with their types, and `get` for `tokenizer.ggml.*`."""

    tokens: list[str]
    kinds: list[int]
    metadata: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def named(self, key: str) -> int | None:
        """The id in `key`, if the file has it and it is in the vocabulary."""
        token = self.get(key)
        return token if isinstance(token, int) and 0 <= token < len(self.tokens) else None


def _read_vocabulary(metadata: Mapping[str, Any]) -> _Vocabulary:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise CheckpointError("no tokenizer.ggml.tokens in the metadata")
    kinds = metadata.get("tokenizer.ggml.token_type")
    kinds = [_Kind.NORMAL] * len(tokens) if kinds is None else [int(kind) for kind in kinds]
    if len(kinds) != len(tokens):
        raise CheckpointError(f"{len(kinds)} token types for {len(tokens)} tokens")
    spelled = [text or f"[EMPTY_{token}]" for token, text in enumerate(tokens)]
    if len(set(spelled)) != len(spelled):
        raise CheckpointError("tokenizer.ggml.tokens has a token twice")
    return _Vocabulary(spelled, kinds, metadata)


def _byte_level(vocabulary: _Vocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    """(pipeline, whether it adds BOS by default) of model "gpt2"."""
    name = vocabulary.get("pre")
    words = _WORDS.get(name)
    if words is None:
        known = ", ".join(_WORDS)
        raise CheckpointError(f"tokenizer.ggml.pre {name!r} is not supported (known: {known})")
    pairs = [
        (merge[:cut], merge[cut + 1 :])
        for merge in vocabulary.get("merges", [])
        # A piece may itself be a space.
        for cut in [merge.find(" ", 1)]
    ]
    numbered = {text: token for token, text in enumerate(vocabulary.tokens)}
    result = tokenizers.Tokenizer(
        models.BPE(vocab=numbered, merges=pairs, ignore_merges=words.whole_words)
    )
    if words.compose:
        result.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(tokenizers.Regex(cut), "isolated") for cut in words.cuts]
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    result.pre_tokenizer = pre_tokenizers.Sequence([*splits, letters])
    result.decoder = decoders.ByteLevel()
    return result, words.add_bos


def _ranked_merges(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """The pairs that join into a token, best score first; only normal tokens take part."""
    scores = vocabulary.get("scores")
    if scores is None or len(scores) != len(vocabulary.tokens):
        raise CheckpointError("tokenizer.ggml.scores is missing or too short")
    normal = {
        text: (-float(scores[token]), token)
        for token, text in enumerate(vocabulary.tokens)
        if vocabulary.kinds[token] == _Kind.NORMAL
    }
    ranked = [
        (rank, text[:cut], text[cut:])
        for text, rank in normal.items()
        for cut in range(1, len(text))
        if text[:cut] in normal and text[cut:] in normal
    ]
    return [(left, right) for _, left, right in sorted(ranked)]


def _sentence_piece(vocabulary: _Vocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    """(pipeline, whether it adds BOS by default) of model "llama"."""
    unknown = vocabulary.named("unknown_token_id")
    result = tokenizers.Tokenizer(
        models.BPE(
            vocab={text: token for token, text in enumerate(vocabulary.tokens)},
            merges=_ranked_merges(vocabulary),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    marks: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE_MARK)]
    steps: list[decoders.Decoder] = [
        decoders.Replace(_SPACE_MARK, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if vocabulary.get("add_space_prefix", True):
        marks.insert(0, normalizers.Prepend(_SPACE_MARK))
        steps.append(decoders.Strip(" ", 1, 0))
    result.normalizer = normalizers.Sequence(marks)
    result.decoder = decoders.Sequence(steps)
    return result, True


_MODELS = {"gpt2": _byte_level, "llama": _sentence_piece}


def _add_tokens(result: tokenizers.Tokenizer, vocabulary: _Vocabulary) -> None:
    for kind in (_Kind.CONTROL, _Kind.USER_DEFINED):
        result.add_tokens(
            [
                tokenizers.AddedToken(text, normalized=False, special=kind == _Kind.CONTROL)
                for token, text in enumerate(vocabulary.tokens)
                if vocabulary.kinds[token] == kind
            ]
        )


def _add_frame(result: tokenizers.Tokenizer, vocabulary: _Vocabulary, bos_first: bool) -> None:
    """The BOS before and EOS after a text, where the file asks for them."""
    wanted = {
        "bos": vocabulary.get("add_bos_token", bos_first),
        "eos": vocabulary.get("add_eos_token", False),
    }
    ids = {name: vocabulary.named(f"{name}_token_id") for name, add in wanted.items() if add}
    if any(token is not None for token in ids.values()):
        set_frame(result, ids.get("bos"), ids.get("eos"))


def _find_ends(vocabulary: _Vocabulary) -> frozenset[int]:
    """The ends that the file names, and control tokens that end a turn in every vocabulary."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    named = {vocabulary.named(key) for key in keys}
    spelled = {
        text: token
        for token, text in enumerate(vocabulary.tokens)
        if vocabulary.kinds[token] == _Kind.CONTROL and text in _ENDS
    }
    if {"<|return|>", "<|call|>"} <= spelled.keys():
        spelled.pop("<|end|>", None)  # Of one message of several.
    ends = named | set(spelled.values())
    return frozenset(token for token in ends if token is not None)


def special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token`, `eos_token`, ... as the file's ids spell them."""
    vocabulary = _read_vocabulary(metadata)
    ids = {name: vocabulary.named(key) for name, key in _NAMED.items()}
    return {name: vocabulary.tokens[token] for name, token in ids.items() if token is not None}


def build_tokenizer(metadata: Mapping[str, Any]) -> TextTokenizer:
    """The tokenizer of GGUF `metadata` (`tokenizer.ggml.*`).

    Raises CheckpointError for an unknown model or word rule and for lists that don't fit together.
    """
    vocabulary = _read_vocabulary(metadata)
    name = vocabulary.get("model")
    if name not in _MODELS:
        raise CheckpointError(f"tokenizer.ggml.model {name!r} is not supported")
    try:
        result, bos_first = _MODELS[name](vocabulary)
        _add_tokens(result, vocabulary)
        _add_frame(result, vocabulary, bos_first)
    except CheckpointError:
        raise
    except (
        Exception
    ) as error:  # the package raises bare Exception for merges outside the vocabulary
        raise CheckpointError(f"damaged tokenizer: {error}") from error
    return TextTokenizer(
        result, bos_id=vocabulary.named("bos_token_id"), end_ids=_find_ends(vocabulary)
    )
