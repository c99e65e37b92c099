"""``xr-tensorfmt convert``: between all formats, and from and to zarr and netCDF."""

from __future__ import annotations

from typing import Any, get_args

import click

from xr_tensorfmt.cli.options import (
    STORES,
    dims_option,
    format_option,
    group_options,
    key_json,
    sparse_option,
    storage_option,
    verify_option,
)
from xr_tensorfmt.writing.checked_input import Part


@click.command()
@click.argument("sources", metavar="IN...", nargs=-1, required=True, type=click.Path())
@click.argument("target", metavar="OUT", type=click.Path())
@format_option("--from", "from_", more=STORES, help="Format of IN")
@format_option("--to", more=STORES, help="Format of OUT; by default its suffix decides")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists (mode='w' in messages).")
@click.option("--variable", "-v", help="Only this variable; most formats hold one.")
@group_options
@click.option("--name", help="A name for the sole variable.")
@dims_option
@click.option(
    "--dtype",
    "dtypes",
    metavar="[NAME=]DTYPE",
    multiple=True,
    help="What variables are stored as, rounded if necessary (encoding= in messages). NAME can be "
    "a pattern such as 'layers.*'. A pattern, or no NAME, changes the variables of the kind of "
    "DTYPE alone: float16 those of floating-point numbers. Repeatable.",
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
    type=key_json,
    help="A keyword of the format, such as version=0.9; values may be JSON. Repeatable.",
)
@click.option(
    "--tree",
    is_flag=True,
    help="Write zarr or netCDF with a group for each part of a name, as xarray.open_datatree has.",
)
@sparse_option
@storage_option
@verify_option
@click.option("--quiet", "-q", is_flag=True, help="Do not show a progress bar.")
def convert(sources: tuple[str, ...], target: str, **wanted: Any) -> None:
    """Convert files to another format, to zarr or netCDF, or from these.

    IN may be - for standard input. Several files are converted into the directory OUT, under
    their names with the suffix of the format that --to names.
    """
    from xr_tensorfmt.cli.conversion import convert_all  # noqa: PLC0415

    convert_all(sources, target, wanted)
