from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recording import RecordingSource
from xr_tensorfmt.core.elements import Plain
from xr_tensorfmt.core.layout import (
    Dense,
    InMemory,
    Transposed,
    column_major,
    read,
    transpose_layout,
)
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.sources import find_source

DOUBLE = Plain(np.dtype("<f8"))


@given(st.permutations(range(4)), st.permutations(range(4)))
def test_views_of_views_are_merged(first: list[int], second: list[int]) -> None:
    dense = Dense((2, 3, 4, 5), DOUBLE, 0)
    twice = transpose_layout(transpose_layout(dense, first), second)
    expected = np.empty(dense.shape).transpose(first).transpose(second).shape
    assert twice.shape == expected
    if isinstance(twice, Transposed):
        assert twice.inner is dense
    else:
        assert twice is dense


def test_column_major_keeps_trailing_axes_and_vectors() -> None:
    dense = Dense((4, 3, 2), DOUBLE, 0)
    assert column_major(dense).shape == (2, 3, 4)
    assert column_major(dense, trailing=1).shape == (3, 4, 2)
    assert column_major(Dense((4,), DOUBLE, 0)) == Dense((4,), DOUBLE, 0)


def test_extents_are_known_without_reading() -> None:
    layout = column_major(Dense((4, 3, 2), DOUBLE, 100))
    selection = Selection((2, 3, 4), (range(2), range(1, 2), range(0, 4, 3)))
    extents = layout.locate(selection)
    assert list(zip(extents.starts.tolist(), extents.lengths.tolist(), strict=True)) == [
        (100 + 2 * 8, 16),
        (100 + 2 * 8 + 3 * 48, 16),
    ]


@pytest.mark.parametrize("dtype", ["<f8", ">f8"])
def test_layouts_compare_and_hash_by_value(dtype: str) -> None:
    layout = Dense((2,), Plain(np.dtype(dtype)), 5)
    assert layout == Dense((2,), Plain(np.dtype(dtype)), 5)
    assert layout != Dense((2,), Plain(np.dtype(dtype)), 6)
    assert layout != Dense((2,), Plain(np.dtype(dtype).newbyteorder()), 5)
    assert len({Dense((2,), Plain(np.dtype(dtype)), 5) for _ in range(2)}) == 1


@pytest.mark.parametrize("dtype", ["<f8", ">f8"])
def test_values_at_odd_addresses_are_moved(dtype: str) -> None:
    raw = np.arange(33, dtype=np.uint8)[1:]
    layout = Dense((4,), Plain(np.dtype(dtype)), 0)
    plan = layout.plan(RecordingSource(raw.tobytes()), Selection.everything(layout.shape))
    values = plan.decode(raw)
    assert not raw.view(dtype).flags.aligned
    assert values.flags.aligned
    assert values.dtype == layout.dtype
    assert values.tobytes() == raw.view(dtype).astype("<f8").tobytes()


def test_chunks_of_view_follow_file() -> None:
    dense = Dense((100, 64, 64), DOUBLE, 0)
    assert dense.chunk_shape(1 << 20) == (25, 64, 64)
    assert column_major(dense).chunk_shape(1 << 20) == (64, 64, 25)


def test_gathering_read_requests_only_runs() -> None:
    content = np.arange(1 << 17, dtype="<f8").tobytes()
    source = RecordingSource(content)
    layout = Dense((64, 2048), DOUBLE, 0)
    selection = Selection((64, 2048), (np.array([0, 5, 63]), range(10, 20)))
    values = read(layout, source, selection)
    assert values[:, 0].tolist() == [10.0, 5 * 2048 + 10.0, 63 * 2048 + 10.0]
    assert source.requests == [(80, 80), ((5 * 2048 + 10) * 8, 80), ((63 * 2048 + 10) * 8, 80)]


def test_values_in_memory_are_returned_as_copies() -> None:
    values = np.arange(12).reshape(3, 4)
    layout, source = InMemory(values), find_source(b"")[0]
    selection = Selection((3, 4), (np.array([0, 2]), range(1, 4, 2)))
    actual = read(layout, source, selection)
    np.testing.assert_array_equal(actual, values[[0, 2], 1:4:2])
    actual[:] = 0
    assert values[2, 1] == 9
    point = Selection((3, 4), (np.array([2]), np.array([1])), is_pointwise=True)
    assert read(layout, source, point).tolist() == [9]
    assert layout.chunk_shape(1 << 20) == (3, 4)


def test_a_column_of_long_rows_is_one_batch() -> None:
    """A store gets concurrent requests only within a batch."""
    dense = Dense((2000, 5_000_000), DOUBLE, 0)
    column = Selection(dense.shape, (range(2000), range(100, 108)))
    assert dense.batch_size(find_source(b"")[0], column) >= column.size


def test_runs_with_short_gaps_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of the runs of every second element would be larger than the values."""
    values = np.arange(1000.0)
    dense = Dense(values.shape, DOUBLE, 0)
    monkeypatch.setattr(Dense, "locate", pytest.fail)
    actual = read(
        dense, find_source(values.tobytes())[0], Selection(dense.shape, (range(1, 1000, 2),))
    )
    np.testing.assert_array_equal(actual, values[1::2])
