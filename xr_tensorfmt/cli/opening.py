"""From a file of any kind that can be converted to a Dataset in chunks, and to a part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import xarray as xr

from xr_tensorfmt.cli.kinds import NETCDF, ZARR, foreign_kind
from xr_tensorfmt.errors import shortened


def open_any(
    file: str, kind: str | None, storage_options: Mapping[str, Any] | None, **options: Any
) -> xr.Dataset:
    """Open a file, a store or a URL, in chunks.

    Parameters
    ----------
    file : str
        The file.
    kind : str or None
        What it is; by default its name says so for zarr and netCDF, and its content else.
    storage_options : mapping or None
        How to reach a URL.
    **options
        Those of the engine of this package.

    Returns
    -------
    Dataset
    """
    kind = kind or foreign_kind(file)
    if kind == ZARR:
        _require("zarr", file)
        reach = None if storage_options is None else dict(storage_options)
        return xr.open_dataset(file, engine="zarr", chunks={}, storage_options=reach)
    if kind == NETCDF:
        return xr.open_dataset(file, chunks={}, **netcdf_keywords(file))
    return open_tensors(file, kind, storage_options, **options)


def open_tensors(
    file: str, format: str | None, storage_options: Mapping[str, Any] | None, **options: Any
) -> xr.Dataset:
    """Open a tensor file, in chunks; as `open_any`."""
    return xr.open_dataset(
        file,
        engine="tensorfmt",
        chunks={},
        format=format,
        storage_options=storage_options,
        **options,
    )


def netcdf_keywords(file: str) -> dict[str, Any]:
    """The engine for netCDF files, and what it needs to be told for complex numbers.

    Parameters
    ----------
    file : str
        The file, for the error.

    Returns
    -------
    dict

    Raises
    ------
    ImportError
        There is none.
    """
    if find_spec("netCDF4"):
        return {"engine": "netcdf4", "auto_complex": True}
    _require("h5netcdf", file)
    return {"engine": "h5netcdf"}


def _require(package: str, file: str) -> None:
    if not find_spec(package):
        raise ImportError(f"{file}: {package} is not installed; run pip install {package}")


def reduced(
    ds: xr.Dataset,
    file: str,
    *,
    variable: str | None = None,
    dims: Sequence[str] | None = None,
    name: str | None = None,
) -> xr.Dataset:
    """One variable of a Dataset, under other names.

    Parameters
    ----------
    ds : Dataset
        What was opened.
    file : str
        Where from, for errors.
    variable : str, optional
        The variable that is wanted alone.
    dims : sequence of str, optional
        Names for the dimensions of the only variable.
    name : str, optional
        A name for it.

    Returns
    -------
    Dataset

    Raises
    ------
    ValueError
        There is no such variable, or more than one to be named.
    """
    if variable is not None:
        if variable not in ds:
            raise ValueError(f"{file}: there is no variable {variable!r}; it has {_listed(ds)}")
        ds = ds[[variable]]
    if dims is None and name is None:
        return ds
    if len(ds.data_vars) != 1:
        raise ValueError(
            f"{file}: --name and --dims are for a sole variable, and there are {_listed(ds)}; "
            "choose one by --variable"
        )
    (only,) = ds.data_vars.values()
    if dims is not None and len(dims) != only.ndim:
        raise ValueError(
            f"{file}: --dims {','.join(dims)} gives {len(dims)} names to the {only.ndim} "
            f"dimensions {', '.join(map(str, only.dims))} of {only.name!r}"
        )
    renamed = dict(zip(only.dims, dims or only.dims, strict=True))
    if name is not None:
        renamed[only.name] = name
    return ds.rename({old: new for old, new in renamed.items() if old != new})


def _listed(ds: xr.Dataset) -> str:
    return shortened(", ".join(map(repr, ds.data_vars))) or "none"
