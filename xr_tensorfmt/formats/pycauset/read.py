"""Read a file of any PyCauset version, and the block files of a BLOCK matrix.

Versions 1 and 2 have a header and the values. Sources: ``documentation/internals/File Format.md``
at commit 35c934d (with the offsets of a packed struct), and files of PyCauset 0.1.0 to 0.2.8. In
these files the struct is not packed: 4 zero bytes precede ``rows``. The development version 0.3.0
wrote a zip.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise, product
from math import prod
from struct import Struct
from typing import Any
from zipfile import ZIP_STORED

import numpy as np

from xr_tensorfmt.core.elements import build_file_dtype
from xr_tensorfmt.core.file_format import (
    EMBEDDED_KEY,
    Container,
    End,
    OpenOptions,
    Tensor,
    name_dims,
)
from xr_tensorfmt.core.gathered import scale_layout
from xr_tensorfmt.core.header import Fields, HeaderReader, read_json
from xr_tensorfmt.core.layout import Layout, transpose_layout
from xr_tensorfmt.core.source import Source, is_file_name, open_sibling
from xr_tensorfmt.errors import Finding, shorten
from xr_tensorfmt.formats import pycauset, zip_members
from xr_tensorfmt.formats.pycauset import matrices
from xr_tensorfmt.formats.pycauset.matrices import Matrix

MAX_BLOCKS, MAX_BLOCK_LEVELS = 4096, 8

# Names of types by number, from 1 on, in versions 1 and 2.
_TYPE_NAMES = ("CAUSAL", "INTEGER", "TRIANGULAR_FLOAT", "DENSE_FLOAT", "IDENTITY", "VECTOR")
_NUMBERED_TYPES = {
    "the matrix type": _TYPE_NAMES,
    "the data type": ("BIT", "INT32", "FLOAT64", "COMPLEX_FLOAT64"),
}
# Matrix types are named after float64. With int32, two of them have other names.
_INT32_TYPES = {"TRIANGULAR_FLOAT": "TRIANGULAR_INTEGER", "DENSE_FLOAT": "INTEGER"}
# Offset of the matrix type. The data type and the gap before the number of rows follow.
_TYPES_OFFSET = 12
_TYPES = Struct("<3I")
_GAP_BYTES = 4
# Rows, columns and seed. Version 2 adds scalar, is_temporary and is_transposed.
_FIELDS = {1: Struct("<3Q"), 2: Struct("<3Qd2B")}
_METADATA, _DATA = "metadata.json", "data.bin"
_MAX_DIRECTORY_BYTES, _MAX_JSON_BYTES = 1 << 17, 1 << 20
# Excess of the payload length in files of PyCauset 0.5.0, in bytes.
_LENGTH_EXCESS = 64


@dataclass(frozen=True)
class MatrixFile:
    """A parsed file: its matrix and the layout of the stored values."""

    source: Source
    matrix: Matrix
    stored: Layout
    stop: int  # of the stored values

    @property
    def layout(self) -> Layout:
        """Layout of the values, transposed, scaled and conjugated."""
        matrix, layout = self.matrix, self.stored
        if matrix.is_transposed and not matrix.is_vector:
            layout = transpose_layout(layout, (1, 0))
        if matrix.scalar != 1 or (matrix.is_conjugated and layout.dtype.kind == "c"):
            layout = scale_layout(layout, matrix.scalar, is_conjugated=matrix.is_conjugated)
        return layout


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a PyCauset file."""
    options.refuse_stored(reader.source.name)
    files: list[MatrixFile] = []
    file = _open_file(reader, files, MAX_BLOCK_LEVELS)
    matrix, metadata, layout = file.matrix, file.matrix.metadata, file.layout
    if matrix.stored in ("diagonal", "none", "blocks"):
        field, count = f"the shape of a {matrix.matrix_type}", prod(layout.shape)
        options.check_filled(reader.source.name, field, count, "few", matrix.types_offset)
    default_dims = ("index",) if len(layout.shape) == 1 else ("row", "col")
    dims = name_dims(options.dims, options.name, default_dims)
    return Container(
        (Tensor(options.name, dims, layout, dict(_build_attrs(metadata)), _build_encoding(file)),),
        findings=tuple(finding for part in files for finding in part.matrix.findings),
        embedded=metadata.values.get(EMBEDDED_KEY),
        ends=tuple(End(x.source, max(x.stop, x.matrix.min_stop), "the matrix") for x in files),
        derived=tuple(_describe_derived(matrix)),
        parsed=files,
    )


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:  # noqa: ARG001
    """Check the checksums of a file, and the files of its blocks."""
    for file in container.parsed:
        yield from zip_members.check_checksums(file.source, file.matrix.members)
        if file is not container.parsed[-1]:
            yield from Tensor("tensor", (), file.stored).validate(file.source, limit)


