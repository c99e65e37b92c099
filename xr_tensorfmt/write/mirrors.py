"""A second look at matrices of which one half is stored: the other must be its mirror image.

A chunk has one half of what is to be compared, and the other half may be anywhere in the matrix.
So all is written first, and then every chunk is computed once more and compared with what a reader
of the file will see. That takes the time twice, but never more than a few chunks of memory.
"""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.graph_manipulation import bind
from numpy.typing import NDArray

from xr_tensorfmt.elements import Array
from xr_tensorfmt.sources import open_source
from xr_tensorfmt.write.blocks import NOTHING, BlockWriter, chunked, each_chunk, in_file_order
from xr_tensorfmt.write.blueprint import Placed
from xr_tensorfmt.write.unstored import refusal


class MirrorCheck(BlockWriter):
    """Compares one chunk of a variable with what is in the file."""

    def __call__(
        self, values: Array, draft: Any, block_id: tuple[int, ...] = ()
    ) -> NDArray[np.uint8]:
        """Refuse values that are not what the file shows in their place.

        Parameters
        ----------
        values : ndarray
            The values.
        draft : Draft
            The file, in which all values are by now.
        block_id : tuple of int
            Number of the chunk along each axis.

        Returns
        -------
        ndarray
            One element, which means nothing.

        Raises
        ------
        ValueError
            A value below the diagonal is not the mirror image of the one above it.
        """
        selection = self.selection(block_id)
        stored = self.layout.read(open_source(draft.path, "read"), selection)
        converted = self.conversion.apply(np.asarray(values))
        equal = (stored == converted) | ((stored != stored) & (converted != converted))
        if not equal.all():
            position = int(equal.argmin())
            found, expected = converted.flat[position], stored.flat[position]
            index = selection.index_of(position)
            words = f"its mirror image at {index[::-1]} makes it {expected}"
            raise refusal(index, found, words, self.layout)
        return NOTHING.reshape((1,) * values.ndim)


def compared(placed: Placed, filled: Any) -> da.Array | None:
    """The tasks that compare a variable with a file that it has been written to.

    Parameters
    ----------
    placed : Placed
        The variable.
    filled : Delayed
        What gives the file when all of it is written.

    Returns
    -------
    dask array or None
        An element for each chunk; None where there is nothing to compare.
    """
    placed = in_file_order(placed)
    if not placed.variable.size:
        return None
    array = chunked(placed.variable, placed.layout)
    # Chunks of the same name would be kept from the first time on, all of them.
    again: da.Array = bind(array, filled)  # type: ignore[no-untyped-call]
    return each_chunk(MirrorCheck, placed, again, filled)
