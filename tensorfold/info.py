"""What `tensorfold info` says of a checkpoint."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import jax

from tensorfold.checkpoints.interface import Checkpoint
from tensorfold.models.family import (
    Convolution,
    LayerState,
    PagedKV,
    Recurrent,
    Spec,
    state_bytes,
)
from tensorfold.ops.implementation import describe as describe_ops
from tensorfold.ops.rows import PAGE
from tensorfold.runtime.load import describe


def info_rows(checkpoint: Checkpoint) -> dict[str, str]:
    """Name and value of each line, from the config and the tensors' shapes; no weight is read.

    Raises CheckpointError, one line, for a model that can't be served.
    """
    spec = describe(checkpoint)
    formats = Counter(info.format for info in checkpoint.tensors.values())
    parameters = sum(math.prod(info.shape) for info in checkpoint.tensors.values())
    page_bytes, lane_bytes = state_bytes(spec.state)
    rows = {
        "name": checkpoint.name,
        "architecture": ", ".join(checkpoint.config.get("architectures", ())),
        "layers": _layers(spec, spec.state, "layers."),
    }
    if spec.next_token:
        rows["next token"] = _layers(spec, spec.next_token.state, "mtp.layers.")
    return rows | {
        "parameters": f"{parameters:,}",
        "tensors": ", ".join(f"{count} {name}" for name, count in formats.most_common()),
        "vocabulary": f"{spec.vocab_size:,}",
        "context": f"{spec.context:,} tokens",
        "state": f"{page_bytes // PAGE:,} bytes a token, {lane_bytes:,} a lane",
        "chat template": "yes" if checkpoint.chat_template else "no",
        "runs on": f"{jax.default_backend()}, {describe_ops()}",
    }


def _layers(spec: Spec, state: Sequence[LayerState], place: str) -> str:
    """The layers at `place` by kind; those with experts and a state are counted once more."""
    expert_layers = {
        int(path.removeprefix(place).split(".")[0])
        for path in spec.leaves
        if path.startswith(place) and ".experts_" in path
    }
    mixed = expert_layers & {i for i, layer in enumerate(state) if _kind(layer)}
    text = _kinds(state, expert_layers)
    return f"{text}; {len(mixed)} with experts" if mixed else text


def _kinds(layers: Iterable[LayerState], expert_layers: Iterable[int] = ()) -> str:
    """ "24 attention (12 with a window of 512), 18 recurrent"."""
    experts = set(expert_layers)
    found: Counter[str] = Counter()
    windows: Counter[int] = Counter()
    for i, layer in enumerate(layers):
        found[_kind(layer) or ("experts" if i in experts else "feed-forward")] += 1
        if isinstance(layer, PagedKV) and layer.window is not None:
            windows[layer.window] += 1
    narrow = ", ".join(f"{count} with a window of {size:,}" for size, count in windows.items())
    return ", ".join(
        f"{count} {kind}" + (f" ({narrow})" if narrow and kind == "attention" else "")
        for kind, count in found.most_common()
    )


def _kind(layer: LayerState) -> str:
    """The kind of a layer that keeps state, "" for others."""
    match layer:
        case PagedKV():
            return "attention"
        case Recurrent():
            return "recurrent"
        case Convolution():
            return "short convolution"
    return ""
