from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from xr_tensorfmt.core.selection import Selection


@st.composite
def axis_indices(draw: st.DrawFn, length: int):
    if draw(st.booleans()):
        chosen = draw(st.sets(st.integers(0, length - 1), min_size=1))
        return np.array(sorted(chosen), dtype=np.int64)
    start = draw(st.integers(0, length - 1))
    step = draw(st.integers(1, length))
    last = start + draw(st.integers(0, (length - 1 - start) // step)) * step
    return range(start, last + 1, step)


@st.composite
def selections(draw: st.DrawFn) -> Selection:
    extent = tuple(draw(st.lists(st.integers(1, 6), max_size=4)))
    return Selection(extent, tuple(draw(axis_indices(length)) for length in extent))


def compute_flat_indices(selection: Selection) -> np.ndarray:
    full = np.arange(int(np.prod(selection.tensor_shape))).reshape(selection.tensor_shape)
    if not selection.tensor_shape:
        return full.ravel()
    return full[np.ix_(*selection.index_arrays)].ravel()


@given(selections())
def test_runs_are_selected_elements_in_order(selection: Selection) -> None:
    runs = selection.runs()
    expanded = (runs.starts[:, np.newaxis] + np.arange(runs.lengths[0])).ravel()
    assert np.array_equal(expanded, compute_flat_indices(selection))
    assert runs.nbytes == selection.size
    assert runs.starts.size == selection.run_count


@given(selections(), st.integers(1, 20))
def test_batches_are_the_selection_in_order_with_few_elements(
    selection: Selection, size: int
) -> None:
    batches = list(selection.divide(size))
    together = np.concatenate([compute_flat_indices(batch) for batch in batches])
    assert np.array_equal(together, compute_flat_indices(selection))
    assert all(batch.size <= size for batch in batches)


@given(selections())
def test_span_reaches_from_first_to_last_element(selection: Selection) -> None:
    flat = compute_flat_indices(selection)
    assert selection.span == flat[-1] - flat[0] + 1


def test_whole_selection_is_one_run() -> None:
    runs = Selection.everything((3, 4, 5)).runs(item=8, offset=100)
    assert runs.bounds == (100, 580)
    assert len(runs) == 1


@given(selections(), st.data())
def test_stored_rows_are_found_as_in_full_arrays(selection: Selection, data: st.DataObject) -> None:
    extent = selection.tensor_shape
    assume(extent)
    count = data.draw(st.integers(1, len(extent)))
    total = int(np.prod(extent[:count]))
    stored = np.array(sorted(data.draw(st.sets(st.integers(0, total - 1)))), dtype=np.int64)
    numbers = np.array(data.draw(st.permutations(range(stored.size))), dtype=np.int64)
    rows = np.arange(stored.size * np.prod(extent[count:], dtype=int)) + 1
    rows = rows.reshape(-1, *extent[count:])
    full = np.zeros((total, *extent[count:]), rows.dtype)
    full[stored] = rows[numbers]
    if data.draw(st.booleans()):
        points = np.unravel_index(data.draw(st.permutations(selection.flat.tolist())), extent)
        selection = Selection(extent, points, is_pointwise=True)
    part, target = selection.find_rows(count, stored, numbers)
    values = np.zeros(selection.shape, rows.dtype)
    values[target] = rows[part.mesh]
    assert np.array_equal(values, full.reshape(extent)[selection.mesh])


def test_few_rows_of_a_large_product_are_found_without_its_elements() -> None:
    indices = range(1, 1 << 20, 2)
    selection = Selection((1 << 20, 1 << 20, 2), (indices, indices, range(2)))
    stored = np.array([5, (1 << 20) + 1, (3 << 20) + 4, (7 << 20) + 9], dtype=np.int64)
    part, target = selection.find_rows(2, stored)
    assert part.shape == (2, 2)
    assert part.indices[0].tolist() == [1, 3]
    assert [line.tolist() for line in target] == [[0, 3], [0, 4]]