def _build_encoding(file: MatrixFile) -> dict[str, Any]:
    matrix, layout = file.matrix, file.layout
    names = "version", "matrix_type", "data_type", "seed", "is_transposed", "is_conjugated"
    encoding = {
        "format": pycauset.NAME,
        **{name: getattr(matrix, name) for name in names},
        "scalar": [complex(matrix.scalar).real, complex(matrix.scalar).imag],
        "is_temporary": False,
        "shape": (matrix.rows, matrix.columns),
        "byteorder": "little",
        **matrix.encoding,
    }
    if file.stop > matrix.offset:
        encoding["offset"] = matrix.offset
    if matrix.has_diagonal:
        encoding["has_diagonal"] = 1
    dtype: Any = np.dtype(matrices.DTYPES.get(matrix.data_type, "V1"))
    name = dtype.name if dtype == layout.dtype else matrix.data_type.lower()
    return {"tensorfmt": encoding, "dtype": build_file_dtype(name, layout.dtype)}


def _open_file(reader: HeaderReader, opened: list[MatrixFile], levels: int) -> MatrixFile:
    """Open a file and its blocks, in up to `levels`. Append all of them to a list."""
    matrix, source = _read_header(reader), reader.source
    if matrix.stored == "blocks":
        layout = _open_blocks(source, matrix, opened, levels)
        opened.append(MatrixFile(source, matrix, layout, matrix.offset))
        return opened[-1]
    if matrix.payload_length is not None and matrix.matrix_type.startswith("TRIANGULAR"):
        matrix = _detect_diagonal(reader, matrix, matrix.payload_length)
    stored, size = matrices.build_layout(matrix, source.name)
    shape = f"{matrix.rows} x {matrix.columns}"
    field = f"the payload of {shape} {matrix.matrix_type} values of type {matrix.data_type}"
    is_complete = matrix.offset + size <= matrix.limit
    actual = f"{max(0, matrix.limit - matrix.offset)} bytes"
    reader.check(is_complete, field, actual, f"{size} bytes", offset=matrix.offset)
    opened.append(MatrixFile(source, matrix, stored, matrix.offset + size))
    return opened[-1]


def _detect_diagonal(reader: HeaderReader, matrix: Matrix, length: int) -> Matrix:
    """Infer from the payload length whether a triangle of numbers includes its diagonal."""
    strict_bytes, full_bytes = (
        max(matrices.build_layout(triangle, reader.source.name)[1], matrices.MIN_PAYLOAD_BYTES)
        for triangle in (matrix, replace(matrix, has_diagonal=True))
    )
    has_diagonal = matrix.rows > 0 and length in (full_bytes, full_bytes + _LENGTH_EXCESS)
    if has_diagonal and strict_bytes == full_bytes:
        has_diagonal = any(reader.read_field(matrix.offset, full_bytes, "the payload"))
    elif has_diagonal and length == strict_bytes + _LENGTH_EXCESS:
        # Either a strict triangle by 0.5.0, directly before the metadata, or a full one by 0.6.
        offset = matrix.offset + strict_bytes + -strict_bytes % pycauset.METADATA_ALIGNMENT
        magic = reader.read_field(offset, len(pycauset.BLOCK_MAGIC), "the end of the payload")
        has_diagonal = magic != pycauset.BLOCK_MAGIC
    return replace(matrix, has_diagonal=has_diagonal)


