"""From a file of any kind that can be converted to a Dataset in chunks, and to a part of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import dask.config
import xarray as xr

from xr_tensorfmt.cli.integers import checked_integers
from xr_tensorfmt.cli.kinds import NETCDF, ZARR, foreign_kind
from xr_tensorfmt.core.chunk_grid import TARGET
from xr_tensorfmt.errors import shortened
from xr_tensorfmt.sources import is_url

_CLASSIC, _HDF5 = b"CDF", b"\x89HDF\r\n\x1a\n"
# HDF5 lets something else stand before its own first byte.
_STARTS = (0, 512, 1024, _LAST_START := 2048)


def open_any(
    file: str, kind: str | None, storage_options: Mapping[str, Any] | None, **options: Any
) -> xr.Dataset:
    """Open a file, a store or a URL, in chunks."""
    kind = kind or foreign_kind(file)
    if kind == ZARR:
        require("zarr", file)
        reach = None if storage_options is None else dict(storage_options)
        _refuse_groups(file, xr.open_groups(file, engine="zarr", storage_options=reach))
        ds = xr.open_dataset(file, engine="zarr", chunks={}, storage_options=reach)
        return checked_integers(ds, file)
    if kind == NETCDF:
        engine = _netcdf_engine(file)
        if engine is not None:
            _refuse_groups(file, xr.open_groups(file, engine=engine))
        return checked_integers(_in_chunks(file, engine), file)
    return open_tensors(file, kind, storage_options, **options)


def _in_chunks(file: str, engine: str | None) -> xr.Dataset:
    """Cut what netCDF has in one piece; texts stay as they are, as dask cannot tell their size."""
    whole = xr.open_dataset(file, engine=engine)
    texts = [str(name) for name, each in whole.variables.items() if each.dtype == object]
    with dask.config.set({"array.chunk-size": TARGET}):
        cut = xr.open_dataset(file, engine=engine, chunks="auto", drop_variables=texts)
    if not texts:
        whole.close()
        return cut
    labels = {name: each.variable for name, each in cut.coords.items() if name not in cut.indexes}
    values = {name: each.variable for name, each in cut.data_vars.items()}
    return whole.assign_coords(labels).assign(values)


def _refuse_groups(file: str, groups: Mapping[str, xr.Dataset]) -> None:
    """Refuse to lose what is in groups, as only the first one becomes a tensor file."""
    filled = [
        path for path, each in groups.items() if path != "/" and (each.variables or each.attrs)
    ]
    for each in groups.values():
        each.close()
    if filled:
        raise ValueError(
            f"{file} has contents in the groups {shortened(', '.join(filled))}, and only those of "
            "the first group are converted; open the group in xarray and write it from there"
        )


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


def _netcdf_engine(file: str) -> str | None:
    """The package for a file that may have groups; for others xarray decides."""
    if is_url(file):
        return "h5netcdf" if find_spec("h5netcdf") else None
    path = os.path.expanduser(file)
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{file} is no ordinary file, as a netCDF file is; copy it into one")
    with open(path, "rb") as content:
        head = content.read(_LAST_START + len(_HDF5))
    if not any(head.startswith(_HDF5, start) for start in _STARTS):
        if not head.startswith(_CLASSIC):
            raise ValueError(
                f"{file} is no netCDF file, as it begins with {head[:8]!r}; "
                "say by --from what it is"
            )
        return None
    packages = {"h5netcdf": "h5netcdf", "netcdf4": "netCDF4"}
    return next((engine for engine, package in packages.items() if find_spec(package)), None)


def require(package: str, file: str) -> None:
    """Say which package is missing, if it is; with the file that needs it."""
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
    """One variable of a Dataset, under other names."""
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
