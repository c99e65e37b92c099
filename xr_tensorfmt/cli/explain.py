"""``xr-tensorfmt explain``: what a read would fetch."""

from __future__ import annotations

import re
from typing import Any

import click

from xr_tensorfmt.cli.failing import one_line
from xr_tensorfmt.cli.options import (
    names,
    pairs,
    reaching,
    source_options,
    sparse_option,
    verify_option,
)
from xr_tensorfmt.cli.words import printable


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
@click.option(
    "--dims", callback=names, metavar="A,B,C", help="Names for the dimensions of a sole variable."
)
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
    indexers = {dim: _indexer(text) for dim, text in selection.items()}
    with one_line(file):
        from xr_tensorfmt.cli.opening import open_tensors, reduced  # noqa: PLC0415

        ds = open_tensors(file, storage_options=reaching(file, storage_options), **options)
        ds = reduced(ds, file, variable=variable, dims=dims)
        lines = repr(ds.tensorfmt.explain(indexers)).split("\n")
        click.echo("\n".join(map(printable, lines)))


def _indexer(text: str) -> int | slice | list[int]:
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?\d+(,-?\d+)+", text):
        return [int(each) for each in text.split(",")]
    if re.fullmatch(r"(-?\d+)?(:(-?\d+)?){1,2}", text):
        return slice(*(int(each) if each else None for each in text.split(":")))
    raise click.BadParameter(
        f"{text!r} is none of 3, 0:10, 0:10:2 and 1,5,7", param_hint="'--select'"
    )
