"""How a decoding step grows: with the context where layers are recurrent, and with the experts
that a model has and uses. `python -m benchmarks.growth` needs PyTorch for the random weights.

Every figure is the median of steps that take turns with those it is compared with.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from tensorfold.checkpoints.interface import GenerationDefaults, TensorInfo, WeightsFile
from tensorfold.runtime.load import load
from tensorfold.runtime.packed import Span, pack_settings
from tensorfold.runtime.step import StateShape, StepFunction

_TURNS = 40
_SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 64,
    "num_experts_per_tok": 2,
    "vocab_size": 512,
    "max_position_embeddings": 20_000,
}


@dataclass
class RandomCheckpoint:
    """Implements what `load` reads of a `Checkpoint`."""

    config: dict[str, Any]
    arrays: Mapping[str, np.ndarray]
    name: str = "random"
    tokenizer: Any = None
    chat_template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    end_ids: frozenset[int] = frozenset()
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)
    files: tuple[WeightsFile, ...] = ()

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return {name: TensorInfo(array.shape, "F32") for name, array in self.arrays.items()}

    def read(self, name: str) -> np.ndarray:
        return self.arrays[name]


def make_step(experts: int, kinds: list[str], context: int) -> StepFunction:
    """Of a random model with `experts` experts a layer."""
    torch.manual_seed(0)
    config = Qwen3_5MoeTextConfig(**_SIZES, num_experts=experts, layer_types=kinds)
    model = Qwen3_5MoeForCausalLM(config)
    arrays = {name: value.numpy(force=True) for name, value in model.state_dict().items()}
    about = config.to_dict() | {"architectures": ["Qwen3_5MoeForCausalLM"]}
    pages = -(-context // 64)
    step = StepFunction(load(RandomCheckpoint(about, arrays)), StateShape(1, context, pages))
    step.compile()
    return step


def seconds(step: StepFunction, rows: int, position: int, rng: np.random.Generator) -> float:
    """One step of `rows` rows at a position, drawn."""
    table = np.arange(step.shape.pages_per_lane, dtype=np.int32)[None]
    settings = pack_settings(0.0, 0, 1.0, 0.0, 0)[None]
    tokens = rng.integers(0, step.model.spec.vocab_size, rows).tolist()
    started = time.perf_counter()
    step.run([Span(0, position, tokens, rows)], table, settings)
    return time.perf_counter() - started


def main() -> None:
    rng = np.random.default_rng(0)
    print("a row of decoding, by position, recurrent layers only:")
    step = make_step(4, ["linear_attention"] * 4, 17_000)
    places = (1_000, 4_000, 16_000)
    found: dict[Any, list[float]] = {place: [] for place in places}
    for turn in range(_TURNS):
        for place in places:
            found[place].append(seconds(step, 1, place + turn % 32, rng))
    for place in places:
        ratio = median(found[place]) / median(found[places[0]])
        print(f"  at {place:6}: {median(found[place]) * 1e3:.3f} ms, {ratio:.3f} of the first")
    print("a step, by experts that a layer has; 2 of them for a row:")
    steps = {held: make_step(held, ["full_attention"] * 4, 512) for held in (8, 32, 128)}
    found = {(held, rows): [] for held in steps for rows in (1, 2, 4, 8)}
    for _ in range(_TURNS):
        for held, rows in found:
            found[held, rows].append(seconds(steps[held], rows, 100, rng))
    for held in steps:
        times = [median(found[held, rows]) * 1e3 for rows in (1, 2, 4, 8)]
        print(
            f"  {held:4} experts: "
            + ", ".join(f"{t:.2f} ms" for t in times)
            + " for 1, 2, 4, 8 rows"
        )


if __name__ == "__main__":
    main()
