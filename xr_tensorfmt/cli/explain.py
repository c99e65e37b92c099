"""``xr-tensorfmt explain``: show the byte ranges and requests of a read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import click
import xarray as xr

import xr_tensorfmt
from xr_tensorfmt.cli.files import select_variable
from xr_tensorfmt.cli.messages import describe_files
from xr_tensorfmt.cli.options import (
    KeyValues,
    add_source_options,
    dims_option,
    expand_paths,
    format_examples,
    get_storage_options,
    parse_key_value,
    sparse_option,
    verify_option,
)
from xr_tensorfmt.errors import did_you_mean, shorten


def _parse_selection(pair: str) -> tuple[str, int | slice | list[int]]:
    dim, index = parse_key_value(pair)
    if re.fullmatch(r"-?\d+", index):
        return dim, int(index)
    if re.fullmatch(r"-?\d+(,-?\d+)+", index):
        return dim, [int(part) for part in index.split(",")]
    if re.fullmatch(r"(-?\d+)?(:(-?\d+)?){1,2}", index):
        return dim, slice(*(int(part) if part else None for part in index.split(":")))
    raise click.BadParameter(f"{index!r} is not an index such as 3, 0:10, 0:10:2 or 1,5,7")


@click.command(
    epilog=format_examples("explain vertex.bin", "explain vertex.bin --dims F,q,r -s q=0 -s r=0:10")
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
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
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list with ranges and requests.")
@dims_option
@sparse_option
@add_source_options
@verify_option
def explain(
    files: tuple[str, ...],
    selection: KeyValues,
    variable: str | None,
    dims: list[str] | None,
    as_json: bool,
    storage_options: KeyValues,
    **options: Any,
) -> None:
    """Show the byte ranges and requests of a read.

    Several chunks or variables print as a table with a row each. A directory stands for the files
    in it. Values are not read.
    """
    expanded = list(expand_paths(files, storage_options))

    def describe(file: str, content: str | BinaryIO) -> dict[str, Any]:
        options["storage_options"] = get_storage_options(file, storage_options)
        ds = xr.open_dataset(content, engine="tensorfmt", chunks={}, **options)
        ds = select_variable(ds, variable, dims)
        for dim, _ in selection:
            if dim not in ds.dims:
                names = shorten(", ".join(map(repr, ds.dims))) or "none"
                hint = did_you_mean(dim, ds.dims)
                raise ValueError(f"there is no dimension {dim!r}{hint}, expected one of: {names}")
        explanation = xr_tensorfmt.explain(ds, dict(selection))
        return explanation.to_dict() if as_json else {"table": repr(explanation)}

    def lines(document: dict[str, Any]) -> Iterator[str]:
        yield from [f"{document['path']}:"] if len(expanded) > 1 else []
        yield from document["table"].split("\n")

    documents = describe_files(expanded, describe, lines, as_json=as_json, separate=True)
    raise SystemExit(int(any("error" in document for document in documents)))
