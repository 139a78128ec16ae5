import jax.numpy as jnp
import numpy as np
import pytest

from tensorfold.runtime.packed import (
    Layout,
    Span,
    pack_settings,
    pages_for,
    unpack_settings,
)


def test_what_is_packed_comes_out() -> None:
    layout = Layout(rows=8, lanes=3, pages_per_lane=2)
    table = np.arange(6, dtype=np.int32).reshape(3, 2)
    spans = [Span(2, 63, [7, 8, 9], 1), Span(0, 5, [4], 1), Span(1, 0, [1, 2, 3], 2)]
    packed = layout.pack(spans, table)
    assert packed.dtype == np.int32 and packed.shape == (layout.size,)
    rows, drawn, count = layout.unpack(jnp.asarray(packed))
    assert rows.token.tolist() == [7, 8, 9, 4, 1, 2, 3, 0]
    assert rows.lane.tolist() == [2, 2, 2, 0, 1, 1, 1, -1]
    assert rows.position.tolist() == [63, 64, 65, 5, 0, 1, 2, 0]
    assert rows.block_table.tolist() == table.tolist()
    assert count == 4
    assert drawn[:4].tolist() == [2, 3, 5, 6]


def test_an_empty_step_is_all_padding() -> None:
    layout = Layout(rows=8, lanes=1, pages_per_lane=1)
    rows, _, count = layout.unpack(jnp.asarray(layout.pack([], np.zeros((1, 1), np.int32))))
    assert rows.lane.tolist() == [-1] * 8
    assert count == rows.tiles == 0


def test_more_rows_than_the_bucket_has_are_refused() -> None:
    layout = Layout(rows=8, lanes=1, pages_per_lane=1)
    with pytest.raises(ValueError, match="broadcast"):
        layout.pack([Span(0, 0, list(range(9)), 1)], np.zeros((1, 1), np.int32))


def test_settings_of_each_row() -> None:
    lanes = np.stack(
        [
            pack_settings(0.7, 40, 0.9, 0.05, 2**63 + 5),
            pack_settings(0.0, -3, 1.0, 0.0, -1),
            pack_settings(1e-3, 2**40, 0.5, 1.0, 2**64 + 9),
        ]
    )
    assert lanes.dtype == np.int32
    settings = unpack_settings(jnp.asarray(lanes), jnp.array([2, 0, 1, 0, -1], jnp.int32))
    for field, values in {
        "temperature": [1e-3, 0.7, 0.0, 0.7, 0.7],
        "top_p": [0.5, 0.9, 1.0, 0.9, 0.9],
        "min_p": [1.0, 0.05, 0.0, 0.05, 0.05],
    }.items():
        assert getattr(settings, field).tolist() == np.array(values, np.float32).tolist()
    assert settings.top_k.tolist() == [2**31 - 1, 40, 0, 40, 40]
    low_high = [[9, 0], [5, 2**31], [2**32 - 1, 2**32 - 1], [5, 2**31], [5, 2**31]]
    assert settings.seed.tolist() == low_high


def test_pages_for() -> None:
    assert [pages_for(tokens) for tokens in (0, 1, 64, 65, 128, 129)] == [0, 1, 1, 2, 2, 3]
