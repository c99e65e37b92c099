"""Kerchunk references without a fill value."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

import fsspec
from virtualizarr.manifests import ManifestArray
from xarray import Dataset, Variable
from zarr.codecs import BytesCodec, TransposeCodec


def to_kerchunk(
    virtual: Dataset, path: str | os.PathLike[str] | None = None
) -> dict[str, Any] | None:
    """Write a virtual Dataset as Kerchunk references in JSON.

    ``ds.vz.to_kerchunk`` of VirtualiZarr sets the fill value 0, which xarray treats as missing, and
    does not support column-major arrays. For uncompressed arrays without missing chunks, this
    function sets no fill value and keeps the order of the file.

    Parameters
    ----------
    virtual : Dataset
        The result of `virtualizarr.open_virtual_dataset`, or several results combined.
    path : str or PathLike, optional
        The file, or a URL that fsspec supports.

    Returns
    -------
    dict or None
        The references if `path` is None.

    Raises
    ------
    ValueError
        An array is neither row-major nor column-major, or a variable has an attribute that
        Kerchunk references reserve.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from obspec_utils.registry import ObjectStoreRegistry
    >>> from obstore.store import LocalStore
    >>> from virtualizarr import open_virtual_dataset
    >>> from xr_tensorfmt.virtual import parser, to_kerchunk
    >>> np.save("numbers.npy", np.arange(6.0))
    >>> registry = ObjectStoreRegistry(
    ...     {"file://": LocalStore()}
    ... )
    >>> virtual = open_virtual_dataset(
    ...     "numbers.npy",
    ...     registry=registry,
    ...     parser=parser,
    ... )
    >>> to_kerchunk(virtual, "numbers.json")
    >>> ds = xr.open_dataset(
    ...     "reference://",
    ...     engine="zarr",
    ...     consolidated=False,
    ...     storage_options={"fo": "numbers.json"},
    ... )
    >>> ds.tensor.values
    array([0., 1., 2., 3., 4., 5.])
    """
    orders, writable = {}, {}
    for name, variable in virtual.variables.items():
        if "_ARRAY_DIMENSIONS" in variable.attrs:
            raise ValueError(
                f"{name!r} has an attribute '_ARRAY_DIMENSIONS', which Kerchunk references reserve "
                "for the dims; delete it, or write the Dataset to Icechunk"
            )
        array = variable.data
        if isinstance(array, ManifestArray) and _is_raw(array):
            # Without missing chunks, there is no fill value.
            if sum(1 for _ in array.manifest.iter_nonempty_paths()) == len(array.manifest):
                orders[f"{name}"] = _find_order(f"{name}", array)
            raw = _remove_transpose(array)
            writable[name] = Variable(variable.dims, raw, variable.attrs, variable.encoding)
        elif not isinstance(array, ManifestArray) and variable.dtype.kind in "OT":
            writable[name] = variable.astype(object).astype(str)  # numpy needs both steps
    document = virtual.assign(writable).vz.to_kerchunk(format="dict")
    references: dict[str, Any] = document["refs"]
    for name, order in orders.items():
        metadata = json.loads(references[f"{name}/.zarray"]) | {"order": order, "fill_value": None}
        references[f"{name}/.zarray"] = json.dumps(metadata)
    for scalar in [key for key in references if key.endswith("/")]:
        references[f"{scalar}0"] = references.pop(scalar)  # VirtualiZarr omits the zero
    if path is None:
        return dict(document)
    with fsspec.open(os.fspath(path), "w") as file:
        json.dump(document, file)
    return None


def _is_raw(array: ManifestArray) -> bool:
    """Return whether the chunks contain uncompressed values."""
    return all(isinstance(codec, TransposeCodec | BytesCodec) for codec in array.metadata.codecs)


def _find_order(name: str, array: ManifestArray) -> Literal["C", "F"]:
    """Return the order of the axes of a chunk, ignoring axes of length 1."""
    axes = list(range(array.ndim))
    for codec in array.metadata.codecs:
        if isinstance(codec, TransposeCodec):
            axes = [axes[axis] for axis in codec.order]
    long = [axis for axis in axes if array.metadata.chunks[axis] > 1]
    if long == sorted(long):
        return "C"
    if long == sorted(long, reverse=True):
        return "F"
    raise ValueError(
        f"{name!r} has its axes in the order {tuple(axes)}, but Kerchunk references are row-major "
        "or column-major; write it to Icechunk"
    )


def _remove_transpose(array: ManifestArray) -> ManifestArray:
    """Remove the transpose codec, which VirtualiZarr's writer refuses."""
    metadata: dict[str, Any] = array.metadata.to_dict()
    metadata["codecs"] = [codec for codec in metadata["codecs"] if codec["name"] != "transpose"]
    return ManifestArray(type(array.metadata).from_dict(metadata), array.manifest)
