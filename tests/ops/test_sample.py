from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sampling_rule
from hypothesis import given
from hypothesis import strategies as st
from sampling_rule import Rule

from tensorfold.ops import sample
from tensorfold.ops.sample import NO_TOKEN, Settings, digest, threefry

POSITIONS = 64
"""Rows of a block in most tests."""


@cache
def compiled():
    return jax.jit(sample.draw)


def device_settings(rules: Sequence[Rule]) -> Settings:
    seeds = [[rule.seed & 0xFFFFFFFF, rule.seed >> 32 & 0xFFFFFFFF] for rule in rules]
    return Settings(
        temperature=jnp.array([rule.temperature for rule in rules], jnp.float32),
        top_k=jnp.array([rule.top_k for rule in rules], jnp.int32),
        top_p=jnp.array([rule.top_p for rule in rules], jnp.float32),
        min_p=jnp.array([rule.min_p for rule in rules], jnp.float32),
        seed=jnp.array(seeds, jnp.uint32),
    )


def draw(logits: np.ndarray, rules: Sequence[Rule], positions: np.ndarray) -> list[int]:
    count = jnp.asarray(len(logits), jnp.int32)
    place = jnp.asarray(positions, jnp.int32)
    return compiled()(jnp.asarray(logits), device_settings(rules), place, count).tolist()


def assert_follows_the_rule(
    logits: np.ndarray, rules: Sequence[Rule], positions: np.ndarray
) -> None:
    got = draw(logits, rules, positions)
    for row, token in enumerate(got):
        wanted = sampling_rule.draw(logits[row], rules[row], int(positions[row]))
        assert token == wanted, (row, rules[row], positions[row])


def random_rule(rng: np.random.Generator, vocabulary: int) -> Rule:
    return Rule(
        temperature=float(rng.choice([0.0, -1.0, 0.1, 0.7, 1.0, 1.5, 10.0])),
        top_k=int(rng.choice([-1, 0, 0, 1, 2, 40, 256, 257, vocabulary, 2**31 - 1])),
        top_p=float(rng.choice([-1.0, 0.0, 0.01, 0.5, 0.9, 0.95, 0.999, 1.0, 1.0, 2.0])),
        min_p=float(rng.choice([0.0, 0.0, 0.02, 0.3, 1.0])),
        seed=int(rng.integers(0, 2**63)) * 2 + int(rng.integers(0, 2)),
    )


@pytest.mark.parametrize("vocabulary", [1, 2, 7, 256, 300, 1013])
@pytest.mark.parametrize("kind", ["normal", "flat", "peaked", "tied", "with -inf"])
def test_draws_follow_the_rule(vocabulary: int, kind: str) -> None:
    rng = np.random.default_rng(vocabulary)
    spread = {"flat": 0.01, "peaked": 12.0}.get(kind, 2.5)
    for _ in range(2 if vocabulary > 300 else 4):
        logits = spread * rng.standard_normal((POSITIONS, vocabulary), dtype=np.float32)
        if kind == "tied":
            logits = np.round(logits / 4).astype(np.float32)
        if kind == "with -inf":
            logits[rng.random(logits.shape) < 0.5] = -np.inf
            logits[:, rng.integers(vocabulary)] = 0.0
        rules = [random_rule(rng, vocabulary) for _ in range(POSITIONS)]
        assert_follows_the_rule(logits, rules, rng.integers(0, 2**31 - 1, POSITIONS))


def test_a_large_vocabulary() -> None:
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((8, 32003), dtype=np.float32)
    rules = [
        Rule(top_p=0.9),
        Rule(top_p=0.1, seed=5),
        Rule(top_k=300, temperature=3.0),
        Rule(top_k=20000, top_p=0.97, temperature=2.0),
        Rule(top_k=50, top_p=0.5, min_p=0.1),
        Rule(temperature=0.3, min_p=0.05),
        Rule(temperature=20.0, top_p=0.9999),
        Rule(temperature=0.0),
    ]
    assert_follows_the_rule(logits, rules, np.arange(8) * 1000)


@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 1e3, 1e6])
def test_extreme_temperatures(temperature: float) -> None:
    rng = np.random.default_rng(0)
    logits = 5 * rng.standard_normal((POSITIONS, 300), dtype=np.float32)
    rules = [replace(random_rule(rng, 300), temperature=temperature) for _ in range(POSITIONS)]
    assert_follows_the_rule(logits, rules, np.arange(POSITIONS))


def test_equal_logits_are_cut_in_order_of_their_ids() -> None:
    logits = np.zeros((POSITIONS, 300), np.float32)
    rules = [Rule(top_p=0.5)] * 32 + [Rule(top_k=10)] * 16 + [Rule(top_k=280, top_p=0.5)] * 16
    got = np.array(draw(logits, rules, np.arange(POSITIONS)))
    assert got[:32].max() < 150 and got[32:48].max() < 10 and got[48:].max() < 140
    assert len(set(got[:32].tolist())) > 10
    assert draw(logits[:8], [Rule(temperature=0)] * 8, np.arange(8)) == [0] * 8


@pytest.mark.parametrize("top_k", [1, 290])
def test_zeros_of_either_sign_are_equal(top_k: int) -> None:
    logits = np.full((8, 300), -0.0, np.float32)
    logits[:, 5] = 0.0
    rules = [Rule(top_k=top_k, top_p=0.001)] * 8
    assert draw(logits, rules, np.arange(8)) == [0] * 8


