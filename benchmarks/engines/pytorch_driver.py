"""Hugging Face transformers on PyTorch: the GGUF file dequantised to float32 or bfloat16."""

import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache

from benchmarks.engines.driver import Clock, Driver, Generated, random_ids, run


class PyTorch(Driver):
    """A plain greedy loop over the model's own cache."""

    def __init__(self, model: str, context: str, precision: str):
        path = Path(model)
        dtype = getattr(torch, precision)
        self._model = AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=dtype
        ).eval()
        self.about = (
            f"transformers {transformers.__version__}, PyTorch {torch.__version__}, {precision}, "
            f"{torch.get_num_threads()} threads"
        )

    @torch.inference_mode()
    def generate(self, prompt: list[int], tokens: int) -> Generated:
        cache = DynamicCache()
        clock = Clock()
        token = self._run(prompt, cache, 1)
        clock.tick()
        for _ in range(tokens - 1):
            token = self._run([token], cache, 1)
            clock.tick()
        return clock.generated()

    @torch.inference_mode()
    def step(self, rows: int, depth: int) -> float:
        cache = DynamicCache()
        self._run(random_ids(depth), cache, 1)
        seconds = []
        for _ in range(9):
            started = time.perf_counter()
            self._run(random_ids(rows), cache, rows)
            seconds.append(time.perf_counter() - started)
            cache.crop(-rows)
        return median(seconds)

    def _run(self, tokens: list[int], cache: Any, logits: int) -> int:
        """Run tokens, take the logits of the last `logits`; the likeliest after the last."""
        out = self._model(
            torch.tensor([tokens]), past_key_values=cache, use_cache=True, logits_to_keep=logits
        )
        return int(out.logits[0].argmax(-1)[-1])


if __name__ == "__main__":
    sys.exit(run(PyTorch))
