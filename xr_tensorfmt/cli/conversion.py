"""One conversion: what is opened, which part of it is kept, and what is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import xarray as xr
from dask.diagnostics.progress import ProgressBar
from fsspec.implementations.local import LocalFileSystem

from xr_tensorfmt import formats
from xr_tensorfmt.cli.messages import errors_in_one_line
from xr_tensorfmt.cli.options import options_for
from xr_tensorfmt.cli.stores import (
    NETCDF,
    ZARR,
    open_store,
    store_format,
    write_netcdf,
    write_zarr,
)
from xr_tensorfmt.errors import shortened
from xr_tensorfmt.sources import is_url
from xr_tensorfmt.sources.remote import Place, locate
from xr_tensorfmt.writing.checked_input import Part
from xr_tensorfmt.writing.to_file import to_file


@dataclass(frozen=True, eq=False)
class Conversion:
    """What the user of ``xr-tensorfmt convert`` asks for; its help says what the fields mean."""

    source: str
    target: str
    from_: str | None
    to: str | None
    overwrite: bool
    variable: str | None
    name: str | None
    dims: tuple[str, ...] | None
    dtypes: Mapping[str | None, str]
    drop: tuple[Part, ...]
    options: Mapping[str, Any]
    sparse: str
    storage_options: dict[str, Any]
    verify: bool

    def run(self, *, progress: bool) -> None:
        """Do it; with a progress bar if that is wanted and stderr is a terminal."""
        with errors_in_one_line(self.target):
            to = self.to or store_format(self.target) or formats.by_suffix(self.target).name
            source, target = map(self._place, (self.source, self.target))
            _check_apart(source, target)
        with errors_in_one_line(self.source):
            ds = self._open()
            encoding = self._encoding(ds)
        with errors_in_one_line(self.target, self.source), _bar(progress):
            try:
                self._write(ds, target, to, encoding)
            except FileExistsError as error:
                raise FileExistsError(
                    f"{self.target} exists already; pass --overwrite to replace it"
                ) from error

    def _place(self, file: str) -> Place:
        """Where a file is, by one name of many."""
        if is_url(file):
            place = locate(file, self.storage_options, None)
            if not place.is_local:
                return place
            file = place.path
        return Place(file, LocalFileSystem(), os.path.realpath(os.path.expanduser(file)))

    def _open(self) -> xr.Dataset:
        from_ = self.from_ or store_format(self.source)
        storage_options = options_for(self.source, self.storage_options)
        if from_ in (ZARR, NETCDF):
            ds = open_store(self.source, from_, storage_options)
        else:
            ds = open_tensors(
                self.source,
                format=from_,
                storage_options=storage_options,
                sparse=self.sparse,
                verify=self.verify,
            )
        return part_of(ds, self.source, variable=self.variable, dims=self.dims, name=self.name)

    def _encoding(self, ds: xr.Dataset) -> dict[str, dict[str, str]]:
        if None in self.dtypes and len(ds.data_vars) != 1:
            dtype = self.dtypes[None]
            raise ValueError(
                f"{self.source}: --dtype {dtype} is for a sole variable, and there are "
                f"{len(ds.data_vars)}; pass --dtype NAME={dtype}"
            )
        sole = next(map(str, ds.data_vars), "")
        return {
            sole if name is None else name: {"dtype": dtype} for name, dtype in self.dtypes.items()
        }

    def _write(self, ds: xr.Dataset, target: Place, format: str, encoding: Any) -> None:
        storage_options = options_for(self.target, self.storage_options)
        if format not in (ZARR, NETCDF):
            to_file(
                ds,
                self.target,
                format,
                mode="w" if self.overwrite else "x",
                encoding=encoding,
                drop=self.drop,
                storage_options=storage_options,
                **self._format_options(ds, format),
            )
            return
        if self.options:
            raise ValueError(f"--option is for tensor files, and {self.target} is {format}")
        ds = ds.drop_encoding()
        ds = ds.drop_attrs() if "attrs" in self.drop else ds
        if format == NETCDF:
            write_netcdf(ds, target, overwrite=self.overwrite, encoding=encoding)
        else:
            write_zarr(
                ds,
                target,
                overwrite=self.overwrite,
                encoding=encoding,
                storage_options=storage_options,
            )

    def _format_options(self, ds: xr.Dataset, format: str) -> Mapping[str, Any]:
        """Keywords of the format: those given, or else the one by which pairs stay pairs."""
        chosen = formats.by_name(format)
        unknown = next((key for key in self.options if key not in chosen.write_options), None)
        if unknown is not None:
            known = ", ".join(chosen.write_options) or "none"
            raise ValueError(f"--option {unknown}: the keywords of {chosen.title} are {known}")
        facts = [variable.encoding.get("tensorfmt", {}) for variable in ds.data_vars.values()]
        pairs = all(each.get("storage") == "pairs" for each in facts)
        if pairs and not self.options and "sparse" in chosen.write_options:
            return {"sparse": True}
        return self.options


def open_tensors(file: str, **options: Any) -> xr.Dataset:
    """Open a tensor file, in chunks."""
    return xr.open_dataset(file, engine="tensorfmt", chunks={}, **options)


def part_of(
    ds: xr.Dataset,
    file: str,
    *,
    variable: str | None = None,
    dims: Sequence[str] | None = None,
    name: str | None = None,
) -> xr.Dataset:
    """One variable of a Dataset, under other names."""
    listed = shortened(", ".join(map(repr, ds.data_vars))) or "none"
    if variable is not None:
        if variable not in ds:
            raise ValueError(f"{file}: there is no variable {variable!r}; it has {listed}")
        ds = ds[[variable]]
    if dims is None and name is None:
        return ds
    if len(ds.data_vars) != 1:
        raise ValueError(
            f"{file}: --name and --dims are for a sole variable, and there are {listed}; "
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


def _check_apart(source: Place, target: Place) -> None:
    """Refuse to write over the input, into it, or over what it lies in."""
    read, written = (f"{place.path.rstrip('/')}/" for place in (source, target))
    if type(source.fs) is type(target.fs) and (
        read.startswith(written) or written.startswith(read)
    ):
        inside = "lies in" if len(written) > len(read) else "contains"
        relation = "is" if read == written else inside
        raise ValueError(f"{target.url} {relation} the input {source.url}; write to another place")


def _bar(wanted: bool) -> AbstractContextManager[Any]:
    if not (wanted and sys.stderr.isatty()):
        return nullcontext()
    bar: AbstractContextManager[Any] = ProgressBar(out=sys.stderr)  # type: ignore[no-untyped-call]
    return bar
