"""The tokenizer of a Hugging Face folder: tokenizer.json, with tokenizer_config.json on top."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from .interface import CheckpointError
from .tokenizer import TextTokenizer, set_frame


def _spelling(found: Any) -> str | None:
    """A special token: its text, or an object with its text in `content`."""
    if isinstance(found, dict):
        found = found.get("content")
    return found if isinstance(found, str) else None


def read_special_tokens(
    settings: Mapping[str, Any], special_map: Mapping[str, Any]
) -> dict[str, str]:
    """`bos_token`, `eos_token`, ... of tokenizer_config.json, else of special_tokens_map.json."""
    both = {**special_map, **{key: value for key, value in settings.items() if value is not None}}
    found = {key: _spelling(value) for key, value in both.items() if key.endswith("_token")}
    return {key: text for key, text in found.items() if text is not None}


def read_pipeline(folder: Path) -> tokenizers.Tokenizer:
    """The tokenizer.json of `folder`. Raises CheckpointError if it is missing or damaged."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        if (folder / "tokenizer.model").is_file():
            raise CheckpointError(
                f"{path}: missing; make it from tokenizer.model with transformers: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            )
        raise CheckpointError(f"{path}: missing")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package has no exception class of its own
        raise CheckpointError(f"{path}: damaged tokenizer: {error}") from error


def _add_missing(tokenizer: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> None:
    """Tokens that only tokenizer_config.json lists, in the order of their ids."""
    listed = settings.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return
    for token, each in sorted(listed.items(), key=lambda item: int(item[0])):
        text = _spelling(each)
        if text is None or tokenizer.token_to_id(text) is not None:
            continue
        flags = {key: bool(each.get(key)) for key in ("lstrip", "rstrip", "normalized", "special")}
        tokenizer.add_tokens([tokenizers.AddedToken(text, **flags)])
        if tokenizer.token_to_id(text) != int(token):
            raise CheckpointError(
                f"added token {text!r} is {token} in tokenizer_config.json but would become "
                f"{tokenizer.token_to_id(text)} in tokenizer.json"
            )


def open_tokenizer(
    folder: Path, settings: Mapping[str, Any], special: Mapping[str, str]
) -> TextTokenizer:
    """The tokenizer of `folder`, given its tokenizer_config.json and its special tokens.

    As in transformers, `add_bos_token` and `add_eos_token`, where the config has one, decide what
    `add_special_tokens=True` adds; else tokenizer.json does. Raises CheckpointError.
    """
    tokenizer = read_pipeline(folder)
    try:
        _add_missing(tokenizer, settings)
        ids = {key: tokenizer.token_to_id(text) for key, text in special.items()}
        bos, eos = ids.get("bos_token"), ids.get("eos_token")
        if "add_bos_token" in settings or "add_eos_token" in settings:
            before = bos if settings.get("add_bos_token") else None
            set_frame(tokenizer, before, eos if settings.get("add_eos_token") else None)
        return TextTokenizer(tokenizer, bos_id=bos, end_ids=[] if eos is None else [eos])
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}") from error
