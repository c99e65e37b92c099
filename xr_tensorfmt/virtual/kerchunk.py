"""References for Kerchunk, in which zeros stay zeros."""

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
    """Write a virtual Dataset as references of Kerchunk, in JSON.

    VirtualiZarr's own ``ds.vz.to_kerchunk`` says that the fill value is zero, which xarray takes
    for missing values, and it cannot write column-major arrays. Here there is no fill value, and
    an array has the order of its file.

    Parameters
    ----------
    virtual : Dataset
        What `virtualizarr.open_virtual_dataset` returned, or several of them combined.
    path : str or PathLike, optional
        The file, or a URL that fsspec knows.

    Returns
    -------
    dict or None
        The references, where there is no path.

    Raises
    ------
    ValueError
        An array is neither row-major nor column-major.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from obspec_utils.registry import ObjectStoreRegistry
    >>> from obstore.store import LocalStore
    >>> from virtualizarr import open_virtual_dataset
    >>> from xr_tensorfmt.virtual import parser
    >>> np.save("numbers.npy", np.arange(6.0))
    >>> registry = ObjectStoreRegistry({"file://": LocalStore()})
    >>> virtual = open_virtual_dataset("numbers.npy", registry=registry, parser=parser)
    >>> to_kerchunk(virtual, "numbers.json")
    >>> options = {"consolidated": False, "storage_options": {"fo": "numbers.json"}}
    >>> ds = xr.open_dataset("reference://", engine="zarr", backend_kwargs=options)
    >>> ds.tensor.values
    array([0., 1., 2., 3., 4., 5.])
    """
    orders, writable = {}, {}
    for name, variable in virtual.variables.items():
        array = variable.data
        if isinstance(array, ManifestArray) and _is_raw(array):
            if _has_all_chunks(array):
                orders[f"{name}"] = _order(f"{name}", array)
            plain = _untransposed(array)
            writable[name] = Variable(variable.dims, plain, variable.attrs, variable.encoding)
        elif not isinstance(array, ManifestArray) and variable.dtype.kind in "OT":
            writable[name] = variable.astype(object).astype(str)  # numpy needs both steps
    found = virtual.assign(writable).vz.to_kerchunk(format="dict")
    references: dict[str, Any] = found["refs"]
    for name, order in orders.items():
        metadata = json.loads(references[f"{name}/.zarray"]) | {"order": order, "fill_value": None}
        references[f"{name}/.zarray"] = json.dumps(metadata)
    for scalar in [key for key in references if key.endswith("/")]:
        references[f"{scalar}0"] = references.pop(scalar)  # VirtualiZarr omits the zero
    if path is None:
        return dict(found)
    with fsspec.open(os.fspath(path), "w") as file:
        json.dump(found, file)
    return None


def _is_raw(array: ManifestArray) -> bool:
    """Whether the bytes of the chunks are the values."""
    return all(isinstance(codec, TransposeCodec | BytesCodec) for codec in array.metadata.codecs)


def _has_all_chunks(array: ManifestArray) -> bool:
    """Whether no value is the fill value because its chunk is missing."""
    return sum(1 for _ in array.manifest.iter_nonempty_paths()) == len(array.manifest)


def _order(name: str, array: ManifestArray) -> Literal["C", "F"]:
    """In which order a chunk has its axes; those of length 1 may be anywhere."""
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
        f"{name!r} is stored with its axes in the order {tuple(axes)}, and references of Kerchunk "
        "are row-major or column-major; write it to Icechunk"
    )


def _untransposed(array: ManifestArray) -> ManifestArray:
    """The array without the codec that VirtualiZarr's writer refuses."""
    metadata: dict[str, Any] = array.metadata.to_dict()
    metadata["codecs"] = [each for each in metadata["codecs"] if each["name"] != "transpose"]
    return ManifestArray(type(array.metadata).from_dict(metadata), array.manifest)
