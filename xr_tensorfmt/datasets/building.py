"""Check the keywords of the engine, and build lazy Datasets from parsed headers."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from numbers import Integral
from typing import Any

import numpy as np
from xarray import Coordinates, Dataset, Variable

from xr_tensorfmt.core.extents import MAX_CHUNKS, count_chunks
from xr_tensorfmt.core.file_format import Container, Tensor
from xr_tensorfmt.core.header import MAX_TENSOR_BYTES
from xr_tensorfmt.core.layout import Layout, Transposed
from xr_tensorfmt.core.source import Source, check_timeout
from xr_tensorfmt.datasets import cf
from xr_tensorfmt.datasets.lazy_array import LazyTensor, TensorArray
from xr_tensorfmt.errors import shorten

Keywords = Mapping[str, Any]
"""Keywords of `TensorFormatBackend.open_dataset`, which states all of them and the defaults."""

_NAMES = "a name or a list of names"
_TYPES: Mapping[str, tuple[Any, str]] = {
    "drop_variables": (Collection | None, _NAMES),
    "group": (str | None, "a str such as 'layers.0'"),
    "storage_options": (Mapping | None, "a mapping such as {'anon': True}"),
    "verify_unchanged": (bool, "True or False"),
}


def check_keywords(keywords: Keywords) -> None:
    """Raise an error if a value has the wrong type."""
    for name in _TYPES.keys() & keywords.keys():
        (expected, description), value = _TYPES[name], keywords[name]
        if not isinstance(value, expected) or isinstance(value, bytes):
            # Options of a store may be secrets.
            raise TypeError(f"{name}= must be {description}, not a {type(value).__name__}")
    check_separator(keywords["separator"])
    check_timeout(keywords.get("timeout"))


def check_separator(separator: Any) -> None:
    """Raise TypeError if names cannot be divided by a separator."""
    if not isinstance(separator, str) or not separator:
        raise TypeError(f"separator={separator!r} must be a non-empty str such as '.'")


def find_dropped(keywords: Keywords) -> frozenset[str]:
    """Return the names of variables to drop."""
    names = keywords["drop_variables"]
    names = () if names is None else [names] if isinstance(names, str) else names
    try:
        return frozenset(names)
    except TypeError:
        raise TypeError(f"drop_variables={shorten(names)} must be {_NAMES}") from None


def parse_size(keyword: str, value: int | str) -> int:
    """Return the value of a keyword for a number of bytes."""
    from dask.utils import parse_bytes  # noqa: PLC0415  # only to open a file

    if isinstance(value, bool) or not isinstance(value, Integral | str):
        raise TypeError(f"{keyword}={value!r} must be an int or a str such as '32MiB'")
    try:
        size = int(parse_bytes(value)) if isinstance(value, str) else int(value)
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise ValueError(f"{keyword}={value!r} must be a positive number of bytes such as '32MiB'")
    return size


def build_dataset(container: Container, source: Source, keywords: Keywords) -> Dataset:
    """Build a Dataset of lazy, decoded variables."""
    from dask import config  # noqa: PLC0415  # only to open a file

    limit = parse_size("array.chunk-size", config.get("array.chunk-size", 128 << 20))
    target = min(parse_size("chunk_bytes", keywords["chunk_bytes"]), limit)
    dropped = find_dropped(keywords)
    tensors = {tensor.name: tensor for tensor in (*container.tensors, *container.coordinates)}
    attrs: Mapping[str, Any] = container.attrs
    text = attrs.get("coordinates")
    names = text.split() if isinstance(text, str) else []
    has_coordinates = bool(names) and tensors.keys() >= {*names}  # otherwise, it is not one of CF
    tensors = {name: tensor for name, tensor in tensors.items() if name not in dropped}
    dims = {dim for tensor in tensors.values() for dim in tensor.dims}
    variables = {name: _build_variable(tensor, source, target) for name, tensor in tensors.items()}
    coordinates = {*dims, *(tensor.name for tensor in container.coordinates)}
    _align_chunks(tensors, variables, coordinates)
    if has_coordinates or any(tensor.attrs for tensor in tensors.values()):
        named = attrs if has_coordinates else {}
        variables, named, decoded_coordinates = cf.decode(source.name, variables, named, keywords)
        attrs = named if has_coordinates else attrs
        coordinates |= decoded_coordinates
    ds = _assemble(source.name, variables, coordinates, attrs)
    # Variables that replace others have no encoding of their own.
    file_dims = {tensor.name: tensor.dims for tensor in tensors.values() if len(tensor.dims) > 1}
    info = {**container.encoding.get("tensorfmt", {}), "dims": file_dims}
    ds.encoding = {**container.encoding, "tensorfmt": info}
    return ds


def get_info(encoding: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the properties of a file in an encoding, which a user may have changed."""
    info = encoding.get("tensorfmt")
    return info if isinstance(info, Mapping) else {}


