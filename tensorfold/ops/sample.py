"""The draw of a token: a pure function of a row's logits, its settings, its seed and its position.

No state and no neighbour enters, so a token is the same however its row came to be computed
(docs/exactness.md, "The sampling rule", has the rule in words; tests/ops/test_sample.py states it
once more in NumPy).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int, UInt32

from tensorfold.kernels_cpu import sample as kernel
from tensorfold.ops.implementation import implementation

CANDIDATES = 256
"""Likeliest tokens that are tried before the whole vocabulary is sorted."""

_PAST_ANY_ID = 2**31 - 1

NO_TOKEN = -1
"""Drawn where the logits hold a NaN or an infinity above: the model is at fault."""

_LIMB = 10
_LIMBS = 3
"""A probability mass is an integer of 30 bits, summed in limbs of 10 so that 2^21 of them fit in
uint32; integer sums have no order, so no shape of the reduction can change a cut."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Settings:
    """Sampling settings of D drawn rows, or of one row without the D axis.

    temperature, top_p, min_p: [D] float32; top_k: [D] int32; seed: [D, 2] uint32, low word first
    """

    temperature: Float[Array, "*D"]
    top_k: Int[Array, "*D"]
    top_p: Float[Array, "*D"]
    min_p: Float[Array, "*D"]
    seed: UInt32[Array, "*D 2"]


def draw(
    logits: Float[Array, "D V"],
    settings: Settings,
    position: Int[Array, " D"],
    count: Int[Array, ""],
) -> Int[Array, " D"]:
    """Draw the first `count` rows; `position` is that of the token being chosen.

    Rows are drawn one after another, each in the same shape. Returns token ids, NO_TOKEN where
    logits are not finite, 0 for the rows that are not drawn.
    """
    if implementation() == "cpu":
        each = settings.temperature, settings.top_k, settings.top_p, settings.min_p, settings.seed
        return kernel.draw(logits, *each, position, count)

    def row(i: Array, tokens: Array) -> Array:
        one = jax.tree.map(lambda x: x[i], settings)
        return tokens.at[i].set(_draw_row(logits[i], one, position[i]))

    tokens = jnp.zeros(logits.shape[0], jnp.int32)
    return lax.fori_loop(0, jnp.minimum(count, logits.shape[0]), row, tokens)


def digest(logits: Float[Array, "D V"]) -> Int[Array, " D"]:
    """A 32-bit sum of each row's bits. Rows that differ in one logit never have equal digests."""
    if implementation() == "cpu":
        return kernel.digest(logits)
    bits = lax.bitcast_convert_type(logits, jnp.uint32)
    odd = 2 * jnp.arange(logits.shape[1], dtype=jnp.uint32) + 1
    return lax.bitcast_convert_type(jnp.sum(bits * odd, axis=1, dtype=jnp.uint32), jnp.int32)


@jax.jit
def gumbel(
    seed: UInt32[Array, "2"], position: Int[Array, ""], ids: Int[Array, " C"]
) -> Float[Array, " C"]:
    """Standard Gumbel noise of each token id at a position: Threefry-2x32 keyed by the seed."""
    counter = jnp.broadcast_to(position, ids.shape).astype(jnp.uint32), ids.astype(jnp.uint32)
    bits = threefry(seed[0], seed[1], *counter)
    uniform = ((bits >> 9).astype(jnp.float32) + 0.5) * 2.0**-23
    return -jnp.log(-jnp.log(uniform))


def threefry(
    key0: UInt32[Array, ""],
    key1: UInt32[Array, ""],
    x0: UInt32[Array, " C"],
    x1: UInt32[Array, " C"],
) -> UInt32[Array, " C"]:
    """The first word of Threefry-2x32 with 20 rounds (Salmon et al. 2011, "Parallel random numbers:
    as easy as 1, 2, 3")."""
    keys = key0, key1, key0 ^ key1 ^ jnp.uint32(0x1BD11BDA)
    rotations = (13, 15, 26, 6), (17, 29, 16, 24)
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for block in range(5):
        for bits in rotations[block % 2]:
            x0 = x0 + x1
            x1 = ((x1 << bits) | (x1 >> (32 - bits))) ^ x0
        x0 = x0 + keys[(block + 1) % 3]
        x1 = x1 + keys[(block + 2) % 3] + jnp.uint32(block + 1)
    return x0


@jax.jit  # Traced once for all buckets: a row's shape does not depend on them.
def _draw_row(logits: Float[Array, " V"], settings: Settings, position: Array) -> Array:
    """One row; `settings` holds scalars and `seed` [2]."""
    peak = jnp.max(logits)

    def greedy() -> Array:
        return jnp.argmax(logits).astype(jnp.int32)

    def sampled() -> Array:
        return _sample(logits, peak, settings, position)

    token = lax.cond(settings.temperature <= 0, greedy, sampled)
    return jnp.where(jnp.isfinite(peak), token, NO_TOKEN)


