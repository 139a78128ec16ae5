"""Reading Hugging Face configs: what every family asks of one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tensorfold.ops.rope import Rope, make_rope


def need(config: Mapping[str, Any], key: str, kind: type = int) -> Any:
    """A value that must be there. Raises ValueError naming the key."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, (kind, int)):
        raise ValueError(f"config value {key!r} must be {kind.__name__}, not {value!r}")
    return value


def only(config: Mapping[str, Any], key: str, *allowed: Any) -> None:
    """Refuse any value of `key` but `allowed` (absent and null count as the first)."""
    value = config.get(key)
    if value is not None and value not in allowed:
        raise ValueError(f"config value {key!r}: {value!r} is not supported")


def rotary_dim(config: Mapping[str, Any], head_dim: int) -> int:
    """How much of a head is rotated."""
    parameters = config.get("rope_parameters") or {}
    factor = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    return int(head_dim * factor)


def read_rope(config: Mapping[str, Any], head_dim: int, *, partial: bool = False) -> Rope:
    """The rotation that `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`
    (before) describe, or a GGUF file's `rope_freq_factors`.

    With `partial`, only as much of a head as `partial_rotary_factor` says: after the frequencies
    of that part come zeros, for places that are not turned.
    """
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = parameters.get("rope_theta", config.get("rope_theta", 10000.0))
    turned = rotary_dim(config, head_dim) if partial else head_dim
    if not partial:
        only(config, "partial_rotary_factor", 1.0)
        only(parameters, "partial_rotary_factor", 1.0)
    if config.get("rope_freq_factors"):
        parameters = {"rope_type": "factors", "factors": config["rope_freq_factors"]}
    kind = parameters.get("rope_type", parameters.get("type"))
    if kind == "yarn":
        only(parameters, "mscale", 1.0)
        only(parameters, "mscale_all_dim", 1.0)
    original = parameters.get("original_max_position_embeddings")
    if kind in ("yarn", "llama3") and original is None:
        parameters["original_max_position_embeddings"] = need(config, "max_position_embeddings")
    try:
        rope = make_rope(turned, float(theta), parameters)
    except KeyError as missing:
        raise ValueError(f"config value rope_scaling lacks {missing}") from None
    return replace(rope, frequencies=rope.frequencies + (0.0,) * ((head_dim - turned) // 2))