def test_the_shortest_prefix_that_reaches_top_p() -> None:
    # Probabilities 1/2, 1/4, 1/8, 1/16, 1/16: in float32 and in masses exact.
    logits = np.log(np.array([8, 1, 4, 2, 1], np.float32) / 16)[None].repeat(POSITIONS, axis=0)
    for top_p, wanted in ((0.4, {0}), (0.49, {0}), (0.6, {0, 2}), (0.8, {0, 2, 3})):
        rules = [Rule(top_p=top_p)] * POSITIONS
        found = set()
        for start in range(0, 4 * POSITIONS, POSITIONS):
            found |= set(draw(logits, rules, np.arange(start, start + POSITIONS)))
        assert found == wanted, top_p


@pytest.mark.parametrize(
    ("key", "counter", "wanted"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_published_answers(
    key: tuple[int, int], counter: tuple[int, int], wanted: tuple[int, int]
) -> None:
    assert sampling_rule.threefry(key, counter) == wanted
    words = [jnp.full((1,), word, jnp.uint32) for word in counter]
    assert threefry(*(jnp.uint32(word) for word in key), *words).item() == wanted[0]


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4),
)
def test_threefry_is_the_statements(key0: int, key1: int, counters: list[int]) -> None:
    first = jnp.asarray(counters, jnp.uint32)
    got = threefry(jnp.uint32(key0), jnp.uint32(key1), first, first[::-1])
    pairs = zip(counters, reversed(counters), strict=True)
    assert got.tolist() == [sampling_rule.threefry((key0, key1), pair)[0] for pair in pairs]


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (Rule(), 6),
        (Rule(temperature=0.5), 6),
        (Rule(temperature=2.0, top_k=3), 3),
        (Rule(top_p=0.8), 4),
        (Rule(min_p=0.2), 4),
    ],
)
def test_tokens_come_as_often_as_their_probabilities(rule: Rule, kept: int) -> None:
    logits = np.array([1.0, 0.5, 2.0, -1.0, 0.0, 0.6], np.float32)
    rows = 4096
    positions = np.arange(rows)
    block = np.tile(logits, (rows, 1))
    tokens = draw(block, [replace(rule, seed=2024)] * rows, positions)
    weights = np.exp(logits.astype(np.float64) / rule.temperature)
    weights[np.argsort(-logits)[kept:]] = 0
    expected = rows * weights / weights.sum()
    counts = np.bincount(tokens, minlength=6)
    assert (counts[expected == 0] == 0).all()
    likely = expected > 0
    chi_square = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    assert chi_square < 25.7  # the 99.99 % point for 5 degrees of freedom
    # Neighbouring positions are independent: two equal tokens in a row come by chance only.
    repeats = np.mean(np.array(tokens[1:]) == np.array(tokens[:-1]))
    chance = ((weights / weights.sum()) ** 2).sum()
    assert abs(repeats - chance) < 4 * (chance * (1 - chance) / rows) ** 0.5


def test_seeds_give_different_draws_in_all_their_bits() -> None:
    logits = np.zeros((POSITIONS, 300), np.float32)
    rules = [Rule(seed=1 << bit) for bit in range(64)]
    assert len(set(draw(logits, rules, np.full(POSITIONS, 3)))) > 50


def test_a_draw_does_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(3)
    logits = 3 * rng.standard_normal((POSITIONS, 300), dtype=np.float32)
    rules = [random_rule(rng, 300) for _ in range(POSITIONS)]
    positions = rng.integers(0, 10000, POSITIONS)
    wanted = draw(logits, rules, positions)
    order = rng.permutation(POSITIONS)
    shuffled = draw(logits[order], [rules[row] for row in order], positions[order])
    assert shuffled == [wanted[row] for row in order]
    for rows in (8, 16):
        assert draw(logits[:rows], rules[:rows], positions[:rows]) == wanted[:rows]


def test_only_the_rows_that_count_are_drawn() -> None:
    logits = jnp.asarray(np.eye(8, 20, 5, dtype=np.float32))
    settings = device_settings([Rule(temperature=0)] * 8)
    positions = jnp.arange(8, dtype=jnp.int32)
    for count, wanted in ((0, []), (3, [5, 6, 7]), (8, [*range(5, 13)]), (20, [*range(5, 13)])):
        got = compiled()(logits, settings, positions, jnp.asarray(count, jnp.int32))
        assert got.tolist()[: len(wanted)] == wanted
        assert not got[len(wanted) :].any()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_draw_nothing(temperature: float) -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((8, 300), dtype=np.float32)
    logits[1, 77], logits[3, 0] = np.nan, np.inf
    logits[5] = -np.inf
    logits[6, :299] = -np.inf
    logits[7] = np.nan
    got = draw(logits, [Rule(temperature=temperature)] * 8, np.arange(8))
    assert [row for row, token in enumerate(got) if token == NO_TOKEN] == [1, 3, 5, 7]
    assert got[6] == 299


def test_any_one_bit_changes_the_digest() -> None:
    rng = np.random.default_rng(0)
    row = rng.standard_normal(1013, dtype=np.float32)
    places, bits = np.divmod(rng.choice(1013 * 32, 256, replace=False), 32)
    changed = np.tile(row.view(np.uint32), (256, 1))
    changed[np.arange(256), places] ^= np.uint32(1) << bits.astype(np.uint32)
    digests = np.asarray(digest(jnp.asarray(changed.view(np.float32))))
    assert (digests != digest(jnp.asarray(row[None]))).all()


def test_a_digest_tells_where_a_value_stands() -> None:
    row = np.arange(1, 9, dtype=np.float32)
    swapped = row.copy()
    swapped[[2, 3]] = swapped[[3, 2]]
    first, second = digest(jnp.asarray([row, swapped])).tolist()
    assert first != second
