"""Common options of commands, and the syntax of their values."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import click

from xr_tensorfmt.cli.messages import errors_in_one_line
from xr_tensorfmt.core.file_format import Option
from xr_tensorfmt.formats import recognition, registry
from xr_tensorfmt.sources import find_matches, is_url

Function = TypeVar("Function", bound=Callable[..., Any])

KeyValues = tuple[tuple[str, Any], ...]
"""The values of a repeatable option ``KEY=VALUE``."""

STORES = ZARR, NETCDF = "zarr", "netcdf"

STORED_VALUES: dict[str, Any] = {
    "mask_and_scale": False,
    "decode_times": False,
    "decode_timedelta": False,
}
"""Keywords to open values as they are in the file."""

STORE_SUFFIXES = {".zarr": ZARR, **dict.fromkeys((".nc", ".nc4", ".cdf", ".h5", ".hdf5"), NETCDF)}


def store_format(file: str) -> str | None:
    """Return "zarr" or "netcdf" if a name has such a suffix."""
    return STORE_SUFFIXES.get(os.path.splitext(file.rstrip("/").casefold())[1])


def format_examples(*lines: str) -> str:
    """Format examples for the end of ``--help``, one per line."""
    return "\n".join(("\b", "Examples:", *(f"  xr-tensorfmt {line}" for line in lines)))


def format_option(*flags: str, names: Collection[str], help: str) -> Callable[[Function], Function]:
    """Create an option for the name of a format."""
    return click.option(
        *flags,
        type=click.Choice(names),
        metavar="FORMAT",
        help=f"{help} ({', '.join(names)})",
    )


def describe_options(options: Mapping[str, Option]) -> Iterator[tuple[str, str]]:
    """Yield the name with the allowed values, and the description, of every option of a format."""
    for name, option in options.items():
        values = "|".join(option.choices) or "VALUE"
        yield f"{name}={values}", option.description


def parse_key_value(pair: str) -> tuple[str, str]:
    """Parse a value of the form ``KEY=VALUE``."""
    key, equals, value = pair.partition("=")
    if not (equals and key):
        # The pair may be secret.
        raise click.BadParameter("the value must have the form KEY=VALUE")
    return key, value


def parse_key_json(pair: str) -> tuple[str, Any]:
    """Parse ``KEY=VALUE``. The value may be JSON or any string."""
    key, value = parse_key_value(pair)
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def parse_key_dtype(value: str) -> tuple[str | None, str]:
    """Parse ``DTYPE`` or ``NAME=DTYPE``; names may contain equals signs."""
    key, equals, dtype = value.rpartition("=")
    if not dtype or (equals and not key):
        raise click.BadParameter(f"{value!r} is neither DTYPE nor NAME=DTYPE, such as w=float32")
    return key or None, dtype


storage_option = click.option(
    "--storage-option",
    "storage_options",
    metavar="KEY=VALUE",
    multiple=True,
    type=parse_key_json,
    help="Option of the fsspec file system of a URL, such as anon=true. "
    "Values may be JSON. Repeatable.",
)

dims_option = click.option(
    "--dims",
    type=lambda names: names.split(","),
    metavar="A,B,C",
    help="Dimension names of the only variable.",
)

sparse_option = click.option(
    "--sparse",
    type=click.Choice(("auto", "dense", "stored")),
    default="auto",
    help="Read all elements of a sparse file, or only the stored ones.",
)

verify_option = click.option(
    "--no-verify",
    "verify",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Ignore wrong checksums and trailing bytes.",
)


def add_source_options(function: Function) -> Function:
    """Add options for the format and storage of a file."""
    text = "Format of the files; the default depends on their content or suffix"
    from_option = format_option("--from", "format", names=registry.list_names(), help=text)
    return from_option(storage_option(function))


def get_storage_options(file: str, storage_options: KeyValues) -> dict[str, Any] | None:
    """Return the storage options if a file is a URL."""
    return (dict(storage_options) or None) if is_url(file) else None


def expand_paths(
    paths: Iterable[str], storage_options: KeyValues, format: str | None = None
) -> Iterator[str]:
    """Replace directories by their files unless `format` is a store, and patterns by matches."""
    for path in paths:
        with errors_in_one_line(path):
            files = find_matches(path, get_storage_options(path, storage_options))
            if files == [path] and format not in STORES:
                files = list_files(path, storage_options)
        yield from files or [path]


def list_files(path: str, storage_options: KeyValues) -> list[str]:
    """Return the tensor files in a directory. A directory with an index opens as a whole."""
    is_directory = path.endswith("/") if is_url(path) else os.path.isdir(path)
    if not is_directory or store_format(path):
        return []
    return recognition.list_files(path, get_storage_options(path, storage_options), None)


def group_options(function: Function) -> Function:
    """Add options that select a group of variables."""
    group = click.option(
        "--group", help="Only the variables of a group, such as layers.0 or /layers/0."
    )
    separator = click.option(
        "--separator", default=".", show_default=True, help="Separator of name parts."
    )
    return group(separator(function))
