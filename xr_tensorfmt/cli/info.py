"""``xr-tensorfmt info``: what a file is and what it holds, from its header."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isfinite, prod
from typing import Any, BinaryIO

import click
import numpy as np

from xr_tensorfmt import formats
from xr_tensorfmt.cli.messages import one_line, printable, sentence
from xr_tensorfmt.cli.options import (
    Pairs,
    group_options,
    options_for,
    source_options,
    store_format,
    verify_option,
)
from xr_tensorfmt.cli.standard_input import input_of, shown
from xr_tensorfmt.core.chunk_grid import PAGE, TARGET
from xr_tensorfmt.core.container import Tensor
from xr_tensorfmt.core.elements import StoredDtype
from xr_tensorfmt.core.extents import format_size
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.views import InMemory
from xr_tensorfmt.datasets.groups import branch
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.sources import find_source

_MOST_CHARACTERS = 72


@click.command(short_help="Say what files are and hold.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="A JSON list with one object per file.")
@group_options
@source_options
@verify_option
def info(
    files: tuple[str, ...],
    as_json: bool,
    group: str | None,
    separator: str,
    format: str | None,
    storage_options: Pairs,
    verify: bool,
) -> None:
    """Say what files are: format, dimensions, variables, attributes, offsets."""
    documents: list[dict[str, Any]] = []
    for file in files:
        try:
            options, part = options_for(file, storage_options), (group, separator)
            with input_of(file) as content:
                document = describe(content, format, options, verify=verify, part=part)
        except Exception as error:  # noqa: BLE001  # one file must not keep the others back
            document = {"path": one_line(shown(file)), "error": sentence(error, file)}
            click.echo(f"Error: {document['error']}", err=True)
        else:
            if not as_json:
                click.echo(("\n" if documents else "") + _formatted(document))
        documents.append(document)
    if as_json:
        click.echo(json.dumps(documents, indent=2, ensure_ascii=False))
    raise SystemExit(int(any("error" in document for document in documents)))


def describe(
    file: str | BinaryIO,
    format: str | None,
    storage_options: Mapping[str, Any] | None,
    *,
    verify: bool,
    part: tuple[str | None, str],
) -> dict[str, Any]:
    """Read a header into an object that JSON can represent; `part` is a group and a separator."""
    if format is None and isinstance(file, str) and store_format(file):
        raise ValueError(f"{file}: only convert takes zarr and netCDF; use ncdump -h, or xarray")
    source, head = find_source(file, storage_options=storage_options)
    reader = HeaderReader(source, head)
    chosen = formats.choose(reader, format)
    # The options of the check also open tensors that nobody could load as a whole.
    options = replace(chosen.check_options, verify=verify, errors="strict")
    container = formats.read(reader, chosen, options)
    below = branch(container, *part)
    container = replace(container, tensors=below.tensors, coordinates=below.coordinates)
    tensors = (*container.tensors, *container.coordinates)
    # Facts about the file are those of its only variable where there is one.
    encodings = (container.encoding, *(tensor.encoding for tensor in container.tensors))
    facts: Any = next((e["tensorfmt"] for e in encodings if "tensorfmt" in e), {})
    in_this_file = not container.siblings
    return {
        "path": source.name,
        "size": source.size,
        "format": container.format,
        "version": plain(facts.get("version")),
        "container": facts.get("container"),
        "dims": {
            dim: length
            for tensor in tensors
            for dim, length in zip(tensor.dims, tensor.layout.shape, strict=True)
        },
        "variables": {t.name: _described(t, in_this_file) for t in container.tensors},
        "coordinates": {t.name: _described(t, in_this_file) for t in container.coordinates},
        "totals": {
            "tensors": len(container.tensors),
            "parameters": sum(prod(t.layout.shape) for t in container.tensors),
            "size": sum(map(_size, container.tensors)),
        },
        "attrs": plain(container.attrs),
        "facts": plain(container.encoding.get("tensorfmt", {})),
        "embedded_metadata": container.embedded is not None,
        "files": [sibling.name for sibling in container.siblings],
        "warnings": [finding.sentence for finding in container.findings],
    }


def _described(tensor: Tensor, in_this_file: bool) -> dict[str, Any]:
    layout, facts = tensor.layout, tensor.encoding.get("tensorfmt", {})
    is_stored = not (layout.stored is None or isinstance(layout.stored, InMemory))
    offset = facts.get("offset") if in_this_file and is_stored else None
    chunk = layout.chunk_shape(TARGET)
    counts = (-(-n // max(1, step)) for n, step in zip(layout.shape, chunk, strict=True))
    return {
        "dims": list(tensor.dims),
        "shape": list(layout.shape),
        "dtype": _dtype_name(layout.dtype),
        "stored": _dtype_name(tensor.encoding.get("dtype", layout.dtype)),
        "size": _size(tensor),
        "offset": offset,
        "on_page": None if offset is None else offset % PAGE == 0,
        "chunk": list(chunk),
        "chunks": prod(counts),
        "attrs": plain(tensor.attrs),
        "facts": plain(facts),
    }


def _size(tensor: Tensor) -> int:
    """Bytes of the values in memory."""
    return prod(tensor.layout.shape) * tensor.layout.dtype.itemsize


def _dtype_name(dtype: np.dtype[Any] | StoredDtype) -> str:
    """The name of a dtype, with the byte order where it is big-endian."""
    if isinstance(dtype, StoredDtype):
        return dtype.name
    if dtype.kind in "OUT":
        return "str"
    return f"{dtype.name}, big-endian" if dtype.str.startswith(">") else dtype.name


def plain(value: Any) -> Any:
    """A value as JSON can represent it, for reading and not for getting it back."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    is_number = isinstance(value, float) and isfinite(value)
    return value if is_number or isinstance(value, bool | int | str | None) else str(value)