def _open_blocks(source: Source, matrix: Matrix, opened: list[MatrixFile], levels: int) -> Layout:
    manifest, blocks = matrix.metadata.get_fields("block_manifest", {}), []
    version = manifest.get("version", int)
    manifest.check(version == 1, "version", version, "1", "the file is of a newer version")
    rows = _get_ranges(manifest, "row_partitions", matrix.rows)
    columns = _get_ranges(manifest, "col_partitions", matrix.columns)
    grid = manifest.get("children", list)
    lengths = [len(row) if isinstance(row, list) else -1 for row in grid]
    is_valid = lengths == [len(columns)] * len(rows)
    expected = f"{len(rows)} x {len(columns)} blocks"
    manifest.check(is_valid, "children", "another grid", expected)
    actual = f"more than {MAX_BLOCKS}, or more than {MAX_BLOCK_LEVELS} levels of them"
    for child, (row, column) in zip(chain(*grid), product(rows, columns), strict=True):
        is_allowed = levels > 0 and len(opened) < MAX_BLOCKS
        manifest.check(is_allowed, "children", actual, "fewer blocks")
        entry = replace(manifest, values=child if isinstance(child, dict) else {})
        file = _open_block(source, entry, (len(row), len(column)), opened, levels - 1)
        blocks.append((file.source, file.layout, (row.start, column.start)))
    return matrices.build_blocks((matrix.rows, matrix.columns), blocks)


def _get_ranges(manifest: Fields, key: str, length: int) -> list[range]:
    edges = manifest.get(key, list)
    is_valid = 1 < len(edges) <= MAX_BLOCKS + 1 and all(type(edge) is int for edge in edges)
    is_valid = is_valid and edges == sorted({*edges, 0, length})
    manifest.check(is_valid, key, shorten(repr(edges)), f"integers that ascend from 0 to {length}")
    return [range(*bounds) for bounds in pairwise(edges)]


def _open_block(
    source: Source, entry: Fields, shape: tuple[int, int], opened: list[MatrixFile], levels: int
) -> MatrixFile:
    """Open a block, and raise TensorFormatError if it belongs to another matrix."""
    name = entry.get("path", str)
    entry.check(is_file_name(name), "path", repr(name), "a bare file name")
    expected = entry.get("payload_uuid", str), shape
    location = f"{source.file_name}.blocks/{name}"
    reader = HeaderReader(*open_sibling(source, location, f"it is a block of {source.name}"))
    block = _open_file(reader, opened, levels)
    actual = block.matrix.encoding.get("payload_uuid"), block.layout.shape
    required, offset = f"{expected} as in {source.name}", block.matrix.types_offset
    field = "metadata.payload_uuid and the shape of a block"
    hint = "the files do not belong together; save that file again"
    reader.check(actual == expected, field, actual, required, hint, offset)
    return block


def _read_header(reader: HeaderReader) -> Matrix:
    head = reader.head
    if head.startswith(zip_members.ZIP_MAGIC):
        return _read_zip(reader)
    if head.startswith(pycauset.PREAMBLE):
        return _read_container(reader)
    magic = pycauset.MAGIC
    reader.check(head[:8] == magic, "the magic number", repr(head[:8]), repr(magic), offset=0)
    version = reader.read_unsigned(len(pycauset.MAGIC), 4, "the version")
    matrix_type = reader.read_unsigned(_TYPES_OFFSET, 4, "the matrix type")
    if version == 2 or (version == 1 and 1 <= matrix_type <= 4):
        return _read_numbers(reader, version)
    hint = "it is newer, or the backing store of a PyCauset session, not a file of pycauset.save"
    actual = f"{version}, then bytes {head[_TYPES_OFFSET:][:4].hex(' ')}"
    expected = "2, or 1 and then 01 00 10 00 or a matrix type from 1 to 4"
    raise reader.error("the version", actual, expected, hint, len(pycauset.MAGIC))


