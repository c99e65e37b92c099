from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from xr_tensorfmt.core.elements import Plain
from xr_tensorfmt.core.extents import PAGE, contiguous_chunk
from xr_tensorfmt.core.layout import Dense
from xr_tensorfmt.core.selection import Selection

shapes = st.lists(st.integers(1, 9), max_size=4).map(tuple)


def get_chunks(shape: tuple[int, ...], chunk: tuple[int, ...]):
    grid = [range(0, n, k) for n, k in zip(shape, chunk, strict=True)]
    for corner in np.ndindex(*map(len, grid)):
        starts = [axis[i] for axis, i in zip(grid, corner, strict=True)]
        yield tuple(range(a, min(a + k, n)) for a, k, n in zip(starts, chunk, shape, strict=True))


@given(shapes, st.sampled_from([1, 8, 12, 512]), st.integers(1, 60_000))
def test_chunks_are_single_ranges_that_cover_the_data(
    shape: tuple[int, ...], item: int, target: int
) -> None:
    chunk = contiguous_chunk(shape, item, target)
    layout = Dense(shape, Plain(np.dtype((np.void, item))), 96)
    covered = 0
    for indices in get_chunks(shape, chunk):
        extents = layout.locate(Selection(shape, indices))
        assert len(extents) == 1
        covered += extents.nbytes
    assert covered == prod(shape) * item


@given(shapes, st.sampled_from([1, 8, 12, 512]), st.integers(1, 60_000))
def test_chunks_stay_within_target(shape: tuple[int, ...], item: int, target: int) -> None:
    assert prod(contiguous_chunk(shape, item, target)) * item <= max(target, item)


@given(st.integers(2, 5000), st.integers(1, 5000), st.integers(1, 1 << 20))
def test_chunks_are_whole_pages_if_possible(rows: int, row: int, target: int) -> None:
    assume(row <= target < rows * row)
    chunk = contiguous_chunk((rows, row), 1, target)
    assert chunk[0] < rows
    assert chunk[1] == row
    possible = [k for k in range(1, target // row + 1) if k * row % PAGE == 0]
    assert (chunk[0] * row % PAGE == 0) == bool(possible)


@given(st.integers(1, 10_000), st.integers(1, 300))
def test_chunks_are_about_equal(rows: int, most: int) -> None:
    (size,) = contiguous_chunk((rows,), 1 << 12, most << 12)
    count = -(-rows // size)
    assert count == -(-rows // min(most, rows))
    assert size - (rows - (count - 1) * size) < count


@pytest.mark.parametrize(
    ("shape", "item", "target", "chunk"),
    [
        pytest.param((), 8, 100, (), id="scalar"),
        pytest.param((0, 5), 8, 10, (1, 5), id="empty"),
        pytest.param((1 << 40, 0), 8, 100, (1 << 40, 1), id="empty-and-huge"),
        pytest.param((1237, 1237, 2000), 16, 32 << 20, (1, 624, 2000), id="coulomb-vertex"),
        pytest.param((1024, 1024), 8, 1 << 20, (128, 1024), id="aligned-rows"),
        pytest.param((10, 1 << 20), 8, 1 << 20, (1, 1 << 17), id="one-long-row-is-cut"),
    ],
)
def test_known_grids(shape, item, target, chunk) -> None:
    assert contiguous_chunk(shape, item, target) == chunk
