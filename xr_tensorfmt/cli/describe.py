"""The commands that describe files: ``info`` and ``validate``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite, prod
from typing import Any

import click
import numpy as np

from xr_tensorfmt.backend import complete_keywords
from xr_tensorfmt.cli import common
from xr_tensorfmt.core.elements import get_stored_name
from xr_tensorfmt.core.extents import format_size
from xr_tensorfmt.core.file_format import Container, Tensor
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.formats import registry
from xr_tensorfmt.formats.recognition import choose_format, find_parts, open_header
from xr_tensorfmt.opening import open_group
from xr_tensorfmt.opening import validate as find_faults

_MAX_CHARACTERS, _MAX_WIDTH = 72, 80
_DESCRIBED = frozenset({"format", "version", "dtype"})  # keys that are elsewhere in a document


@click.command()
@common.files_argument
@common.json_option
@common.add_open_options
def info(
    files: tuple[str, ...], as_json: bool, storage_options: common.KeyValues, **options: Any
) -> None:
    """Describe the format, variables and attributes of files. Values are not read."""
    open_options = options.pop("open_options")

    def describe(file: str) -> dict[str, Any]:
        store = {"storage_options": common.get_storage_options(file, storage_options)}
        keywords = complete_keywords(**(options | store | open_options))
        reader, container = open_group(file, keywords)
        file_format = choose_format(reader, keywords["format"])
        return _build_document(reader.source, container, file_format.name)

    documents = common.describe_files(files, describe, _format_lines, storage_options, as_json)
    raise SystemExit(int(any("error" in document for document in documents)))


def _build_document(source: Source, container: Container, format: str) -> dict[str, Any]:
    # If the file has no encoding, use the encoding of its variable.
    encodings = (container.encoding, *(tensor.encoding for tensor in container.tensors))
    encoding: Any = next((e["tensorfmt"] for e in encodings if "tensorfmt" in e), {})
    directory = source.name[: source.name.rfind("/") + 1]
    siblings = {x.source.name: x.source for x in container.ends if x.source.name != source.name}
    every = (*container.tensors, *container.coordinates)
    described = {tensor.name: _describe_tensor(tensor) for tensor in every}
    variables = {tensor.name: described.pop(tensor.name) for tensor in container.tensors}
    return {
        "size": source.size + sum(sibling.size for sibling in siblings.values()),
        "format": format,
        "version": to_plain(encoding.get("version")),
        "container": encoding.get("container"),
        "dims": {dim: n for x in every for dim, n in zip(x.dims, x.layout.shape, strict=True)},
        "variables": variables,
        "coordinates": described,
        "totals": {
            "tensors": len(variables),
            "parameters": sum(prod(variable["shape"]) for variable in variables.values()),
            "size": sum(variable["size"] for variable in variables.values()),
        },
        "attrs": to_plain(container.attrs),
        "encoding": to_plain(container.encoding.get("tensorfmt", {})),
        # Siblings are in the same directory, or below it.
        "files": [name.removeprefix(directory) for name in siblings],
    }


def _describe_tensor(tensor: Tensor) -> dict[str, Any]:
    layout, encoding = tensor.layout, tensor.encoding.get("tensorfmt", {})
    stored, dtype = tensor.encoding.get("dtype"), format_dtype(layout.dtype)
    size, name = prod(layout.shape) * layout.dtype.itemsize, get_stored_name(stored)
    has_other_name = name is not None and name != layout.dtype.name  # such as bfloat16
    if has_other_name and size:  # without bytes, the values are in other files
        size = layout.locate(Selection.everything(layout.shape)).nbytes or size
    return {
        "dims": tensor.dims,
        "shape": layout.shape,
        "dtype": dtype,
        "stored": name if has_other_name else format_dtype(stored or layout.dtype),
        "size": size,
        "offset": None if tensor.source else encoding.get("offset"),
        "attrs": to_plain(tensor.attrs),
        "encoding": to_plain({key: encoding[key] for key in encoding if key not in _DESCRIBED}),
    }


def format_dtype(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype, with the byte order if it is big-endian."""
    if dtype.kind in "OUT":
        return "str"
    return f"{dtype.name}, big-endian" if dtype.str.startswith(">") else dtype.name


