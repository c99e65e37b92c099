"""``xr-tensorfmt convert``: from any of the formats to any, and from and to zarr and netCDF."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import click

from xr_tensorfmt.cli.failing import one_line
from xr_tensorfmt.cli.kinds import KINDS
from xr_tensorfmt.cli.options import names, pairs, sparse_option, storage_option, verify_option
from xr_tensorfmt.cli.words import without_secrets

_PARTS = ("name", "dims", "coords", "attrs")


def _dtypes(
    context: click.Context, option: click.Parameter, values: Iterable[str]
) -> dict[str | None, str]:
    """``NAME=DTYPE``, or the dtype alone; names may have equals signs themselves."""
    found: dict[str | None, str] = {}
    for value in values:
        name, sign, dtype = value.rpartition("=")
        key = name if sign else None
        if found.setdefault(key, dtype) != dtype:
            raise click.BadParameter(
                f"both {found[key]} and {dtype} are asked for", context, option
            )
    return found


def _parts(
    context: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    parts = [part for value in values for part in names(context, option, value) or ()]
    unknown = next((part for part in parts if part not in _PARTS), None)
    if unknown is not None:
        raise click.BadParameter(f"{unknown!r} is not of {', '.join(_PARTS)}", context, option)
    return tuple(dict.fromkeys(parts))


@click.command(short_help="Convert to another format, to zarr or netCDF, or from these.")
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option("--from", "from_", type=click.Choice(KINDS), help="Format of IN.")
@click.option("--to", type=click.Choice(KINDS), help="Format of OUT; by default its name decides.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it is there.")
@click.option("--variable", "-v", help="Only this variable; most formats hold one.")
@click.option("--name", help="A name for the sole variable.")
@click.option(
    "--dims", callback=names, metavar="A,B,C", help="Names for the dimensions of a sole variable."
)
@click.option(
    "--dtype",
    "dtypes",
    metavar="[NAME=]DTYPE",
    multiple=True,
    callback=_dtypes,
    help="What a variable is stored as; numbers are rounded to it. Repeatable.",
)
@click.option(
    "--drop",
    callback=_parts,
    metavar=",".join(_PARTS),
    multiple=True,
    help="What may be left out where OUT has no place for it, an error otherwise. Repeatable.",
)
@click.option(
    "--option",
    "-o",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=pairs,
    help="A keyword of the format's own function, such as version=0.9 of to_tens. Repeatable.",
)
@sparse_option
@storage_option
@verify_option
@click.option("--progress/--no-progress", default=None, help="A bar; by default on a terminal.")
@click.option("--quiet", "-q", is_flag=True, help="Neither a bar nor notes.")
def convert(progress: bool | None, quiet: bool, **wanted: Any) -> None:
    """Convert a file: between TENS, MAG, PyCauset and Vespa, and from and to zarr and netCDF."""
    if progress is None:
        progress = sys.stderr.isatty()
    with one_line():
        from xr_tensorfmt.cli.converting import Conversion  # noqa: PLC0415

        conversion = Conversion(**wanted)
        conversion.run(progress=progress and not quiet)
        for embedded in () if quiet else conversion.notes:
            click.echo(f"Note: {without_secrets(embedded)}", err=True)
