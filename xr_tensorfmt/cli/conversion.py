"""One conversion: what is opened, which part of it is kept, and what is written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from numbers import Number
from typing import Any, BinaryIO, Literal

import numpy as np
import xarray as xr
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from tqdm.dask import TqdmCallback

from xr_tensorfmt import formats
from xr_tensorfmt.cli.messages import errors_in_one_line, one_line
from xr_tensorfmt.cli.options import NETCDF, ZARR, Pairs, options_for, store_format
from xr_tensorfmt.cli.standard_input import input_of
from xr_tensorfmt.cli.termination import sigterm_raises_exit
from xr_tensorfmt.core.container import named_dims
from xr_tensorfmt.datasets.groups import group_path
from xr_tensorfmt.errors import did_you_mean, shorten
from xr_tensorfmt.sources import is_url
from xr_tensorfmt.sources.remote import split_timeout
from xr_tensorfmt.writing.atomic_file import (
    check_writable,
    create_unfinished,
    give_final_mode,
    target_of,
)
from xr_tensorfmt.writing.checked_input import Part, encoding_by_name
from xr_tensorfmt.writing.to_file import to_file
from xr_tensorfmt.writing.tree import flattened, keys_of
from xr_tensorfmt.writing.unfinished import beside, remove_abandoned

_ZARR_METADATA = ("zarr.json", ".zgroup", ".zmetadata")


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
                data, tree = self._open(file), None
                if isinstance(data, xr.DataTree):
                    if to in (NETCDF, ZARR):
                        tree = self._whole(data)
                    drop = self.drop if tree is None else ("attrs",)
                    data = flattened(self.source, data, self.separator, drop)
                ds = part_of(data, self.variable, self.dims, self.name)
                encoding = self._encoding(ds)
            directory = os.path.dirname(self._located(self.target)[1])
            errors = errors_in_one_line(self.target, self.source)
            with errors, sigterm_raises_exit(directory), self._bar():
                self._check_target(to)
                if tree is None:
                    self._write(ds, to, encoding)
                else:
                    self._write_tree(tree, to, encoding)

    def _bar(self) -> TqdmCallback:
        """A progress bar of the computations, shown if stderr is a terminal."""
        name = os.path.basename(one_line(self.target).rstrip("/"))
        # Without a terminal, None disables it.
        return TqdmCallback(desc=name, unit=" tasks", disable=True if self.quiet else None)

    def _located(self, file: str) -> tuple[AbstractFileSystem, str]:
        return located(file, self.storage_options)

    def _check_target(self, to: str) -> None:
        """Refuse to write over the input, into it, over what it lies in, or over other files."""
        (source_fs, source), (fs, target) = map(self._located, (self.source, self.target))
        read, written = f"{source.rstrip('/')}/", f"{target.rstrip('/')}/"
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
        exists = fs.exists(target)
        if exists and not self.overwrite:
            raise FileExistsError(f"{self.target} exists already; pass --overwrite to replace it")
        if exists and to == ZARR:
            self._check_store(fs, target)

    def _check_store(self, fs: AbstractFileSystem, target: str) -> None:
        """Refuse to replace what is not a zarr store, or one that is write-protected."""
        found = [name for name in _ZARR_METADATA if fs.exists(f"{target}/{name}")]
        if not found:
            raise ValueError(
                f"{self.target} exists and is not a zarr store, so that it is not replaced by one; "
                "write to another place"
            )
        if isinstance(fs, LocalFileSystem):
            for path in (target, *(os.path.join(target, name) for name in found)):
                check_writable(path)

    def _open(self, file: str | BinaryIO) -> xr.Dataset | xr.DataTree:
        from_ = self.from_ or store_format(self.source)
        if from_ in (ZARR, NETCDF) and file is not self.source:
            raise ValueError(f"{from_} is not read from standard input; pass a path")
        storage_options = options_for(self.source, self.storage_options)
        if self.tree and from_ not in (ZARR, NETCDF):
            return xr.open_datatree(
                file,
                engine="tensorfmt",
                chunks={},
                format=from_,
                storage_options=storage_options,
                group=self.group,
                separator=self.separator,
                sparse=self.sparse,
                verify=self.verify,
            )
        tree = tree_of_store(file, from_, storage_options, self.group, self.separator)
        return tree or open_any(
            file,
            from_,
            storage_options,
            chunks={},
            sparse=self.sparse,
            verify=self.verify,
            group=self.group,
            separator=self.separator,
        )

    def _encoding(self, ds: xr.Dataset) -> dict[Any, Any]:
        """What ``--dtype [NAME=]DTYPE`` asks for, by name; names may contain equals signs."""
        encoding: dict[Any, Any] = {}
        for value in self.dtypes:
            name, equals, dtype = value.rpartition("=")
            encoding |= {name: {"dtype": dtype}} if equals else {"dtype": dtype}
        return encoding_by_name(ds.variables, ds.coords, encoding)

    def _write(self, ds: xr.Dataset, to: str, encoding: Any) -> None:
        fs, path = self._located(self.target)
        storage_options = options_for(self.target, self.storage_options)
        if to not in (NETCDF, ZARR):
            to_file(
                ds,
                self.target,
                to,
                mode="w" if self.overwrite else "x",
                encoding=encoding,
                drop=self.drop,
                storage_options=storage_options,
                **self._format_options(ds, to),
            )
            return
        ds = ds.drop_encoding()
        ds = ds.drop_attrs() if "attrs" in self.drop else ds
        if to == NETCDF:
            _write_netcdf(ds, path, encoding)
            return
        ds.to_zarr(
            path if isinstance(fs, LocalFileSystem) else self.target,
            mode="w" if self.overwrite else "w-",
            encoding=encoding,
            storage_options=storage_options,
            write_empty_chunks=True,  # else -0.0, which equals the fill value, would become 0.0
        )

    def _whole(self, tree: xr.DataTree) -> xr.DataTree:
        """A tree whose groups are kept, so that nothing can choose or rename a variable."""
        if self.variable or self.name or self.dims:
            groups = shorten(", ".join(repr(path) for path in sorted(tree.to_dict())))
            raise ValueError(
                "--variable, --name and --dims are for one group, and there are the groups "
                f"{groups}; choose one by --group"
            )
        return tree

    def _write_tree(self, tree: xr.DataTree, to: str, encoding: Mapping[Any, Any]) -> None:
        """Write zarr or netCDF with groups; `encoding` has the names that a file would have."""
        by_group: dict[str, dict[Any, Any]] = {}
        for path, name, key in keys_of(tree, self.separator):
            if key in encoding:
                by_group.setdefault(path, {})[name] = encoding[key]
        tree = tree.map_over_datasets(xr.Dataset.drop_encoding)
        if "attrs" in self.drop:
            tree = tree.map_over_datasets(xr.Dataset.drop_attrs)
        fs, path = self._located(self.target)
        if to == NETCDF:
            _check_attributes(tree)
            _write_netcdf(tree, path, by_group)
            return
        tree.to_zarr(
            path if isinstance(fs, LocalFileSystem) else self.target,
            mode="w" if self.overwrite else "w-",
            encoding=by_group,
            storage_options=options_for(self.target, self.storage_options),
            write_empty_chunks=True,  # as of a Dataset
        )

    def _format_options(self, ds: xr.Dataset, to: str) -> dict[str, Any]:
        """Keywords of the format: those given, or else the one by which pairs stay pairs."""
        chosen, options = formats.by_name(to), dict(self.options)
        unknown = next((key for key in options if key not in chosen.write_options), None)
        if unknown is not None:
            known = ", ".join(chosen.write_options) or "none"
            hint = did_you_mean(unknown, chosen.write_options)
            raise ValueError(
                f"--option {unknown}{hint}: the keywords of {chosen.title} are {known}"
            )
        facts = [variable.encoding.get("tensorfmt", {}) for variable in ds.data_vars.values()]
        pairs = all(fact.get("storage") == "pairs" for fact in facts)
        return options or ({"sparse": True} if pairs and "sparse" in chosen.write_options else {})


def _check_attributes(tree: xr.DataTree) -> None:
    """Refuse attributes for which netCDF has no place; of a Dataset, xarray does so itself."""
    for group, ds in tree.to_dict().items():
        for attrs in (ds.attrs, *(variable.attrs for variable in ds.variables.values())):
            for name, value in attrs.items():
                if not isinstance(value, str | bytes | Number | np.ndarray | list | tuple):
                    raise TypeError(
                        f"netCDF has no place for the attribute {name!r} in the group {group!r}, "
                        f"which is a {type(value).__name__}; pass --drop attrs to leave all out"
                    )


def _write_netcdf(data: xr.Dataset | xr.DataTree, path: str, encoding: Any) -> None:
    """Write a netCDF file, which takes its name when it is complete."""
    datasets = [data] if isinstance(data, xr.Dataset) else data.to_dict().values()
    variables = (variable for ds in datasets for variable in ds.variables.values())
    is_complex = any(variable.dtype.kind == "c" for variable in variables)
    engine: Literal["h5netcdf"] | None = "h5netcdf" if is_complex else None
    remove_abandoned(target_of(path, replace=True))
    part = beside(path)
    os.close(create_unfinished(part))
    try:
        data.to_netcdf(part, engine=engine, encoding=encoding)
        give_final_mode(part, path)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


def open_any(
    file: str | BinaryIO,
    format: str | None,
    storage_options: dict[str, Any] | None,
    *,
    chunks: Any,
    group: str | None,
    separator: str,
    **options: Any,
) -> xr.Dataset:
    """Open a zarr store, a netCDF file without chunks, or a tensor file.

    Of a store with groups, the names of variables begin with those of their groups.
    """
    tree = tree_of_store(file, format, storage_options, group, separator)
    if tree is not None:
        return flattened(str(file), tree, separator, ("attrs",))
    path = group_path(group, separator)
    if format == ZARR:
        return xr.open_dataset(
            file, engine=ZARR, chunks=chunks, group=path, storage_options=storage_options
        )
    if format == NETCDF:
        return xr.open_dataset(file, engine=_netcdf_engine(file), group=path)
    return xr.open_dataset(
        file,
        engine="tensorfmt",
        chunks=chunks,
        format=format,
        storage_options=storage_options,
        group=group,
        separator=separator,
        **options,
    )


def _netcdf_engine(file: Any) -> Literal["h5netcdf"] | None:
    """For netCDF-4 h5netcdf, as it reads complex numbers, where it is installed."""
    h5netcdf = xr.backends.list_engines().get("h5netcdf")
    return "h5netcdf" if h5netcdf is not None and h5netcdf.guess_can_open(file) else None


def tree_of_store(
    file: Any,
    format: str | None,
    storage_options: dict[str, Any] | None,
    group: str | None,
    separator: str,
) -> xr.DataTree | None:
    """A zarr store or netCDF file with groups below the given one, in chunks; else None."""
    path = group_path(group, separator)
    if format == ZARR:
        tree = xr.open_datatree(
            file, engine=ZARR, chunks={}, group=path, storage_options=storage_options
        )
    elif format == NETCDF and (engine := _netcdf_engine(file)):
        # netCDF-3 has no groups.
        tree = xr.open_datatree(file, engine=engine, group=path)
    else:
        return None
    if any(node.data_vars for node in tree.descendants):
        return tree
    tree.close()
    return None


def located(file: str, storage_options: Pairs) -> tuple[AbstractFileSystem, str]:
    """The file system of a file, and its path there without links."""
    fs, path = LocalFileSystem(), file
    if is_url(file):
        options, _ = split_timeout(file, dict(storage_options), None)
        fs, path = url_to_fs(file, **options)
    if isinstance(fs, LocalFileSystem):
        path = os.path.realpath(os.path.expanduser(path))
    return fs, path


def open_tensors(file: str | BinaryIO, **options: Any) -> xr.Dataset:
    """Open a tensor file, in chunks."""
    return xr.open_dataset(file, engine="tensorfmt", chunks={}, **options)


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
