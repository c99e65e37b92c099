"""Read a file of any PyCauset version, and the block files of a BLOCK matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise, product
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.container import Container, End, Tensor
from xr_tensorfmt.core.elements import build_file_dtype
from xr_tensorfmt.core.header import Fields, HeaderReader
from xr_tensorfmt.core.layout import Layout, scale_layout, transpose_layout
from xr_tensorfmt.core.open_options import OpenOptions, name_dims
from xr_tensorfmt.core.source import Source, is_file_name, open_sibling
from xr_tensorfmt.errors import Finding, shorten
from xr_tensorfmt.formats.pycauset import NAME
from xr_tensorfmt.formats.pycauset.headers import (
    BLOCK_MAGIC,
    METADATA_ALIGNMENT,
    RESAVE,
    check_slots,
    read_header,
)
from xr_tensorfmt.formats.pycauset.matrices import (
    DTYPES,
    MATRIX_TYPES,
    MIN_PAYLOAD_BYTES,
    NUMBER_TRIANGLES,
    BlockMatrix,
    Matrix,
    build_layout,
)
from xr_tensorfmt.formats.zip_members import check_checksums

MAX_BLOCKS = 4096
MAX_BLOCK_LEVELS = 8


@dataclass(frozen=True)
class MatrixFile:
    """A parsed file: its matrix and the layout of the stored values."""

    source: Source
    matrix: Matrix
    stored: Layout
    payload_bytes: int = 0
    blocks: tuple[MatrixFile, ...] = ()

    @property
    def layout(self) -> Layout:
        """Layout of the values, transposed, scaled and conjugated."""
        matrix, layout = self.matrix, self.stored
        if matrix.is_transposed and not matrix.is_vector:
            layout = transpose_layout(layout, (1, 0))
        if matrix.scalar != 1 or (matrix.is_conjugated and layout.dtype.kind == "c"):
            layout = scale_layout(layout, matrix.scalar, is_conjugated=matrix.is_conjugated)
        return layout

    @property
    def end(self) -> End:
        """End of the file."""
        stop = max(self.matrix.offset + self.payload_bytes, self.matrix.min_stop)
        return End(self.source, stop, "the matrix")

    @property
    def files(self) -> tuple[MatrixFile, ...]:
        """The file and the files of its blocks, including nested blocks."""
        return (self, *(file for block in self.blocks for file in block.files))


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a PyCauset file."""
    options.refuse_stored(reader.source.name)
    file = _open_file(reader, MAX_BLOCKS, MAX_BLOCK_LEVELS)
    matrix, layout = file.matrix, file.layout
    matrix_type = MATRIX_TYPES.get(matrix.matrix_type)
    if matrix_type is None or matrix_type.stored in ("diagonal", "none"):
        field, count = f"the shape of a {matrix.matrix_type}", prod(layout.shape)
        options.check_filled(reader.source.name, field, count, "few", matrix.types_offset)
    dims = name_dims(options.dims, options.name, _get_default_dims(len(layout.shape)))
    return Container(
        (Tensor(options.name, dims, layout, matrix.attrs, _build_encoding(file)),),
        findings=tuple(finding for part in file.files for finding in part.matrix.findings),
        embedded=matrix.embedded,
        ends=tuple(part.end for part in file.files),
        derived=matrix.derived,
        parsed=file,
    )


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:  # noqa: ARG001
    """Check the metadata and checksums of a file, and the files of its blocks."""
    file: MatrixFile = container.parsed
    for part in file.files:
        yield from check_slots(HeaderReader(part.source))
        yield from check_checksums(part.source, part.matrix.members)
        if part is not file and not part.blocks:
            yield from Tensor("tensor", (), part.stored).validate(part.source, limit)


def _get_default_dims(rank: int) -> tuple[str, ...]:
    """Return the dimension names of a matrix or vector."""
    return ("index",) if rank == 1 else ("row", "col")


def _build_encoding(file: MatrixFile) -> dict[str, Any]:
    matrix, layout = file.matrix, file.layout
    encoding = {
        "format": NAME,
        "version": matrix.version,
        "matrix_type": matrix.matrix_type,
        "data_type": matrix.data_type,
        "seed": matrix.seed,
        "scalar": [complex(matrix.scalar).real, complex(matrix.scalar).imag],
        "is_transposed": matrix.is_transposed,
        "is_conjugated": matrix.is_conjugated,
        "is_temporary": False,
        "shape": (matrix.rows, matrix.columns),
        "byteorder": "little",
        **matrix.encoding,
    }
    if file.payload_bytes:
        encoding["offset"] = matrix.offset
    dtype: Any = np.dtype(DTYPES.get(matrix.data_type, "V1"))
    name = dtype.name if dtype == layout.dtype else matrix.data_type.lower()
    dtype = build_file_dtype(name, layout.dtype)
    return {"tensorfmt": encoding, "dtype": dtype}


