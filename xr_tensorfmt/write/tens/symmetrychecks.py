"""The check that a tensor has the symmetries by which it is packed, block against block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.chunks import TARGET
from xr_tensorfmt.elements import Array
from xr_tensorfmt.layouts.orbits import Operation
from xr_tensorfmt.write.conversion import Conversion
from xr_tensorfmt.write.grid import Chunks
from xr_tensorfmt.write.tens.surveying import each_block


@dataclass(frozen=True, eq=False)
class Invariance:
    """What must hold for a tensor, whose axes are in the order of the file.

    Parameters
    ----------
    conversion : Conversion
        What becomes of its values.
    dims : tuple of str
        Names of its dimensions, slowest first; an axis of components has none.
    operations : sequence of Operation
        What leaves it as it is.
    texts : sequence of str
        The operations as the user knows them.
    """

    conversion: Conversion
    dims: tuple[str, ...]
    operations: Sequence[Operation]
    texts: Sequence[str]

    def check(
        self,
        values: Array,
        *partners: Array,
        starts: Sequence[Sequence[int]],
        block_id: tuple[int, ...],
    ) -> NDArray[np.bool_]:
        """Compare a block with those that the operations make it of.

        Parameters
        ----------
        values : ndarray
            The block.
        *partners : ndarray
            For each operation the elements that it relates to those of the block.
        starts : sequence of sequence of int
            For each axis where the blocks begin.
        block_id : tuple of int
            Number of the block along each axis.

        Returns
        -------
        ndarray
            One element, which means nothing.

        Raises
        ------
        ValueError
            Two elements contradict a symmetry.
        """
        converted = self.conversion.apply(np.asarray(values))
        for number, operation in enumerate(self.operations):
            partner = self.conversion.apply(np.asarray(partners[number]))
            wrong = _differ(converted, partner, operation.sign)
            if wrong.any():
                within = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
                begins = [each[i] for each, i in zip(starts, block_id, strict=True)]
                place = tuple(int(i) + begin for i, begin in zip(within, begins, strict=True))
                raise self._contradiction(number, place, converted[within], partner[within])
        return np.ones((1,) * values.ndim, dtype=np.bool_)

    def _contradiction(
        self, number: int, place: tuple[int, ...], value: Any, related: Any
    ) -> ValueError:
        axes = self.operations[number].axes
        return ValueError(
            f"{self.conversion.name!r} is {value} at {self._named(place)} and {related} at "
            f"{self._named(tuple(place[axis] for axis in axes))}, which the symmetry "
            f"{self.texts[number]!r} does not allow; pass symmetries= without it"
        )

    def _named(self, place: tuple[int, ...]) -> str:
        pairs = reversed(list(zip(self.dims, place[: len(self.dims)], strict=True)))
        return ", ".join(f"{dim}={index}" for dim, index in pairs)


def checked(array: da.Array, invariance: Invariance) -> da.Array:
    """The tasks that compare each block of a tensor with its partners.

    Parameters
    ----------
    array : dask array
        The tensor, in `even_chunks`: so few blocks are needed at a time.
    invariance : Invariance
        What must hold.

    Returns
    -------
    dask array
        An element for each block.
    """
    partners = [_partner(array, operation) for operation in invariance.operations]
    starts = [list(accumulate(lengths, initial=0)) for lengths in array.chunks]
    return each_block(invariance.check, np.bool_, array, *partners, starts=starts)


def even_chunks(chunks: Chunks, item: int, operations: Sequence[Operation]) -> Chunks:
    """Chunks that are cut alike along axes which change places.

    Parameters
    ----------
    chunks : tuple of tuple of int
        The chunks that there are, which stay where they are so already.
    item : int
        Bytes of an element.
    operations : sequence of Operation
        What changes the places of axes; an axis of components stays.

    Returns
    -------
    tuple of tuple of int
    """
    if all(chunks[a] == chunks[b] for each in operations for a, b in enumerate(each.axes)):
        return chunks
    shape = tuple(map(sum, chunks))
    rank = len(operations[0].axes)
    wanted = ("auto",) * rank + (-1,) * (len(shape) - rank)  # components
    even: Chunks = da.core.normalize_chunks(  # type: ignore[no-untyped-call]
        wanted, shape, limit=TARGET, dtype=f"V{item}"
    )
    return even


def _partner(array: da.Array, operation: Operation) -> da.Array:
    """For each element of an array the one that an operation relates to it, cut as the array."""
    rank = len(operation.axes)
    order = [operation.axes.index(axis) for axis in range(rank)]
    moved: Any = array.transpose([*order, *range(rank, array.ndim)])  # type: ignore[no-untyped-call]
    partner: da.Array = moved.rechunk(array.chunks)
    return partner


def _differ(values: Array, partner: Array, sign: int) -> NDArray[np.bool_]:
    """Where a block is not what its partner makes it; NaN is the same as NaN."""
    with np.errstate(all="ignore"):
        related = -partner if sign < 0 else partner
        same = (values == related) | ((values != values) & (related != related))
    if sign < 0 and values.dtype.kind == "i":
        # Its negative is no number of the dtype, so that no reader can fill it in.
        same &= partner != np.iinfo(partner.dtype).min
    return np.asarray(~same)