def to_plain(value: Any) -> Any:
    """Convert a value to JSON for display, with loss."""
    if isinstance(value, np.ndarray | np.generic):
        return to_plain(value.tolist())
    if isinstance(value, str | int | None) or (isinstance(value, float) and isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return str(value)


def _format_lines(document: Mapping[str, Any]) -> Iterator[str]:
    title = registry.find_format(document["format"]).title
    words = (title, document["container"], document["version"])
    description = " ".join(str(word) for word in words if word is not None)
    yield f"{document['path']}: {description}, {format_size(document['size'])}"
    count, parameters, size = document["totals"].values()
    total = f"  {count} tensors, {parameters:,} parameters, {format_size(size)}"
    for heading, content in (
        ("Coordinates", _describe_variables(document["coordinates"])),
        ("Variables", _describe_variables(document["variables"])),
        ("Total", [total] if count > 1 else ()),
        ("Attributes", _format_attributes(document["attrs"], "  ")),
        ("Other files", (f"  {file}" for file in document["files"])),
    ):
        block = list(content)
        yield from [f"{heading}:", *block] if block else []


def _describe_variables(variables: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a row per variable, with long names on lines of their own, and its attributes."""
    rows = [_format_cells(name, variable) for name, variable in variables.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    has_own_lines = max(map(len, lines), default=0) + 2 > _MAX_WIDTH
    for line, (name, *_), variable in zip(lines, rows, variables.values(), strict=True):
        cells = line[widths[0] + 2 :]
        yield from [f"  {name}", f"    {cells}"] if has_own_lines else [f"  {line}"]
        yield from _format_attributes(variable["attrs"], "      ")


def _format_cells(name: str, variable: Mapping[str, Any]) -> tuple[str, ...]:
    dtype, dims = variable["dtype"], variable["dims"]
    stored = variable["stored"].removeprefix(f"{dtype}, ")
    sizes = [
        str(length) if dim in (f"{name}_dim_{axis}", f"dim_{axis}") else f"{dim}: {length}"
        for axis, (dim, length) in enumerate(zip(dims, variable["shape"], strict=True))
    ]
    return (
        shorten(name, _MAX_CHARACTERS),
        dtype + (f" ({stored})" if stored != dtype else ""),
        format_size(variable["size"]),
        f"({', '.join(sizes)})",
        "" if variable["offset"] is None else f"at byte {variable['offset']}",
    )


def _format_attributes(attrs: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in attrs.items():
        line = " ".join(str(value).split())
        yield f"{indent}{shorten(name, 40)}: {shorten(line, _MAX_CHARACTERS)}"


@click.command()
@common.files_argument
@click.option("--strict", is_flag=True, help="Exit with 1 also for warnings.")
@click.option("--all", "show_all", is_flag=True, help="Up to 20 findings per check.")
@click.option("--quiet", "-q", is_flag=True, help="Print only files with findings.")
@common.json_option
@common.add_source_options
def validate(
    files: tuple[str, ...],
    strict: bool,
    show_all: bool,
    quiet: bool,
    as_json: bool,
    format: str | None,
    storage_options: common.KeyValues,
) -> None:
    """Check files: header, checksums and values."""

    def describe(file: str) -> dict[str, Any]:
        options = common.get_storage_options(file, storage_options)
        findings = find_faults(file, all=show_all, format=format, storage_options=options)
        may_be_part = [file] if not findings and format is None else []
        parts = find_parts(may_be_part, lambda path: open_header(path, "read", options))
        return {"findings": findings} | ({"skipped": parts[file]} if file in parts else {})

    def format_lines(document: Mapping[str, Any]) -> Iterable[str]:
        return () if quiet and not document["findings"] else _format_findings(document)

    documents = common.describe_files(files, describe, format_lines, storage_options, as_json)
    failed = sum(
        "error" in document or any(strict or x.severity == "error" for x in document["findings"])
        for document in documents
    )
    if len(documents) > 1 and not as_json:
        click.echo(f"{len(documents)} files, {failed} with errors", err=True)
    raise SystemExit(int(failed > 0))


def _format_findings(document: Mapping[str, Any]) -> Iterator[str]:
    path, findings = document["path"], document["findings"]
    if "skipped" in document:
        yield f"{path}: skipped, {document['skipped']}"
        return
    errors = sum(finding.severity == "error" for finding in findings)
    counts = ((errors, "error"), (len(findings) - errors, "warning"))
    counted = " and ".join(f"{count} {noun}{'s' * (count > 1)}" for count, noun in counts if count)
    yield f"{path}: " + (counted if errors else f"ok, but {counted}" if counted else "ok")
    for finding in findings:
        other = "" if finding.path.endswith(path) else f" ({finding.path})"
        yield "  " + common.to_one_line(f"{finding}{other}")
