"""``xr-tensorfmt info``: describe the header of a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain, repeat
from math import isfinite, prod
from operator import add
from typing import Any, BinaryIO

import click
import numpy as np

from xr_tensorfmt.cli.files import OpenedFile, find_kind, group_rows, list_tensors, read_blocks
from xr_tensorfmt.cli.messages import describe_files
from xr_tensorfmt.cli.options import (
    add_source_options,
    expand_paths,
    format_examples,
    get_storage_options,
    group_options,
    store_format,
    verify_option,
)
from xr_tensorfmt.core.chunk_grid import DEFAULT_CHUNK_BYTES, PAGE, count_chunks
from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.elements import Array, get_stored_name
from xr_tensorfmt.core.extents import format_size
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets.groups import select_group
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.formats import registry
from xr_tensorfmt.formats.recognition import choose_format, open_header, read_container
from xr_tensorfmt.writing.conversion import is_numeric

_MAX_CHARACTERS, _MAX_WIDTH = 72, 80
_DESCRIBED = frozenset({"format", "version", "dtype"})  # keys that are elsewhere in a document
_PLAIN = frozenset({str, int, bool, type(None)})
# Properties of a file that are shown like attributes. --json has all of them.
_SHOWN_PROPERTIES = "matrix_type", "properties", "cached", "symmetries", "skipped_chunks"


@click.command(
    epilog=format_examples("info model.mag", "info --stats vertex.bin", "info s3://bucket/models/")
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list with one object per file.")
@click.option(
    "--stats",
    is_flag=True,
    help="Read all values, and show minimum, maximum, mean, and the numbers of NaN and zeros.",
)
@group_options
@add_source_options
@verify_option
def info(files: tuple[str, ...], as_json: bool, stats: bool, **options: Any) -> None:
    """Describe the format, variables and attributes of files."""
    storage_options = options["storage_options"]

    def describe(file: str, content: str | BinaryIO) -> dict[str, Any]:
        if options["format"] is None and store_format(file):
            raise ValueError(
                f"{file}: only convert and diff support zarr and netCDF; use ncdump -h or xarray"
            )
        reader = open_header(content, storage_options=get_storage_options(file, storage_options))
        file_format = choose_format(reader, options["format"])
        # The options of the check also open tensors that exceed memory.
        lenient = file_format.validation_options
        lenient = replace(lenient, verify=options["verify"], text_errors="strict")
        container = read_container(reader, file_format, lenient)
        selected = select_group(container, options["group"], options["separator"])
        container = replace(container, tensors=selected.tensors, coordinates=selected.coordinates)
        document = _build_document(reader.source, container, file_format.name)
        if stats:
            strict = OpenOptions(verify=options["verify"])
            if lenient != strict:  # a sparse tensor may exceed memory
                container = read_container(reader, file_format, strict)
                container = select_group(container, options["group"], options["separator"])
            described = document["variables"] | document["coordinates"]
            for name, numbers in compute_statistics((reader.source, container)):
                described[name]["stats"] = numbers
        return document

    expanded = expand_paths(files, storage_options)
    documents = describe_files(expanded, describe, _format_lines, as_json=as_json, separate=True)
    raise SystemExit(int(any("error" in document for document in documents)))


def _build_document(source: Source, container: Container, format: str) -> dict[str, Any]:
    # If the file has no encoding, use the encoding of its variable.
    encodings = chain([container.encoding], (tensor.encoding for tensor in container.tensors))
    encoding: Any = next((e["tensorfmt"] for e in encodings if "tensorfmt" in e), {})
    directory = source.name[: source.name.rfind("/") + 1]
    siblings = dict.fromkeys(end.source.name for end in container.ends if end.source is not source)
    variables, coordinates = (
        _describe_tensors(tensors, in_this_file=not siblings)
        for tensors in (container.tensors, container.coordinates)
    )
    described = (variables | coordinates).values()
    dims, shapes = ([variable[key] for variable in described] for key in ("dims", "shape"))
    return {
        "size": source.size,
        "format": format,
        "version": to_plain(encoding.get("version")),
        "container": encoding.get("container"),
        "dims": dict(zip(chain(*dims), chain(*shapes), strict=True)),
        "variables": variables,
        "coordinates": coordinates,
        "totals": {
            "tensors": len(variables),
            "parameters": sum(prod(variable["shape"]) for variable in variables.values()),
            "size": sum(variable["size"] for variable in variables.values()),
        },
        "attrs": to_plain(container.attrs),
        "encoding": to_plain(container.encoding.get("tensorfmt", {})),
        "embedded_metadata": container.embedded is not None,
        # Siblings are in the same directory, or below it.
        "files": [name.removeprefix(directory) for name in siblings],
        "warnings": [finding.sentence for finding in container.findings],
    }


def _describe_tensors(tensors: Iterable[Tensor], *, in_this_file: bool) -> dict[str, Any]:
    layouts, described = dict[Any, dict[str, Any]](), {}
    for tensor in tensors:
        kind, encoding = find_kind(tensor), tensor.encoding.get("tensorfmt", {})
        offset = encoding.get("offset") if in_this_file else None
        if kind not in layouts:  # few, because shapes and dtypes repeat
            layouts[kind] = _describe_layout(tensor.layout, tensor.encoding.get("dtype"))
        described[tensor.name] = layouts[kind] | {
            "dims": tensor.dims,
            "offset": offset,
            "on_page": None if offset is None else offset % PAGE == 0,
            "attrs": to_plain(tensor.attrs),
            "encoding": {x: to_plain(y) for x, y in encoding.items() if x not in _DESCRIBED},
        }
    return described


def _describe_layout(layout: Layout, stored: Any) -> dict[str, Any]:
    chunk = layout.chunk_shape(DEFAULT_CHUNK_BYTES)
    size = prod(layout.shape) * layout.dtype.itemsize
    name = get_stored_name(stored)
    has_other_name = name is not None and name != layout.dtype.name  # such as bfloat16
    if has_other_name and size:  # without bytes, the values are in other files
        size = layout.locate(Selection.everything(layout.shape)).nbytes or size
    return {
        "dims": (),  # in the order of the document
        "shape": layout.shape,
        "dtype": format_dtype(layout.dtype),
        "stored": name if has_other_name else format_dtype(stored or layout.dtype),
        "size": size,
        "chunk": chunk,
        "chunks": count_chunks(layout.shape, chunk),
    }


@cache
def format_dtype(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype, with the byte order if it is big-endian."""
    if dtype.kind in "OUT":
        return "str"
    return f"{dtype.name}, big-endian" if dtype.str.startswith(">") else dtype.name


