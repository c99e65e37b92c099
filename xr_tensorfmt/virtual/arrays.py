"""From a tensor of a file to an array of Zarr that refers to its bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from virtualizarr.manifests import ChunkManifest, ManifestArray
from virtualizarr.manifests.utils import create_v3_array_metadata
from xarray import Variable, conventions

from xr_tensorfmt.core.chunk_grid import dividing_chunk
from xr_tensorfmt.core.container import Tensor
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Boolean, Element, Plain
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.views import Transposed

LARGEST = {"i": 8, "u": 8, "f": 8, "c": 16, "m": 8, "M": 8}
"""Bytes of the largest data type that Zarr has specified, by the kind of numpy's dtypes."""


class NotVirtualError(ValueError):
    """Why the bytes of a tensor are no array of Zarr."""


def manifest_array(tensor: Tensor, url: str, target: int, leading_dim: str | None) -> ManifestArray:
    """The array of a tensor, in chunks of `target` bytes along the axis slowest in the file.

    A `leading_dim` of length 1 comes first. NotVirtualError says why Zarr cannot read the values
    as they are stored.
    """
    attrs = json_attrs(tensor.attrs)
    dense, axes = _row_major(tensor.layout)
    dtype, more = _data_type(dense.element)
    if more.keys() & attrs.keys():
        raise NotVirtualError("it has an attribute 'dtype', which xarray needs for bools in Zarr")
    chunk = dividing_chunk(dense.lengths, dtype.itemsize, target)
    if chunk is None:
        raise NotVirtualError(
            f"Zarr needs chunks of one length, and in the order of the file its lengths "
            f"{dense.lengths} have no divisors that make chunks of about {target} bytes; "
            f"chunk_bytes={dense.stop - dense.offset} makes it a single chunk"
        )
    grid = tuple(length // part for length, part in zip(dense.lengths, chunk, strict=True))
    nbytes = dtype.itemsize * int(np.prod(chunk, dtype=object))
    offsets = dense.offset + nbytes * np.arange(np.prod(grid), dtype=np.uint64).reshape(grid)
    shape, dims = tensor.layout.shape, tensor.dims
    if leading_dim is not None:
        axes = (0, *(axis + 1 for axis in axes))
        offsets, chunk = offsets[np.newaxis], (1, *chunk)
        shape, dims = (1, *shape), (leading_dim, *dims)
    offsets = offsets.transpose(axes)
    metadata = create_v3_array_metadata(
        shape=shape,
        data_type=dtype,
        chunk_shape=tuple(chunk[axis] for axis in axes),
        chunk_key_encoding={"name": "default", "separator": "."},
        fill_value=dtype.type(np.nan) if dtype.kind in "fc" else None,
        codecs=_codecs(dtype, axes),
        dimension_names=dims,
        attributes={**attrs, **more},
    )
    manifest = ChunkManifest.from_arrays(
        paths=np.full(offsets.shape, url, dtype=np.dtypes.StringDType()),
        offsets=np.ascontiguousarray(offsets, dtype=np.uint64).reshape(offsets.shape),
        lengths=np.full(offsets.shape, nbytes, dtype=np.uint64),
        validate_paths=False,
    )
    return ManifestArray(metadata=metadata, chunkmanifest=manifest)


def _row_major(layout: Layout) -> tuple[Dense, tuple[int, ...]]:
    """The array in file order, and for each axis of the layout the one that it is there."""
    dense, axes = layout, tuple(range(len(layout.shape)))
    if isinstance(layout, Transposed):
        dense, axes = layout.inner, layout.axes
    if not isinstance(dense, Dense):
        raise NotVirtualError(
            f"its values are stored in the layout {type(dense).__name__}, not as one array"
        )
    return dense, axes


def _data_type(element: Element) -> tuple[np.dtype[Any], dict[str, str]]:
    """The dtype of the bytes, and attributes by which xarray decodes them."""
    if isinstance(element, Boolean):
        # Any byte but 0 is True here, while Zarr takes the byte for numpy's bool as it is.
        return element.stored, {"dtype": "bool"}
    stored = element.stored
    if isinstance(element, Plain) and stored.itemsize <= LARGEST.get(stored.kind, 0):
        return stored, {}
    raise NotVirtualError(f"Zarr has no specified data type for {element.name}")


def _codecs(dtype: np.dtype[Any], axes: tuple[int, ...]) -> list[dict[str, Any]]:
    """The transpose codec where it is needed; VirtualiZarr adds the byte order by itself.

    VirtualiZarr's own writer for Kerchunk makes missing values of the integers that equal the fill
    value, and floating-point numbers of all others. It refuses arrays with this codec.
    """
    order = tuple(axes.index(axis) for axis in range(len(axes)))
    if order == tuple(range(len(axes))) and dtype.kind in "fc":
        return []
    return [{"name": "transpose", "configuration": {"order": order}}]


def check_not_decoded(tensor: Tensor) -> None:
    """Refuse attributes that describe decoded values, and that xarray would decode again."""
    stand_in = Variable(tensor.dims, np.zeros((1,) * len(tensor.dims), tensor.layout.dtype))
    stand_in.attrs = dict(tensor.attrs)
    try:
        kept = conventions.decode_cf_variable(tensor.name, stand_in).attrs
    except (ValueError, TypeError, OverflowError):
        kept = {}
    for name in tensor.attrs:
        if name not in kept:
            raise NotVirtualError(
                f"it has the attribute {name!r}, by which xarray would change values from Zarr"
            )


def json_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as JSON has them."""
    try:
        encoded: dict[str, Any] = json.loads(json.dumps(dict(attrs), default=_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise NotVirtualError(f"Zarr cannot hold an attribute: {error}") from None
    return encoded


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufUS":
        return value.tolist()
    raise TypeError(f"{value!r} is of type {type(value).__name__}")