def _formatted(document: Mapping[str, Any]) -> str:
    """A description, for a terminal."""
    title = formats.by_name(document["format"]).title
    words = (title, document["container"], document["version"])
    kind = " ".join(str(word) for word in words if word is not None)
    embedded = ", with metadata by xr_tensorfmt" if document["embedded_metadata"] else ""
    lines = [f"{document['path']}: {kind}, {format_size(document['size'])}{embedded}"]
    for heading, content in (
        ("Coordinates", _variables(document["coordinates"])),
        ("Variables", _variables(document["variables"])),
        ("Total", _totals(document["totals"])),
        ("Attributes", _attributes(document["attrs"], "  ")),
        ("Other files", (f"  {file}" for file in document["files"])),
        ("Warnings", (f"  {warning}" for warning in document["warnings"])),
    ):
        block = list(content)
        lines += [f"{heading}:", *block] if block else []
    return "\n".join(map(printable, lines))


def _variables(variables: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A line for each variable, in columns, and below it its attributes."""
    rows = [_cells(name, facts) for name, facts in variables.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, facts in zip(rows, variables.values(), strict=True):
        yield "  " + "  ".join(map(str.ljust, row, widths)).rstrip()
        yield from _attributes(facts["attrs"], "      ")


def _totals(totals: Mapping[str, int]) -> Iterator[str]:
    """A line about all variables, where there are several."""
    if totals["tensors"] > 1:
        yield (
            f"  {totals['tensors']} tensors, {totals['parameters']:,} parameters, "
            f"{format_size(totals['size'])}"
        )


def _cells(name: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    stored = facts["stored"].removeprefix(f"{facts['dtype']}, ")
    dims = (
        str(length) if dim.startswith(f"{name}_dim_") else f"{dim}: {length}"
        for dim, length in zip(facts["dims"], facts["shape"], strict=True)
    )
    place = "" if facts["offset"] is None else f"at byte {facts['offset']}"
    chunk = " x ".join(map(str, facts["chunk"]))
    return (
        shorten(name, _MOST_CHARACTERS),
        f"({', '.join(dims)})",
        facts["dtype"] + (f" ({stored})" if stored != facts["dtype"] else ""),
        format_size(facts["size"]),
        f"{place}{', on a page' if facts['on_page'] else ''}",
        f"{facts['chunks']} chunks of {chunk}" if facts["chunks"] > 1 else "",
    )


def _attributes(attrs: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in attrs.items():
        line = " ".join(str(value).split())
        yield f"{indent}{shorten(name, 40)}: {shorten(line, _MOST_CHARACTERS)}"
