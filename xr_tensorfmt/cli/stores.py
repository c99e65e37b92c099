"""zarr stores and netCDF files: xarray itself reads and writes them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import xarray as xr

from xr_tensorfmt.sources import is_url
from xr_tensorfmt.writing.atomic_file import Piece, atomic_file_for

if TYPE_CHECKING:
    from xr_tensorfmt.sources.remote import Place

ZARR, NETCDF = "zarr", "netcdf"

SUFFIXES = {
    ".zarr": ZARR,
    ".nc": NETCDF,
    ".nc4": NETCDF,
    ".cdf": NETCDF,
    ".h5": NETCDF,
    ".hdf5": NETCDF,
}

_HDF5_MAGIC = b"\x89HDF"
_ZARR_METADATA = ("zarr.json", ".zgroup", ".zmetadata")


def store_format(file: str) -> str | None:
    """Which of the two a name has the suffix of, if any."""
    return SUFFIXES.get(os.path.splitext(file.rstrip("/").casefold())[1])


def open_store(file: str, format: str, storage_options: Mapping[str, Any] | None) -> xr.Dataset:
    """Open a zarr store or a netCDF file, in chunks."""
    if format == ZARR:
        return xr.open_dataset(file, engine="zarr", chunks={}, storage_options=storage_options)
    engine = _netcdf_engine(file)
    lazy = xr.open_dataset(file, engine=engine)
    # dask cannot tell the size of strings, so these are not in chunks.
    strings = [str(name) for name, each in lazy.variables.items() if each.dtype == object]
    ds = xr.open_dataset(file, engine=engine, chunks="auto", drop_variables=strings)
    coords = {name: lazy[name].variable for name in strings if name in lazy.coords}
    return ds.assign_coords(coords).assign({name: lazy[name].variable for name in strings})


def _netcdf_engine(file: str) -> str | None:
    """h5netcdf where it is installed and can read the file: it alone knows complex numbers."""
    if not find_spec("h5netcdf"):
        return None
    if is_url(file):
        return "h5netcdf"
    with open(os.path.expanduser(file), "rb") as content:
        return "h5netcdf" if content.read(4) == _HDF5_MAGIC else None


def write_zarr(
    ds: xr.Dataset,
    place: Place,
    *,
    overwrite: bool,
    encoding: Mapping[str, Any],
    storage_options: dict[str, Any] | None,
) -> None:
    """Write a zarr store in place; only another store is replaced."""
    place.fs.invalidate_cache()
    if place.fs.exists(place.path):
        if not overwrite:
            raise FileExistsError(place.url)
        if not any(place.fs.exists(f"{place.path}/{name}") for name in _ZARR_METADATA):
            raise ValueError(
                f"{place.url} exists and is not a zarr store, so that it is not replaced by one; "
                "write to another place"
            )
    ds.to_zarr(
        place.path if place.is_local else place.url,
        mode="w" if overwrite else "w-",
        encoding=encoding,
        storage_options=storage_options,
        write_empty_chunks=True,  # else -0.0, which equals the fill value, would become 0.0
    )


def write_netcdf(
    ds: xr.Dataset, place: Place, *, overwrite: bool, encoding: Mapping[str, Any]
) -> None:
    """Write a netCDF file, which takes its name when it is complete."""
    if not place.is_local:
        raise ValueError(f"{place.url}: netCDF is only written to local paths; write zarr there")
    is_complex = any(variable.dtype.kind == "c" for variable in ds.variables.values())
    engine: Literal["h5netcdf"] | None = "h5netcdf" if is_complex else None
    file = atomic_file_for(place.path, 0, replace=overwrite)
    try:
        ds.to_netcdf(file.begin().path, engine=engine, encoding=encoding)
        file.finish([Piece(0, b"")])
    except BaseException:
        file.discard()
        raise
