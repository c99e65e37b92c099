"""Lazy arrays: the one module that uses private names of xarray."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from xarray import Variable
from xarray.backends import BackendArray
from xarray.core.indexing import (
    BasicIndexer,
    CopyOnWriteArray,
    ExplicitIndexer,
    ImplicitToExplicitIndexingAdapter,
    LazilyIndexedArray,
    MemoryCachedArray,
    OuterIndexer,
    VectorizedIndexer,
)

from xr_tensorfmt.core.container import Tensor
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.indexing import OuterPlan, PointPlan, plan_outer, plan_vectorized
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.selection import KEEP
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import transpose_layout
from xr_tensorfmt.sources.threads import threads_of


class TensorArray(BackendArray):
    """A Layout over a Source, as the lazy array that xarray indexes."""

    __slots__ = ("dtype", "layout", "shape", "source", "tensor")

    def __init__(self, source: Source, layout: Layout, *, tensor: Tensor | None = None) -> None:
        self.source = source
        self.layout = layout
        # The tensor of the file, unless its axes are permuted.
        self.tensor = tensor
        self.shape = layout.shape
        self.dtype: np.dtype[Any] = layout.dtype

    def __getitem__(self, key: ExplicitIndexer) -> Array:
        """Read exactly what a key selects."""
        return self.plan(key).read(self.layout, self.source)

    def plan(self, key: ExplicitIndexer) -> OuterPlan | PointPlan:
        """Plan the read for a key."""
        if isinstance(key, BasicIndexer | OuterIndexer):
            return plan_outer(key.tuple, self.shape)
        assert isinstance(key, VectorizedIndexer), f"unexpected key {key!r}"
        return plan_vectorized(key.tuple, self.shape)

    async def async_getitem(self, key: ExplicitIndexer) -> Array:
        """Read in one of 24 threads: ``await ds.load_async()`` loads as many variables at once."""
        threads = threads_of(self.source.store, "load")
        return await asyncio.wrap_future(threads.submit(self.__getitem__, key))


class LazyTensor(LazilyIndexedArray):
    """A tensor with a key that is not applied yet."""

    __slots__ = ()

    def _updated_key(self, new_key: ExplicitIndexer) -> BasicIndexer | OuterIndexer:
        lengths = zip(new_key.tuple, self.shape, strict=True)
        return super()._updated_key(type(new_key)(tuple(_unambiguous(*entry) for entry in lengths)))

    def transpose(self, order: Sequence[int]) -> LazyTensor:
        """Permute the axes that the key keeps, without reading."""
        integers = [isinstance(entry, int | np.integer) for entry in self.key.tuple]
        kept = [axis for axis, dropped in enumerate(integers) if not dropped]
        axes = (
            *(kept[i] for i in order),
            *(axis for axis in range(len(integers)) if integers[axis]),
        )
        array = TensorArray(self.array.source, transpose_layout(self.array.layout, axes))
        return LazyTensor(array, type(self.key)(tuple(self.key.tuple[axis] for axis in axes)))


def _unambiguous(entry: Any, length: int) -> Any:
    """An equivalent entry of a key that xarray interprets as numpy does."""
    is_empty = isinstance(entry, slice) and not range(*entry.indices(length))
    return slice(0, 0) if is_empty else entry


class GroupVariable(Variable):
    """A variable of `xarray.open_groups`, whose dask array has a name of its own.

    xarray names a dask array by file, options and variable. `xarray.open_groups` leaves out the
    group, so that dask would take variables of the same name for each other.
    """

    __slots__ = ()

    def chunk(self, chunks: Any = MappingProxyType({}), *args: Any, **keywords: Any) -> Any:
        """Chunk as `Variable.chunk`, with a token of file and layout in the name."""
        from dask.base import tokenize  # noqa: PLC0415  # only if there are chunks

        options, lazy = keywords.get("from_array_kwargs") or {}, unwrapped(self)
        if lazy is not None and isinstance(options.get("name"), str):
            array, _ = lazy
            name = f"{options['name']}-{tokenize(array.source.name, array.layout)}"
            keywords["from_array_kwargs"] = {**options, "name": name}
        chunked = super().chunk(chunks, *args, **keywords)
        return Variable(chunked.dims, chunked.data, chunked.attrs, chunked.encoding, fastpath=True)


def wrapped_data(variable: Variable) -> Any:
    """The array of a variable, unread: ``variable.data`` would load it."""
    return variable._data  # noqa: SLF001


def unwrapped(lazy: object) -> tuple[TensorArray, ExplicitIndexer] | None:
    """The array of this package within xarray's wrappers, and the key applied to it."""
    data: Any = wrapped_data(lazy) if isinstance(lazy, Variable) else lazy
    while data is not None:
        inner = getattr(data, "array", None)
        if isinstance(inner, TensorArray):
            return inner, data.key
        data = inner
    return None


def lazy_array(source: Source, layout: Layout, *, tensor: Tensor | None = None) -> LazyTensor:
    """Wrap a layout in an array that is indexed without reading.

    `tensor` is the tensor of the file that the array represents.
    """
    array = TensorArray(source, layout, tensor=tensor)
    return LazyTensor(array, _everything(len(layout.shape)))


@cache
def _everything(rank: int) -> BasicIndexer:
    return BasicIndexer((slice(None),) * rank)


@dataclass(frozen=True, eq=False)
class LazyRead:
    """What a lazy array would read."""

    source: Source
    layout: Layout
    plan: OuterPlan


def get_lazy_read(variable: Variable) -> LazyRead | None:
    """What a variable would read, if it is a lazy array of this engine and nothing else."""
    data = _lazy_data(variable)
    if data is None:
        return None
    inner = data.array
    return LazyRead(inner.source, inner.layout, plan_outer(data.key.tuple, inner.shape))


def unmodified_tensor(variable: Variable) -> Tensor | None:
    """Return the tensor of a file if the values of a variable are provably those of the file.

    They are if the variable is unread, with or without the chunks that it was opened with, and is
    neither indexed nor transposed. Values in memory could have been changed in place.
    """
    data = _lazy_data(variable)
    tensor = None if data is None else data.array.tensor
    if data is None or tensor is None or tensor.dims != variable.dims:
        return None
    axes = plan_outer(data.key.tuple, data.array.shape).picks
    is_whole = all(
        axis.post_indexer is KEEP
        and isinstance(axis.entry, slice)
        and axis.entry == slice(0, length, 1)
        for axis, length in zip(axes, data.array.shape, strict=True)
    )
    return tensor if is_whole else None


def drop_chunks(variable: Variable) -> Variable:
    """A variable without the chunks in which it would be read."""
    data = _lazy_data(variable)
    if variable.chunks is None or data is None:
        return variable
    return Variable(variable.dims, data, variable.attrs, variable.encoding, fastpath=True)


def _lazy_data(variable: Variable) -> LazyTensor | None:
    data = wrapped_data(variable)
    if variable.chunks is not None:
        # dask stores the wrapped array under this key; derived arrays have other names. Other
        # chunk managers than dask have no such graph.
        graph = getattr(data, "dask", None)
        data = None if graph is None else graph.get(f"original-{data.name}")
    wrappers = (MemoryCachedArray, CopyOnWriteArray, ImplicitToExplicitIndexingAdapter)
    while isinstance(data, wrappers):
        data = data.array
    return data if isinstance(data, LazyTensor) else None
