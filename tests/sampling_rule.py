"""The sampling rule once more, in NumPy: one row at a time, nothing shared with the device's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MASK = 0xFFFFFFFF
UNIT = 2**30


@dataclass(frozen=True)
class Rule:
    """One row's settings."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0


def threefry(key: Sequence[int], counter: Sequence[Any]) -> tuple[Any, Any]:
    """Threefry-2x32-20 in Python integers, or arrays of 64 bits, after the paper's description."""
    keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA]
    x = [(counter[0] + keys[0]) & MASK, (counter[1] + keys[1]) & MASK]
    for turn in range(20):
        bits = (13, 15, 26, 6, 17, 29, 16, 24)[turn % 8]
        x[0] = (x[0] + x[1]) & MASK
        x[1] = ((x[1] << bits | x[1] >> (32 - bits)) & MASK) ^ x[0]
        if turn % 4 == 3:
            step = turn // 4 + 1
            x[0] = (x[0] + keys[step % 3]) & MASK
            x[1] = (x[1] + keys[(step + 1) % 3] + step) & MASK
    return x[0], x[1]


def gumbel(seed: int, position: int, ids: np.ndarray) -> np.ndarray:
    """The noise of each token: 23 bits of the generator's first word, put between 0 and 1."""
    key = seed & MASK, seed >> 32 & MASK
    words, _ = threefry(key, (position, ids.astype(np.uint64)))
    uniform = ((words >> 9) + 0.5) / 2.0**23
    return -np.log(-np.log(uniform))


def draw(logits: np.ndarray, rule: Rule, position: int) -> int:
    """The token. Divisions and the noisy score are float32, as the rule says; exponentials,
    logarithms and sums are exact or float64."""
    peak = logits.max()
    if not np.isfinite(peak):
        return -1
    if rule.temperature <= 0:
        return int(np.flatnonzero(logits == peak)[0])
    temperature = np.float32(rule.temperature)
    order = np.lexsort((np.arange(len(logits)), -logits))
    scaled = logits[order] / temperature
    peak_scaled = peak / temperature
    masses = [int(np.exp(np.float64(each)) * UNIT) for each in scaled - peak_scaled]
    kept = len(order)
    if rule.top_k > 0:
        kept = min(kept, rule.top_k)
    if 0 < rule.top_p < 1:
        goal = np.float32(rule.top_p) * np.float32(sum(masses[:kept]))
        before, reached = 0, 0
        while reached < kept and np.float32(before) < goal:
            before += masses[reached]
            reached += 1
        kept = reached
    candidates = order[:kept]
    scaled = scaled[:kept]
    with np.errstate(divide="ignore"):
        likely = scaled - peak_scaled >= np.log(np.float32(rule.min_p))
    noise = gumbel(rule.seed, position, candidates).astype(np.float32)
    score = np.where(likely, scaled + noise, -np.inf)
    return int(candidates[score == score.max()].min())
