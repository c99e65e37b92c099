"""Values that a layout does not store: they must be what it shows in their place."""

from __future__ import annotations

from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.elements import Array
from xr_tensorfmt.layouts import Bits, Diagonal, Layout, Mirrored, Ones, Triangle, UnitVector
from xr_tensorfmt.layouts.rows import Rows, TriangleRows
from xr_tensorfmt.selection import MOST_RUNS, Selection, entry_indices
from xr_tensorfmt.write.packing import within

# Elements that are looked at, or compared with their mirror image, before the next ones.
_AT_A_TIME = 1 << 19

Places = tuple[NDArray[np.int64], NDArray[np.int64]]


@singledispatch
def check_unstored(layout: Layout, selection: Selection, values: Array) -> None:
    """Refuse values that would be lost.

    What a symmetric matrix has below its diagonal is stored as its mirror image, which is not
    looked at here.

    Parameters
    ----------
    layout : Layout
        How the values are to lie in the file.
    selection : Selection
        Which of its elements these are: slices of step 1.
    values : ndarray
        The values, of the selection's shape.

    Raises
    ------
    ValueError
        One of them is another than the layout would show; zeros may have either sign.
    """
    del layout, selection, values


def refusal(index: tuple[int, ...], found: object, shown: str, layout: Layout) -> ValueError:
    """An error about an element that a layout has no place for.

    Parameters
    ----------
    index : tuple of int
        Where it is.
    found : object
        What it is.
    shown : str
        What would be seen in its place, in words that follow "where".
    layout : Layout
        The layout.

    Returns
    -------
    ValueError
    """
    dense = "INTEGER" if layout.dtype.kind in "iu" else "DENSE_FLOAT"
    word = "VECTOR" if len(index) == 1 else dense
    place = index[0] if len(index) == 1 else index
    return ValueError(
        f"the element at {place} is {found}, where {shown}; write the whole of it with "
        f"matrix_type={word!r} to keep it"
    )


def on_diagonal(selection: Selection) -> tuple[slice, Places]:
    """Which part of the diagonal is selected.

    Parameters
    ----------
    selection : Selection
        Slices of step 1 of a matrix.

    Returns
    -------
    part : slice
        Of the diagonal.
    places : tuple of ndarray
        Where it is among the selected values.
    """
    rows, columns = map(entry_indices, selection.entries)
    begin = max(rows[0], columns[0])
    part = np.arange(begin, max(begin, min(rows[-1], columns[-1]) + 1))
    return slice(int(begin), int(begin) + part.size, 1), (part - rows[0], part - columns[0])


def _check_below(rows: Rows, layout: Layout, selection: Selection, values: Array) -> None:
    """Refuse anything but zeros before the first column that each row stores."""
    indices, columns = map(entry_indices, selection.entries)
    cuts = np.clip(rows.firsts(indices) - columns[0], 0, columns.size)
    # What no row stores is a block of its own, which needs no mask.
    block = slice(0, int(cuts[0]))
    corner = slice(block.stop, int(cuts[-1]))
    below = np.arange(corner.start, corner.stop) < cuts[:, np.newaxis]
    if values[:, block].any() or np.logical_and(values[:, corner], below).any():
        wrong = values.astype(np.bool_) & (np.arange(columns.size) < cuts[:, np.newaxis])
        complete = isinstance(rows, TriangleRows) and rows.diagonal
        shown = f"{'an' if complete else 'a strict'} upper triangle has 0"
        _refuse_first(wrong, shown, layout, selection, values)


def _refuse_first(
    wrong: Array, shown: str, layout: Layout, selection: Selection, values: Array
) -> None:
    if wrong.any():
        position = int(wrong.argmax())
        raise refusal(selection.index_of(position), values.flat[position], shown, layout)


@check_unstored.register
def _(layout: Bits, selection: Selection, values: Array) -> None:
    if not layout.rows.stride:
        _check_below(layout.rows, layout, selection, values)


@check_unstored.register
def _(layout: Triangle, selection: Selection, values: Array) -> None:
    _check_below(layout.rows, layout, selection, values)


@check_unstored.register
def _(layout: Mirrored, selection: Selection, values: Array) -> None:
    if layout.sign < 0:
        wrong, (_, places) = np.zeros(values.shape, dtype=np.bool_), on_diagonal(selection)
        wrong[places] = values[places] != 0
        _refuse_first(wrong, "an antisymmetric matrix has 0", layout, selection, values)


@check_unstored.register
def _(layout: Diagonal, selection: Selection, values: Array) -> None:
    wrong, (_, places) = values != 0, on_diagonal(selection)
    of_ones = isinstance(layout.values, Ones)
    wrong[places] = values[places] != 1 if of_ones else False
    shown = "an identity matrix has 1 on its diagonal and 0 beside it"
    _refuse_first(wrong, shown if of_ones else "a diagonal matrix has 0", layout, selection, values)


@check_unstored.register
def _(layout: UnitVector, selection: Selection, values: Array) -> None:
    expected = entry_indices(selection.entries[-1]) == layout.active
    words = f"a unit vector has 1 at {layout.active}, 0 elsewhere"
    _refuse_first(values != expected, words, layout, selection, values)


def holds(layout: Layout, values: Array) -> bool:
    """Whether a layout shows values as they are, once they are written.

    Parameters
    ----------
    layout : Layout
        How they are to lie in the file.
    values : ndarray
        All of them.

    Returns
    -------
    bool
    """
    if not values.size:
        return True
    whole = Selection.everything(layout.shape)
    try:
        for part in whole.batches(runs=MOST_RUNS, span=_AT_A_TIME):
            check_unstored(layout, part, values[within(part, whole)])
    except ValueError:
        return False
    return not isinstance(layout, Mirrored) or _is_mirrored(values, layout.sign)


def _is_mirrored(values: Array, sign: int) -> bool:
    step = max(1, _AT_A_TIME // len(values))
    return all(
        np.array_equal(values[i : i + step], sign * values[:, i : i + step].T, equal_nan=True)
        for i in range(0, len(values), step)
    )
