"""``xr-tensorfmt convert``: between all formats, and from and to zarr and netCDF."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import click

from xr_tensorfmt.cli.options import (
    dims_option,
    format_option,
    json_pairs,
    sparse_option,
    storage_option,
    verify_option,
)
from xr_tensorfmt.cli.stores import NETCDF, ZARR
from xr_tensorfmt.writing.checked_input import Part


def _dtypes(
    context: click.Context, option: click.Parameter, values: Iterable[str]
) -> dict[str | None, str]:
    """Parse ``NAME=DTYPE``, or a dtype alone; names may contain equals signs."""
    found: dict[str | None, str] = {}
    for value in values:
        name, equals, dtype = value.rpartition("=")
        key = name if equals else None
        if found.setdefault(key, dtype) != dtype:
            message = f"both {found[key]} and {dtype} are asked for"
            raise click.BadParameter(message, context, option)
    return found


@click.command(short_help="Convert to another format, to zarr or netCDF, or from these.")
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@format_option("--from", "from_", more=(ZARR, NETCDF), help="Format of IN")
@format_option("--to", more=(ZARR, NETCDF), help="Format of OUT; by default its suffix decides")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists (mode='w' in messages).")
@click.option("--variable", "-v", help="Only this variable; most formats hold one.")
@click.option("--name", help="A name for the sole variable.")
@dims_option
@click.option(
    "--dtype",
    "dtypes",
    metavar="[NAME=]DTYPE",
    multiple=True,
    callback=_dtypes,
    help="What a variable is stored as, rounded if need be (encoding= in messages). Repeatable.",
)
@click.option(
    "--drop",
    type=click.Choice(get_args(Part)),
    multiple=True,
    help="What may be left out where OUT has no place for it, an error otherwise. Of zarr and "
    "netCDF, attrs leaves out all attributes. Repeatable.",
)
@click.option(
    "--option",
    "-o",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=json_pairs,
    help="A keyword of the format, such as version=0.9; values may be JSON. Repeatable.",
)
@sparse_option
@storage_option
@verify_option
@click.option("--quiet", "-q", is_flag=True, help="No progress bar, which a terminal shows.")
def convert(quiet: bool, **wanted: Any) -> None:
    """Convert a file to another format, to zarr or netCDF, or from these."""
    from xr_tensorfmt.cli.conversion import Conversion  # noqa: PLC0415

    Conversion(**wanted).run(progress=not quiet)
