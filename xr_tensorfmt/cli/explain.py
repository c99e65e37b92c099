"""``xr-tensorfmt explain``: what a read would fetch."""

from __future__ import annotations

import re
from typing import Any

import click

from xr_tensorfmt.cli.messages import errors_in_one_line, printable
from xr_tensorfmt.cli.options import (
    dims_option,
    options_for,
    pairs,
    source_options,
    sparse_option,
    verify_option,
)


@click.command(short_help="Say what a read would fetch.")
@click.argument("file")
@click.option(
    "--select",
    "-s",
    "selection",
    metavar="DIM=INDEX",
    multiple=True,
    callback=pairs,
    help="What would be read: DIM=3, DIM=0:10, DIM=0:10:2 or DIM=1,5,7. Repeatable.",
)
@click.option("--variable", "-v", help="Only this variable.")
@dims_option
@sparse_option
@source_options
@verify_option
def explain(
    file: str,
    selection: dict[str, str],
    variable: str | None,
    dims: tuple[str, ...] | None,
    storage_options: dict[str, Any],
    **options: Any,
) -> None:
    """Say what reading a file, or a part of it, would fetch: chunks, ranges, requests, bytes.

    No values are read.
    """
    indexers = {dim: _indexer(index) for dim, index in selection.items()}
    with errors_in_one_line(file):
        from xr_tensorfmt.cli.conversion import open_tensors, part_of  # noqa: PLC0415

        ds = open_tensors(file, storage_options=options_for(file, storage_options), **options)
        ds = part_of(ds, file, variable=variable, dims=dims)
        for line in repr(ds.tensorfmt.explain(indexers)).split("\n"):
            click.echo(printable(line))


def _indexer(index: str) -> int | slice | list[int]:
    if re.fullmatch(r"-?\d+", index):
        return int(index)
    if re.fullmatch(r"-?\d+(,-?\d+)+", index):
        return [int(part) for part in index.split(",")]
    if re.fullmatch(r"(-?\d+)?(:(-?\d+)?){1,2}", index):
        return slice(*(int(part) if part else None for part in index.split(":")))
    raise click.BadParameter(
        f"{index!r} is none of 3, 0:10, 0:10:2 and 1,5,7", param_hint="'--select'"
    )
