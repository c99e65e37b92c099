"""What matrices share of which not every element is stored: a value that is not must be implied."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.elements import Array
from xr_tensorfmt.layouts.base import Layout
from xr_tensorfmt.layouts.rows import Rows, TriangleRows
from xr_tensorfmt.selection import Selection, entry_indices

Places = tuple[NDArray[np.int64], NDArray[np.int64]]


class PartlyStored(Layout):
    """A layout that implies some values by their place."""

    @abstractmethod
    def check_implied(self, selection: Selection, values: Array) -> None:
        """Refuse values that would be lost: those that are not stored and not as implied."""


def not_stored(index: tuple[int, ...], found: object, implied: str, layout: Layout) -> ValueError:
    """An error about an element that a layout has no place for."""
    dense = "INTEGER" if layout.dtype.kind in "iu" else "DENSE_FLOAT"
    word = "VECTOR" if len(index) == 1 else dense
    place = index[0] if len(index) == 1 else index
    return ValueError(
        f"the element at {place} is {found}, where {implied}; write the whole of it with "
        f"matrix_type={word!r} to keep it"
    )


def on_diagonal(selection: Selection) -> tuple[slice, Places]:
    """Which part of the diagonal is selected, and where it is among the selected values."""
    rows, columns = map(entry_indices, selection.entries)
    begin = max(rows[0], columns[0])
    part = np.arange(begin, max(begin, min(rows[-1], columns[-1]) + 1))
    return slice(int(begin), int(begin) + part.size, 1), (part - rows[0], part - columns[0])


def check_triangle(rows: Rows, layout: Layout, selection: Selection, values: Array) -> None:
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
        implied = f"{'an' if complete else 'a strict'} upper triangle has 0"
        refuse_first(wrong, implied, layout, selection, values)


def refuse_first(
    wrong: Array, implied: str, layout: Layout, selection: Selection, values: Array
) -> None:
    """Raise an error about the first wrong value, if there is one."""
    if wrong.any():
        position = int(wrong.argmax())
        raise not_stored(selection.index_of(position), values.flat[position], implied, layout)