def to_plain(value: Any) -> Any:
    """Convert a value to JSON for display, with loss."""
    kind = type(value)
    if kind in _PLAIN or (kind is float and isfinite(value)):
        return value
    if isinstance(value, (dict, Mapping)):  # most are a dict
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return to_plain(value.tolist())
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return str(value)


def _format_lines(document: Mapping[str, Any]) -> Iterator[str]:
    title = registry.find_format(document["format"]).title
    words = (title, document["container"], document["version"])
    description = " ".join(str(word) for word in words if word is not None)
    embedded = ", with metadata by xr_tensorfmt" if document["embedded_metadata"] else ""
    yield f"{document['path']}: {description}, {format_size(document['size'])}{embedded}"
    count, parameters, size = document["totals"].values()
    total = f"  {count} tensors, {parameters:,} parameters, {format_size(size)}"
    for heading, content in (
        ("Coordinates", _describe_variables(document["coordinates"])),
        ("Variables", _describe_variables(document["variables"])),
        ("Total", [total] if count > 1 else ()),
        ("Attributes", _format_attributes(document["attrs"], "  ")),
        ("Other files", (f"  {file}" for file in document["files"])),
        ("Warnings", (f"  {warning}" for warning in document["warnings"])),
    ):
        block = list(content)
        yield from [f"{heading}:", *block] if block else []


