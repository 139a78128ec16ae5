"""Random traffic on a real model: tokens and logits are those of each reply alone."""

from dataclasses import replace

import numpy as np
import pytest
from tiny import open_step, random_prompt, tiny_checkpoint

from tensorfold.engine.interface import NewTokens, Request, Sampling
from tensorfold.engine.scheduler import RowLimits, Scheduler
from tensorfold.engine.start import make_pool
from tensorfold.engine.thread import make_reply
from tensorfold.engine.verify import run_together
from tensorfold.engine.worker import Worker
from tensorfold.runtime.step import usable_buckets

REQUESTS = 24


def random_request(rng: np.random.Generator, index: int) -> Request:
    sampling = Sampling(
        temperature=float(rng.choice([0.0, 0.7, 1.0, 2.0])),
        top_k=int(rng.choice([0, 0, 20, 280])),
        top_p=float(rng.choice([1.0, 0.9, 0.5])),
        min_p=float(rng.choice([0.0, 0.05])),
        seed=int(rng.integers(0, 2**62)) if rng.random() < 0.5 else None,
    )
    prompt = random_prompt(rng, int(rng.choice([1, 3, 8, 17, 60, 64, 65, 130])))
    return Request(f"{index}", tuple(prompt), sampling, int(rng.integers(1, 12)))


@pytest.mark.parametrize("variant", ["llama rope llama3", "qwen3 tied", "qwen3_5_moe"])
def test_random_traffic(variant: str) -> None:
    buckets = tuple(rows for rows in usable_buckets() if rows in (1, 8, 32))
    step = open_step(tiny_checkpoint(variant), lanes=5, context=192, pages=11, buckets=buckets)
    rng = np.random.default_rng(len(variant))
    requests = [random_request(rng, index) for index in range(REQUESTS)]
    solo_limits = RowLimits(alone=32, beside=32, chunk=32)
    alone = {}
    for request in requests:
        alone |= run_together(step, [request], solo_limits)
    for _ in range(6):
        limits = RowLimits(
            alone=int(rng.choice([8, 32])),
            beside=int(rng.integers(1, 9)),
            chunk=int(rng.choice([1, 2, 5, 8, 32])),
        )
        worker = Worker(step, Scheduler(step.shape, limits, make_pool(step)))
        events: dict[str, list[NewTokens]] = {request.id: [] for request in requests}
        waiting = [requests[index] for index in rng.permutation(REQUESTS)]
        cancelled = {request.id for request in requests if rng.random() < 0.2}
        while waiting or not worker.idle:
            if waiting and rng.random() < 0.4:
                request = replace(waiting.pop(), draft=bool(rng.random() < 0.5))
                worker.add(
                    make_reply(request, events[request.id].append, step.model.spec.vocab_size)
                )
            if rng.random() < 0.2:
                worker.cancel(str(rng.choice(sorted(cancelled))))
            worker.step()
        for request in requests:
            *pieces, end = events[request.id]
            tokens = tuple(token for piece in pieces for token in piece.ids)
            digests = tuple(digest for piece in pieces for digest in piece.digests)
            if end.reason == "cancelled":
                assert request.id in cancelled
            else:
                assert len(tokens) == request.max_tokens
            wanted = alone[request.id]
            assert tokens == wanted.tokens[: len(tokens)]
            assert digests == wanted.digests[: len(tokens)]
        assert worker.stats().pages_used == 0
