"""llama.cpp through llama-cpp-python's bindings of its C interface, with the better thread counts.

The C interface and not the package's own loop: that loop copies every step's logits.
"""

import ctypes
import os
import sys
import time
from statistics import median

import llama_cpp
import numpy as np

from benchmarks.engines.driver import Clock, Driver, Generated, random_ids, run

_BATCH = 512


class LlamaCpp(Driver):
    """One sequence; prompts in batches of up to 512 tokens, as llama.cpp's own programs do."""

    def __init__(self, model: str, context: str):
        self._silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            model.encode(), llama_cpp.llama_model_default_params()
        )
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = int(context)
        settings.n_batch = settings.n_ubatch = _BATCH
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError("llama.cpp could not open the model")
        self._memory = llama_cpp.llama_get_memory(self._context)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)

    def prepare(self) -> str:
        one, many = self._choose_threads()
        version = llama_cpp.__version__
        return f"llama-cpp-python {version}, threads: {one} to decode, {many} for prompts"

    def _choose_threads(self) -> tuple[int, int]:
        """The counts that are fastest in a short trial, for one token and for a batch."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        counts = sorted({1, 2, (cores or 1) // 2, cores or 1} - {0})
        found = []
        for threads in counts:
            llama_cpp.llama_set_n_threads(self._context, threads, threads)
            trials = [self.generate(random_ids(64), 17) for _ in range(3)]
            rest, first = median(t.rest for t in trials), median(t.first for t in trials)
            found.append((threads, rest, first))
        one = min(found, key=lambda each: each[1])[0]
        many = min(found, key=lambda each: each[2])[0]
        llama_cpp.llama_set_n_threads(self._context, one, many)
        return one, many

    def generate(self, prompt: list[int], tokens: int) -> Generated:
        llama_cpp.llama_memory_clear(self._memory, False)
        clock = Clock()
        for start in range(0, len(prompt), _BATCH):
            part = prompt[start : start + _BATCH]
            self._run(part, start, 1)
        token = self._likeliest(len(part) - 1)
        clock.tick()
        for position in range(len(prompt), len(prompt) + tokens - 1):
            self._run([token], position, 1)
            token = self._likeliest(0)
            clock.tick()
        return clock.generated()

    def step(self, rows: int, depth: int) -> float:
        llama_cpp.llama_memory_clear(self._memory, False)
        self._run(random_ids(depth), 0, 1)
        seconds = []
        for _ in range(9):
            tokens = random_ids(rows)
            started = time.perf_counter()
            self._run(tokens, depth, rows)
            for row in range(rows):
                self._likeliest(row)
            seconds.append(time.perf_counter() - started)
            llama_cpp.llama_memory_seq_rm(self._memory, 0, depth, -1)
        return median(seconds)

    def _run(self, tokens: list[int], position: int, logits: int) -> None:
        """Decode a batch of sequence 0, with logits for the last `logits` of it."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = int(i >= len(tokens) - logits)
        status = llama_cpp.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def _likeliest(self, row: int) -> int:
        pointer = llama_cpp.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(pointer, shape=(self._vocabulary,)).argmax())


if __name__ == "__main__":
    sys.exit(run(LlamaCpp))
