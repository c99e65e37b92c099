"""Arrays as dask arrays whose chunks have places in a file, and the tasks that put them there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any, Protocol

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from xarray import Variable

from xr_tensorfmt.chunks import TARGET
from xr_tensorfmt.elements import Array
from xr_tensorfmt.layouts import Layout
from xr_tensorfmt.layouts.view import Transposed
from xr_tensorfmt.selection import MOST_RUNS, Selection
from xr_tensorfmt.write.blueprint import Placed
from xr_tensorfmt.write.conversion import Conversion
from xr_tensorfmt.write.grid import Chunks, writable_chunks
from xr_tensorfmt.write.packing import Packed, pack, units

NOTHING: NDArray[np.uint8] = np.zeros(1, dtype=np.uint8)


class Writable(Protocol):
    """A file that takes bytes in any order, from any thread or process."""

    def write(self, batches: Iterator[Packed]) -> None:
        """Put bytes into their places."""


@dataclass(frozen=True)
class BlockWriter:
    """Writes one chunk of a variable.

    Parameters
    ----------
    layout : Layout
        Where the whole variable goes.
    conversion : Conversion
        What becomes of its dtype.
    chunks : tuple of tuple of int
        Lengths of its chunks.
    origin : tuple of int
        Index of its first value in the layout.
    """

    layout: Layout
    conversion: Conversion
    chunks: Chunks
    origin: tuple[int, ...]

    @cached_property
    def _stops(self) -> list[list[int]]:
        return [
            list(accumulate(lengths, initial=first))[1:]
            for first, lengths in zip(self.origin, self.chunks, strict=True)
        ]

    def selection(self, chunk: tuple[int, ...]) -> Selection:
        """The elements of a chunk."""
        return Selection(
            self.layout.shape,
            tuple(
                slice(stops[i] - lengths[i], stops[i], 1)
                for i, stops, lengths in zip(chunk, self._stops, self.chunks, strict=True)
            ),
        )

    def __call__(
        self, values: Array, draft: Writable, block_id: tuple[int, ...] = ()
    ) -> NDArray[np.uint8]:
        """Put the values of a chunk into the file.

        Parameters
        ----------
        values : ndarray
            The values.
        draft : Writable
            The file.
        block_id : tuple of int
            Number of the chunk along each axis.

        Returns
        -------
        ndarray
            One element, which means nothing.
        """
        converted = self.conversion.apply(np.asarray(values))
        draft.write(pack(self.layout, self.selection(block_id), converted))
        return NOTHING.reshape((1,) * values.ndim)


def in_file_order(placed: Placed) -> Placed:
    """The same with the axes in the order of the file, slowest first."""
    layout = placed.layout
    if not isinstance(layout, Transposed):
        return placed
    order = [layout.axes.index(axis) for axis in range(len(layout.axes))]
    dims = [placed.variable.dims[axis] for axis in order]
    origin = placed.origin and tuple(placed.origin[axis] for axis in order)
    return Placed(placed.variable.transpose(*dims), layout.inner, placed.conversion, origin)


def chunked(variable: Variable, layout: Layout) -> da.Array:
    """A variable as a dask array whose chunks can be written one by one.

    Parameters
    ----------
    variable : Variable
        The values.
    layout : Layout
        Where they go; not transposed.

    Returns
    -------
    dask array

    Raises
    ------
    ValueError
        The lengths of its chunks are not known.
    """
    if variable.chunks is None:
        chunks = tuple(map(min, layout.chunk_shape(TARGET), variable.shape))
        if isinstance(variable._data, np.ndarray):  # noqa: SLF001  # .data would read a lazy one
            # A name of its own spares dask a pass over all values.
            return da.from_array(variable.values, chunks=chunks, name=False)  # type: ignore[no-untyped-call,no-any-return]
        array = variable.chunk(dict(zip(variable.dims, chunks, strict=True))).data
    else:
        array = variable.data
    if any(np.isnan(length) for lengths in array.chunks for length in lengths):
        raise ValueError(
            f"dask does not know the lengths of the chunks {array.chunks}; "
            "call compute_chunk_sizes() on the array first"
        )
    stored = layout.extents(Selection.everything(layout.shape)).nbytes
    item = stored / prod(layout.shape)
    cut: da.Array = array.rechunk(writable_chunks(array.chunks, units(layout), item))
    return cut


@dataclass(frozen=True, eq=False)
class Blocks:
    """A variable in the chunks in which it is written.

    Parameters
    ----------
    array : dask array
        The values.
    writer : BlockWriter
        What writes one of the chunks.
    """

    array: da.Array
    writer: BlockWriter

    def written(self, draft: Any) -> da.Array:
        """The tasks that write.

        Parameters
        ----------
        draft : Writable or Delayed
            The file, or what makes it.

        Returns
        -------
        dask array
            An element for each chunk.
        """
        ones = tuple((1,) * len(lengths) for lengths in self.array.chunks)
        meta = np.empty((0,) * self.array.ndim, dtype=np.uint8)
        blocks: Any = self.array
        tasks: da.Array = blocks.map_blocks(
            self.writer, draft=draft, dtype=np.uint8, chunks=ones, meta=meta
        )
        return tasks

    def ranges(self) -> Iterator[tuple[int, int] | None]:
        """Where in the file each chunk lies.

        Yields
        ------
        (int, int) or None
            Its first byte, and the one after its last; None for a chunk that fills none.
        """
        for number in np.ndindex(self.array.numblocks):
            selection = self.writer.selection(number)
            parts = selection.batches(runs=MOST_RUNS, span=selection.span) if selection.size else ()
            extents = [self.writer.layout.extents(part) for part in parts]
            bounds = [each.bounds for each in extents if len(each)]
            if bounds:
                yield min(start for start, _ in bounds), max(stop for _, stop in bounds)
            else:
                yield None


def blocks_of(placed: Placed) -> Blocks | None:
    """Cut a variable into chunks that can be written one by one.

    Parameters
    ----------
    placed : Placed
        The variable.

    Returns
    -------
    Blocks or None
        None where there is nothing to write.
    """
    placed = in_file_order(placed)
    if not placed.variable.size:
        return None
    array = chunked(placed.variable, placed.layout)
    origin = placed.origin or (0,) * array.ndim
    return Blocks(array, BlockWriter(placed.layout, placed.conversion, array.chunks, origin))


def written(placed: Placed, draft: Any) -> da.Array | None:
    """The tasks that write a variable.

    Parameters
    ----------
    placed : Placed
        The variable.
    draft : Writable or Delayed
        The file, or what makes it.

    Returns
    -------
    dask array or None
        An element for each chunk; None where there is nothing to write.
    """
    blocks = blocks_of(placed)
    return None if blocks is None else blocks.written(draft)
