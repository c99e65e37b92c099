"""The commands that describe files: ``info``, ``validate`` and ``explain``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain
from math import isfinite, prod
from typing import Any, BinaryIO

import click
import numpy as np
import xarray as xr

import xr_tensorfmt
from xr_tensorfmt.cli import common, stores
from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.elements import Array, get_stored_name
from xr_tensorfmt.core.extents import DEFAULT_CHUNK_BYTES, count_chunks, format_size
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets.groups import select_group
from xr_tensorfmt.errors import did_you_mean, shorten
from xr_tensorfmt.formats import registry
from xr_tensorfmt.formats.recognition import choose_format, find_parts, open_header, read_container
from xr_tensorfmt.validation import validate as find_faults
from xr_tensorfmt.writing.encoding import is_numeric

_MAX_CHARACTERS, _MAX_WIDTH = 72, 80
_DESCRIBED = frozenset({"format", "version", "dtype"})  # keys that are elsewhere in a document
_PLAIN = frozenset({str, int, bool, type(None)})
# Properties of a file that are shown like attributes. --json has all of them.
_SHOWN_PROPERTIES = "matrix_type", "properties", "cached", "symmetries", "skipped_chunks"


@click.command(
    epilog=common.format_examples(
        "info model.mag", "info --stats vertex.bin", "info s3://bucket/models/"
    )
)
@common.files_argument
@common.json_option
@click.option(
    "--stats",
    is_flag=True,
    help="Read all values, and show minimum, maximum, mean, and the numbers of NaN and zeros.",
)
@common.add_group_options
@common.add_source_options
@common.verify_option
def info(
    files: tuple[str, ...],
    as_json: bool,
    stats: bool,
    storage_options: common.KeyValues,
    **options: Any,
) -> None:
    """Describe the format, variables and attributes of files."""

    def describe(file: str, content: str | BinaryIO) -> dict[str, Any]:
        if options["format"] is None and common.get_store_format(file):
            raise ValueError(
                f"{file}: only convert and diff support zarr and netCDF; use ncdump -h or xarray"
            )
        url_options = common.get_storage_options(file, storage_options)
        reader = open_header(content, storage_options=url_options)
        file_format = choose_format(reader, options["format"])
        # With "dense", tensors that exceed memory can be described, too.
        lenient = file_format.validation_options.format_options
        given = {key: lenient[key] for key in lenient if key == "sparse"}
        given["verify"] = options["verify"]
        container = read_container(reader, file_format, OpenOptions(format_options=given))
        selected = select_group(container, options["group"], options["separator"])
        container = replace(container, tensors=selected.tensors, coordinates=selected.coordinates)
        document = _build_document(reader.source, container, file_format.name)
        if stats:
            ds = xr.open_dataset(
                content,
                engine="tensorfmt",
                cache=False,
                storage_options=url_options,
                **stores.STORED_VALUES,
                **options,
            )
            described = document["variables"] | document["coordinates"]
            for name, variable in ds.variables.items():
                described[str(name)]["stats"] = compute_statistics(variable)
        return document

    expanded = common.expand_paths(files, storage_options)
    documents = common.describe_files(
        expanded, describe, _format_lines, as_json=as_json, separate=True
    )
    raise SystemExit(int(any("error" in document for document in documents)))


def _build_document(source: Source, container: Container, format: str) -> dict[str, Any]:
    # If the file has no encoding, use the encoding of its variable.
    encodings = chain([container.encoding], (tensor.encoding for tensor in container.tensors))
    encoding: Any = next((e["tensorfmt"] for e in encodings if "tensorfmt" in e), {})
    directory = source.name[: source.name.rfind("/") + 1]
    siblings = {end.source.name: end.source for end in container.ends if end.source is not source}
    variables, coordinates = (
        _describe_tensors(tensors, in_this_file=not siblings)
        for tensors in (container.tensors, container.coordinates)
    )
    described = (variables | coordinates).values()
    dims, shapes = ([variable[key] for variable in described] for key in ("dims", "shape"))
    return {
        "size": source.size + sum(sibling.size for sibling in siblings.values()),
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
    described = {}
    for tensor in tensors:
        layout, encoding = tensor.layout, tensor.encoding.get("tensorfmt", {})
        stored, offset = tensor.encoding.get("dtype"), encoding.get("offset")
        offset = offset if in_this_file else None
        size = prod(layout.shape) * layout.dtype.itemsize
        name = get_stored_name(stored)
        has_other_name = name is not None and name != layout.dtype.name  # such as bfloat16
        if has_other_name and size:  # without bytes, the values are in other files
            size = layout.locate(Selection.everything(layout.shape)).nbytes or size
        chunk = layout.chunk_shape(DEFAULT_CHUNK_BYTES)
        described[tensor.name] = {
            "dims": tensor.dims,
            "shape": layout.shape,
            "dtype": format_dtype(layout.dtype),
            "stored": name if has_other_name else format_dtype(stored or layout.dtype),
            "size": size,
            "chunk": chunk,
            "chunks": count_chunks(layout.shape, chunk),
            "offset": offset,
            "attrs": to_plain(tensor.attrs),
            "encoding": {
                key: to_plain(value) for key, value in encoding.items() if key not in _DESCRIBED
            },
        }
    return described


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
        offset,
        f"{variable['chunks']} chunks of {chunk}" if variable["chunks"] > 1 and offset else "",
    )


def _format_attributes(attrs: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in attrs.items():
        line = " ".join(str(value).split())
        yield f"{indent}{shorten(name, 40)}: {shorten(line, _MAX_CHARACTERS)}"


def compute_statistics(variable: xr.Variable) -> dict[str, Any] | None:
    """Return the statistics of all values but NaN, or None if they are not numeric.

    Complex numbers are ordered by their absolute values.
    """
    if not is_numeric(variable.dtype):
        return None
    if not variable.size:
        return {"min": None, "max": None, "mean": None, "nan": 0, "zeros": 0}
    blocks = [_summarize(variable[key].values) for key in stores.iterate_blocks(variable)]
    lows, highs, totals, nans, zeros = zip(*blocks, strict=True)
    count = variable.size - sum(nans)
    statistics = {
        "min": np.fmin.reduce(lows),
        "max": np.fmax.reduce(highs),
        "mean": sum(totals) / count if count else np.nan,
        "nan": sum(nans),
        "zeros": sum(zeros),
    }
    return {name: to_plain(number) for name, number in statistics.items()}


def _summarize(values: Array) -> tuple[Any, ...]:
    """Return minimum, maximum, sum, and the numbers of NaN and zeros."""
    is_nan = values != values
    nan, zeros = np.count_nonzero(is_nan), values.size - np.count_nonzero(values)
    is_complex = values.dtype.kind == "c"
    ordered = np.abs(values) if is_complex else values
    dtype = np.complex128 if is_complex else np.float64
    total = values.sum(dtype=dtype, where=~is_nan if nan else True)
    return np.fmin.reduce(ordered, None), np.fmax.reduce(ordered, None), total.item(), nan, zeros


@click.command(
    epilog=common.format_examples(
        "validate model.mag vertex.bin", "validate --strict s3://bucket/models/"
    )
)
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
    """Check files: header, checksums, padding and values."""

    def describe(file: str, content: str | BinaryIO) -> dict[str, Any]:
        options = common.get_storage_options(file, storage_options)
        findings = find_faults(content, all=show_all, format=format, storage_options=options)
        parts = {}
        if not findings and content is file and format is None:
            parts = find_parts([file], lambda path: open_header(path, "read", options))
        return {"findings": findings} | ({"skipped": parts[file]} if file in parts else {})

    def lines(document: Mapping[str, Any]) -> Iterable[str]:
        return () if quiet and not document["findings"] else _format_findings(document)

    def has_failed(document: Mapping[str, Any]) -> bool:
        findings = document.get("findings", ())
        return "error" in document or any(strict or x.severity == "error" for x in findings)

    expanded = common.expand_paths(files, storage_options)
    documents = common.describe_files(expanded, describe, lines, as_json=as_json)
    failed = sum(map(has_failed, documents))
    if len(documents) > 1 and not as_json:
        common.print_summary(len(documents), failed)
    raise SystemExit(int(failed > 0))


def _format_findings(document: Mapping[str, Any]) -> Iterator[str]:
    path, findings = document["path"], document["findings"]
    errors = sum(finding.severity == "error" for finding in findings)
    counts = ((errors, "error"), (len(findings) - errors, "warning"))
    if "skipped" in document:
        yield f"{path}: skipped, {document['skipped']}"
        return
    counted = " and ".join(f"{count} {noun}{'s' * (count > 1)}" for count, noun in counts if count)
    yield f"{path}: " + (counted if errors else f"ok, but {counted}" if counted else "ok")
    for finding in findings:
        other = "" if finding.path.endswith(path) else f" ({finding.path})"
        yield "  " + common.to_one_line(f"{finding}{other}")


def _parse_selection(pair: str) -> tuple[str, int | slice | list[int]]:
    dim, index = common.parse_key_value(pair)
    if re.fullmatch(r"-?\d+", index):
        return dim, int(index)
    if re.fullmatch(r"-?\d+(,-?\d+)+", index):
        return dim, [int(part) for part in index.split(",")]
    if re.fullmatch(r"(-?\d+)?(:(-?\d+)?){1,2}", index):
        return dim, slice(*(int(part) if part else None for part in index.split(":")))
    raise click.BadParameter(f"{index!r} is not an index such as 3, 0:10, 0:10:2 or 1,5,7")


@click.command(
    epilog=common.format_examples(
        "explain vertex.bin", "explain vertex.bin --dims F,q,r -s q=0 -s r=0:10"
    )
)
@common.files_argument
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
@common.json_option
@common.dims_option
@common.sparse_option
@common.add_source_options
@common.verify_option
def explain(
    files: tuple[str, ...],
    selection: common.KeyValues,
    variable: str | None,
    dims: list[str] | None,
    as_json: bool,
    storage_options: common.KeyValues,
    **options: Any,
) -> None:
    """Show the byte ranges and requests of a read.

    Several chunks or variables print as a table with a row each. A directory stands for the files
    in it. Values are not read.
    """
    expanded = list(common.expand_paths(files, storage_options))

    def describe(file: str, content: str | BinaryIO) -> dict[str, Any]:
        options["storage_options"] = common.get_storage_options(file, storage_options)
        ds = xr.open_dataset(content, engine="tensorfmt", chunks={}, **options)
        ds = stores.select_variable(ds, variable, dims)
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

    documents = common.describe_files(expanded, describe, lines, as_json=as_json, separate=True)
    raise SystemExit(int(any("error" in document for document in documents)))