def _read_container(reader: HeaderReader) -> Matrix:
    """Read the newest slot that has readable metadata."""
    slots, errors = pycauset.read_slots(reader)
    slot, metadata = slots[0]
    hint = f"slot {slot.name}, generation {slot.generation}, is read instead"
    findings = tuple(replace(e.to_finding(), hint=f"{e.hint}; {hint}") for e in errors)
    offsets = [s.metadata_offset for s, _ in slots if s.metadata_offset >= slot.payload_offset]
    limit = min(offsets, default=reader.source.size)
    stops = [s.metadata_offset + s.metadata_length for s, _ in slots]
    matrix = _build_matrix(metadata, metadata.get_fields("view", {}), slot.payload_offset, limit)
    if matrix.is_transposed and not matrix.is_vector:
        # Vectors have n rows and 1 column, transposed or not. Matrices state the transposed shape.
        matrix = replace(matrix, rows=matrix.columns, columns=matrix.rows)
    properties = metadata.get("properties", dict, {}).items()
    encoding = {
        "payload_uuid": metadata.get("payload_uuid", str),
        "slot": slot.name,
        "generation": slot.generation,
        **{key: metadata.values[key] for key in (pycauset.OBJECT_TYPE, "n") if key in metadata},
        "properties": {x: y for x, y in properties if isinstance(y, int | float | str)},
    }
    return replace(
        matrix,
        encoding=encoding,
        payload_length=slot.payload_length,
        findings=findings,
        # A damaged slot may point to the last block.
        min_stop=reader.source.size if errors else max(stops),
    )


def _build_attrs(metadata: Fields) -> Iterator[tuple[str, Any]]:
    """Yield attributes of a causal set: numbers and strings, which netCDF can store."""
    spacetime = metadata.get_fields("spacetime", {})
    if spacetime.values:
        yield "spacetime", spacetime.get("type", str)
        for key, value in spacetime.get("args", dict, {}).items():
            is_plain = isinstance(value, int | float | str)
            plain = value if is_plain else json.dumps(value, default=repr)
            plain = int(plain) if isinstance(plain, bool) else plain
            yield f"{pycauset.ARGUMENT_PREFIX}{key}", plain


def _describe_derived(matrix: Matrix) -> Iterator[str]:
    """Describe metadata that PyCauset trusts. It ignores false properties."""
    if matrix.members:
        yield f"the CRC-32 of {_DATA!r}"
    results, properties = (matrix.metadata.get(key, dict, {}) for key in ("cached", "properties"))
    true = [name for name, value in properties.items() if value not in (False, None)]
    for label, names in (("cached results", results), ("properties", true)):
        if names:
            yield f"the {label} {', '.join(map(repr, names))}"


def _build_matrix(metadata: Fields, view: Fields, offset: int, limit: int) -> Matrix:
    """Return the matrix of a container. `view` holds scalar, transposition and conjugation."""
    rows, columns = metadata.get("rows", int), metadata.get("cols", int)
    for key, length in (("rows", rows), ("cols", columns)):
        metadata.check(length >= 0, key, length, "a non-negative integer")
    return Matrix(
        metadata.get("matrix_type", str),
        metadata.get("data_type", str),
        rows,
        columns,
        offset=offset,
        limit=limit,
        types_offset=metadata.offset or 0,
        seed=metadata.get("seed", int, 0),
        scalar=_get_scalar(view),
        is_transposed=view.get("is_transposed", bool, False),
        is_conjugated=view.get("is_conjugated", bool, False),
        metadata=metadata,
    )


