"""Blocks: parts of variables that are written independently, by one task each or in batches."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import dask.array
import numpy as np
from dask._task_spec import TaskRef
from dask.array.core import normalize_chunks, slices_from_chunks
from dask.array.optimization import optimize
from dask.core import flatten
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from xarray import Variable

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import DEFAULT_CHUNK_BYTES
from xr_tensorfmt.core.layout import BATCH_BYTES, WHOLE, EncodedBatch, Layout, file_order
from xr_tensorfmt.core.selection import Indices, Selection
from xr_tensorfmt.datasets.lazy_array import LazyTensor, drop_chunks, get_lazy_data, unwrap
from xr_tensorfmt.writing.file_plan import Conversion, PlannedVariable

Chunks = tuple[tuple[int, ...], ...]
"""Lengths of the chunks along every axis."""


def merge_chunks(chunks: Chunks, units: Sequence[int]) -> Chunks:
    """Merge neighbouring chunks that share a byte, whose bound is inside a write unit."""
    merged: list[tuple[int, ...]] = []
    for lengths, unit in zip(chunks, units, strict=True):
        parts: list[int] = []
        for length in lengths:
            if parts and (unit == WHOLE or parts[-1] % unit):
                parts[-1] += length
            else:
                parts.append(length)
        merged.append(tuple(parts))
    return tuple(merged)


@dataclass(frozen=True, eq=False)
class BlockGrid:
    """The blocks of a variable, in C order."""

    variable: Any  # None in a task that receives the values of a block
    layout: Layout
    axes: Sequence[int]  # of the variable, for every axis of the layout
    conversion: Conversion
    slices: Sequence[tuple[slice, ...]]  # of each block
    indices: tuple[Indices, ...] | None  # of every axis of the layout, or None for all

    def read(self, block: int) -> Array:
        """Return the values of a block. The variable does not keep lazy ones."""
        data, key = get_lazy_data(self.variable), self.slices[block]
        if len(self.slices) == 1 and isinstance(data, LazyTensor):
            return data.array[data.key]  # type: ignore[no-any-return]
        values: Array = data[key] if isinstance(data, np.ndarray) else self.variable[key].values
        return values

    def encode(self, block: int, values: Any) -> Iterator[EncodedBatch]:
        """Convert the values of a block to bytes."""
        slices = self.slices[block]
        array = _to_numpy(self.conversion.name, values, tuple(s.stop - s.start for s in slices))
        converted: Any = self.conversion.apply(array.transpose(self.axes))
        whole = self.indices or tuple(map(range, self.layout.shape))
        indices = (part[slices[axis]] for part, axis in zip(whole, self.axes, strict=True))
        return self.layout.encode(Selection(self.layout.shape, tuple(indices)), converted)


def _to_numpy(name: str, values: Any, shape: tuple[int, ...]) -> Array:
    """Return values that may be of another library. Raise an error if they cannot be written."""
    if type(values) is not np.ndarray:
        if np.ma.isMaskedArray(values):
            raise TypeError(f"{name!r} has masked values; fill them first with da.ma.filled")
        values = np.asarray(values)
    if values.shape != shape:
        raise ValueError(
            f"{name!r} has a chunk of shape {values.shape}, but dask expected {shape}; pass the "
            "right chunks= to map_blocks or a similar function"
        )
    return values  # type: ignore[no-any-return]


def is_chunked(variable: Variable) -> bool:
    """Return whether a variable is a dask array. `Variable.chunks` takes ten times as long."""
    return isinstance(get_lazy_data(variable), dask.array.Array)


def keep_values(planned: Iterable[PlannedVariable]) -> tuple[PlannedVariable, ...]:
    """Copy values in memory, which may change before a delayed write is computed."""
    return tuple(
        replace(item, variable=item.variable.copy(data=np.array(item.variable.values)))
        if isinstance(unwrap(get_lazy_data(item.variable)), np.ndarray)
        else item
        for item in planned
    )


def divide_variables(planned: Iterable[PlannedVariable]) -> list[BlockGrid]:
    """Divide variables into dask chunks, or chunks of the layout. Leave out empty ones."""
    return [_divide(item) for item in planned if item.variable.size]


def _divide(item: PlannedVariable) -> BlockGrid:
    variable, nbytes, (layout, axes) = item.variable, item.variable.nbytes, file_order(item.layout)
    slices = [tuple([slice(0, length) for length in variable.shape])]
    count = get_lazy_data(variable).npartitions if is_chunked(variable) else 1
    if count > 1 or nbytes > DEFAULT_CHUNK_BYTES:
        variable, chunks = _choose_chunks(variable, layout, axes)
        slices = slices_from_chunks(chunks)  # type: ignore[no-untyped-call]
    elif not is_chunked(variable) or nbytes <= BATCH_BYTES:
        variable = drop_chunks(variable)  # a task takes longer than reading few bytes
    return BlockGrid(variable, layout, axes, item.conversion, slices, item.indices)


def _choose_chunks(
    variable: Variable, layout: Layout, axes: Sequence[int]
) -> tuple[Variable, Chunks]:
    if is_chunked(variable):
        chunks = tuple(get_lazy_data(variable).chunks[axis] for axis in axes)
    else:
        shape = tuple(variable.shape[axis] for axis in axes)
        block = layout.chunk_shape(DEFAULT_CHUNK_BYTES)
        chunks = normalize_chunks(block, shape)  # type: ignore[no-untyped-call]
    merged = merge_chunks(chunks, layout.write_units)
    if is_chunked(variable) and merged != chunks:
        dims = (variable.dims[axis] for axis in axes)
        variable = variable.chunk(dict(zip(dims, merged, strict=True)))
    return variable, tuple(merged[axes.index(axis)] for axis in range(len(axes)))


File = Any  # `write` writes batches at their offsets, and returns the inode


def write_blocks(files: Sequence[tuple[File, Sequence[BlockGrid]]]) -> None:
    """Write values in memory and lazy ones in this thread, then dask arrays by the scheduler."""
    # Values in memory would fill the memory of the scheduler on their way to workers.
    chunked = []
    for file, grids in files:
        for batch in _split_batches(grids):
            write_in_memory(batch, file)
        chunked.append((file, [grid for grid in grids if is_chunked(grid.variable)]))
    if any(grids for _, grids in chunked):
        plan_tasks(chunked).compute()  # type: ignore[no-untyped-call]


def plan_tasks(
    files: Sequence[tuple[File, Sequence[BlockGrid]]], finish: Callable[..., object] | None = None
) -> Delayed:
    """Plan tasks that write all blocks in any order, and one that calls `finish`.

    It receives the files, and the inodes of the files that blocks were written to.
    """
    token = uuid.uuid4().hex
    graph: dict[Any, Any] = {}
    arrays: list[Any] = []
    tasks: list[Any] = []
    file_keys = [f"file-{token}-{index}" for index in range(len(files))]
    for key, (file, grids) in zip(file_keys, files, strict=True):
        graph[key] = file
        tasks += [(write_in_memory, batch, key) for batch in _split_batches(grids)]
        for grid in grids:
            if is_chunked(grid.variable):
                # Send a large layout to each worker once, as a separate node.
                grid_key = f"blocks-{key}-{len(arrays)}"
                graph[grid_key] = replace(grid, variable=None)
                arrays.append(grid.variable.data)
                # distributed removes the tasks of a persisted array from the graph, and would then
                # pass a plain key on as a value. A TaskRef stays a dependency.
                values = map(TaskRef, flatten(arrays[-1].__dask_keys__()))  # type: ignore[no-untyped-call]
                tasks += [(write_block, grid_key, *item, key) for item in enumerate(values)]
    writes = {(f"write-{token}", number): task for number, task in enumerate(tasks)}
    last = f"finish-{token}"
    final = (finish, file_keys, list(writes)) if finish else (len, list(writes))
    graph |= writes | {last: final} | _optimize(arrays)
    return Delayed(last, HighLevelGraph({last: graph}, {last: set()}))  # type: ignore[no-untyped-call]


def _optimize(arrays: Sequence[Any]) -> dict[Any, Any]:
    """Return the tasks of dask arrays, optimized together to compute shared tasks once."""
    graph: dict[Any, Any] = {}
    for array in arrays:
        if len(array.dask.layers) == 1:  # values in memory, for which dask takes quadratic time
            graph |= array.dask
    if computed := [array for array in arrays if len(array.dask.layers) > 1]:
        merged = HighLevelGraph.merge(*(array.dask for array in computed))
        keys = list(flatten([array.__dask_keys__() for array in computed]))  # type: ignore[no-untyped-call]
        graph |= optimize(merged, keys)  # type: ignore[no-untyped-call]
    return graph


def write_block(grid: BlockGrid, block: int, values: Array, file: File) -> int:
    """Write a dask chunk."""
    return file.write(grid.encode(block, values))  # type: ignore[no-any-return]


def write_in_memory(batch: Sequence[tuple[BlockGrid, int]], file: File) -> int:
    """Read lazy blocks without keeping them in the variables, and write all blocks."""
    # Read before, because errors of reading are not of writing.
    values = [grid.read(block) for grid, block in batch]
    pairs = zip(batch, values, strict=True)
    batches = chain.from_iterable(grid.encode(block, v) for (grid, block), v in pairs)
    return file.write(batches)  # type: ignore[no-any-return]


def _split_batches(grids: Iterable[BlockGrid]) -> Iterator[list[tuple[BlockGrid, int]]]:
    """Group small blocks of values in memory into batches of about one chunk."""
    batch: list[tuple[BlockGrid, int]] = []
    size = 0
    for grid in grids:
        count = 0 if is_chunked(grid.variable) else len(grid.slices)
        nbytes = grid.variable.nbytes // len(grid.slices)
        for block in range(count):
            if batch and size + nbytes > DEFAULT_CHUNK_BYTES:
                yield batch
                batch, size = [], 0
            batch.append((grid, block))
            size += nbytes
    if batch:
        yield batch
