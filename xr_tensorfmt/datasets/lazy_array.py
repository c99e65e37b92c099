"""Lazy arrays. Only this module uses private names of xarray.

It also relies on `xarray.open_dataset` to pass ``from_array_kwargs={"name": "open_dataset-..."}``
to `chunk`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
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
    NumpyIndexingAdapter,
    OuterIndexer,
    VectorizedIndexer,
)

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.layout import InMemory, Layout, transpose_layout
from xr_tensorfmt.core.selection import plan_key
from xr_tensorfmt.core.source import Plan, Source

MAX_LOADED_LABELS = 10**6
"""Limit on the labels of a coordinate that are loaded instead of chunked."""

plan_recorder: ContextVar[Callable[[Plan, tuple[int, ...]], None] | None] = ContextVar(
    "plan_recorder", default=None
)
"""Receives the plans of all reads in this context, which return zeros then."""


class TensorArray(BackendArray):
    """The lazy array for xarray: a Layout and its Source."""

    __slots__ = ("dtype", "layout", "shape", "source")

    def __init__(self, source: Source, layout: Layout) -> None:
        self.source = source
        self.layout = layout
        self.shape = layout.shape
        self.dtype: np.dtype[Any] = layout.dtype

    def __getitem__(self, key: ExplicitIndexer) -> Array:
        """Read the selection of a key, or only record the plan if someone asked for it."""
        plan, record = self.plan(key), plan_recorder.get()
        if record is None:
            return plan.read()
        zeros: Any = np.broadcast_to(np.zeros((), self.dtype), self.shape)
        zeros = NumpyIndexingAdapter(zeros)  # type: ignore[no-untyped-call]
        values = np.asarray(zeros[key])
        record(plan, values.shape)
        return values

    def plan(self, key: ExplicitIndexer) -> Plan:
        """Plan the read for a key."""
        is_vectorized = isinstance(key, VectorizedIndexer)
        return plan_key(self.layout, self.source, key.tuple, is_vectorized=is_vectorized)

    async def async_getitem(self, key: ExplicitIndexer) -> Array:
        """Read in a thread, for concurrent reads by ``await ds.load_async()``."""
        from xr_tensorfmt.sources.requests import run_in_thread  # noqa: PLC0415  # not needed to open a file

        return await run_in_thread(self.__getitem__, key)


class LazyTensor(LazilyIndexedArray):
    """A tensor with a key that is not applied yet."""

    __slots__ = ()

    def _updated_key(self, new_key: ExplicitIndexer) -> BasicIndexer | OuterIndexer:
        # Workaround for a bug of xarray: [-7::-1] of 5 elements is empty, but xarray selects all.
        # See docs/contributing.md.
        key = tuple(
            slice(0, 0) if isinstance(entry, slice) and not range(*entry.indices(length)) else entry
            for entry, length in zip(new_key.tuple, self.shape, strict=True)
        )
        return super()._updated_key(new_key if key == new_key.tuple else type(new_key)(key))

    def _oindex_get(self, indexer: OuterIndexer) -> LazyTensor:
        selected: LazyTensor = super()._oindex_get(indexer)
        # xarray uses an outer key without arrays only for the chunks of a chunked array. An array
        # of a single chunk may reach the user as it is.
        is_chunk = all(isinstance(entry, slice) for entry in indexer.tuple)
        if not is_chunk or selected.shape == self.shape:
            return selected
        source = self.array.source.allow_windows()  # the next task consumes the values
        return LazyTensor(TensorArray(source, self.array.layout), selected.key)

    def transpose(self, order: Sequence[int]) -> LazyTensor:
        """Permute the remaining axes, without reading."""
        kept: list[int] = []
        dropped: list[int] = []
        for axis, entry in enumerate(self.key.tuple):
            (dropped if isinstance(entry, int | np.integer) else kept).append(axis)
        axes = (*(kept[i] for i in order), *dropped)
        array = TensorArray(self.array.source, transpose_layout(self.array.layout, axes))
        return LazyTensor(array, type(self.key)(tuple(self.key.tuple[axis] for axis in axes)))


class _OpenedVariable(Variable):
    """A Variable until xarray has opened its Dataset, and caches its values, chunks or loads it.

    Names of its dask arrays contain the version of its file and the layout. See
    docs/contributing.md.
    """

    __slots__ = ()

    @Variable.data.setter  # type: ignore[attr-defined,untyped-decorator]
    def data(self, data: Any) -> None:
        """Set the values, as in `Variable.data`."""
        # xarray wraps the array that it opens. It does not cache values that it will chunk.
        Variable.data.__set__(self, data)  # type: ignore[attr-defined]
        if isinstance(data, MemoryCachedArray):
            self.__class__ = Variable  # type: ignore[assignment]
        elif isinstance(self, _OpenedLabels) and self.dtype.kind == "O":
            self.load()  # chunks="auto" needs the size of elements

    def chunk(self, chunks: Any = MappingProxyType({}), *args: Any, **keywords: Any) -> Any:
        """Chunk like `Variable.chunk`, with a unique name if xarray opens the file."""
        options, lazy = keywords.get("from_array_kwargs") or {}, find_lazy_tensor(self)
        name = options.get("name")
        if lazy is not None and isinstance(name, str) and name.startswith("open_dataset-"):
            if isinstance(self, _OpenedLabels):
                return self.to_base_variable().load()
            from dask.base import tokenize  # noqa: PLC0415  # only if there are chunks

            name = f"{name}-{tokenize(lazy.array.source, lazy.array.layout)}"
            keywords["from_array_kwargs"] = {**options, "name": name}
        return super().chunk(chunks, *args, **keywords)

    def load(self, **keywords: Any) -> Any:
        """Load the values."""
        super().load(**keywords)
        self.__class__ = Variable  # type: ignore[assignment]
        return self

    def _replace(self, *args: Any, **keywords: Any) -> Any:
        """Return a Variable, unless it is a copy, which xarray may chunk."""
        replaced, lazy = super()._replace(*args, **keywords), find_lazy_tensor(self)
        is_copy = lazy is not None and find_lazy_tensor(replaced) is lazy
        return replaced if is_copy else replaced.to_base_variable()


class _OpenedLabels(_OpenedVariable):
    """Labels. xarray loads them instead of chunking them, because selections need their values."""

    __slots__ = ()


def prepare_to_chunk(ds: Dataset) -> None:
    """Let xarray load labels instead of chunking them: those in the header, and some others."""
    for name, variable in ds.variables.items():
        lazy = find_lazy_tensor(variable)
        is_in_header = lazy is not None and isinstance(lazy.array.layout, InMemory)
        is_small = variable.ndim == 1 and variable.size <= MAX_LOADED_LABELS
        # xarray loads the labels of an index, unless the user asks it not to.
        is_loaded = is_in_header or (is_small and variable.dims != (name,))
        is_labels = name in ds.coords and is_loaded
        # Neither class adds attributes. `Coordinates(...)` would turn subclasses into Variable.
        variable.__class__ = _OpenedLabels if is_labels else _OpenedVariable


def get_lazy_data(variable: Variable) -> Any:
    """Return the array of a variable without loading it, unlike ``variable.data``."""
    return variable._data  # noqa: SLF001


def unwrap(data: Any) -> Any:
    """Return the array inside wrappers of xarray."""
    while hasattr(data, "array"):
        data = data.array
    return data


def find_lazy_tensor(data: Any, wrappers: type | tuple[type, ...] = object) -> Any:
    """Return the array with a `TensorArray` and a key inside wrappers of xarray, or None."""
    data = get_lazy_data(data) if isinstance(data, Variable) else data
    while data is not None and not isinstance(getattr(data, "array", None), TensorArray):
        data = getattr(data, "array", None) if isinstance(data, wrappers) else None
    return data


def drop_chunks(variable: Variable) -> Variable:
    """Return a variable without its dask chunks, if it is a lazy array of this engine."""
    lazy = find_undecoded_tensor(variable)
    if lazy is None:
        return variable
    return Variable(variable.dims, lazy, variable.attrs, variable.encoding, fastpath=True)


def find_undecoded_tensor(variable: Variable) -> LazyTensor | None:
    """Return the tensor of a variable that was only indexed, also inside dask chunks, or None."""
    data = get_lazy_data(variable)
    graph = getattr(data, "dask", None)  # `Variable.chunks` takes ten times as long
    if graph is not None:
        # dask stores the wrapped array under this key. Derived arrays have other names.
        data = graph.get(f"original-{data.name}")
    wrappers = (MemoryCachedArray, CopyOnWriteArray, ImplicitToExplicitIndexingAdapter)
    lazy = find_lazy_tensor(data, wrappers)
    return lazy if isinstance(lazy, LazyTensor) else None
