"""``xr-tensorfmt info``: what a file is and what it holds, from its header."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isfinite, prod
from typing import Any, BinaryIO

import click
import numpy as np

from xr_tensorfmt import formats
from xr_tensorfmt.cli.messages import described
from xr_tensorfmt.cli.options import (
    Pairs,
    group_options,
    options_for,
    source_options,
    store_format,
    verify_option,
)
from xr_tensorfmt.core.chunk_grid import DEFAULT_CHUNK_BYTES, PAGE, count_chunks
from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.elements import StoredDtype
from xr_tensorfmt.core.extents import format_size
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets.groups import select_group
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.sources import find_source

_MAX_CHARACTERS = 72


@click.command()
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

    def describe(file: str, content: str | BinaryIO) -> dict[str, Any]:
        if format is None and store_format(file):
            raise ValueError(
                f"{file}: only convert and diff take zarr and netCDF; use ncdump -h, or xarray"
            )
        source, head = find_source(content, storage_options=options_for(file, storage_options))
        reader = HeaderReader(source, head)
        chosen = formats.choose(reader, format)
        # The options of the check also open tensors that nobody could load as a whole.
        options = replace(chosen.check_options, verify=verify, text_errors="strict")
        container = formats.read(reader, chosen, options)
        below = select_group(container, group, separator)
        container = replace(container, tensors=below.tensors, coordinates=below.coordinates)
        return _document(source, container, chosen.name)

    documents = described(files, describe, _lines, as_json=as_json, apart=True)
    raise SystemExit(int(any("error" in document for document in documents)))


def _document(source: Source, container: Container, format: str) -> dict[str, Any]:
    """What JSON can represent of a header."""
    # Facts about the file are those of its only variable where there is one.
    encodings = (container.encoding, *(tensor.encoding for tensor in container.tensors))
    facts: Any = next((e["tensorfmt"] for e in encodings if "tensorfmt" in e), {})
    own = not container.siblings
    variables = {each.name: _described(each, own) for each in container.tensors}
    coordinates = {each.name: _described(each, own) for each in container.coordinates}
    return {
        "path": source.name,
        "size": source.size,
        "format": format,
        "version": plain(facts.get("version")),
        "container": facts.get("container"),
        "dims": {
            dim: length
            for each in (variables | coordinates).values()
            for dim, length in zip(each["dims"], each["shape"], strict=True)
        },
        "variables": variables,
        "coordinates": coordinates,
        "totals": {
            "tensors": len(variables),
            "parameters": sum(prod(each["shape"]) for each in variables.values()),
            "size": sum(each["size"] for each in variables.values()),
        },
        "attrs": plain(container.attrs),
        "facts": plain(container.encoding.get("tensorfmt", {})),
        "embedded_metadata": container.embedded is not None,
        "files": [sibling.name for sibling in container.siblings],
        "warnings": [finding.sentence for finding in container.findings],
    }


def _described(tensor: Tensor, in_this_file: bool) -> dict[str, Any]:
    """What JSON can represent of a tensor."""
    layout, facts = tensor.layout, tensor.encoding.get("tensorfmt", {})
    offset = facts.get("offset") if in_this_file else None
    chunk = layout.chunk_shape(DEFAULT_CHUNK_BYTES)
    return {
        "dims": list(tensor.dims),
        "shape": list(layout.shape),
        "dtype": dtype_name(layout.dtype),
        "stored": dtype_name(tensor.encoding.get("dtype", layout.dtype)),
        "size": prod(layout.shape) * layout.dtype.itemsize,
        "offset": offset,
        "on_page": None if offset is None else offset % PAGE == 0,
        "chunk": list(chunk),
        "chunks": count_chunks(layout.shape, chunk),
        "attrs": plain(tensor.attrs),
        "facts": plain(facts),
    }


def dtype_name(dtype: np.dtype[Any] | StoredDtype) -> str:
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


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    """A description, for a terminal."""
    title = formats.find_format(document["format"]).title
    words = (title, document["container"], document["version"])
    kind = " ".join(str(word) for word in words if word is not None)
    embedded = ", with metadata by xr_tensorfmt" if document["embedded_metadata"] else ""
    yield f"{document['path']}: {kind}, {format_size(document['size'])}{embedded}"
    totals = document["totals"]
    counts = f"{totals['tensors']} tensors, {totals['parameters']:,} parameters"
    total = f"  {counts}, {format_size(totals['size'])}"
    for heading, content in (
        ("Coordinates", _variables(document["coordinates"])),
        ("Variables", _variables(document["variables"])),
        ("Total", [total] if totals["tensors"] > 1 else ()),
        ("Attributes", _attributes(document["attrs"], "  ")),
        ("Other files", (f"  {file}" for file in document["files"])),
        ("Warnings", (f"  {warning}" for warning in document["warnings"])),
    ):
        block = list(content)
        yield from [f"{heading}:", *block] if block else []


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
        shorten(name, _MAX_CHARACTERS),
        f"({', '.join(dims)})",
        facts["dtype"] + (f" ({stored})" if stored != facts["dtype"] else ""),
        format_size(facts["size"]),
        f"{place}{', on a page' if facts['on_page'] else ''}",
        f"{facts['chunks']} chunks of {chunk}" if facts["chunks"] > 1 else "",
    )


def _attributes(attrs: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in attrs.items():
        line = " ".join(str(value).split())
        yield f"{indent}{shorten(name, 40)}: {shorten(line, _MAX_CHARACTERS)}"
