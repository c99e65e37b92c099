"""``xr-tensorfmt convert``: convert between all formats, zarr and netCDF."""

from __future__ import annotations

import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import PurePath
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, get_args

import click
import xarray as xr

import xr_tensorfmt
from xr_tensorfmt.cli import common, stores
from xr_tensorfmt.datasets.groups import collect_members, flatten_tree
from xr_tensorfmt.errors import did_you_mean
from xr_tensorfmt.formats import registry
from xr_tensorfmt.sources import is_url
from xr_tensorfmt.sources.locations import Location, exists, locate
from xr_tensorfmt.writing.checked_input import DroppablePart
from xr_tensorfmt.writing.encoding import resolve_encoding

_PART = click.Choice(get_args(DroppablePart))


def _parse_parts(_: object, __: object, values: Sequence[str]) -> tuple[str, ...]:
    """Parse parts that are separated by commas."""
    parts = chain.from_iterable(value.split(",") for value in values)
    return tuple(_PART.convert(part, None, None) for part in parts)


def _parse_dtype(value: str) -> tuple[str | None, str]:
    """Parse ``DTYPE`` or ``NAME=DTYPE``; names may contain equals signs."""
    key, equals, dtype = value.rpartition("=")
    if not dtype or (equals and not key):
        raise click.BadParameter(f"{value!r} is neither DTYPE nor NAME=DTYPE, such as w=float32")
    return key or None, dtype


@click.command(
    epilog=common.format_examples(
        "convert model.mag model.zarr",
        "convert vertex.bin vertex.mag --dtype float32",
        "convert vertex.tens vertex.npy --drop name,dims",
        "convert vertices/ converted/ --to zarr",
    ),
)
@click.argument("sources", metavar="IN...", nargs=-1, required=True, type=click.Path())
@click.argument("target", metavar="OUT", type=click.Path())
@common.format_option(
    "--from", "from_", names=(*registry.list_names(), *common.STORES), help="Format of IN"
)
@common.format_option(
    "--to",
    names=(*registry.list_names(writable=True), *common.STORES),
    help="Format of OUT; the default depends on its suffix",
)
@click.option("--overwrite", is_flag=True, help="Overwrite OUT, as mode='w' does in Python.")
@click.option("--variable", "-v", help="Only this variable.")
@common.add_group_options
@click.option("--name", help="Rename the only variable.")
@common.dims_option
@click.option(
    "--dtype",
    "dtypes",
    metavar="[NAME=]DTYPE",
    multiple=True,
    type=_parse_dtype,
    help="Data type in OUT, with rounding, as encoding= in Python. NAME can be a pattern such as "
    "'layers.*'. A pattern, or no NAME, applies to variables of the same kind, such as "
    "floating-point variables for float16. Repeatable.",
)
@click.option(
    "--drop",
    metavar="PART,...",
    multiple=True,
    callback=_parse_parts,
    help="Omit parts that OUT does not support, instead of an error: name, dims, coords or attrs. "
    "For zarr and netCDF, attrs omits all attributes. Repeatable.",
)
@click.option(
    "--option",
    "-o",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    type=common.parse_key_json,
    help="An option of the format of OUT, such as version=0.9. Values may be JSON. Repeatable.",
)
@click.option(
    "--open-option",
    "open_options",
    metavar="KEY=VALUE",
    multiple=True,
    type=common.parse_key_json,
    help="An option of the format of IN, such as text_errors=surrogateescape. Repeatable.",
)
@click.option(
    "--tree",
    is_flag=True,
    help="Write zarr or netCDF with groups from parts of names, as in xarray.open_datatree.",
)
@common.sparse_option
@click.option("--apply-unit", is_flag=True, help="Convert values to atomic units.")
@common.storage_option
@common.verify_option
@click.option("--quiet", "-q", is_flag=True, help="Do not show a bar.")
def convert(sources: tuple[str, ...], target: str, **options: Any) -> None:
    """Convert files between tensor formats, zarr and netCDF.

    IN may be - for standard input, and OUT may be - for standard output. If IN is a directory, all
    tensor files in it are converted. If OUT is a directory, files keep their names, with the suffix
    of the format --to.
    """
    storage_options = options["storage_options"]
    sources = tuple(common.expand_paths(sources, storage_options, options["from_"]))
    if target == common.STANDARD_STREAM:
        _convert_to_stdout(sources, **options)
        return
    failed = 0
    targets = _find_targets(sources, target, options["to"], storage_options)
    for source, path in zip(sources, targets, strict=True):
        try:
            _convert_file(source, path, **options)
        except click.ClickException as error:
            failed += 1
            error.show()
    if failed and len(sources) > 1:
        common.print_summary(len(sources), failed)
    raise SystemExit(int(failed > 0))


