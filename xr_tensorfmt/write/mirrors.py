"""A second look at matrices of which one half is stored: the other must be its mirror image.

A chunk has one half of what is to be compared, and the other half may be anywhere in the matrix.
So all is written first, and then every chunk is computed once more and compared with what a reader
of the file will see. That takes the time twice, but never more than a few chunks of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from dask.delayed import Delayed
from dask.graph_manipulation import bind
from xarray import Variable

from xr_tensorfmt.elements import Array
from xr_tensorfmt.sources import open_source
from xr_tensorfmt.write.blocks import Blocks, cut
from xr_tensorfmt.write.blueprint import Placed
from xr_tensorfmt.write.tasks import each_block
from xr_tensorfmt.write.unstored import refusal


class MirrorCheck(Blocks):
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
        selection = self.selection(number)
        stored = self.layout.read(open_source(file.path), selection)
        converted = self.conversion.apply(np.asarray(values))
        equal = (stored == converted) | ((stored != stored) & (converted != converted))
        if not equal.all():
            position = int(equal.argmin())
            index = selection.index_of(position)
            words = f"that at {index[::-1]} makes it {stored.flat[position]}"
            raise refusal(index, converted.flat[position], words, self.layout)


def comparing(
    placed: Iterable[Placed], filled: Delayed, finish: Callable[[Any, Sequence[Any]], Any]
) -> Delayed:
    """Plan to compare variables with a file that they have been written to.

    Parameters
    ----------
    placed : iterable of Placed
        The variables.
    filled : Delayed
        Gives the file when all of it is written.
    finish : callable
        Is given the file, after all else.

    Returns
    -------
    Delayed
        What compares them when it is computed.
    """
    return each_block(_again(placed, filled), filled, finish)


def _again(placed: Iterable[Placed], filled: Delayed) -> Iterator[tuple[Variable, Blocks]]:
    for variable, blocks in (cut(each) for each in placed if each.variable.size):
        check = MirrorCheck(blocks.layout, blocks.conversion, blocks.chunks, blocks.origin)
        if variable.chunks is None:
            yield variable, check
            continue
        # Chunks of the same name would be kept from the first time on, all of them.
        yield Variable(variable.dims, bind(variable.data, filled)), check
