from functools import cache

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfold.ops.rows import PAGE, ROW_TILE, Rows, make_rows, page_places

LANES = 5


@cache
def compiled(rows: int):
    return jax.jit(make_rows)


def rows_of(runs: list[tuple[int, int, int]], rows: int, table: np.ndarray) -> Rows:
    """Rows of (lane, first position, length) runs, then padding."""
    lane, position = np.full(rows, -1, np.int32), np.zeros(rows, np.int32)
    at = 0
    for number, first, length in runs:
        lane[at : at + length] = number
        position[at : at + length] = np.arange(first, first + length)
        at += length
    return compiled(rows)(np.arange(rows, dtype=np.int32), lane, position, table)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int]]]:
    """(R, runs): lanes in any order, each at most once, in R rows or fewer."""
    rows = draw(st.sampled_from([8, 16, 64]))
    left, runs = rows, []
    for lane in draw(st.permutations(range(LANES)))[: draw(st.integers(0, LANES))]:
        length = draw(st.integers(0, left))
        if length:
            runs.append((lane, draw(st.integers(0, 1000)), length))
        left -= length
    return rows, runs


@settings(max_examples=150)
@given(blocks())
def test_tiles_cut_each_run_in_order(block: tuple[int, list[tuple[int, int, int]]]) -> None:
    size, runs = block
    rows = rows_of(runs, size, np.zeros((LANES, 3), np.int32))
    wanted, at = [], 0
    for _, first, length in runs:
        for start in range(0, length, ROW_TILE):
            end = min(start + ROW_TILE, length)
            wanted.append((at + start, first + end - 1))
        at += length
    tiles = rows.tiles.item()
    found = zip(rows.tile_start[:tiles].tolist(), rows.tile_last[:tiles].tolist(), strict=True)
    assert list(found) == wanted


def test_rows_are_as_given() -> None:
    table = np.arange(2 * LANES, dtype=np.int32).reshape(LANES, 2)
    rows = rows_of([(3, 60, 8)], 8, table)
    assert rows.token.tolist() == list(range(8))
    assert rows.lane.tolist() == [3] * 8
    assert rows.position.tolist() == list(range(60, 68))
    assert rows.block_table.tolist() == table.tolist()


@settings(max_examples=100)
@given(blocks(), st.permutations(range(3 * LANES)))
def test_page_places(block: tuple[int, list[tuple[int, int, int]]], pages: list[int]) -> None:
    size, runs = block
    runs = [(lane, first % 120, length) for lane, first, length in runs]
    table = np.array(pages, np.int32).reshape(LANES, 3)
    page, place = page_places(rows_of(runs, size, table), 3 * LANES)
    wanted = [
        (table[lane, position // PAGE], position % PAGE)
        for lane, first, length in runs
        for position in range(first, first + length)
    ]
    padding = [(3 * LANES, 0)] * (size - len(wanted))
    assert list(zip(page.tolist(), place.tolist(), strict=True)) == wanted + padding
