"""Writing zarr stores and netCDF files."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import xarray as xr

from xr_tensorfmt.cli.ending import threads_that_end
from xr_tensorfmt.cli.fitting import fitting
from xr_tensorfmt.cli.folder import ROOTS, no_store, write_folder
from xr_tensorfmt.cli.kinds import NETCDF
from xr_tensorfmt.cli.netcdf import write_netcdf
from xr_tensorfmt.cli.opening import require
from xr_tensorfmt.cli.rounding import converted
from xr_tensorfmt.cli.troubles import said_of
from xr_tensorfmt.sources.remote import Place
from xr_tensorfmt.writing.atomic_file import exists_already
from xr_tensorfmt.writing.to_file import destination


@dataclass(frozen=True)
class Foreign:
    """A zarr store or a netCDF file that is to be written."""

    path: str
    kind: str
    source: str
    overwrite: bool
    storage_options: Mapping[str, Any] | None

    def write(self, ds: xr.Dataset, *, drop: Collection[str], dtypes: Mapping[str, str]) -> None:
        """Write a Dataset in chunks."""
        place = destination(self.path, self.storage_options, None)
        with said_of(self.path, self.source, "nothing is written"):
            ds = converted(ds, self.path, self.kind, dtypes)
            ds = fitting(ds, self.path, self.kind, drop).drop_encoding()
        with threads_that_end():
            if isinstance(place, Place):
                self._write_behind_url(ds, place)
            else:
                self._write_here(ds, os.path.expanduser(place))

    def _write_here(self, ds: xr.Dataset, path: str) -> None:
        if self.kind == NETCDF:
            write_netcdf(ds, path, self.source, overwrite=self.overwrite)
            return
        require("zarr", self.path)
        # -0.0 equals the fill value, and zarr leaves out chunks of nothing else.
        write = partial(ds.to_zarr, mode="w-", write_empty_chunks=True)
        write_folder(path, self.source, write, overwrite=self.overwrite)

    def _write_behind_url(self, ds: xr.Dataset, place: Place) -> None:
        if self.kind == NETCDF:
            raise ValueError(
                f"{self.path}: netCDF is written to local paths alone; convert to zarr there"
            )
        require("zarr", self.path)
        with said_of(self.path, self.source, "nothing is written"):
            self._check_free(place)
        with said_of(self.path, self.source, "what is there now may be in part"):
            ds.to_zarr(
                self.path,
                mode="w" if self.overwrite else "w-",
                storage_options=None
                if self.storage_options is None
                else dict(self.storage_options),
                write_empty_chunks=True,
            )

    def _check_free(self, place: Place) -> None:
        place.fs.invalidate_cache()
        if not place.fs.exists(place.path):
            return
        if not self.overwrite:
            raise exists_already(self.path)
        if not any(place.fs.exists(f"{place.path.rstrip('/')}/{root}") for root in ROOTS):
            raise no_store(self.path)