def _describe_variables(variables: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a row per variable, with long names on lines of their own, and its attributes."""
    rows = [_format_cells(name, variable) for name, variable in variables.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    width = max(map(len, lines), default=0)
    has_own_lines = width > _MAX_WIDTH >= width - widths[0]
    for line, (name, *_), variable in zip(lines, rows, variables.values(), strict=True):
        yield from [f"  {name}", f"    {line[widths[0] + 4 :]}"] if has_own_lines else [line]
        stats = variable.get("stats") or {}
        numbers = (f"{n:.6g}" if isinstance(n, float) else n for n in stats.values())
        shown = ", ".join(map("{} {}".format, stats, numbers))
        yield from [f"      {shown}"] if shown else []
        yield from _format_attributes(variable["attrs"], "      ")
        file_info = variable["encoding"]
        properties = {key: file_info[key] for key in _SHOWN_PROPERTIES if file_info.get(key)}
        yield from _format_attributes(properties, "      ")


def _format_cells(name: str, variable: Mapping[str, Any]) -> tuple[str, ...]:
    dtype, dims = variable["dtype"], list(variable["dims"])
    stored = variable["stored"].removeprefix(f"{dtype}, ")
    axes = range(len(dims))
    has_default_dims = dims in ([f"{name}_dim_{axis}" for axis in axes], [f"dim_{a}" for a in axes])
    sizes = [
        str(length) if has_default_dims else f"{dim}: {length}"
        for dim, length in zip(dims, variable["shape"], strict=True)
    ]
    offset = "" if variable["offset"] is None else f"at byte {variable['offset']}"
    chunk = " x ".join(map(str, variable["chunk"]))
    return (
        shorten(name, _MAX_CHARACTERS),
        dtype + (f" ({stored})" if stored != dtype else ""),
        format_size(variable["size"]),
        f"({', '.join(sizes)})",
        f"{offset}{', on a page' if variable['on_page'] else ''}",
        f"{variable['chunks']} chunks of {chunk}" if variable["chunks"] > 1 and offset else "",
    )


def _format_attributes(attrs: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in attrs.items():
        line = " ".join(str(value).split())
        yield f"{indent}{shorten(name, 40)}: {shorten(line, _MAX_CHARACTERS)}"


def compute_statistics(opened: OpenedFile) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield the statistics of each tensor without NaN, or None if it is not numeric.

    Complex numbers are ordered by their absolute values.
    """
    tensors = list_tensors(opened)
    groups = group_rows(tensors.values())
    numeric = [rows for rows in groups if is_numeric(rows[0][0].layout.dtype)]
    found: dict[str, tuple[Any, ...]] = {}
    for names, _, (values,) in read_blocks([opened[0]], numeric):
        parts = dict(zip(names, _summarize(values), strict=True))
        found |= {x: _merge(found[x], part) if x in found else part for x, part in parts.items()}
    names = [row[0].name for rows in numeric for row in rows]
    yield from dict.fromkeys(tensors.keys() - names).items()
    for name in names:
        low, high, total, size, nan, zeros = found.get(name, (None, None, None, 0, 0, 0))
        mean = total / (size - nan) if size > nan else np.nan if size else None
        numbers = {"min": low, "max": high, "mean": mean, "nan": nan, "zeros": zeros}
        # If the mean is finite, so are all values.
        yield name, numbers if type(mean) is float and isfinite(mean) else to_plain(numbers)


def _summarize(values: Array) -> Iterator[tuple[Any, ...]]:
    """Yield minimum, maximum, sum, and numbers of values, NaN and zeros along the first axis."""
    rows = values.reshape(len(values), -1)
    is_nan = rows != rows
    nan = np.count_nonzero(is_nan, axis=1)
    zeros = rows.shape[1] - np.count_nonzero(rows, axis=1)
    is_complex = values.dtype.kind == "c"
    ordered = np.abs(rows) if is_complex else rows
    dtype = np.complex128 if is_complex else np.float64
    total = rows.sum(axis=1, dtype=dtype, where=~is_nan if nan.any() else True)
    bounds = np.fmin.reduce(ordered, axis=1), np.fmax.reduce(ordered, axis=1)
    low, high, total, nan, zeros = (x.tolist() for x in (*bounds, total, nan, zeros))
    return zip(low, high, total, repeat(rows.shape[1]), nan, zeros)  # `repeat` has no end


def _merge(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the summary of the values of both."""
    low = min(first[0], second[0], key=lambda bound: (bound != bound, bound))  # NaN is the last
    high = max(first[1], second[1], key=lambda bound: (bound == bound, bound))
    return low, high, *map(add, first[2:], second[2:])
