"""Reading a file of any PyCauset version, and the files of the blocks of a BLOCK matrix."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise, product
from typing import Any

from xr_tensorfmt.core.container import Container, Tensor, named_dims
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError, shortened
from xr_tensorfmt.formats.pycauset import MAGIC, ZIP_MAGIC, PycausetFormat
from xr_tensorfmt.formats.pycauset.archive import is_archive, read_archive
from xr_tensorfmt.formats.pycauset.container import (
    METADATA_ALIGNMENT,
    PREAMBLE,
    BlockHeader,
    Slot,
    read_content,
)
from xr_tensorfmt.formats.pycauset.header import Header, read_matrix
from xr_tensorfmt.formats.pycauset.layouts import (
    check_complete,
    sized_layout,
    stored_dtype,
    viewed,
)
from xr_tensorfmt.formats.pycauset.matrices import BlockMatrix, MatrixBlock
from xr_tensorfmt.formats.pycauset.metadata import Metadata, attribute_of, matrix_of
from xr_tensorfmt.formats.pycauset.spec import (
    BLOCK,
    LEAST_PAYLOAD,
    NUMBER_TRIANGLES,
    Matrix,
)

MOST_BLOCKS = 4096
"""Limit on the blocks of a matrix, those of its blocks included."""

MOST_LEVELS = 8
"""Limit on the blocks within blocks."""

MATRIX_DIMS = ("row", "col")
VECTOR_DIMS = ("index",)

_VERSION_AT = len(MAGIC)
_MATRIX_TYPES_OF_V1 = range(1, 5)
_SESSION_STORE_BYTES = 64


@dataclass(frozen=True)
class MatrixFile:
    """A file, the matrix that it describes, and how its values are stored."""

    source: Source
    matrix: Matrix
    stored: Layout
    payload_bytes: int = 0
    findings: tuple[Finding, ...] = ()
    blocks: tuple[MatrixFile, ...] = ()

    @property
    def layout(self) -> Layout:
        """The values transposed, scaled and conjugated as the file says."""
        return viewed(self.stored, self.matrix)

    @property
    def files(self) -> tuple[MatrixFile, ...]:
        """The file itself and those of all blocks."""
        return (self, *(file for block in self.blocks for file in block.files))


@dataclass(frozen=True)
class PycausetContainer(Container):
    """A Container with the files that it was made of."""

    file: MatrixFile | None = None


def recognises(head: bytes, size: int) -> bool:
    """Whether a file can only be of PyCauset, session stores included, which are refused later."""
    return (head.startswith(MAGIC) and size >= len(PREAMBLE)) or is_archive(head)


def read(reader: HeaderReader, options: OpenOptions) -> PycausetContainer:
    """Read the header of a PyCauset file."""
    options.check_all_stored(reader.source.name)
    file = _open_file(reader, MOST_BLOCKS, MOST_LEVELS)
    matrix, layout = file.matrix, file.layout
    dims = named_dims(options.dims, options.name, default_dims(len(layout.shape)))
    encoding = _encoding(matrix, layout)
    return PycausetContainer(
        (Tensor(options.name, dims, layout, shown_attrs(matrix), encoding),),
        siblings=tuple(block.source for block in file.files[1:]),
        findings=tuple(finding for each in file.files for finding in each.findings),
        embedded=matrix.embedded,
        derived=matrix.derived,
        file=file,
    )


def default_dims(rank: int) -> tuple[str, ...]:
    """What the axes of a matrix or vector are called."""
    return MATRIX_DIMS if rank == len(MATRIX_DIMS) else VECTOR_DIMS


def shown_attrs(matrix: Matrix) -> dict[str, Any]:
    """The attributes of a file without embedded metadata."""
    return {
        "matrix_type": matrix.matrix_type,
        "data_type": matrix.data_type,
        "seed": matrix.seed,
        "scalar": attribute_of(matrix.scalar),
        "is_transposed": int(matrix.is_transposed),
        "is_conjugated": int(matrix.is_conjugated),
        **matrix.attrs,
    }


def _encoding(matrix: Matrix, layout: Layout) -> dict[str, Any]:
    facts = {
        **shown_attrs(matrix),
        "format": PycausetFormat.name,
        "version": matrix.version,
        "shape": (matrix.rows, matrix.columns),
        "offset": matrix.offset,
        "byteorder": "little",
        **matrix.facts,
    }
    return {"tensorfmt": facts, "dtype": stored_dtype(matrix, layout)}


def _open_file(reader: HeaderReader, most_blocks: int, most_levels: int) -> MatrixFile:
    """Read the header of a file, and those of its blocks."""
    version = _version(reader)
    if version == "r1":
        return _open_container(reader, most_blocks, most_levels)
    matrix = read_archive(reader) if version == "zip" else read_matrix(reader)
    return _matrix_file(reader.source, matrix)


def _matrix_file(source: Source, matrix: Matrix, findings: tuple[Finding, ...] = ()) -> MatrixFile:
    stored, size = sized_layout(matrix, source.name)
    check_complete(matrix, size, source.name)
    return MatrixFile(source, matrix, stored, size, findings)


def _version(reader: HeaderReader) -> str:
    head = reader.first_bytes(_SESSION_STORE_BYTES)
    if head.startswith(ZIP_MAGIC):
        return "zip"
    if not head.startswith(MAGIC):
        raise reader.error(
            "the magic number", repr(head[:8]), repr(MAGIC), "it is not a PyCauset file", 0
        )
    version = reader.unsigned(_VERSION_AT, 4, "the version")
    following = reader.bytes_at(Header.TYPES_AT, 4, "the matrix type")
    if version == 2:
        return "v2"
    if head.startswith(PREAMBLE):
        return "r1"
    if version == 1 and int.from_bytes(following, "little") in _MATRIX_TYPES_OF_V1:
        return "v1"
    if version == 1 and not any(head[Header.TYPES_AT :]):
        raise reader.error(
            "the header",
            "that of a backing store of a PyCauset session, which has no shape and no types",
            "a saved matrix",
            "save the matrix with pycauset.save, and open that file",
            Header.TYPES_AT,
        )
    preamble = PREAMBLE[Header.TYPES_AT :].hex(" ")
    raise reader.error(
        "the version",
        f"{version}, then bytes {following.hex(' ')}",
        f"2, or 1 and then {preamble} (a container) or a matrix type from 1 to 4",
        "the header is damaged, or of a newer version",
        _VERSION_AT,
    )


def _open_container(reader: HeaderReader, most_blocks: int, most_levels: int) -> MatrixFile:
    source = reader.source
    content = read_content(reader)
    metadata = Metadata(content.metadata, source.name, content.slot.metadata_offset)
    matrix = matrix_of(content, metadata)
    if matrix.matrix_type == BLOCK:
        file = _open_blocks(source, matrix, metadata, most_blocks, most_levels)
        return replace(file, findings=(*content.findings, *file.findings))
    return _matrix_file(source, _with_diagonal(reader, content.slot, matrix), content.findings)


_LENGTH_EXCESS = 64
"""Bytes by which the payload length is too large in files of 0.5.0."""


def _with_diagonal(reader: HeaderReader, slot: Slot, matrix: Matrix) -> Matrix:
    """Find out whether the diagonal of a triangle of numbers is stored, by the payload length."""
    if matrix.matrix_type not in NUMBER_TRIANGLES:
        return matrix
    length = slot.payload_length
    strict, full = (
        max(sized_layout(triangle, reader.source.name)[1], LEAST_PAYLOAD)
        for triangle in (matrix, replace(matrix, has_diagonal=True))
    )
    has_diagonal = matrix.rows > 0 and length in (full, full + _LENGTH_EXCESS)
    if has_diagonal and strict == full:
        has_diagonal = any(reader.bytes_at(matrix.offset, full, "the payload"))
    elif has_diagonal and length == strict + _LENGTH_EXCESS:
        # A strict triangle by 0.5.0, or a complete one by 0.6: metadata follow at once.
        following = matrix.offset + -(-strict // METADATA_ALIGNMENT) * METADATA_ALIGNMENT
        header = reader.bytes_at(following, BlockHeader.SIZE, "the end of the payload")
        has_diagonal = BlockHeader.unpack(header).magic != BlockHeader.magic
    facts = {**matrix.facts, "has_diagonal": int(has_diagonal)}
    return replace(matrix, has_diagonal=has_diagonal, facts=facts)


_UNSAFE = re.compile(r"[/\\:\0]|^\.*$")

_LONG_BYTES = 8


def _open_blocks(
    source: Source, matrix: Matrix, metadata: Metadata, most_blocks: int, most_levels: int
) -> MatrixFile:
    """Open the blocks of a matrix, within what the limits leave for them."""
    manifest = metadata.nested("block_manifest")
    version = manifest.get("version", int)
    if version != 1:
        raise manifest.error("version", version, "1", "the file is of a newer version")
    rows = _edges(manifest, "row_partitions", matrix.rows)
    columns = _edges(manifest, "col_partitions", matrix.columns)
    blocks: list[MatrixFile] = []
    for entry, shape in _blocks(manifest, rows, columns):
        if not (most_blocks and most_levels):
            raise TensorFormatError(
                source.name,
                "the blocks of a BLOCK matrix",
                f"more than {MOST_BLOCKS}, or more than {MOST_LEVELS} within each other",
                "fewer",
                "the files are damaged, or made to keep readers busy",
                offset=metadata.offset,
            )
        blocks.append(_open_block(source, entry, shape, most_blocks - 1, most_levels - 1))
        most_blocks -= len(blocks[-1].files)
    parts = iter([MatrixBlock(block.source, block.layout) for block in blocks])
    grid = tuple(tuple(islice(parts, len(columns) - 1)) for _ in rows[1:])
    layout = BlockMatrix(rows, columns, grid)
    findings = tuple(_rounded_integers(matrix, layout, source.name))
    return MatrixFile(source, matrix, layout, findings=findings, blocks=tuple(blocks))


def _edges(manifest: Metadata, key: str, length: int) -> tuple[int, ...]:
    edges = manifest.get(key, list)
    ascend = (
        all(type(edge) is int for edge in edges)
        and 1 < len(edges) <= MOST_BLOCKS + 1
        and all(low < high for low, high in pairwise(edges))
        and (edges[0], edges[-1]) == (0, length)
    )
    if not ascend:
        expected = f"integers that ascend from 0 to {length}"
        raise manifest.error(key, shortened(repr(edges)), expected, "the file is damaged")
    return tuple(edges)


def _blocks(
    manifest: Metadata, rows: Sequence[int], columns: Sequence[int]
) -> Iterator[tuple[Metadata, tuple[int, int]]]:
    """What the manifest says of each block, and the shape that there is room for."""
    grid = manifest.get("children", list)
    heights, widths = ([high - low for low, high in pairwise(edges)] for edges in (rows, columns))
    if [len(row) if isinstance(row, list) else -1 for row in grid] != [len(widths)] * len(heights):
        expected = f"{len(heights)} x {len(widths)} blocks"
        raise manifest.error("children", "another grid", expected, "the file is damaged")
    for entry, shape in zip(chain(*grid), product(heights, widths), strict=True):
        values = entry if isinstance(entry, dict) else {}
        yield Metadata(values, manifest.path, manifest.offset), shape


def _open_block(
    source: Source, entry: Metadata, shape: tuple[int, int], most_blocks: int, most_levels: int
) -> MatrixFile:
    sibling, head = _sibling(source, entry)
    block = _open_file(HeaderReader(sibling, head), most_blocks, most_levels)
    uuid = block.matrix.facts.get("payload_uuid")
    if uuid != entry.get("payload_uuid", str):
        raise TensorFormatError(
            sibling.name,
            "the metadata key 'payload_uuid'",
            uuid,
            repr(entry.values["payload_uuid"]),
            f"it is not the block that {source.name} was saved with; save that file again",
            offset=block.matrix.stated_at,
        )
    if block.layout.shape != shape:
        raise TensorFormatError(
            sibling.name,
            "the shape of a block",
            block.layout.shape,
            f"{shape} as in {source.name}",
            "the files do not belong together",
            offset=block.matrix.stated_at,
        )
    return replace(block, source=sibling)  # without the first bytes


def _sibling(source: Source, entry: Metadata) -> tuple[Source, bytes]:
    """The file of a block, which must be in the directory of blocks."""
    name = entry.get("path", str)
    if _UNSAFE.search(name):
        hint = "a block must be in the directory of blocks"
        raise entry.error("path", repr(name), "a bare file name", hint)
    place = f"{os.path.basename(source.name)}.blocks/{name}"
    try:
        sibling = source.sibling(place)
    except OSError as error:
        hint = f"it cannot be opened ({error.strerror or error})"
        raise entry.error("path", repr(name), f"the file {place}", hint) from error
    if sibling is None:
        hint = "open a BLOCK matrix by its path"
        raise entry.error("path", repr(name), "a file beside this one", hint)
    return sibling


def _rounded_integers(matrix: Matrix, layout: BlockMatrix, path: str) -> Iterator[Finding]:
    """Warn where integers of 64 bits become floating-point numbers beside other blocks."""
    dtypes = {block.layout.dtype for row in layout.blocks for block in row}
    long = any(dtype.kind in "iu" and dtype.itemsize == _LONG_BYTES for dtype in dtypes)
    if layout.dtype.kind in "fc" and long:
        names = ", ".join(sorted(map(str, dtypes)))
        message = (
            f"blocks of {names} together are {layout.dtype}, which rounds integers above 2**53; "
            "open a block by its own path for its exact values"
        )
        yield Finding(path, matrix.stated_at, "the blocks", message, "warning")
