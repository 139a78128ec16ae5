"""Files written once more with edits: how far copies carry, by the step times of this machine.

`python -m benchmarks.rewrites [MODEL]` takes the package's own source files, edits each in a few
ways, and has the copies draft the edited text after the file as it was. Nothing is decoded: the
reply is the edited text by definition, so that the drafts are measured and not what a small model
makes of a task. What a step of so many rows takes is measured first.
"""

import argparse
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

import tensorfold
from benchmarks.machine import describe, heading
from tensorfold.checkpoints.hub import home, open_checkpoint, resolve
from tensorfold.engine.drafts.copies import CopyDrafts
from tensorfold.engine.drafts.drafting import MOST_DRAFTS
from tensorfold.engine.drafts.widths import Offer, StepTimes, choose_widths
from tensorfold.engine.start import open_step_function
from tensorfold.runtime.compilation import keep_compiled_programs
from tensorfold.runtime.packed import Span
from tensorfold.runtime.step import StepFunction

_ROUNDS = 21
_SHORTEST, _LONGEST = 2_000, 16_000
"""Characters of a file."""


def unchanged(text: str, rng: random.Random) -> str:
    """As it was."""
    return text


def renamed(text: str, rng: random.Random) -> str:
    """Two of its frequent names changed wherever they stand."""
    names = Counter(re.findall(r"[a-z_]{5,}", text)).most_common(12)
    for name, _ in rng.sample(names, 2):
        text = re.sub(rf"\b{name}\b", f"{rng.choice(['old', 'inner', 'next'])}_{name[:4]}", text)
    return text


def revised(text: str, rng: random.Random) -> str:
    """A few lines left out, put in twice, or changed in a word."""
    lines = []
    for line in text.splitlines(keepends=True):
        kind = rng.randrange(40)
        if kind == 0:
            continue
        lines.append(line)
        if kind == 1:
            lines.append(rng.choice(lines))
        elif kind == 2:
            lines[-1] = re.sub(r"[a-z]{4,}", lambda match: match[0][::-1], line, count=1)
    return "".join(lines)


EDITS: tuple[Callable[[str, random.Random], str], ...] = (unchanged, renamed, revised)


def time_steps(step: StepFunction) -> StepTimes:
    """Steps of one sequence in each bucket that may check drafts, the least of a few."""
    times = StepTimes(step.buckets)
    table = np.zeros((step.shape.lanes, step.shape.pages_per_lane), np.int32)
    settings = np.zeros((step.shape.lanes, 6), np.int32)
    for rows in (bucket for bucket in step.buckets if bucket <= MOST_DRAFTS + 1):
        taken = []
        for _ in range(_ROUNDS):
            started = time.perf_counter()
            step.run([Span(0, 0, [0] * rows, rows)], table, settings)
            taken.append(time.perf_counter() - started)
        times.observe(rows, min(taken))
    return times


def write(known: list[int], reply: Sequence[int], times: StepTimes) -> float:
    """Seconds of steps until `reply` stands after `known`."""
    drafts, done, seconds = CopyDrafts(known), 0, 0.0
    most_rows = MOST_DRAFTS + 1
    while done < len(reply):
        most = min(MOST_DRAFTS, len(reply) - done - 1)
        (width,) = choose_widths([Offer(drafts.chances(most))], times, most_rows)
        proposed, right = drafts.propose(width), 0
        while right < width and proposed[right] == reply[done + right]:
            right += 1
        drafts.observe(reply[done : done + right + 1])
        known.extend(reply[done : done + right + 1])
        done += right + 1
        seconds += times.of(times.bucket(1 + width))
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.rewrites", description=__doc__)
    parser.add_argument("model", nargs="?", help="as for `tensorfold serve`")
    options = parser.parse_args(arguments)
    keep_compiled_programs(home() / "compiled")
    checkpoint = open_checkpoint(resolve(options.model))
    times = time_steps(open_step_function(checkpoint, lanes=1, context=256))
    taken = ", ".join(
        f"{b}: {1000 * times.of(b):.1f}" for b in times.buckets if b <= MOST_DRAFTS + 1
    )
    print(heading(describe()))
    print(f"milliseconds of a step, by rows: {taken}")
    files = [file.read_text() for file in sorted(Path(tensorfold.__file__).parent.rglob("*.py"))]
    files = [text for text in files if _SHORTEST <= len(text) <= _LONGEST]
    for edit in EDITS:
        rates = []
        for index, text in enumerate(files):
            reply = checkpoint.tokenizer.encode(
                edit(text, random.Random(index)), add_special_tokens=False
            )
            known = checkpoint.tokenizer.encode(
                f"Here is a file:\n\n{text}\nHere it is with the change:\n\n",
                add_special_tokens=False,
            )
            rates.append(len(reply) * times.of(1) / write(known, reply, times))
        print(
            f"{edit.__name__}: {median(rates):.2f} times as fast as one token at a time, "
            f"the median of {len(rates)} files; a tenth of them below "
            f"{sorted(rates)[len(rates) // 10]:.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
