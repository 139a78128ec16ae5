"""The families that can be served. A new one is its file and its line here."""

from collections.abc import Mapping
from typing import Any

from tensorfold.models import gemma3, gpt_oss, lfm2, llama, nemotron_h, qwen3, qwen3_5
from tensorfold.models.family import Family, Spec

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    qwen3.FAMILY,
    gemma3.FAMILY,
    qwen3_5.FAMILY,
    nemotron_h.FAMILY,
    lfm2.FAMILY,
    gpt_oss.FAMILY,
)


def find(config: Mapping[str, Any]) -> Spec:
    """The spec of the model that a checkpoint's config describes.

    Raises ValueError, one line, for an architecture or a config value that isn't supported.
    """
    named = config.get("architectures") or []
    for family in FAMILIES:
        if any(name in family.architectures for name in named):
            return family.spec(config)
    known = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise ValueError(f"architecture {', '.join(named) or '(none)'} is not supported (only {known})")
