"""One step's rows as arrays: the layout that the host packs and the step function unpacks."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tensorfold.ops.rows import PAGE, Rows, make_rows
from tensorfold.ops.sample import Settings

SETTINGS = 6
"""Words of a lane's settings: temperature, top_p, min_p, top_k, seed low, seed high."""

ALL = np.uint32(2**32 - 1)
"""A mask's word for 32 tokens that may all come."""


@dataclass(frozen=True)
class Span:
    """Consecutive tokens of one lane, how many of the last rows draw a token, and, for all of these
    or for none, what each may draw: a mask, uint32 [ceil(V / 32)] (see ops/rules.py), or None for
    anything."""

    lane: int
    position: int
    tokens: Sequence[int]
    draws: int
    masks: Sequence[np.ndarray | None] = ()


@dataclass(frozen=True)
class Layout:
    """The shape of one bucket's packed arrays: R rows, L lanes, M pages a lane."""

    rows: int
    lanes: int
    pages_per_lane: int

    @property
    def size(self) -> int:
        """Length of the packed int32 array."""
        return 1 + 4 * self.rows + self.lanes * self.pages_per_lane

    @property
    def settings_shape(self) -> tuple[int, int]:
        """Shape of the settings array."""
        return self.lanes, SETTINGS

    def pack(self, spans: Sequence[Span], block_table: np.ndarray) -> np.ndarray:
        """The packed array: [drawn rows, tokens, lanes, positions, drawn row indices, table]."""
        packed = np.zeros(self.size, np.int32)
        token, lane, position, drawn = packed[1 : 1 + 4 * self.rows].reshape(4, self.rows)
        lane[:] = -1
        row = draws = 0
        for span in spans:
            end = row + len(span.tokens)
            token[row:end] = span.tokens
            lane[row:end] = span.lane
            position[row:end] = np.arange(span.position, span.position + len(span.tokens))
            drawn[draws : draws + span.draws] = np.arange(end - span.draws, end)
            row, draws = end, draws + span.draws
        packed[0] = draws
        packed[1 + 4 * self.rows :] = block_table.ravel()
        return packed

    def pack_masks(self, spans: Sequence[Span], words: int) -> np.ndarray | None:
        """The mask of every drawn row, [R, words]; None if none of `spans` has one."""
        if all(mask is None for span in spans for mask in span.masks):
            return None
        packed = np.full((self.rows, words), ALL)
        row = 0
        for span in spans:
            for drawn, mask in enumerate(span.masks, row):
                if mask is not None:
                    packed[drawn] = mask
            row += span.draws
        return packed

    def unpack(self, packed: Array) -> tuple[Rows, Array, Array]:
        """(rows, drawn row indices [R], how many of them count)."""
        token, lane, position, drawn = packed[1 : 1 + 4 * self.rows].reshape(4, self.rows)
        table = packed[1 + 4 * self.rows :].reshape(self.lanes, self.pages_per_lane)
        return make_rows(token, lane, position, table), drawn, packed[0]


def pack_settings(
    temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> np.ndarray:
    """One lane's settings as int32 [6]; `seed` counts modulo 2^64."""
    words = np.zeros(SETTINGS, np.int32)
    words[:3] = np.array([temperature, top_p, min_p], np.float32).view(np.int32)
    words[3] = min(max(top_k, 0), 2**31 - 1)
    low_high = np.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], np.uint32)
    words[4:] = low_high.view(np.int32)
    return words


def unpack_settings(packed: Array, lane: Array) -> Settings:
    """The settings of each drawn row, [D] long, from [L, 6] and the rows' lanes."""
    words = packed[jnp.maximum(lane, 0)]
    floats = lax.bitcast_convert_type(words[:, :3], jnp.float32)
    return Settings(
        temperature=floats[:, 0],
        top_p=floats[:, 1],
        min_p=floats[:, 2],
        top_k=words[:, 3],
        seed=lax.bitcast_convert_type(words[:, 4:], jnp.uint32),
    )


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` positions."""
    return -(-tokens // PAGE)
