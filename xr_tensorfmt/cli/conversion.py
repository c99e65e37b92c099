"""One conversion or several: what is opened, which part of it is kept, and what is written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import click
import xarray as xr
from tqdm.dask import TqdmCallback

from xr_tensorfmt import formats
from xr_tensorfmt.cli.messages import STDIN, errors_in_one_line, input_of, one_line
from xr_tensorfmt.cli.options import NETCDF, STORES, ZARR, Pairs, options_for, store_format
from xr_tensorfmt.cli.stores import check_replaceable, encoding_by_group, open_store, write_store
from xr_tensorfmt.cli.termination import sigterm_raises_exit
from xr_tensorfmt.core.container import named_dims
from xr_tensorfmt.errors import did_you_mean, shorten
from xr_tensorfmt.sources import is_url
from xr_tensorfmt.sources.remote import Place, locate
from xr_tensorfmt.writing.checked_input import Part, encoding_by_name
from xr_tensorfmt.writing.to_file import to_file
from xr_tensorfmt.writing.tree import flattened

Opened = xr.Dataset | xr.DataTree


@dataclass(frozen=True, eq=False)
class Conversion:
    """What the user of ``xr-tensorfmt convert`` asks for; its help says what the fields mean."""

    source: str
    target: str
    from_: str | None
    to: str | None
    overwrite: bool
    variable: str | None
    group: str | None
    separator: str
    name: str | None
    dims: list[str] | None
    dtypes: tuple[str, ...]
    drop: tuple[Part, ...]
    options: Pairs
    tree: bool
    sparse: str
    storage_options: Pairs
    verify: bool
    quiet: bool

    def run(self) -> None:
        """Do it, with a progress bar if stderr is a terminal; SIGTERM leaves nothing unfinished."""
        with errors_in_one_line(self.target):
            to = self.to or store_format(self.target) or formats.by_suffix(self.target).name
        with ExitStack() as stack:
            with errors_in_one_line(self.source):
                file = stack.enter_context(input_of(self.source))
                data, encoding = self._chosen(self._open(file), to)
            target = located(self.target, self.storage_options)
            errors = errors_in_one_line(self.target, self.source)
            with errors, sigterm_raises_exit(os.path.dirname(target.path)), self._bar():
                self._check_target(to, target)
                self._write(data, encoding, to, target)

    def _bar(self) -> TqdmCallback:
        """A progress bar of the computations, shown if stderr is a terminal."""
        name = os.path.basename(one_line(self.target).rstrip("/"))
        # Without a terminal, None disables it.
        return TqdmCallback(desc=name, unit=" tasks", disable=True if self.quiet else None)

    def _open(self, file: str | BinaryIO) -> Opened:
        from_ = self.from_ or store_format(self.source)
        if from_ in STORES and file is not self.source:
            raise ValueError(f"{from_} is not read from standard input; pass a path")
        options: dict[str, Any] = {
            "group": self.group,
            "separator": self.separator,
            "storage_options": options_for(self.source, self.storage_options),
        }
        if from_ in STORES:
            return open_store(self.source, from_, **options)
        options |= {"format": from_, "sparse": self.sparse, "verify": self.verify, "chunks": {}}
        if self.tree:
            return xr.open_datatree(file, engine="tensorfmt", **options)
        return open_tensors(file, **options)

    def _chosen(self, opened: Opened, to: str) -> tuple[Opened, dict[Any, Any]]:
        """What is written, and its encoding; stores have groups unless a variable is chosen."""
        if isinstance(opened, xr.DataTree):
            if to in STORES and not (self.variable or self.name or self.dims):
                ds = flattened(self.source, opened, self.separator, ("attrs",))
                return opened, encoding_by_group(opened, self.separator, self._encoding(ds))
            opened = flattened(self.source, opened, self.separator, self.drop)
        ds = part_of(opened, self.variable, self.dims, self.name)
        return ds, self._encoding(ds)

    def _encoding(self, ds: xr.Dataset) -> dict[Any, Any]:
        """What ``--dtype [NAME=]DTYPE`` asks for, by name; names may contain equals signs."""
        encoding: dict[Any, Any] = {}
        for value in self.dtypes:
            name, equals, dtype = value.rpartition("=")
            encoding |= {name: {"dtype": dtype}} if equals else {"dtype": dtype}
        return encoding_by_name(ds.variables, ds.coords, encoding)

    def _check_target(self, to: str, target: Place) -> None:
        """Refuse to write over the input, into it, over what it lies in, or over other files."""
        source = located(self.source, self.storage_options)
        read, written = (f"{place.path.rstrip('/')}/" for place in (source, target))
        is_within, contains = written.startswith(read), read.startswith(written)
        if type(source.fs) is type(target.fs) and (is_within or contains):
            relation = "is" if read == written else "lies in" if is_within else "contains"
            raise ValueError(
                f"{self.target} {relation} the input {self.source}; write to another place"
            )
        if to == NETCDF and not target.is_local:
            raise ValueError("netCDF is only written to local paths; write zarr there")
        if self.options and to in STORES:
            raise ValueError(f"--option is for tensor files, and {self.target} is {to}")
        target.fs.invalidate_cache()
        exists = target.fs.exists(target.path)
        if exists and not self.overwrite:
            raise FileExistsError(f"{self.target} exists already; pass --overwrite to replace it")
        if exists and to == ZARR:
            check_replaceable(self.target, target)

    def _write(self, data: Opened, encoding: Any, to: str, target: Place) -> None:
        storage_options = options_for(self.target, self.storage_options)
        if to in STORES:
            write_store(
                data,
                target.path if target.is_local else self.target,
                to,
                encoding,
                "w" if self.overwrite else "w-",
                storage_options,
                drop_attrs="attrs" in self.drop,
            )
            return
        options = dict(self.options)
        facts = [each.encoding.get("tensorfmt", {}) for each in data.data_vars.values()]
        if not options and all(each.get("storage") == "pairs" for each in facts):
            # Pairs stay pairs where the format has them.
            options = {"sparse": True} if "sparse" in formats.by_name(to).write_options else {}
        to_file(
            data,
            self.target,
            to,
            mode="w" if self.overwrite else "x",
            compute=True,  # given here, as is region, so that no --option can be this keyword
            region=None,
            encoding=encoding,
            drop=self.drop,
            storage_options=storage_options,
            **options,
        )


def convert_all(sources: Sequence[str], target: str, wanted: dict[str, Any]) -> None:
    """Convert each file; one that fails does not keep the others back."""
    targets, is_store = [target], store_format(target) is not None
    has_slash = target.endswith(("/", os.sep))
    if len(sources) > 1 or (has_slash and not is_store):
        if is_store or not (has_slash or os.path.isdir(target)):
            raise click.UsageError(
                f"{len(sources)} files are converted into a directory; give one, or end OUT with "
                f"'/' to make it, as in '{target.rstrip('/')}/'"
            )
        targets = _paths_in(target, sources, wanted["to"], wanted["storage_options"])
        if not is_url(target):
            os.makedirs(target, exist_ok=True)
    failed = False
    for source, path in zip(sources, targets, strict=True):
        try:
            Conversion(source=source, target=path, **wanted).run()
        except click.ClickException as error:
            failed = True
            error.show()
    raise SystemExit(int(failed))


def _paths_in(
    directory: str, sources: Sequence[str], to: str | None, storage_options: Pairs
) -> list[str]:
    """What each file becomes: it keeps its name, with the suffix of the format."""
    if to is None:
        raise click.UsageError("OUT is a directory, which has no suffix; name the format by --to")
    suffix = {ZARR: ".zarr", NETCDF: ".nc"}.get(to) or formats.by_name(to).suffixes[0]
    origins: dict[str, str] = {}
    for source in sources:
        path = "stdin" if source == STDIN else located(source, storage_options).path
        name = os.path.splitext(os.path.basename(path.rstrip("/")))[0] + suffix
        if name in origins:
            raise click.UsageError(
                f"{origins[name]} and {source} would both become {name}; convert one of them alone"
            )
        origins[name] = source
    return [os.path.join(directory, name) for name in origins]


def located(file: str, storage_options: Pairs) -> Place:
    """A file in its file system, without links."""
    place = locate(file, options_for(file, storage_options), None)
    return replace(place, path=os.path.realpath(place.path)) if place.is_local else place


def open_tensors(file: str | BinaryIO, **options: Any) -> xr.Dataset:
    """Open a tensor file; `options` are those of the engine."""
    return xr.open_dataset(file, engine="tensorfmt", **options)


def part_of(
    ds: xr.Dataset,
    variable: str | None = None,
    dims: Sequence[str] | None = None,
    name: str | None = None,
) -> xr.Dataset:
    """One variable of a Dataset, under other names."""
    listed = shorten(", ".join(map(repr, ds.data_vars))) or "none"
    if variable is not None:
        if variable not in ds:
            hint = did_you_mean(variable, ds.variables)
            raise ValueError(f"there is no variable {variable!r}{hint}; it has {listed}")
        ds = ds[[variable]]
    if dims is None and name is None:
        return ds
    if len(ds.data_vars) != 1:
        raise ValueError(
            f"--name and --dims are for a sole variable, and there are {listed}; "
            "choose one by --variable"
        )
    (only,) = ds.data_vars.values()
    old = (*map(str, only.dims), str(only.name))
    new = (*named_dims(dims, old[-1], old[:-1]), old[-1] if name is None else name)
    return ds.rename({a: b for a, b in zip(old, new, strict=True) if a != b})
