"""A second look at matrices of which one half is stored: the other must be its mirror image.

A chunk has one half of what is to be compared, and the other half may be anywhere in the matrix.
So all is written first, and then every chunk is computed once more and compared with what a reader
of the file will see. That takes the time twice, but never more than a few chunks of memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import dask.config
import numpy as np
from dask.system import CPU_COUNT

from xr_tensorfmt.elements import Array
from xr_tensorfmt.layouts import Mirrored
from xr_tensorfmt.selection import Selection, entry_indices, entry_of
from xr_tensorfmt.sources import open_source
from xr_tensorfmt.write.blocks import BlockGrid, cut_all
from xr_tensorfmt.write.blueprint import Placed
from xr_tensorfmt.write.draft import Draft
from xr_tensorfmt.write.tasks import itself, writing
from xr_tensorfmt.write.unstored import refusal


class MirrorCheck(BlockGrid):
    """Blocks that are compared with what is in a file, in place of being written to it."""

    def write(self, number: int, values: Array, file: Any) -> None:
        """Refuse values that are not what the file shows in their place.

        Parameters
        ----------
        number : int
            The block.
        values : ndarray
            Its values.
        file : Draft
            The file, in which all values are by now.

        Raises
        ------
        ValueError
            A value below the diagonal is not the mirror image of the one above it.
        """
        assert isinstance(self.layout, Mirrored)
        selection = self.selection(number)
        rows, columns = map(entry_indices, selection.entries)
        # Only columns before the last row have a part below the diagonal.
        columns = columns[: np.searchsorted(columns, rows[-1])]
        if not columns.size:
            return
        plain = self.plain(values, selection.shape)[:, : columns.size]
        below = self.conversion.apply(plain)
        mirror = Selection(selection.extent, (entry_of(columns), selection.entries[0]))
        image = self.layout.sign * self.layout.upper.read(open_source(file.path), mirror).T
        wrong = (image != below) & ((image == image) | (below == below))
        wrong &= columns < rows[:, np.newaxis]
        if wrong.any():
            row, column = np.unravel_index(int(wrong.argmax()), wrong.shape)
            index = int(rows[row]), int(columns[column])
            words = f"that at {index[::-1]} makes it {image[row, column]}"
            raise refusal(index, below[row, column], words, self.layout)


def check_mirrored(placed: Iterable[Placed], draft: Draft) -> None:
    """Compare variables with a file that they have been written to.

    This is a computation of its own, within the last task of the writing: as a part of the same
    one, chunks would be kept from the first time on, all of them.

    Parameters
    ----------
    placed : iterable of Placed
        The variables.
    draft : Draft
        The file.

    Raises
    ------
    ValueError
        One of them has halves that are not mirror images of each other.
    """
    comparison = writing(cut_all(placed, MirrorCheck), partial(itself, draft), _nothing)
    # Below a thread of its own, dask would take more threads than there are processors.
    workers = dask.config.get("num_workers", None) or CPU_COUNT
    comparison.compute(scheduler="threads", num_workers=workers)  # type: ignore[no-untyped-call]


def _nothing(draft: Draft) -> None:
    del draft
