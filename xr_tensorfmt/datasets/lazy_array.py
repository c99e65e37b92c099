"""Lazy arrays: the one module that uses private names of xarray."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from xarray import Dataset, Variable
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
from xarray.namedarray.parallelcompat import ChunkManagerEntrypoint

from xr_tensorfmt.core.chunk_grid import MOST_CHUNKS
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.indexing import OuterPlan, PointPlan, plan_outer, plan_vectorized
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import transposed
from xr_tensorfmt.errors import TensorFormatWarning, stacklevel_of_caller
from xr_tensorfmt.sources.threads import threads_of


class TensorArray(BackendArray):
    """A Layout over a Source, as the lazy array that xarray indexes."""

    __slots__ = ("dtype", "has_unused_limit", "layout", "shape", "source")

    def __init__(self, source: Source, layout: Layout, *, has_unused_limit: bool = False) -> None:
        self.source = source
        self.layout = layout
        self.shape = layout.shape
        self.dtype: np.dtype[Any] = layout.dtype
        # Whether the user has limited the size of chunks, and there are none so far.
        self.has_unused_limit = has_unused_limit

    def __getitem__(self, key: ExplicitIndexer) -> Array:
        """Read exactly what a key selects."""
        if self.has_unused_limit:
            self.has_unused_limit = False
            warnings.warn(
                f"{self.source.name}: chunk_bytes= has no effect, as the file was opened without "
                "chunks= and is read as a whole; pass chunks={} as well",
                TensorFormatWarning,
                stacklevel=stacklevel_of_caller(),
            )
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
        array = TensorArray(
            self.array.source,
            transposed(self.array.layout, axes),
            has_unused_limit=self.array.has_unused_limit,
        )
        return LazyTensor(array, type(self.key)(tuple(self.key.tuple[axis] for axis in axes)))


def _unambiguous(entry: Any, length: int) -> Any:
    """An equivalent entry of a key that xarray interprets as numpy does."""
    is_empty = isinstance(entry, slice) and not range(*entry.indices(length))
    return slice(0, 0) if is_empty else entry


class DistinctVariable(Variable):
    """A variable whose dask array gets a name that is unique to its file, layout and encoding."""

    __slots__ = ()

    def chunk(self, chunks: Any = MappingProxyType({}), *args: Any, **keywords: Any) -> Any:
        """As `Variable.chunk`, in fewer steps where `xarray.open_dataset` calls it."""
        from dask.base import tokenize  # noqa: PLC0415  # not needed before

        named, manager = keywords.get("from_array_kwargs") or {}, keywords.get("chunked_array_type")
        lazy = unwrapped(self)
        if lazy is not None:
            _check_chunks(self, lazy[0])
            lazy[0].has_unused_limit = False
        if lazy is not None and isinstance(named.get("name"), str):
            token = tokenize(lazy[0].source, lazy[0].layout)
            named = {**named, "name": f"{named['name']}-{token}"}
            keywords["from_array_kwargs"] = named
            if isinstance(manager, ChunkManagerEntrypoint) and chunks.keys() >= {*self.dims}:
                array: Any = ImplicitToExplicitIndexingAdapter(wrapped_data(self), OuterIndexer)
                data = manager.from_array(array, tuple(chunks[dim] for dim in self.dims), **named)
                return Variable(self.dims, data, self.attrs, self.encoding, fastpath=True)
        chunked = super().chunk(chunks, *args, **keywords)
        return Variable(chunked.dims, chunked.data, chunked.attrs, chunked.encoding, fastpath=True)


def _check_chunks(variable: Variable, lazy: TensorArray) -> None:
    """Refuse chunks of a whole tensor that would be more than dask can take."""
    if variable.encoding.get("preferred_chunks") == {} and variable.shape == lazy.shape != ():
        raise ValueError(
            f"{lazy.source.name}: a tensor of shape {lazy.shape} and {lazy.dtype} has more than "
            f"{MOST_CHUNKS} chunks; open it without chunks= and select a part of it, or pass a "
            "larger chunk_bytes="
        )


def distinct(variable: Variable) -> DistinctVariable:
    """The same variable, with the names of `DistinctVariable`."""
    data = wrapped_data(variable)
    return DistinctVariable(variable.dims, data, variable.attrs, variable.encoding, fastpath=True)


def unchecked_dataset(
    variables: dict[Any, Variable],
    coordinates: set[Hashable],
    attrs: dict[str, Any],
    encoding: dict[str, Any],
    close: Callable[[], None],
) -> Dataset:
    """A Dataset of new variables, without the copies and checks of its constructor.

    No indexes are made, so that the coordinates of a sparse tensor stay lazy. Conflicting lengths
    of a dimension are still an error.
    """
    names = {dim for variable in variables.values() for dim in variable.dims} | coordinates
    return Dataset._construct_direct(  # noqa: SLF001
        variables, names & variables.keys(), None, attrs, None, encoding, close
    )


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


def lazy_array(source: Source, layout: Layout, *, has_unused_limit: bool = False) -> LazyTensor:
    """Wrap a layout so that indexing it reads nothing until the values are asked for.

    `has_unused_limit` says that the user has limited the size of chunks, in vain if there are none.
    """
    array = TensorArray(source, layout, has_unused_limit=has_unused_limit)
    return LazyTensor(array, _everything(len(layout.shape)))


@cache
def _everything(rank: int) -> BasicIndexer:
    return BasicIndexer((slice(None),) * rank)


@dataclass(frozen=True, eq=False)
class Unread:
    """What a lazy array would read."""

    source: Source
    layout: Layout
    plan: OuterPlan


def unread(variable: Variable) -> Unread | None:
    """What a variable would read, if it is a lazy array of this engine and nothing else."""
    data = _lazy_data(variable)
    if data is None:
        return None
    inner = data.array
    return Unread(inner.source, inner.layout, plan_outer(data.key.tuple, inner.shape))


def unchunked(variable: Variable) -> Variable:
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