def _open_file(reader: HeaderReader, max_blocks: int, max_levels: int) -> MatrixFile:
    matrix, source = read_header(reader), reader.source
    if matrix.manifest is not None:
        manifest = Fields(
            source.name, matrix.manifest, matrix.types_offset, "metadata.block_manifest", RESAVE
        )
        return _open_blocks(source, matrix, manifest, max_blocks, max_levels)
    if matrix.matrix_type in NUMBER_TRIANGLES and matrix.payload_length is not None:
        matrix = _detect_diagonal(reader, matrix, matrix.payload_length)
    stored, size = build_layout(matrix, source.name)
    shape = f"{matrix.rows} x {matrix.columns}"
    field = f"the payload of {shape} {matrix.matrix_type} values of type {matrix.data_type}"
    is_complete = matrix.offset + size <= matrix.limit
    actual = f"{max(0, matrix.limit - matrix.offset)} bytes"
    hint = "the file is truncated, or its header is corrupt; download or save it again"
    reader.check(is_complete, field, actual, f"{size} bytes", hint, matrix.offset)
    return MatrixFile(source, matrix, stored, size)


# Excess of the payload length in files of PyCauset 0.5.0, in bytes.
_LENGTH_EXCESS = 64


def _detect_diagonal(reader: HeaderReader, matrix: Matrix, length: int) -> Matrix:
    """Infer from the payload length whether a triangle of numbers includes its diagonal."""
    strict_bytes, full_bytes = (
        max(build_layout(triangle, reader.source.name)[1], MIN_PAYLOAD_BYTES)
        for triangle in (matrix, replace(matrix, has_diagonal=True))
    )
    has_diagonal = matrix.rows > 0 and length in (full_bytes, full_bytes + _LENGTH_EXCESS)
    if has_diagonal and strict_bytes == full_bytes:
        has_diagonal = any(reader.read_field(matrix.offset, full_bytes, "the payload"))
    elif has_diagonal and length == strict_bytes + _LENGTH_EXCESS:
        # Either a triangle without diagonal by 0.5.0, directly before the metadata, or a complete
        # one by 0.6.
        offset = matrix.offset + strict_bytes + -strict_bytes % METADATA_ALIGNMENT
        magic = reader.read_field(offset, len(BLOCK_MAGIC), "the end of the payload")
        has_diagonal = magic != BLOCK_MAGIC
    encoding = {**matrix.encoding, "has_diagonal": int(has_diagonal)}
    return replace(matrix, has_diagonal=has_diagonal, encoding=encoding)


def _open_blocks(
    source: Source, matrix: Matrix, manifest: Fields, max_blocks: int, max_levels: int
) -> MatrixFile:
    """Open the blocks of a matrix, within the remaining limits."""
    files: list[MatrixFile] = []
    blocks = []
    for entry, rows, columns in _list_blocks(manifest, matrix):
        if not (max_blocks and max_levels):
            actual = f"more than {MAX_BLOCKS}, or more than {MAX_BLOCK_LEVELS} levels of them"
            hint = "the files are corrupt or malicious; save the matrix again"
            raise manifest.error("children", actual, "fewer blocks", hint)
        file = _open_block(source, entry, (len(rows), len(columns)), max_blocks - 1, max_levels - 1)
        files.append(file)
        blocks.append((file.source, file.layout, (rows.start, columns.start)))
        max_blocks -= len(file.files)
    layout = BlockMatrix(tuple(blocks)).build_layout((matrix.rows, matrix.columns))
    return MatrixFile(source, matrix, layout, blocks=tuple(files))


def _list_blocks(manifest: Fields, matrix: Matrix) -> Iterator[tuple[Fields, range, range]]:
    """Yield the entries of blocks, with their rows and columns."""
    version = manifest.get("version", int)
    manifest.check(version == 1, "version", version, "1", "the file is of a newer version")
    row_ranges = _get_ranges(manifest, "row_partitions", matrix.rows)
    column_ranges = _get_ranges(manifest, "col_partitions", matrix.columns)
    grid = manifest.get("children", list)
    lengths = [len(row) if isinstance(row, list) else -1 for row in grid]
    if lengths != [len(column_ranges)] * len(row_ranges):
        expected = f"{len(row_ranges)} x {len(column_ranges)} blocks"
        raise manifest.error("children", "another grid", expected)
    for child, ranges in zip(chain(*grid), product(row_ranges, column_ranges), strict=True):
        yield replace(manifest, values=child if isinstance(child, dict) else {}), *ranges


def _get_ranges(manifest: Fields, key: str, length: int) -> list[range]:
    edges = manifest.get(key, list)
    is_valid = 1 < len(edges) <= MAX_BLOCKS + 1 and all(type(edge) is int for edge in edges)
    if not is_valid or edges != sorted({*edges, 0, length}):
        expected = f"integers that ascend from 0 to {length}"
        raise manifest.error(key, shorten(repr(edges)), expected)
    return [range(*bounds) for bounds in pairwise(edges)]


def _open_block(
    source: Source, entry: Fields, shape: tuple[int, int], max_blocks: int, max_levels: int
) -> MatrixFile:
    """Open a block, and raise TensorFormatError if it belongs to another matrix."""
    name = entry.get("path", str)
    hint = "blocks must be in the block directory; save the matrix again"
    entry.check(is_file_name(name), "path", repr(name), "a bare file name", hint)
    expected = entry.get("payload_uuid", str), shape
    location = f"{source.file_name}.blocks/{name}"
    sibling, head = open_sibling(source, location, f"it is a block of {source.name}")
    reader = HeaderReader(sibling, head)
    block = _open_file(reader, max_blocks, max_levels)
    actual = block.matrix.encoding.get("payload_uuid"), block.layout.shape
    required, offset = f"{expected} as in {source.name}", block.matrix.types_offset
    field = "metadata.payload_uuid and the shape of a block"
    hint = "the files do not belong together; save that file again"
    reader.check(actual == expected, field, actual, required, hint, offset)
    return block