def _sample(
    logits: Float[Array, " V"], peak: Array, settings: Settings, position: Array
) -> Int[Array, ""]:
    """Take the cheapest of three ways that give the rule's token: by the likeliest few, without
    ordering the vocabulary, or by sorting it."""
    vocabulary = logits.shape[0]
    all_ids = jnp.arange(vocabulary, dtype=jnp.int32)
    few = min(CANDIDATES, vocabulary)
    # Equal logits go by their ids, but top_k would put 0.0 before -0.0.
    few_logits, few_ids = lax.top_k(jnp.where(logits == 0, 0.0, logits), few)
    few_masses = _masses(few_logits, peak, settings.temperature)
    vocabulary_total = _total(_masses(logits, peak, settings.temperature))

    counts_k = settings.top_k > 0
    cuts_p = (settings.top_p > 0) & (settings.top_p < 1)
    reach = _total(few_masses) >= settings.top_p * vocabulary_total
    by_few = jnp.where(counts_k, settings.top_k <= few, cuts_p & reach)

    def likeliest() -> Array:
        return _pick(few_logits, few_ids, few_masses, peak, vocabulary_total, settings, position)

    def unordered() -> Array:
        return _best(logits, all_ids, jnp.full(vocabulary, True), peak, settings, position)

    def ordered() -> Array:
        negative, ids = lax.sort((-logits, all_ids), num_keys=1, is_stable=True)
        masses = _masses(-negative, peak, settings.temperature)
        return _pick(-negative, ids, masses, peak, vocabulary_total, settings, position)

    otherwise = jnp.where(counts_k | cuts_p, 2, 1)
    return lax.switch(jnp.where(by_few, 0, otherwise), [likeliest, unordered, ordered])


def _pick(
    logits: Float[Array, " C"],
    ids: Int[Array, " C"],
    masses: UInt32[Array, " C"],
    peak: Array,
    vocabulary_total: Array,
    settings: Settings,
    position: Array,
) -> Int[Array, ""]:
    """Cut candidates in order (logit descending, id ascending) by top_k and top_p, then draw."""
    rank = jnp.arange(logits.shape[0])
    kept = (settings.top_k <= 0) | (rank < settings.top_k)
    masses = jnp.where(kept, masses, 0)
    total = jnp.where(settings.top_k > 0, _total(masses), vocabulary_total)
    cuts_p = (settings.top_p > 0) & (settings.top_p < 1)
    kept &= ~cuts_p | (rank < _count_reaching(masses, settings.top_p * total))
    return _best(logits, ids, kept, peak, settings, position)


def _best(
    logits: Float[Array, " C"],
    ids: Int[Array, " C"],
    kept: Array,
    peak: Array,
    settings: Settings,
    position: Array,
) -> Int[Array, ""]:
    """The kept candidate of the highest noisy score that min_p leaves; ties to the lower id."""
    scaled = logits / settings.temperature
    kept &= scaled - peak / settings.temperature >= jnp.log(settings.min_p)
    score = jnp.where(kept, scaled + gumbel(settings.seed, position, ids), -jnp.inf)
    return jnp.min(jnp.where(score == jnp.max(score), ids, _PAST_ANY_ID))


def _masses(logits: Array, peak: Array, temperature: Array) -> UInt32[Array, " C"]:
    """Each token's probability relative to the likeliest's, in units of 2^-30, rounded down."""
    ratio = jnp.exp(logits / temperature - peak / temperature)
    return (jnp.minimum(ratio, 1.0) * 2.0 ** (_LIMB * _LIMBS)).astype(jnp.uint32)


def _count_reaching(masses: UInt32[Array, " C"], cut: Array) -> Int[Array, ""]:
    """How many of the candidates, in order, have less than `cut` of the mass before them.

    By halving, with a sum for each try: sums compile to less than a running sum does.
    """
    count = masses.shape[0]
    rank = jnp.arange(count)

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) // 2
        less = _total(jnp.where(rank < middle, masses, 0)) < cut
        return jnp.where(less, middle, low), jnp.where(less, high, middle)

    bounds = jnp.int32(-1), jnp.int32(count)
    return lax.fori_loop(0, count.bit_length(), halve, bounds)[0] + 1


def _total(masses: UInt32[Array, " C"]) -> Float[Array, ""]:
    """The sum, by limbs, lowest first. They are one array because a program takes time to compile
    and to load for each of its operations."""
    shift = _LIMB * jnp.arange(_LIMBS, dtype=jnp.uint32)
    mask = jnp.array([2**_LIMB - 1] * (_LIMBS - 1) + [2**32 - 1], jnp.uint32)
    limbs = (masses >> shift[:, None]) & mask[:, None]
    return _joined(jnp.sum(limbs, axis=1, dtype=jnp.uint32))


def _joined(sums: UInt32[Array, "3"]) -> Float[Array, ""]:
    """Sums of limbs as one float32, carried over first so that equal sums give equal floats."""
    carry = sums[0] >> _LIMB
    middle = sums[1] + carry
    low = (sums[0] & (2**_LIMB - 1)) + ((middle & (2**_LIMB - 1)) << _LIMB)
    high = sums[2] + (middle >> _LIMB)
    return high.astype(jnp.float32) * 2.0 ** (2 * _LIMB) + low.astype(jnp.float32)