def _convert_to_stdout(sources: Sequence[str], *, to: str | None, **options: Any) -> None:
    """Convert a file to a temporary file, and copy that to standard output."""
    if to is None or len(sources) != 1:
        raise click.UsageError("standard output needs one IN, and the format as --to")
    if sys.stdout.isatty():
        raise click.UsageError("a terminal cannot show the bytes; redirect standard output")
    with TemporaryDirectory() as directory:
        path = os.path.join(directory, f"stdout{_find_suffix(to)}")
        _convert_file(sources[0], path, to=to, **options)
        if os.listdir(directory) != [os.path.basename(path)] or os.path.isdir(path):
            raise click.ClickException(f"{to} needs several files; pass a path instead of -")
        with open(path, "rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)


def _find_suffix(to: str) -> str:
    return {common.ZARR: ".zarr", common.NETCDF: ".nc"}.get(to) or registry.find_format(
        to
    ).suffixes[0]


def _find_targets(
    sources: Sequence[str], target: str, to: str | None, storage_options: common.KeyValues
) -> list[str]:
    """Return the target of every file: OUT, or a file in the directory OUT."""
    is_store = common.get_store_format(target) is not None
    has_slash = target.endswith(("/", os.sep))
    # With one IN, a directory without a suffix may be the zarr store to replace.
    is_directory = has_slash or (to != common.ZARR and os.path.isdir(target))
    if len(sources) == 1 and (is_store or not is_directory):
        return [target]
    if is_store or not (has_slash or os.path.isdir(target)):
        raise click.UsageError(
            f"{len(sources)} files need a directory as OUT; pass one, or append '/' to create it, "
            f"as in '{target.rstrip('/')}/'"
        )
    if to is None:
        raise click.UsageError("OUT is a directory, which has no suffix; pass the format as --to")
    suffix = _find_suffix(to)
    origins: dict[str, str] = {}
    for source in sources:
        url_options = common.get_storage_options(source, storage_options)
        path = (
            "stdin" if source == common.STANDARD_STREAM else locate(source, url_options, None).path
        )
        name = os.path.splitext(os.path.basename(path.rstrip("/")))[0] + suffix
        if name in origins:
            raise click.UsageError(
                f"{origins[name]} and {source} would both become {name}; convert them separately"
            )
        origins[name] = source
    if not is_url(target):
        with common.errors_in_one_line(target):
            os.makedirs(target, exist_ok=True)
    return [os.path.join(target, name) for name in origins]


def _convert_file(
    source: str,
    target: str,
    *,
    to: str | None,
    drop: tuple[DroppablePart, ...],
    storage_options: common.KeyValues,
    overwrite: bool,
    options: common.KeyValues,
    quiet: bool,
    **reading: Any,
) -> None:
    """Convert one file, with a progress bar if stderr is a terminal."""
    from tqdm.dask import TqdmCallback  # noqa: PLC0415  # imports dask

    with common.errors_in_one_line(target):
        if to is None:
            to = (
                common.get_store_format(target)
                or registry.find_format_for_path(target, common.STORE_SUFFIXES).name
            )
    with common.errors_in_one_line(source), common.open_argument(source) as content:
        data, encoding = _open_selected(
            source, content, to, drop=drop, storage_options=storage_options, **reading
        )
        with common.errors_in_one_line(target, source):
            location = _locate_target(source, target, storage_options, overwrite=overwrite)
            name = os.path.basename(common.to_one_line(target).rstrip("/"))
            writing: dict[str, Any] = {"encoding": encoding, "drop": drop, "overwrite": overwrite}
            writing["storage_options"] = common.get_storage_options(target, storage_options)
            # Without a terminal, None disables the bar. A conversion may compute several times.
            disable = True if quiet else None
            with TqdmCallback(desc=name, unit=" tasks", disable=disable, leave=False):
                if to not in common.STORES:
                    _write_tensors(data, target, to, options, **writing)
                elif options:
                    raise ValueError(f"--option is only for tensor formats, and {target} is {to}")
                else:
                    stores.write_store(data, target, location, to, **writing)


def _open_selected(
    source: str,
    content: str | BinaryIO,
    to: str,
    *,
    from_: str | None,
    variable: str | None,
    name: str | None,
    dims: list[str] | None,
    dtypes: tuple[tuple[str | None, str], ...],
    separator: str,
    drop: tuple[DroppablePart, ...],
    open_options: common.KeyValues,
    **reading: Any,
) -> tuple[stores.OpenedData, dict[Any, Any]]:
    """Return the data to write and their encoding, for a store with groups if possible."""
    reading |= dict(open_options)
    if "attrs" not in drop:  # otherwise packed values would lose their meaning
        reading |= stores.STORED_VALUES
    data = stores.open_input(source, content, from_, separator=separator, chunks={}, **reading)
    keeps_groups = to in common.STORES and not (variable or name or dims)
    ds = flatten_tree(source, data, separator, ("attrs",) if keeps_groups else drop)
    ds = stores.select_variable(ds, variable, dims, name)
    encoding: dict[Any, Any] = {}
    for key, dtype in dtypes:
        encoding |= {"dtype": dtype} if key is None else {key: {"dtype": dtype}}
    encoding = resolve_encoding(ds.variables, ds.coords, encoding)
    if not (keeps_groups and isinstance(data, xr.DataTree)):
        return ds, encoding
    groups: dict[str, dict[Any, Any]] = defaultdict(dict)
    for member in collect_members(data, separator):
        if member.key in encoding:
            groups[member.path][member.name] = encoding[member.key]
    return data, groups


def _locate_target(
    source: str, target: str, storage_options: common.KeyValues, *, overwrite: bool
) -> Location:
    """Raise an error if the target is, contains or is inside the input, or exists."""
    origin, location = (_resolve(file, storage_options) for file in (source, target))
    # A PurePath accepts both separators of Windows.
    read, written = PurePath(origin.path), PurePath(location.path)
    is_inside, contains = written.is_relative_to(read), read.is_relative_to(written)
    if type(origin.fs) is type(location.fs) and (is_inside or contains):
        relation = "is" if read == written else "is inside" if is_inside else "contains"
        raise ValueError(f"{target} {relation} the input {source}; choose another target")
    location.fs.invalidate_cache()
    if not overwrite and exists(location.fs, location.path):
        raise FileExistsError(f"{target} exists already; pass --overwrite to replace it")
    return location


def _resolve(file: str, storage_options: common.KeyValues) -> Location:
    """Locate a file, with resolved links."""
    location = locate(file, common.get_storage_options(file, storage_options), None)
    path = os.path.realpath(location.path) if location.is_local else location.path
    return replace(location, path=path)


def _write_tensors(
    data: stores.OpenedData,
    target: str,
    to: str,
    pairs: common.KeyValues,
    *,
    overwrite: bool,
    **writing: Any,
) -> None:
    """Write a tensor file. Raise ValueError if a key of --option is not an option of the format."""
    options, writer = dict(pairs), registry.find_format(to)
    for key in options.keys() - writer.write_options.keys():
        known = ", ".join(
            f"{name}={'|'.join(option.choices) or 'VALUE'}: {option.description}"
            for name, option in writer.write_options.items()
        )
        hint = did_you_mean(key, writer.write_options)
        raise ValueError(
            f"{key!r}{hint} is not an --option of {writer.title} files, expected {known or 'none'}"
        )
    xr_tensorfmt.to_file(data, target, to, mode="w" if overwrite else "x", **writing, **options)
