"""``xr-tensorfmt explain``: show the byte ranges and requests of a read."""

from __future__ import annotations

import re
from typing import Any

import click

import xr_tensorfmt
from xr_tensorfmt.cli.messages import (
    errors_in_one_line,
    open_argument,
    print_json,
    print_lines,
    shown,
)
from xr_tensorfmt.cli.options import (
    Pairs,
    dims_option,
    examples,
    key_value,
    options_for,
    source_options,
    sparse_option,
    verify_option,
)
from xr_tensorfmt.errors import did_you_mean, shorten


def _parse_selection(pair: str) -> tuple[str, int | slice | list[int]]:
    """Parse a value of the form ``DIM=INDEX``."""
    dim, index = key_value(pair)
    if re.fullmatch(r"-?\d+", index):
        return dim, int(index)
    if re.fullmatch(r"-?\d+(,-?\d+)+", index):
        return dim, [int(part) for part in index.split(",")]
    if re.fullmatch(r"(-?\d+)?(:(-?\d+)?){1,2}", index):
        return dim, slice(*(int(part) if part else None for part in index.split(":")))
    raise click.BadParameter(f"{index!r} is not an index such as 3, 0:10, 0:10:2 or 1,5,7")


@click.command(
    epilog=examples("explain vertex.bin", "explain vertex.bin --dims F,q,r -s q=0 -s r=0:10")
)
@click.argument("file", type=click.Path())
@click.option(
    "--select",
    "-s",
    "selection",
    metavar="DIM=INDEX",
    multiple=True,
    type=_parse_selection,
    help="Select DIM=3, DIM=0:10, DIM=0:10:2 or DIM=1,5,7. Repeatable.",
)
@click.option("--variable", "-v", help="Only this variable.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object with ranges and requests.")
@dims_option
@sparse_option
@source_options
@verify_option
def explain(
    file: str,
    selection: Pairs,
    variable: str | None,
    dims: list[str] | None,
    as_json: bool,
    storage_options: Pairs,
    **options: Any,
) -> None:
    """Show what reading a file, or a part of it, would fetch: chunks, ranges, requests, bytes.

    Values are not read.
    """
    with errors_in_one_line(file), open_argument(file) as content:
        from xr_tensorfmt.cli.files import open_tensors, select_variable  # noqa: PLC0415

        storage = options_for(file, storage_options)
        ds = open_tensors(content, chunks={}, storage_options=storage, **options)
        ds = select_variable(ds, variable, dims)
        for dim, _ in selection:
            if dim not in ds.dims:
                names = shorten(", ".join(map(repr, ds.dims))) or "none"
                hint = did_you_mean(dim, ds.dims)
                raise ValueError(f"there is no dimension {dim!r}{hint}, expected one of: {names}")
        explanation = xr_tensorfmt.explain(ds, dict(selection))
    if as_json:
        print_json({"path": shown(file), **explanation.to_dict()})
    else:
        print_lines(repr(explanation).split("\n"))
