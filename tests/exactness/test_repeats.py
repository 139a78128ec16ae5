"""Text that repeats itself, which copies draft most: drafted and plain replies of a real model."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tiny import open_step

from tensorfold.checkpoints.interface import Checkpoint
from tensorfold.engine.drafts.copies import CopySource
from tensorfold.engine.drafts.drafting import Drafting
from tensorfold.engine.drafts.source import DraftSource
from tensorfold.engine.drafts.widths import StepTimes
from tensorfold.engine.interface import Request, Sampling
from tensorfold.engine.reply import Reply
from tensorfold.engine.scheduler import RowLimits, Scheduler
from tensorfold.engine.trace import Traced
from tensorfold.engine.verify import run
from tensorfold.engine.worker import Worker
from tensorfold.runtime.step import StepFunction, usable_buckets

PROMPTS = {
    # vLLM's report: n-gram drafts of 2 to 5 tokens changed the greedy reply.
    "serving": "serving" * 48,
    "a word and a space": "token " * 60,
    "two letters": "ab" * 90,
    "counting": ", ".join(str(number) for number in range(60)),
    "one digit": "0" * 120,
    "blanks and lines": "    \n" * 40,
    "rows of JSON": "".join(f'{{"id": {i}, "name": "item", "ok": true}}\n' for i in range(12)),
    "code": "".join(f"    self.field_{i} = field_{i}\n" for i in range(16)),
    "a chant": "We will go. They will go. We will stay. They will stay. " * 6,
    "other scripts": "日本語のテキスト。" * 12 + "да, конечно, " * 8,
    "emoji": "👩‍👩‍👧🙂" * 14,
    "a table": "| name | value | unit |\n| --- | --- | --- |\n" + "| mass | 12 | kg |\n" * 12,
}
TOKENS = 32
LIMITS = RowLimits(alone=64, beside=64, chunk=64)
SAMPLINGS = [Sampling(seed=42), Sampling(temperature=0.7, top_p=0.9, seed=42)]


class Lookup(DraftSource):
    """Drafts four tokens after the latest place where the last 5, 4, 3 or 2 tokens stood before."""

    seconds = 0.0
    name = "lookup"
    takes_hidden = False

    def chances(self, reply: Reply, most: int) -> list[float]:
        return [0.9] * min(len(self._found(reply.known)), most)

    def propose(self, wanted: Sequence[tuple[Reply, int]]) -> list[list[int]]:
        return [self._found(reply.known)[:count] for reply, count in wanted]

    @staticmethod
    def _found(known: list[int]) -> list[int]:
        for length in (5, 4, 3, 2):
            last = known[-length:]
            for end in range(len(known) - 1, length - 1, -1):
                if known[end - length : end] == last:
                    return known[end : end + 4]
        return []


@pytest.fixture(scope="module")
def step(default_checkpoint: Checkpoint) -> StepFunction:
    buckets = tuple(rows for rows in usable_buckets() if rows in (1, 8, 64))
    return open_step(default_checkpoint, lanes=len(PROMPTS), context=320, buckets=buckets)


@pytest.fixture(scope="module")
def requests(default_checkpoint: Checkpoint) -> list[Request]:
    encode = default_checkpoint.tokenizer.encode
    return [
        Request(f"{name} {index}", tuple(encode(text)[:280]), sampling, TOKENS)
        for name, text in PROMPTS.items()
        for index, sampling in enumerate(SAMPLINGS)
    ]


@pytest.fixture(scope="module")
def plain(step: StepFunction, requests: list[Request]) -> dict[str, Traced]:
    """One token at a time, one reply at a time."""
    return {
        name: reply
        for request in requests
        for name, reply in run(worker_of(step, []), step, [replace(request, draft=False)]).items()
    }


def worker_of(step: StepFunction, sources: Sequence[DraftSource]) -> Worker:
    """Which drafts whatever its sources offer."""
    times = StepTimes(step.buckets, learns=False)
    return Worker(step, Scheduler(step.shape, LIMITS), Drafting(step.buckets, sources, times))


@pytest.mark.parametrize("source", [CopySource, Lookup])
@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
def test_repeats_are_drafted_and_the_same(
    source: type[DraftSource],
    together: bool,
    step: StepFunction,
    requests: list[Request],
    plain: dict[str, Traced],
) -> None:
    groups = [requests[i::2] for i in range(2)] if together else [[each] for each in requests]
    drafted = 0
    for group in groups:
        worker = worker_of(step, [source()])
        replies = run(worker, step, group, stagger=int(together))
        for request in group:
            assert not plain[request.id].difference(replies[request.id]), request.id
        drafted += worker.stats().drafted
        assert worker.stats().pages_used == 0
    assert drafted > 3 * len(requests)


def test_drafts_stop_at_the_end_of_the_context(step: StepFunction, requests: list[Request]) -> None:
    """The last tokens of a full context, where drafts would reach beyond it."""
    context = step.shape.context
    first, second = (
        replace(each, prompt=(each.prompt * 9)[: context - 16], max_tokens=16)
        for each in requests[6:8]
    )
    wanted = {
        name: reply
        for request in (first, second)
        for name, reply in run(worker_of(step, []), step, [replace(request, draft=False)]).items()
    }
    worker = worker_of(step, [CopySource()])
    replies = run(worker, step, [first, second])
    for name, reply in replies.items():
        assert len(reply.tokens) == 16
        assert not wanted[name].difference(reply)
    assert worker.stats().drafted > 0
