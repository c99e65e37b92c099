"""``xr-tensorfmt info``: what a file is and what it holds, from its header."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from xr_tensorfmt import formats
from xr_tensorfmt.cli.description import describe
from xr_tensorfmt.cli.messages import one_line, printable, sentence
from xr_tensorfmt.cli.options import options_for, source_options, verify_option
from xr_tensorfmt.core.extents import size_in_words
from xr_tensorfmt.errors import shortened

_MOST_CHARACTERS = 72


@click.command(short_help="Say what files are and hold.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="A JSON list with one object per file.")
@source_options
@verify_option
def info(
    files: tuple[str, ...],
    as_json: bool,
    format: str | None,
    storage_options: dict[str, Any],
    verify: bool,
) -> None:
    """Say what files are: format, dimensions, variables, attributes, offsets."""
    documents: list[dict[str, Any]] = []
    for file in files:
        try:
            document = describe(file, format, options_for(file, storage_options), verify=verify)
        except Exception as error:  # noqa: BLE001  # one file must not keep the others back
            document = {"path": one_line(file), "error": sentence(error, file)}
            click.echo(f"Error: {document['error']}", err=True)
        else:
            if not as_json:
                click.echo(("\n" if documents else "") + _formatted(document))
        documents.append(document)
    if as_json:
        click.echo(json.dumps(documents, indent=2, ensure_ascii=False))
    raise SystemExit(int(any("error" in document for document in documents)))


def _formatted(document: Mapping[str, Any]) -> str:
    """A description, for a terminal."""
    title = formats.by_name(document["format"]).title
    words = (title, document["container"], document["version"])
    kind = " ".join(str(word) for word in words if word is not None)
    embedded = ", with metadata by xr_tensorfmt" if document["embedded_metadata"] else ""
    lines = [f"{document['path']}: {kind}, {size_in_words(document['size'])}{embedded}"]
    dims = _dims(document)
    lines += [f"Dimensions: {dims}"] if dims else []
    for heading, content in (
        ("Coordinates", _variables(document["coordinates"])),
        ("Variables", _variables(document["variables"])),
        ("Attributes", _attributes(document["attrs"], "  ")),
        ("Other files", (f"  {file}" for file in document["files"])),
        ("Warnings", (f"  {warning}" for warning in document["warnings"])),
    ):
        block = list(content)
        lines += [f"{heading}:", *block] if block else []
    return "\n".join(map(printable, lines))


def _dims(document: Mapping[str, Any]) -> str:
    """The dimensions, but for those that are named after the only variable that has them."""
    variables = document["variables"]
    found = (
        f"{dim}: {length}"
        for dim, length in document["dims"].items()
        if dim.rpartition("_dim_")[0] not in variables
    )
    return ", ".join(found)


def _variables(variables: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A line for each variable, in columns, and below it its attributes."""
    rows = [_cells(name, facts) for name, facts in variables.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, facts in zip(rows, variables.values(), strict=True):
        yield "  " + "  ".join(map(str.ljust, row, widths)).rstrip()
        yield from _attributes(facts["attrs"], "      ")


def _cells(name: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    stored = facts["stored"].removeprefix(f"{facts['dtype']}, ")
    dims = (
        str(length) if dim.startswith(f"{name}_dim_") else f"{dim}: {length}"
        for dim, length in zip(facts["dims"], facts["shape"], strict=True)
    )
    place = "" if facts["offset"] is None else f"at byte {facts['offset']}"
    chunk = " x ".join(map(str, facts["chunk"]))
    return (
        shortened(name, _MOST_CHARACTERS),
        f"({', '.join(dims)})",
        facts["dtype"] + (f" ({stored})" if stored != facts["dtype"] else ""),
        size_in_words(facts["size"]),
        f"{place}{', on a page' if facts['on_page'] else ''}",
        f"{facts['chunks']} chunks of {chunk}" if facts["chunks"] > 1 else "",
    )


def _attributes(attrs: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in attrs.items():
        line = " ".join(str(value).split())
        yield f"{indent}{shortened(name, 40)}: {shortened(line, _MOST_CHARACTERS)}"