def _align_chunks(
    tensors: Mapping[str, Tensor], variables: Mapping[str, Variable], coordinates: set[Any]
) -> None:
    """Divide variables alike if their chunks stay contiguous, as `Dataset.chunks` requires."""
    chunks: dict[Hashable, int] = {}
    for name, variable in variables.items():
        if name not in coordinates:
            for dim, length in variable.encoding.get("preferred_chunks", {}).items():
                chunks[dim] = min(length, chunks.get(dim, length))
    for name, variable in variables.items():
        if chunks.keys().isdisjoint(variable.dims):
            continue
        own: dict[Hashable, int] = {
            **variable.sizes,
            **variable.encoding.get("preferred_chunks", {}),
        }
        if name in coordinates:
            own |= {dim: chunks[dim] for dim in variable.dims if dim in chunks}
        else:
            layout = tensors[name].layout
            axes = layout.axes if isinstance(layout, Transposed) else range(variable.ndim)
            for dim in (variable.dims[axis] for axis in np.argsort(axes)):  # the slowest first
                own[dim] = min(own[dim], chunks.get(dim, own[dim]))
                if own[dim] > 1:
                    break  # faster axes are whole in contiguous chunks
        aligned = {dim: length for dim, length in own.items() if length < variable.sizes[dim]}
        variable.encoding["preferred_chunks"] = aligned


def _assemble(
    path: str, variables: Mapping[str, Any], coordinates: set[Any], attrs: Mapping[str, Any]
) -> Dataset:
    """Build a Dataset without indexes, to keep the coordinates of a sparse tensor lazy."""
    data = [name for name in variables if name not in coordinates]
    try:
        # `Dataset(...)` aligns and merges, which takes three times as long.
        ds = Coordinates(variables, indexes={}).to_dataset().reset_coords(data)
    except ValueError as error:  # dims= gives one name to dimensions of different lengths
        conflict = str(error).partition(" on {")[0]  # a mapping of all dimensions follows
        raise ValueError(
            f"{path}: {conflict}; choose other names in dims=, or open the groups with "
            "xarray.open_datatree, or one with group= or --group"
        ) from None
    ds.attrs = dict(attrs)
    # No file stays open, but `xarray.open_mfdataset` calls the closer of each file.
    # This method can be unpickled without this package. See docs/contributing.md.
    ds.set_close([].clear)
    return ds


def _build_variable(tensor: Tensor, source: Source, target: int) -> Variable:
    array = TensorArray(tensor.source or source, tensor.layout)
    # The netCDF engines of xarray call it `original_shape`, too.
    encoding = {"dtype": array.dtype, **tensor.encoding, "original_shape": array.shape}
    if "tensorfmt" in encoding:
        encoding["tensorfmt"] = {**encoding["tensorfmt"], "dims": tensor.dims}
    chunk = _limit_chunk(tensor.layout, target)
    if count_chunks(array.shape, chunk) > 1:
        # xarray warns about other chunks along these dims only.
        lengths = zip(tensor.dims, chunk, array.shape, strict=True)
        encoding["preferred_chunks"] = {dim: size for dim, size, total in lengths if size < total}
    if array.dtype.kind in "mM":
        del encoding["dtype"]  # with other engines, xarray chooses the dtype of times on disk
    return Variable(tensor.dims, LazyTensor(array), tensor.attrs, encoding, fastpath=True)


def _limit_chunk(layout: Layout, target: int) -> tuple[int, ...]:
    """Return the shape of chunks. Double `target` until there are at most `MAX_CHUNKS`."""
    chunk = layout.chunk_shape(target)
    while count_chunks(layout.shape, chunk) > MAX_CHUNKS:
        target *= 2
        if target >= MAX_TENSOR_BYTES:
            return layout.shape
        chunk = layout.chunk_shape(target)
    return chunk
