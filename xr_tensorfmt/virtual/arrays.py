"""Zarr arrays that refer to the bytes of a tensor."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any

import numpy as np
from virtualizarr.manifests import ChunkManifest, ManifestArray
from virtualizarr.manifests.utils import create_v3_array_metadata
from xarray import Variable

from xr_tensorfmt.core.chunk_grid import find_dividing_chunk
from xr_tensorfmt.core.container import Tensor
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Boolean, Element, Plain
from xr_tensorfmt.core.views import Transposed

MAX_ITEMSIZE = {"i": 8, "u": 8, "f": 8, "c": 16, "m": 8, "M": 8}
"""Size of the largest data type in Zarr's specification, by the kind of the numpy dtype."""


class NotVirtualError(ValueError):
    """Zarr cannot represent a tensor. The message contains the reason."""


def build_manifest_array(tensor: Tensor, url: str, target: int) -> ManifestArray:
    """Build the array of a tensor, in chunks of about `target` bytes."""
    layout, attrs = tensor.layout, attrs_to_json(tensor.attrs)
    dense, axes = layout, tuple(range(len(layout.shape)))
    if isinstance(layout, Transposed):
        dense, axes = layout.inner, layout.axes
    if not isinstance(dense, Dense):
        raise NotVirtualError(f"its layout {type(dense).__name__} is not a single array")
    dtype, more = _choose_data_type(dense.element)
    if more.keys() & attrs.keys():
        raise NotVirtualError("it has an attribute 'dtype', which xarray reserves for bools")
    if "_FillValue" in attrs:
        raise NotVirtualError("it has an attribute '_FillValue', whose form depends on the store")
    chunk = _choose_chunk(dense, dtype, target)
    grid = tuple(length // part for length, part in zip(dense.lengths, chunk, strict=True))
    nbytes = dtype.itemsize * math.prod(chunk)
    offsets = dense.offset + nbytes * np.arange(math.prod(grid), dtype=np.uint64).reshape(grid)
    offsets = offsets.transpose(axes)
    codecs: list[dict[str, Any]] = []
    if axes != tuple(sorted(axes)) or dtype.kind not in "fc":
        # VirtualiZarr's Kerchunk writer refuses the codec. Its readers treat zeros as missing.
        order = tuple(axes.index(axis) for axis in range(len(axes)))
        codecs = [{"name": "transpose", "configuration": {"order": order}}]
    metadata = create_v3_array_metadata(
        shape=layout.shape,
        data_type=dtype,
        chunk_shape=tuple(chunk[axis] for axis in axes),
        chunk_key_encoding={"name": "default", "separator": "."},
        fill_value=dtype.type(np.nan) if dtype.kind in "fc" else None,
        codecs=codecs,
        dimension_names=tensor.dims,
        attributes={**attrs, **more},
    )
    manifest = ChunkManifest.from_arrays(
        paths=np.full(offsets.shape, url, dtype=np.dtypes.StringDType()),
        offsets=np.ascontiguousarray(offsets, dtype=np.uint64).reshape(offsets.shape),
        lengths=np.full(offsets.shape, nbytes, dtype=np.uint64),
        validate_paths=False,
    )
    array_class = TransposedArray if codecs else ManifestArray
    return array_class(metadata=metadata, chunkmanifest=manifest)


def _choose_chunk(dense: Dense, dtype: np.dtype[Any], target: int) -> tuple[int, ...]:
    """Choose a chunk of about `target` bytes that divides the array, in file order."""
    chunk = find_dividing_chunk(dense.lengths, dtype.itemsize, target)
    if chunk is None:
        raise NotVirtualError(
            f"Zarr needs equal chunks, but its lengths in file order {dense.lengths} have no "
            f"divisors for chunks of about {target} bytes; "
            f"chunk_bytes={dense.stop - dense.offset} makes it a single chunk"
        )
    return chunk


def _choose_data_type(element: Element) -> tuple[np.dtype[Any], dict[str, str]]:
    """Return the dtype of the bytes, and the attributes that make xarray decode them."""
    if isinstance(element, Boolean):
        # All nonzero bytes are True. Zarr's bool would use the bytes as numpy bools.
        return element.stored, {"dtype": "bool"}
    stored = element.stored
    if isinstance(element, Plain) and stored.itemsize <= MAX_ITEMSIZE.get(stored.kind, 0):
        return stored, {}
    raise NotVirtualError(f"Zarr has no specified data type for {element.name}")


def attrs_to_json(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert attributes to JSON."""
    try:
        return json.loads(json.dumps(dict(attrs), default=_to_list))  # type: ignore[no-any-return]
    except (TypeError, ValueError, RecursionError) as error:
        raise NotVirtualError(f"Zarr does not support an attribute: {error}") from None


def _to_list(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufUS":
        return value.tolist()
    raise TypeError(f"{value!r} is of type {type(value).__name__}")


class TransposedArray(ManifestArray):
    """An array whose first codec is transpose, which VirtualiZarr cannot extend by a dim."""

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Call a function of numpy, as xarray does to combine arrays."""
        if func is np.broadcast_to:
            array, shape = args
            args = (array[(None,) * (len(shape) - array.ndim) + (...,)], shape)
        result = super().__array_function__(func, types, args, kwargs)
        return _wrap(result) if isinstance(result, ManifestArray) else result

    def __getitem__(self, key: Any, /) -> ManifestArray:
        """Add a dim for each None at the beginning."""
        keys = key if isinstance(key, tuple) else (key,)
        added = sum(1 for _ in takewhile(lambda item: item is None, keys))
        array: ManifestArray = _wrap(super().__getitem__(keys[added:]))
        for _ in range(added):
            array = _prepend_axis(array)
        return array

    def rename_paths(self, new: str | Callable[[str], str]) -> ManifestArray:
        """Replace the URLs of the files."""
        return _wrap(super().rename_paths(new))

    def to_virtual_variable(self) -> Variable:
        """Return a variable of this array."""
        variable = super().to_virtual_variable()
        variable.data = _wrap(variable.data)
        return variable


def _wrap(array: ManifestArray) -> TransposedArray:
    return TransposedArray(array.metadata, array.manifest)


def _prepend_axis(array: ManifestArray) -> TransposedArray:
    """Add a first axis of length 1, which becomes the slowest of the file."""
    from_dict = type(array.metadata).from_dict
    document: dict[str, Any] = array.metadata.to_dict()
    transpose, *codecs = document["codecs"]
    plain = ManifestArray(from_dict({**document, "codecs": codecs}), array.manifest)
    expanded: Any = np.expand_dims(plain, axis=0)
    order = transpose["configuration"]["order"]
    transpose["configuration"]["order"] = (0, *(axis + 1 for axis in order))
    document = expanded.metadata.to_dict()
    document["codecs"] = (transpose, *document["codecs"])
    return TransposedArray(from_dict(document), expanded.manifest)