def _get_scalar(view: Fields) -> complex:
    """Return a number, stored as one or as a map of real and imaginary part; default 1."""
    value: Any = view.values.get("scalar", 1.0)
    parts: Any = value, 0
    if isinstance(value, dict):
        parts = value.get("real"), value.get("imag")
    try:
        return complex(*(part + 0.0 for part in parts))
    except (TypeError, OverflowError):
        expected = "a number, or its real and imaginary parts, in double precision"
        raise view.error("scalar", shorten(repr(value)), expected) from None


def _read_numbers(reader: HeaderReader, version: int) -> Matrix:
    """Read the header of version 1 or 2, with numbers for types."""
    raw = reader.read_field(0, pycauset.HEADER_BYTES, "the header")
    *numbers, gap = _TYPES.unpack_from(raw, _TYPES_OFFSET)
    names, offset = [], _TYPES_OFFSET
    for number, (field, choices) in zip(numbers, _NUMBERED_TYPES.items(), strict=True):
        expected = ", ".join(f"{code} ({name})" for code, name in enumerate(choices, 1))
        reader.check(1 <= number <= len(choices), field, number, expected, offset=offset)
        names.append(choices[number - 1])
        offset += 4
    # The gap is zero. In a packed struct, its bytes are the low half of `rows`.
    fields_offset = offset if gap else offset + _GAP_BYTES
    rows, columns, seed, *view = _FIELDS[version].unpack_from(raw, fields_offset)
    scalar, is_temporary, is_transposed = view or (1.0, 0, 0)
    matrix_type, size = names[0], reader.source.size
    is_integer = matrix_type == "INTEGER"
    if is_integer:
        # A triangle in version 1, without padding. The size decides in version 2.
        is_dense = version == 2 and size == pycauset.HEADER_BYTES + 4 * rows * columns
        matrix_type = "INTEGER" if is_dense else "TRIANGULAR_INTEGER"
    elif names[1] == "INT32":
        matrix_type = _INT32_TYPES.get(matrix_type, matrix_type)
    return Matrix(
        *(matrix_type, names[1], rows, columns),
        version=f"v{version}",
        limit=size,
        types_offset=_TYPES_OFFSET,
        seed=seed,
        scalar=scalar,
        is_transposed=bool(is_transposed),
        row_bytes=4 if is_integer and version == 1 else matrices.WORD_BYTES,
        encoding={"fields_offset": fields_offset, "is_temporary": bool(is_temporary)},
        min_stop=pycauset.HEADER_BYTES + matrices.MIN_PAYLOAD_BYTES,
    )


def _read_zip(reader: HeaderReader) -> Matrix:
    listed, end = zip_members.read_directory(reader, _MAX_DIRECTORY_BYTES)
    members, starts = {member.filename: member for member in listed}, {}
    hint = "this zip is not a PyCauset matrix; of a '.causet' file, unzip 'matrix.bin' and open it"
    for name in (_METADATA, _DATA):
        field, expected = f"the entry {name!r}", "an entry stored without compression"
        actual = f"missing among {', '.join(map(repr, members))}"
        reader.check(name in members, field, actual, expected, hint, 0)
        starts[name], _ = zip_members.open_member(reader, members[name], field)
        is_stored, offset = members[name].compress_type == ZIP_STORED, members[name].header_offset
        reader.check(is_stored, field, "compressed", expected, hint, offset)
    size, start = members[_METADATA].file_size, starts[_DATA]
    metadata = read_json(reader, starts[_METADATA], size, _MAX_JSON_BYTES, _METADATA)
    matrix = _build_matrix(metadata, metadata, start, start + members[_DATA].file_size)
    matrix = replace(matrix, version="zip", row_bytes=matrices.WORD_BYTES, min_stop=end.stop)
    return replace(matrix, members=listed)
