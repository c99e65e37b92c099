"""Build lazy Datasets from parsed headers."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Hashable, Mapping
from numbers import Integral
from typing import Any

from xarray import Coordinates, Dataset, Variable

from xr_tensorfmt.core.chunk_grid import MAX_CHUNKS, count_chunks
from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.header import MAX_TENSOR_BYTES
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets import cf
from xr_tensorfmt.datasets.lazy_array import build_lazy_tensor, get_lazy_data
from xr_tensorfmt.datasets.long_attributes import build_long_attributes
from xr_tensorfmt.datasets.options import EngineKeywords


class PreferredChunks(dict[Hashable, int]):
    """The chunk sizes of ``chunks={}``.

    xarray warns about chunks that separate stored chunks, but these files store no chunks.
    """

    def get(self, dim: Hashable, default: Any = None) -> Any:
        """Return a size. xarray passes no default if it looks for stored chunks."""
        return None if default is None else super().get(dim, default)

    def __reduce__(self) -> tuple[type, tuple[dict[Hashable, int]]]:
        """Pickle a dict, which needs no package to unpickle."""
        return dict, (dict(self),)


def build_dataset(
    container: Container,
    source: Source,
    keywords: EngineKeywords,
    variable_type: type[Variable] = Variable,
    children: Collection[str] = (),
) -> Dataset:
    """Build a Dataset of lazy, decoded variables with other names than the groups `children`."""
    target, dropped = _compute_chunk_target(keywords.chunk_bytes), keywords.dropped
    tensors = {
        tensor.name: tensor
        for tensor in (*container.tensors, *container.coordinates)
        if tensor.name not in dropped
    }
    dims = {dim for tensor in tensors.values() for dim in tensor.dims}
    long = build_long_attributes(container.attrs, {*tensors, *dims, *children})
    attrs = {name: value for name, value in container.attrs.items() if name not in long}
    variables = {
        name: _build_variable(tensor, source, target) for name, tensor in (tensors | long).items()
    }
    coordinates = {*dims, *long, *(tensor.name for tensor in container.coordinates)}
    if cf.names_coordinates(attrs, tensors) or any(tensor.attrs for tensor in tensors.values()):
        variables, attrs, decoded_coordinates = cf.decode(variables, attrs, keywords)
        coordinates |= decoded_coordinates
    if variable_type is not Variable:
        variables = {
            name: variable_type(var.dims, get_lazy_data(var), var.attrs, var.encoding)
            for name, var in variables.items()
        }
    ds = _assemble(source.name, variables, coordinates, attrs)
    ds.encoding = dict(container.encoding)
    return ds


def _assemble(
    path: str, variables: Mapping[str, Any], coordinates: set[Any], attrs: Mapping[str, Any]
) -> Dataset:
    """Build a Dataset without indexes, to keep the coordinates of a sparse tensor lazy."""
    data = {name: variable for name, variable in variables.items() if name not in coordinates}
    coords = {name: variable for name, variable in variables.items() if name in coordinates}
    try:
        ds = Dataset(data, Coordinates(coords, indexes={}), attrs)
    except ValueError as error:  # dims= gives one name to dimensions of different lengths
        conflict = str(error).partition(" on {")[0]  # a mapping of all dimensions follows
        raise ValueError(
            f"{path}: {conflict}; choose other names in dims=, or open the groups with "
            "xarray.open_datatree"
        ) from None
    # No file stays open, but `xarray.open_mfdataset` calls the closer of each file.
    # This method can be unpickled without this package. See docs/reference/xarray_problems.md.
    ds.set_close([].clear)
    return ds


def _build_variable(tensor: Tensor, source: Source, target: int) -> Variable:
    layout = tensor.layout
    chunk = _limit_chunk(layout, target)
    encoding: dict[str, Any] = {
        "dtype": layout.dtype,
        **tensor.encoding,
        "original_shape": layout.shape,  # as the netCDF engines of xarray call it
    }
    if count_chunks(layout.shape, chunk) > 1:
        encoding["preferred_chunks"] = PreferredChunks(zip(tensor.dims, chunk, strict=True))
    if layout.dtype.kind in "mM":
        del encoding["dtype"]  # with other engines, xarray chooses the dtype of times on disk
    array = build_lazy_tensor(tensor.source or source, layout)
    return Variable(tensor.dims, array, tensor.attrs, encoding, fastpath=True)


def _limit_chunk(layout: Layout, target: int) -> tuple[int, ...]:
    """Return the shape of chunks. Double `target` until there are at most `MAX_CHUNKS`."""
    chunk = layout.chunk_shape(target)
    while count_chunks(layout.shape, chunk) > MAX_CHUNKS:
        target *= 2
        if target >= MAX_TENSOR_BYTES:
            return layout.shape
        chunk = layout.chunk_shape(target)
    return chunk


def _compute_chunk_target(chunk_bytes: int | str) -> int:
    """Return the size of chunks in bytes, limited by dask's ``array.chunk-size``."""
    target, limit = parse_size("chunk_bytes", chunk_bytes), 128 << 20  # the default of dask
    if _may_be_configured():
        from dask import config  # noqa: PLC0415  # takes 70 ms, and many reads need no dask

        limit = parse_size("array.chunk-size", config.get("array.chunk-size", limit))
    return min(target, limit)


def _may_be_configured() -> bool:
    """Return whether the configuration of dask may differ from its defaults."""
    if "dask" in sys.modules or any(name.startswith("DASK_") for name in os.environ):
        return True
    parents = ("/etc", f"{sys.prefix}/etc", os.path.expanduser("~/.config"))
    return any(os.path.isdir(f"{parent}/dask") for parent in parents)


def parse_size(keyword: str, value: int | str) -> int:
    """Return the value of a keyword for a number of bytes."""
    if isinstance(value, bool) or not isinstance(value, Integral | str):
        raise TypeError(f"{keyword}={value!r} must be an int or a str such as '32MiB'")
    size = _parse_text(value) if isinstance(value, str) else int(value)
    if size < 1:
        raise ValueError(f"{keyword}={value!r} must be a positive number of bytes such as '32MiB'")
    return size


def _parse_text(text: str) -> int:
    from dask.utils import parse_bytes  # noqa: PLC0415  # as above

    try:
        return int(parse_bytes(text))
    except (ValueError, OverflowError):
        return 0
