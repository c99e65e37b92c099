"""From a file to a Dataset: what the door hands on to the rooms below."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import dask.config
from dask.utils import parse_bytes
from xarray import Coordinates, Dataset, Variable, conventions

from xr_tensorfmt import formats
from xr_tensorfmt.errors import TensorFormatWarning
from xr_tensorfmt.formats import OpenOptions, Sparse
from xr_tensorfmt.lazyarray import lazy_array
from xr_tensorfmt.sources import InputOutput, Source, is_url, open_source
from xr_tensorfmt.tensor import Container, Names, Tensor


def open_file(
    file: Any,
    *,
    format: str | None,
    name: str,
    dims: Names,
    sparse: Sparse,
    io: InputOutput,
    chunk_bytes: int | str,
    decoders: Mapping[str, Any],
) -> Dataset:
    """Open a file; nothing but its header is read.

    Parameters
    ----------
    file, format, name, dims, sparse, io, chunk_bytes
        As for `TensorFormatBackend.open_dataset`.
    decoders : mapping
        Keywords of `xarray.conventions.decode_cf_variables`.

    Returns
    -------
    Dataset
    """
    target = _chunk_target(chunk_bytes)
    source = open_source(file, io)
    container = formats.parse(source, OpenOptions(name, dims, sparse), format)
    for message in container.warnings:
        # Three frames up, past the backend and xarray's own function, is the line of the user.
        warnings.warn(message, TensorFormatWarning, stacklevel=4)
    variables, attrs, coordinates = conventions.decode_cf_variables(
        _variables(container, source, target), dict(container.attrs), **decoders
    )
    names = {each.name for each in container.coordinates} | coordinates
    coords = {key: value for key, value in variables.items() if key in names}
    data = {key: value for key, value in variables.items() if key not in names}
    # Without indexes: what labels the pairs of a sparse tensor must stay lazy.
    dataset = Dataset(data, Coordinates(coords, indexes={}), attrs)
    dataset.set_close(_nothing_to_close)
    return dataset


def _nothing_to_close() -> None:
    """Reads leave nothing open; `xarray.open_mfdataset` wants something to call all the same."""


def recognised(file: Any) -> bool:
    """Whether a file can only be of one of the formats, by its content.

    Parameters
    ----------
    file : object
        Whatever a user passes as a file. A URL is never asked, a file object left where it was.

    Returns
    -------
    bool
    """
    if is_url(file):
        return False
    if isinstance(file, str | os.PathLike | bytes | bytearray | memoryview):
        return formats.recognised(open_source(file, "read"))
    position = file.tell()
    try:
        return formats.recognised(open_source(file))
    finally:
        file.seek(position)


def _variables(container: Container, source: Source, target: int) -> dict[str, Variable]:
    tensors = (*container.tensors, *container.coordinates)
    return {each.name: _variable(each, source, target) for each in tensors}


def _variable(tensor: Tensor, source: Source, target: int) -> Variable:
    chunk = dict(zip(tensor.dims, tensor.layout.chunk_shape(target), strict=True))
    encoding = {**tensor.encoding, "preferred_chunks": chunk}
    return Variable(tensor.dims, lazy_array(source, tensor.layout), dict(tensor.attrs), encoding)


def _chunk_target(chunk_bytes: int | str) -> int:
    """Bytes of a chunk: what the user wants, but no more than dask would leave uncut."""
    if isinstance(chunk_bytes, bool) or not isinstance(chunk_bytes, int | str):
        raise TypeError(f"chunk_bytes={chunk_bytes!r} is neither an int nor a text such as '32MiB'")
    wanted = parse_bytes(chunk_bytes)
    if wanted < 1:
        raise ValueError(f"chunk_bytes={chunk_bytes!r} is not a positive number of bytes")
    return min(wanted, int(parse_bytes(dask.config.get("array.chunk-size", "128MiB"))))
