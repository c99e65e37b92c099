"""``xr-tensorfmt convert``: convert between all formats, zarr and netCDF."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import PurePath
from typing import Any, get_args

import click
import numpy as np
import xarray as xr

from xr_tensorfmt.cc4s import open_calculation, to_calculation
from xr_tensorfmt.cli import common
from xr_tensorfmt.datasets.groups import flatten_tree, join_path, list_prefixes
from xr_tensorfmt.errors import did_you_mean, shorten, warn
from xr_tensorfmt.formats import recognition, registry
from xr_tensorfmt.sources.locations import Location, exists, locate
from xr_tensorfmt.writing.atomic_file import (
    build_atomic_file,
    build_exists_error,
    get_temporary_path,
    remove,
)
from xr_tensorfmt.writing.checked_input import DroppablePart, resolve_encoding

STORED_VALUES: dict[str, Any] = dict.fromkeys(
    ("mask_and_scale", "decode_times", "decode_timedelta"), False
)
"""Keywords to open values as they are in the file."""

_PART = click.Choice(get_args(DroppablePart))


def _parse_parts(_: object, __: object, values: Sequence[str]) -> tuple[str, ...]:
    """Parse parts that are separated by commas."""
    return tuple(_PART.convert(part, None, None) for value in values for part in value.split(","))


def _parse_dtype(value: str) -> tuple[str, Any]:
    """Return an item of ``encoding=`` for ``DTYPE`` or ``NAME=DTYPE``, like ``a=b=float32``."""
    key, equals, dtype = value.rpartition("=")
    if not dtype or (equals and not key):
        raise click.BadParameter(f"{value!r} is neither DTYPE nor NAME=DTYPE, such as w=float32")
    return (key, {"dtype": dtype}) if key else ("dtype", dtype)


@click.command()
@click.argument("source", metavar="IN", type=common.PATH)
@click.argument("target", metavar="OUT", type=common.PATH)
@common.format_option(
    "--to", "to", writable=True, help="Format of OUT; the default depends on its suffix"
)
@click.option("--overwrite", is_flag=True, help="Overwrite OUT, as mode='w' does in Python.")
@click.option("--variable", "-v", help="Only this variable.")
@click.option("--name", help="Name of the variable, if IN has no name for it.")
@click.option(
    "--dims",
    type=lambda names: names.split(","),
    metavar="A,B,C",
    help="Dimension names of the only variable.",
)
@click.option(
    "--dtype",
    "dtypes",
    metavar="[NAME=]DTYPE",
    multiple=True,
    type=_parse_dtype,
    help="Data type in OUT, with rounding, as encoding= in Python. Without NAME, it applies to "
    "variables of the same kind, such as floating-point variables for float16. Repeatable.",
)
@click.option(
    "--drop",
    metavar="PART,...",
    multiple=True,
    callback=_parse_parts,
    help="Omit parts that OUT does not support, instead of an error: name, dims, coords or attrs. "
    "For zarr and netCDF, attrs omits all attributes. Repeatable.",
)
@common.key_value_option(
    "--option", "-o", "options", help="An option of the format of OUT, such as version=0.9."
)
@common.add_open_options
@click.option("--quiet", "-q", is_flag=True, help="Do not show a bar.")
def convert(
    source: str,
    target: str,
    to: str | None,
    overwrite: bool,
    drop: tuple[DroppablePart, ...],
    options: common.KeyValues,
    storage_options: common.KeyValues,
    quiet: bool,
    **reading: Any,
) -> None:
    """Convert a file between tensor formats, zarr and netCDF.

    IN and OUT may be the directory of a calculation.
    """
    from tqdm.dask import TqdmCallback  # noqa: PLC0415  # imports dask

    with common.format_errors(target, source):
        to = to or _choose_format(source, target)
    with common.format_errors(source):
        ds, encoding = _open_selected(source, drop=drop, storage_options=storage_options, **reading)
        with common.format_errors(target, source):
            locations = [
                locate(file, common.get_storage_options(file, storage_options), None)
                for file in (source, target)
            ]
            _check_apart(*locations)
            name = os.path.basename(common.to_one_line(target).rstrip("/"))
            # Without a terminal, None disables the bar.
            with TqdmCallback(desc=name, unit=" tasks", disable=quiet or None, leave=False):
                if to not in common.STORES:
                    url_options = common.get_storage_options(target, storage_options)
                    _write_tensors(ds, target, to, encoding, overwrite, drop, options, url_options)
                    return
                if options:
                    raise ValueError(f"--option is only for tensor formats, not for {to}")
                ds = ds.drop_encoding().drop_attrs() if "attrs" in drop else ds.drop_encoding()
                write = _write_zarr if to == common.ZARR else _write_netcdf
                write(ds, locations[1], _add_fill_values(ds, encoding), overwrite=overwrite)


def _has_no_suffix(path: str) -> bool:
    return not os.path.splitext(path)[1]


def _choose_format(source: str, target: str) -> str:
    """Return the format of a target by its suffix. Without one, a calculation remains one."""
    calculation = _find_calculation_format(source) if _has_no_suffix(target) else None
    if known := calculation or common.get_store_format(target):
        return known
    return registry.find_format_for_path(target, common.STORE_SUFFIXES).name


def _write_tensors(
    ds: xr.Dataset,
    target: str,
    to: str,
    encoding: dict[Any, Any],
    overwrite: bool,
    drop: tuple[DroppablePart, ...],
    options: common.KeyValues,
    url_options: dict[str, Any] | None,
) -> None:
    """Write a tensor file, or the directory of a calculation if the target has no suffix."""
    from xr_tensorfmt.saving import Mode, normalize_options, to_file  # noqa: PLC0415  # imports dask

    file_format = registry.find_format(to)
    if file_format.directory_hint and _has_no_suffix(target):
        if overwrite or drop or options:
            raise ValueError("--overwrite, --drop and --option are only for files")
        to_calculation(ds, target, encoding=encoding)
        return
    normalize_options(file_format, options)
    options["storage_options"] = url_options
    mode: Mode = "w" if overwrite else "x"
    to_file(ds, target, to, mode=mode, encoding=encoding, drop=drop, **options)


def _add_fill_values(ds: xr.Dataset, encoding: dict[Any, Any]) -> dict[Any, Any]:
    """Let xarray store numbers without a _FillValue unless they have one."""
    numbers = {
        key: {"_FillValue": None}
        for key, variable in ds.variables.items()
        if variable.dtype.kind in "fc" and "_FillValue" not in variable.attrs
    }
    return {key: numbers.get(key, {}) | encoding.get(key, {}) for key in numbers | encoding}


def _open_selected(
    source: str,
    *,
    variable: str | None,
    name: str | None,
    dims: list[str] | None,
    dtypes: tuple[tuple[str, Any], ...],
    drop: tuple[DroppablePart, ...],
    open_options: common.KeyValues,
    **reading: Any,
) -> tuple[xr.Dataset, dict[Any, Any]]:
    if "attrs" not in drop:  # otherwise packed values would lose their meaning
        reading |= STORED_VALUES
    named = {"name": name, "dims": {variable: dims} if variable and dims else dims}
    open_options |= {keyword: value for keyword, value in named.items() if value is not None}
    ds = open_input(source, drop=drop, chunks={}, open_options=open_options, **reading)
    if variable is not None and variable not in ds:
        listed = shorten(", ".join(map(repr, ds.data_vars))) or "none"
        hint = did_you_mean(variable, ds.variables)
        raise ValueError(f"there is no variable {variable!r}{hint}; it has {listed}")
    ds = ds if variable is None else ds[[variable]]
    return ds, resolve_encoding(ds.variables, ds.coords, dict(dtypes))


def _check_apart(source: Location, target: Location) -> None:
    """Raise ValueError if the target is, contains or is inside the input."""
    # A PurePath accepts both separators of Windows.
    read, written = (
        PurePath(os.path.realpath(location.path) if location.is_local else location.path)
        for location in (source, target)
    )
    is_inside, contains = written.is_relative_to(read), read.is_relative_to(written)
    if type(source.fs) is type(target.fs) and (is_inside or contains):
        relation = "is" if read == written else "is inside" if is_inside else "contains"
        raise ValueError(f"{target.name} {relation} the input {source.name}; choose another target")


def open_input(
    file: str,
    *,
    format: str | None,
    group: str | None,
    storage_options: common.KeyValues,
    drop: Collection[str],
    open_options: common.KeyValues,
    **options: Any,
) -> xr.Dataset:
    """Open a tensor file, or a store with the names of its groups as prefixes.

    Stores ignore `options`, and raise an error for `open_options`.
    """
    url_options = common.get_storage_options(file, storage_options)
    store = format or common.get_store_format(file)
    if store in common.STORES:
        if open_options:
            named = ", ".join(open_options)
            raise ValueError(f"{file} is {store}, and {named} applies only to tensor files")
        tree = _open_store(locate(file, url_options, None), store)
        path = join_path(next(iter(list_prefixes(group, ".")), ""), ".")
        node = {node.path: node for node in tree.subtree}.get(path)
        if node is None:
            raise ValueError(f"the group {group!r} is not in the file")
        is_group = any(other.data_vars for other in node.descendants)
        return flatten_tree(file, node if is_group else node.to_dataset(), ".", drop)
    options |= {"format": format, "group": group, "storage_options": url_options, **open_options}
    if _find_calculation_format(file):
        return open_calculation(file, **options)
    file = common.find_file(file, storage_options)
    return xr.open_dataset(file, engine="tensorfmt", **options)


def _find_calculation_format(path: str) -> str | None:
    """Return the format of a local directory with several tensors of a calculation."""
    is_directory = os.path.isdir(path) and not common.get_store_format(path)
    files = recognition.list_files(path, None, None) if is_directory else []
    formats = [x.name for x in map(registry.find_format_by_suffix, files) if x and x.directory_hint]
    return formats[0] if 1 < len(files) == len(formats) else None


def _open_store(location: Location, format: str) -> xr.DataTree:
    """Open zarr in chunks, or netCDF without."""
    if format == common.ZARR:
        store = _get_zarr_store(location)
        tree = xr.open_datatree(store, engine=common.ZARR, chunks={})
    else:
        path = location.path if location.is_local else location.url
        engines = xr.backends.list_engines()
        engine = _find_complex_engine()
        engine = engine if engine and engines[engine].guess_can_open(path) else None
        if "scipy" in engines and engines["scipy"].guess_can_open(path):
            tree = xr.DataTree(xr.open_dataset(path, cache=False))  # scipy opens no trees
        else:
            tree = xr.open_datatree(path, engine=engine, cache=False)
    for node in tree.subtree:
        for name, variable in node.variables.items():
            if variable.dtype.names is not None:
                raise ValueError(
                    f"{name!r} has the structured dtype {variable.dtype}, as complex numbers in "
                    "netCDF-4 have; install h5netcdf and h5py to read them"
                )
    return tree


def _find_complex_engine() -> Any:
    """Return the engine that supports complex numbers in netCDF-4, if it can be imported."""
    return "h5netcdf" if find_spec("h5netcdf") and find_spec("h5py") else None


def _get_zarr_store(location: Location) -> Any:
    """Return the store of a location. zarr would take a path with "::" for a chain of URLs."""
    from zarr.storage import FsspecStore, LocalStore  # noqa: PLC0415  # an optional package

    if location.is_local:
        return LocalStore(location.path)
    return FsspecStore.from_url(location.url, location.fs.storage_options)


def _write_zarr(ds: xr.Dataset, target: Location, encoding: Any, *, overwrite: bool) -> None:
    """Write a store that replaces the previous one, on local disks when it is complete."""
    for name in ds.variables:
        if "/" in str(name):
            raise ValueError(
                f"the name {name!r} has a slash, which separates groups in zarr; rename the "
                "variable, write the tree of xarray.open_datatree, or choose another format"
            )
    target.fs.invalidate_cache()
    is_present, is_link = exists(target.fs, target.path), os.path.islink(target.path)
    if not overwrite and (is_present or (target.is_local and is_link)):
        raise build_exists_error(target.name)
    metadata = (f"{target.path}/{name}" for name in ("zarr.json", ".zgroup", ".zarray"))
    if is_present and not any(exists(target.fs, path) for path in metadata):
        reason = "exists and is not a zarr store, so it is not replaced; choose another target"
        raise ValueError(f"{target.name} {reason}")
    # zarr omits chunks that equal the fill value 0.0, also if they contain -0.0.
    options: Any = {"encoding": encoding, "write_empty_chunks": True}
    if not target.is_local:
        ds.to_zarr(_get_zarr_store(target), mode="w" if overwrite else "w-", **options)
        return
    path = target.path
    unfinished, previous = get_temporary_path(path), get_temporary_path(path)
    try:
        ds.to_zarr(_get_zarr_store(replace(target, path=unfinished)), **options)
        if overwrite and os.path.lexists(path):
            os.rename(path, previous)
        os.rename(unfinished, path)
    finally:
        if os.path.lexists(previous) and not os.path.lexists(path):
            os.rename(previous, path)
        remove(previous)  # a link
        for directory in (unfinished, previous):
            shutil.rmtree(directory, ignore_errors=True)


def _write_netcdf(ds: xr.Dataset, target: Location, encoding: Any, *, overwrite: bool) -> None:
    """Write a temporary file, and rename it when it is complete."""
    if not target.is_local:
        raise ValueError("netCDF can only be written to local paths; write zarr instead")
    is_complex = any(variable.dtype.kind == "c" for variable in ds.variables.values())
    owners = {"the Dataset": ds.attrs, **{repr(n): v.attrs for n, v in ds.variables.items()}}
    nested = [
        f"the nested attribute {key!r} of {owner}"
        for owner, attrs in owners.items()
        for key, value in attrs.items()
        if np.array(value, object).ndim > 1
    ]
    engine = _find_complex_engine() if nested or is_complex else None
    if engine is None and (nested or is_complex):
        unsupported = nested[0] if nested else "complex numbers"
        raise ValueError(f"install h5netcdf and h5py to write {unsupported}, or write zarr")
    if nested:
        reason = f"netCDF4 cannot open files with {nested[0]}"
        warn(f"{target.name}: {reason}; pass engine='h5netcdf' to xarray, or write zarr")
    file = build_atomic_file(target.path, 0, overwrite=overwrite)
    try:
        file.create()
        ds.to_netcdf(file.path, engine=engine, encoding=encoding)
        file.complete(())
        file.publish()
    finally:
        file.discard()
