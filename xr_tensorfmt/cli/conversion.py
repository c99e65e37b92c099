"""One conversion or several: what is opened, which part of it is kept, and what is written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, BinaryIO

import click
import xarray as xr
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from tqdm.dask import TqdmCallback

from xr_tensorfmt import formats
from xr_tensorfmt.cli.messages import STDIN, errors_in_one_line, input_of, one_line
from xr_tensorfmt.cli.options import NETCDF, ZARR, Pairs, options_for, store_format
from xr_tensorfmt.cli.stores import check_replaceable, open_store, write_store
from xr_tensorfmt.cli.termination import sigterm_raises_exit
from xr_tensorfmt.core.container import named_dims
from xr_tensorfmt.errors import did_you_mean, shorten
from xr_tensorfmt.sources import is_url
from xr_tensorfmt.sources.remote import split_timeout
from xr_tensorfmt.writing.checked_input import Part, encoding_by_name
from xr_tensorfmt.writing.to_file import to_file
from xr_tensorfmt.writing.tree import flattened, keys_of

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
            fs, path = located(self.target, self.storage_options)
            errors = errors_in_one_line(self.target, self.source)
            with errors, sigterm_raises_exit(os.path.dirname(path)), self._bar():
                self._check_target(to, fs, path)
                if to in (NETCDF, ZARR):
                    target = path if isinstance(fs, LocalFileSystem) else self.target
                    self._write_store(data, target, to, encoding)
                else:
                    self._write_file(data, to, encoding)

    def _bar(self) -> TqdmCallback:
        """A progress bar of the computations, shown if stderr is a terminal."""
        name = os.path.basename(one_line(self.target).rstrip("/"))
        # Without a terminal, None disables it.
        return TqdmCallback(desc=name, unit=" tasks", disable=True if self.quiet else None)

    def _open(self, file: str | BinaryIO) -> Opened:
        from_ = self.from_ or store_format(self.source)
        if from_ in (ZARR, NETCDF) and file is not self.source:
            raise ValueError(f"{from_} is not read from standard input; pass a path")
        return open_any(
            file,
            from_,
            tree=self.tree,
            chunks={},
            storage_options=options_for(self.source, self.storage_options),
            group=self.group,
            separator=self.separator,
            sparse=self.sparse,
            verify=self.verify,
        )

    def _chosen(self, opened: Opened, to: str) -> tuple[Opened, dict[Any, Any]]:
        """What is written, and its encoding; stores have groups unless a variable is chosen."""
        is_sole = bool(self.variable or self.name or self.dims)
        tree = opened if isinstance(opened, xr.DataTree) and to in (ZARR, NETCDF) else None
        tree = None if is_sole else tree
        ds = ungrouped(
            opened, self.source, self.separator, self.drop if tree is None else ("attrs",)
        )
        ds = part_of(ds, self.variable, self.dims, self.name)
        requested: dict[Any, Any] = {}
        for value in self.dtypes:
            name, equals, dtype = value.rpartition("=")  # names may contain equals signs
            requested |= {name: {"dtype": dtype}} if equals else {"dtype": dtype}
        encoding = encoding_by_name(ds.variables, ds.coords, requested)
        if tree is None:
            return ds, encoding
        by_group: dict[str, dict[Any, Any]] = {}
        for path, name, key in keys_of(tree, self.separator):
            if key in encoding:
                by_group.setdefault(path, {})[name] = encoding[key]
        return tree, by_group

    def _check_target(self, to: str, fs: AbstractFileSystem, path: str) -> None:
        """Refuse to write over the input, into it, over what it lies in, or over other files."""
        source_fs, source = located(self.source, self.storage_options)
        read, written = f"{source.rstrip('/')}/", f"{path.rstrip('/')}/"
        if type(source_fs) is type(fs) and (read.startswith(written) or written.startswith(read)):
            inside = "lies in" if len(written) > len(read) else "contains"
            relation = "is" if read == written else inside
            raise ValueError(
                f"{self.target} {relation} the input {self.source}; write to another place"
            )
        if to == NETCDF and not isinstance(fs, LocalFileSystem):
            raise ValueError("netCDF is only written to local paths; write zarr there")
        if self.options and to in (NETCDF, ZARR):
            raise ValueError(f"--option is for tensor files, and {self.target} is {to}")
        fs.invalidate_cache()
        exists = fs.exists(path)
        if exists and not self.overwrite:
            raise FileExistsError(f"{self.target} exists already; pass --overwrite to replace it")
        if exists and to == ZARR:
            check_replaceable(self.target, fs, path)

    def _write_store(self, data: Opened, target: str, to: str, encoding: Any) -> None:
        write_store(
            data,
            target,
            to,
            encoding,
            options_for(self.target, self.storage_options),
            overwrite=self.overwrite,
            drop_attrs="attrs" in self.drop,
        )

    def _write_file(self, data: Opened, to: str, encoding: Any) -> None:
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
            compute=True,  # so that no --option can be the same keyword
            encoding=encoding,
            drop=self.drop,
            storage_options=options_for(self.target, self.storage_options),
            **options,
        )


def convert_all(sources: Sequence[str], target: str, wanted: dict[str, Any]) -> None:
    """Convert each file; one that fails does not keep the others back."""
    pairs = [(source, target) for source in sources]
    if _is_directory(sources, target):
        pairs = _into_directory(sources, target, wanted["to"], wanted["storage_options"])
        if not is_url(target):
            os.makedirs(target, exist_ok=True)
    failed = False
    for source, file in pairs:
        try:
            Conversion(source=source, target=file, **wanted).run()
        except click.ClickException as error:
            failed = True
            error.show()
    raise SystemExit(int(failed))


def _is_directory(sources: Sequence[str], target: str) -> bool:
    """Whether files are to be written into a directory; UsageError if it cannot be one."""
    if target.endswith(("/", os.sep)) and store_format(target) is None:
        return True
    if len(sources) == 1:
        return False
    if is_url(target) or not os.path.isdir(target) or store_format(target):
        raise click.UsageError(
            f"{len(sources)} files are converted into a directory; give one, or end OUT with '/' "
            f"to make it, as in '{target.rstrip('/')}/'"
        )
    return True


def _into_directory(
    sources: Sequence[str], directory: str, to: str | None, storage_options: Pairs
) -> list[tuple[str, str]]:
    """Each file and what it becomes, which has its name and the suffix of the format."""
    if to is None:
        raise click.UsageError("OUT is a directory, which has no suffix; name the format by --to")
    suffix = {ZARR: ".zarr", NETCDF: ".nc"}.get(to) or formats.by_name(to).suffixes[0]
    found: dict[str, str] = {}
    for source in sources:
        path = "stdin" if source == STDIN else located(source, storage_options)[1]
        name = os.path.splitext(os.path.basename(path.rstrip("/")))[0] + suffix
        if name in found:
            raise click.UsageError(
                f"{found[name]} and {source} would both become {name}; convert one of them alone"
            )
        found[name] = source
    start = directory.rstrip("/" + os.sep) if directory.strip("/" + os.sep) else ""
    return [(source, f"{start}/{name}") for name, source in found.items()]


def located(file: str, storage_options: Pairs) -> tuple[AbstractFileSystem, str]:
    """The file system of a file, and its path there without links."""
    fs, path = LocalFileSystem(), file
    if is_url(file):
        options, _ = split_timeout(file, dict(storage_options), None)
        fs, path = url_to_fs(file, **options)
    if isinstance(fs, LocalFileSystem):
        path = os.path.realpath(os.path.expanduser(path))
    return fs, path


def open_any(
    file: str | BinaryIO, format: str | None, *, tree: bool = False, **options: Any
) -> Opened:
    """Open a zarr store, a netCDF file or a tensor file."""
    if format in (ZARR, NETCDF):
        names = ("storage_options", "group", "separator")
        return open_store(file, format, **{name: options[name] for name in names})
    if tree:
        return xr.open_datatree(file, engine="tensorfmt", format=format, **options)
    return open_tensors(file, format=format, **options)


def open_tensors(file: str | BinaryIO, **options: Any) -> xr.Dataset:
    """Open a tensor file; `options` are those of the engine."""
    return xr.open_dataset(file, engine="tensorfmt", **options)


def ungrouped(
    opened: Opened, file: str, separator: str, drop: Sequence[Part] = ("attrs",)
) -> xr.Dataset:
    """A Dataset in which the names of groups are a part of the names of variables."""
    return opened if isinstance(opened, xr.Dataset) else flattened(file, opened, separator, drop)


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
