"""Arrays as dask arrays whose chunks have places in a file, and the tasks that put them there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, product
from math import prod
from typing import Any, Protocol
from uuid import uuid4

import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks, slices_from_chunks
from numpy.typing import NDArray
from xarray import Variable

from xr_tensorfmt.chunks import TARGET
from xr_tensorfmt.elements import Array
from xr_tensorfmt.layouts import Layout
from xr_tensorfmt.layouts.view import Transposed
from xr_tensorfmt.selection import Selection
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
        self, values: Any, draft: Writable, block_id: tuple[int, ...] = ()
    ) -> NDArray[np.uint8]:
        """Put the values of a chunk into the file.

        Parameters
        ----------
        values : ndarray, or what numpy can make one of
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
        selection = self.selection(block_id)
        converted = self.conversion.apply(self._plain(values, selection.shape))
        draft.write(pack(self.layout, selection, converted))
        return NOTHING.reshape((1,) * len(block_id))

    def _plain(self, values: Any, shape: tuple[int, ...]) -> Array:
        """A chunk as numpy has it, if it is what dask has said of it."""
        name = self.conversion.name
        if np.ma.isMaskedArray(values):
            raise TypeError(f"{name!r} has masked values; fill them first, as by da.ma.filled")
        array = np.asarray(values)
        if array.shape != shape:
            raise ValueError(
                f"{name!r} has a chunk of shape {array.shape} where dask has announced {shape}; "
                "give map_blocks and its kin the chunks= that they make"
            )
        return array


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
    """
    if variable.chunks is None:
        chunks = tuple(map(min, layout.chunk_shape(TARGET), variable.shape))
        if isinstance(variable._data, np.ndarray):  # noqa: SLF001  # .data would read a lazy one
            return _views(variable.values, chunks)
        array = variable.chunk(dict(zip(variable.dims, chunks, strict=True))).data
    else:
        array = variable.data
    stored = layout.extents(Selection.everything(layout.shape)).nbytes
    item = stored / prod(layout.shape)
    cut: da.Array = array.rechunk(writable_chunks(array.chunks, units(layout), item))
    return cut


def _views(values: Array, shape: tuple[int, ...]) -> da.Array:
    """Chunks of what is in memory; `dask.array.from_array` would copy all of it."""
    name = f"memory-{uuid4().hex}"
    chunks = normalize_chunks(shape, values.shape)  # type: ignore[no-untyped-call]
    cuts = slices_from_chunks(chunks)  # type: ignore[no-untyped-call]
    keys = product([name], *(range(len(lengths)) for lengths in chunks))
    graph = {key: values[cut] for key, cut in zip(keys, cuts, strict=True)}
    meta = np.empty((0,) * values.ndim, dtype=values.dtype)
    return da.Array(graph, name, chunks, meta=meta)  # type: ignore[no-untyped-call]


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
    placed = in_file_order(placed)
    if not placed.variable.size:
        return None
    array = chunked(placed.variable, placed.layout)
    origin = placed.origin or (0,) * array.ndim
    writer = BlockWriter(placed.layout, placed.conversion, array.chunks, origin)
    ones = tuple((1,) * len(lengths) for lengths in array.chunks)
    meta = np.empty((0,) * array.ndim, dtype=np.uint8)
    blocks: Any = array
    tasks: da.Array = blocks.map_blocks(writer, draft=draft, dtype=np.uint8, chunks=ones, meta=meta)
    return tasks
