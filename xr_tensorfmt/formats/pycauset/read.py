"""From the metadata of an R1 container to a Matrix and its attributes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.container import Container, Tensor, named_dims
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Plain, StoredDtype
from xr_tensorfmt.core.embedded_metadata import KEY as EMBEDDED_KEY
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import WIDEST, HeaderReader, check_size
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import OnlyRow, transposed
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.pycauset import MAGIC, ZIP_MAGIC
from xr_tensorfmt.formats.pycauset import spec as slots
from xr_tensorfmt.formats.pycauset.bits import Bits
from xr_tensorfmt.formats.pycauset.containers import (
    BLOCK_MAGIC,
    Content,
    is_archive,
    read_archive,
    read_container,
    read_header,
)
from xr_tensorfmt.formats.pycauset.matrices import (
    BlockMatrix,
    ComplexPlanes,
    Conjugated,
    Diagonal,
    MatrixBlock,
    Ones,
    Scaled,
    UnitVector,
)
from xr_tensorfmt.formats.pycauset.rows import PaddedRows, TriangleRows
from xr_tensorfmt.formats.pycauset.spec import (
    BIT,
    COMPLEX_FLOAT16,
    DATA_TYPES,
    DTYPES,
    METADATA_ALIGNMENT,
    TRIANGLES,
    VECTORS,
    Matrix,
    Metadata,
    Slot,
)
from xr_tensorfmt.formats.pycauset.triangle import Mirrored, Triangle

BIT_ROW = 64
"""Bytes that dense rows of bits are padded to a multiple of, since 2026-01-05."""


def matrix_of(content: Content, metadata: Metadata) -> Matrix:
    """What the metadata say about the matrix."""
    matrix_type = metadata.take("matrix_type", str)
    view = metadata.below("view")
    transposed = view.take("is_transposed", bool, False)
    shape = (metadata.length("rows"), metadata.length("cols"))
    # Vectors have n rows and 1 column, transposed or not.
    if transposed and matrix_type not in VECTORS:
        shape = (shape[1], shape[0])
    return Matrix(
        "r1",
        matrix_type,
        metadata.take("data_type", str),
        *shape,
        content.slot.payload_offset,
        content.payload_limit,
        metadata.offset,
        metadata.take("seed", int, 0),
        view.scalar("scalar"),
        transposed,
        view.take("is_conjugated", bool, False),
        bit_row=BIT_ROW,
        attrs=dict(_attrs(metadata, view, transposed)),
        facts={
            "payload_uuid": metadata.take("payload_uuid", str),
            "slot": content.slot.name,
            "generation": content.slot.generation,
        },
        embedded=metadata.values.get(EMBEDDED_KEY),
        derived=tuple(_derived(metadata)),
    )


def _derived(metadata: Metadata) -> Iterator[str]:
    """What PyCauset takes for true of the values: a property that is false changes no result."""
    properties = metadata.below("properties").values
    for what, names in (
        ("kept results", metadata.below("cached").values),
        ("properties", [name for name, value in properties.items() if value not in (False, None)]),
    ):
        if names:
            yield f"the {what} {', '.join(map(repr, names))}"


def _attrs(metadata: Metadata, view: Metadata, transposed: bool) -> Iterator[tuple[str, Any]]:
    """Attributes, flat and of types that netCDF knows."""
    yield "is_temporary", 0
    for key in ("object_type", "n"):
        if key in metadata.values:
            yield key, _plain(metadata.values[key])
    spacetime = metadata.below("spacetime")
    if spacetime.values:
        yield "spacetime", spacetime.take("type", str)
        for key, value in spacetime.take("args", dict, {}).items():
            yield f"spacetime_{key}", _plain(value)
    for key, value in metadata.below("properties").values.items():
        yield f"property_{key}", _plain(value)
    for key, entry in metadata.below("cached").values.items():
        if isinstance(entry, dict) and _fits(entry.get("signature"), metadata, view, transposed):
            yield from _cached(key, entry.get("value"))


def _cached(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A result that was kept; those that are in other files are left out."""
    if key == "sum" and _is_pair(value):
        yield "cached_sum", attribute_of(complex(*value))
    elif key == "eigenvalues" and isinstance(value, list) and all(map(_is_pair, value)):
        numbers = [attribute_of(complex(*pair)) for pair in value]
        is_real = all(isinstance(number, float) for number in numbers)
        yield "cached_eigenvalues", numbers if is_real else [str(complex(*p)) for p in value]
    elif not isinstance(value, dict) and value is not None:
        yield f"cached_{key}", _plain(value)


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(each, int | float) for each in value)
    )


def attribute_of(number: complex) -> float | str:
    """A number as an attribute: a text where it is complex, which netCDF has no type for."""
    number = complex(number)
    return str(number) if number.imag else number.real


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float | str):
        return value
    return json.dumps(value, default=repr)


def _fits(signature: Any, metadata: Metadata, view: Metadata, transposed: bool) -> bool:
    """Whether a result was computed of this payload under this view."""
    if not isinstance(signature, Mapping):
        return False
    scalar = view.scalar("scalar")
    conjugated = view.take("is_conjugated", bool, False)
    expected = {"t": transposed, "c": conjugated, "sr": scalar.real, "si": scalar.imag}
    try:
        pairs = (part.split("=") for part in str(signature.get("view_signature")).split(";"))
        found = {key: float(value) for key, value in pairs}
    except ValueError:
        return False
    return found == expected and signature.get("payload_uuid") == metadata.values["payload_uuid"]


LENGTH_EXCESS = 64
"""Bytes by which the payload length is too large in files of 0.5.0."""

_LEAST = 8
"""Bytes that PyCauset stores even where a strict triangle has no element."""


def with_diagonal(reader: HeaderReader, slot: Slot, matrix: Matrix) -> Matrix:
    """Note in a triangle of numbers that its diagonal is stored, where the payload length says so."""
    if matrix.matrix_type not in TRIANGLES:
        return matrix
    length = slot.payload_length
    complete = replace(matrix, has_diagonal=True)
    strict, full = (
        max(sized_layout(each, reader.source.name)[1], _LEAST) for each in (matrix, complete)
    )
    has_diagonal = matrix.rows > 0 and length in (full, full + LENGTH_EXCESS)
    if has_diagonal and strict == full:
        has_diagonal = any(reader.bytes_at(matrix.offset, full, "the payload"))
    elif has_diagonal and length == strict + LENGTH_EXCESS:
        # A strict triangle by 0.5.0, or a complete one by 0.6: metadata follow at once.
        following = matrix.offset + -(-strict // METADATA_ALIGNMENT) * METADATA_ALIGNMENT
        magic = reader.bytes_at(following, len(BLOCK_MAGIC), "the end of the payload")
        has_diagonal = magic != BLOCK_MAGIC
    facts = {**matrix.facts, "has_diagonal": int(has_diagonal)}
    return replace(matrix, has_diagonal=has_diagonal, facts=facts)


_SQUARE = ("CAUSAL", "TRIANGULAR_INTEGER", "TRIANGULAR_FLOAT", "SYMMETRIC", "ANTISYMMETRIC")
_HALF = "<f2"


def stored_layout(matrix: Matrix, path: str) -> Layout:
    """The values as they lie in the file, before transposition, scale and conjugation."""
    layout, size = sized_layout(matrix, path)
    if matrix.offset + size > matrix.limit:
        raise TensorFormatError(
            path,
            f"the payload of {matrix.rows} x {matrix.columns} {matrix.matrix_type} values of type "
            f"{matrix.data_type}",
            f"{max(0, matrix.limit - matrix.offset)} bytes",
            f"{size} bytes",
            "the file was cut off or never written completely, or its header is damaged",
            offset=matrix.offset,
        )
    return layout


_WORD = 8


def sized_layout(matrix: Matrix, path: str) -> tuple[Layout, int]:
    """The stored values, whether or not the file is long enough."""
    _check_types(matrix, path)
    _check_shape(matrix, path)
    check_size(path, (matrix.rows, matrix.columns), WIDEST, matrix.fields)
    layout, size = _layout(matrix)
    if matrix.offset + size > matrix.limit and matrix.bit_row > _WORD:
        # Unreleased containers pad rows of bits as the generations before them.
        return _layout(replace(matrix, bit_row=_WORD))
    return layout, size


def view_of(layout: Layout, matrix: Matrix) -> Layout:
    """What the file says to do with the stored values: transpose, scale, conjugate."""
    if matrix.transposed and not matrix.is_vector:
        layout = transposed(layout, (1, 0))
    if matrix.scalar != 1:
        layout = Scaled(layout, matrix.scalar)
    if matrix.conjugated and layout.dtype.kind == "c":
        layout = Conjugated(layout)
    return layout


def stored_dtype(matrix: Matrix, layout: Layout) -> np.dtype[np.generic] | StoredDtype:
    """What the file holds, for ``encoding["dtype"]``; values of another type are never cut to it."""
    dtype = np.dtype(DTYPES.get(matrix.data_type, "V1"))
    if dtype == layout.dtype:
        return dtype
    return StoredDtype(matrix.data_type.lower(), layout.dtype)


def _check_types(matrix: Matrix, path: str) -> None:
    for name, found, known in (
        ("the matrix type", matrix.matrix_type, DATA_TYPES),
        (
            f"the data type of a {matrix.matrix_type} matrix",
            matrix.data_type,
            DATA_TYPES.get(matrix.matrix_type, ()),
        ),
    ):
        if found not in known:
            raise TensorFormatError(
                path,
                name,
                repr(found),
                "one of " + ", ".join(sorted(known)),
                "the header is damaged, or of a version that is not known",
                offset=matrix.fields,
            )


def _check_shape(matrix: Matrix, path: str) -> None:
    expected = None
    if matrix.matrix_type in (*_SQUARE, "DIAGONAL") and matrix.rows != matrix.columns:
        expected = "as many rows as columns"
    elif matrix.is_vector and matrix.columns != 1:
        expected = "one column"
    elif matrix.matrix_type == "UNIT_VECTOR" and not 0 <= matrix.seed < matrix.rows:
        expected = f"more rows than the active index {matrix.seed}"
    if expected is not None:
        raise TensorFormatError(
            path,
            f"the shape of a {matrix.matrix_type}",
            f"{matrix.rows} rows and {matrix.columns} columns",
            expected,
            "the header is damaged",
            offset=matrix.fields,
        )


def _layout(matrix: Matrix) -> tuple[Layout, int]:
    """The layout, and the bytes that it needs."""
    shape = (matrix.rows, matrix.columns)
    if matrix.is_vector:
        shape = (1, matrix.rows)
    if matrix.matrix_type == "IDENTITY":
        return Diagonal(shape, Ones((min(shape),))), 0
    if matrix.matrix_type == "UNIT_VECTOR":
        return UnitVector(shape if matrix.transposed else shape[1:], matrix.seed), 0
    if matrix.matrix_type == "DIAGONAL":
        element = Plain(np.dtype(DTYPES[matrix.data_type]))
        size = matrix.rows * element.stored.itemsize
        return Diagonal(shape, Dense((matrix.rows,), element, matrix.offset)), size
    if matrix.matrix_type in _SQUARE:
        return _triangle(matrix)
    if matrix.data_type == BIT:
        stride = -(-shape[1] // (8 * matrix.bit_row)) * matrix.bit_row
        bits = Bits(PaddedRows(*shape, stride, matrix.offset))
        is_flat = matrix.is_vector and not matrix.transposed
        return OnlyRow(bits) if is_flat else bits, shape[0] * stride
    return _dense(matrix, shape if not matrix.is_vector or matrix.transposed else shape[1:])


def _triangle(matrix: Matrix) -> tuple[Layout, int]:
    if matrix.data_type == BIT:
        rows = TriangleRows(matrix.rows, False, 1, matrix.triangle_row, matrix.offset)
        return Bits(rows), rows.nbytes
    element = Plain(np.dtype(DTYPES[matrix.data_type]))
    mirrored = matrix.matrix_type in ("SYMMETRIC", "ANTISYMMETRIC")
    diagonal = mirrored or matrix.has_diagonal
    rows = TriangleRows(
        matrix.rows, diagonal, 8 * element.stored.itemsize, matrix.triangle_row, matrix.offset
    )
    triangle = Triangle(rows, element)
    if mirrored:
        return Mirrored(triangle, 1 if matrix.matrix_type == "SYMMETRIC" else -1), rows.nbytes
    return triangle, rows.nbytes


def _dense(matrix: Matrix, lengths: tuple[int, ...]) -> tuple[Layout, int]:
    count = prod(lengths)
    if matrix.data_type == COMPLEX_FLOAT16:
        half = Plain(np.dtype(_HALF))
        planes = (Dense(lengths, half, matrix.offset + 2 * count * part) for part in range(2))
        return ComplexPlanes(*planes), 4 * count
    element = Plain(np.dtype(DTYPES[matrix.data_type]))
    return Dense(lengths, element, matrix.offset), count * element.stored.itemsize


BLOCK = "BLOCK"

_IDENTIFYING = 16
_MATRIX_TYPES_OF_V1 = range(1, 5)


def recognises(head: bytes, size: int) -> bool:
    """Whether a file can only be of PyCauset; session stores count, to be refused by their name."""
    return (head.startswith(MAGIC) and size >= _IDENTIFYING) or is_archive(head)


@dataclass
class Opening:
    """The files of one matrix, as they are opened one after the other."""

    findings: list[Finding] = field(default_factory=list)
    siblings: list[Source] = field(default_factory=list)

    def read(self, reader: HeaderReader, level: int = 0) -> tuple[Matrix, Layout]:
        """Read the header of a file."""
        generation = _generation(reader)
        if generation == "r1":
            return self._container(reader, level)
        if generation == "zip":
            matrix = read_archive(reader)
        else:
            matrix = read_header(reader, int(generation[1:]))
        return matrix, view_of(stored_layout(matrix, reader.source.name), matrix)

    def _container(self, reader: HeaderReader, level: int) -> tuple[Matrix, Layout]:
        source = reader.source
        content = read_container(reader)
        self.findings += content.findings
        metadata = Metadata(content.metadata, source.name, content.slot.metadata_offset)
        matrix = with_diagonal(reader, content.slot, matrix_of(content, metadata))
        if matrix.matrix_type != BLOCK:
            return matrix, view_of(stored_layout(matrix, source.name), matrix)

        def child(sibling: Source) -> tuple[Matrix, Layout]:
            self.siblings.append(sibling)
            self._check_count(source, metadata.offset, level)
            return self.read(HeaderReader(sibling), level + 1)

        block_matrix = blocks_layout(source, matrix, metadata, child)
        self.findings += lossy_blocks(source.name, block_matrix)
        return matrix, view_of(block_matrix, matrix)

    def _check_count(self, source: Source, offset: int, level: int) -> None:
        if len(self.siblings) > MOST_BLOCKS or level >= MOST_LEVELS:
            raise TensorFormatError(
                source.name,
                "the blocks of a BLOCK matrix",
                f"more than {MOST_BLOCKS}, or more than {MOST_LEVELS} within each other",
                "fewer",
                "the files are damaged, or made to keep readers busy",
                offset=offset,
            )


def _generation(reader: HeaderReader) -> str:
    head = reader.first_bytes(64)
    if head.startswith(ZIP_MAGIC):
        return "zip"
    if not head.startswith(MAGIC):
        raise reader.error(
            "the magic number", repr(head[:8]), repr(MAGIC), "it is no PyCauset file", 0
        )
    version = reader.unsigned(8, 4, "the version")
    word = reader.bytes_at(12, 4, "the matrix type")
    if version == 2:
        return "v2"
    if version == 1 and word == slots.PREAMBLE:
        return "r1"
    if version == 1 and int.from_bytes(word, "little") in _MATRIX_TYPES_OF_V1:
        return "v1"
    if version == 1 and not any(head[12:]):
        raise reader.error(
            "the header",
            "that of a backing store of a PyCauset session, which has no shape and no types",
            "a saved matrix",
            "save the matrix with pycauset.save, and open that file",
            12,
        )
    raise reader.error(
        "the version",
        f"{version}, then bytes {word.hex(' ')}",
        "2, or 1 and then 01 00 10 00 (a container) or a matrix type from 1 to 4",
        "the header is damaged, or of a newer version",
        8,
    )


MOST_BLOCKS = 4096
"""Limit on the blocks of a matrix, those of its blocks included."""

MOST_LEVELS = 8
"""Limit on the blocks within blocks."""

_UNSAFE = re.compile(r"[/\\:\0]|^\.*$")

_LONG = 8

Child = Callable[[Source], tuple[Matrix, Layout]]


def blocks_layout(source: Source, matrix: Matrix, metadata: Metadata, child: Child) -> BlockMatrix:
    """Open the blocks of a matrix."""
    manifest = metadata.below("block_manifest")
    version = manifest.take("version", int)
    if version != 1:
        raise manifest.error("version", version, "1", "the file is of a newer version")
    edges = (
        _edges(manifest, "row_partitions", matrix.rows),
        _edges(manifest, "col_partitions", matrix.columns),
    )
    grid = manifest.take("children", list)
    counts = tuple(len(each) - 1 for each in edges)
    fits = len(grid) == counts[0] and all(
        isinstance(row, list) and len(row) == counts[1] for row in grid
    )
    if not fits:
        raise manifest.error(
            "children", "another grid", f"{counts[0]} x {counts[1]} blocks", "the file is damaged"
        )
    blocks = tuple(
        tuple(
            _block(source, manifest, each, (bottom - top, right - left), child)
            for each, (left, right) in zip(row, pairwise(edges[1]), strict=True)
        )
        for row, (top, bottom) in zip(grid, pairwise(edges[0]), strict=True)
    )
    return BlockMatrix(*edges, blocks)


def lossy_blocks(path: str, block_matrix: BlockMatrix) -> list[Finding]:
    """What to say where integers of 64 bits become floating-point numbers beside other blocks."""
    kinds = {tile.layout.dtype for row in block_matrix.tiles for tile in row}
    long = any(kind.kind in "iu" and kind.itemsize == _LONG for kind in kinds)
    if block_matrix.dtype.kind not in "fc" or not long:
        return []
    names = ", ".join(sorted(map(str, kinds)))
    message = (
        f"those of {names} together are {block_matrix.dtype}, which rounds integers above 2**53; open a "
        "block by its own path for its exact values"
    )
    return [Finding(path, None, "the blocks", message, "warning")]


def _edges(manifest: Metadata, key: str, length: int) -> tuple[int, ...]:
    edges = manifest.take(key, list)
    ascend = (
        all(type(each) is int for each in edges)
        and 1 < len(edges) <= MOST_BLOCKS + 1
        and all(low < high for low, high in pairwise(edges))
        and (edges[0], edges[-1]) == (0, length)
    )
    if not ascend:
        raise manifest.error(
            key, repr(edges)[:60], f"ascending from 0 to {length}", "the file is damaged"
        )
    return tuple(edges)


def _block(
    source: Source, manifest: Metadata, entry: Any, shape: tuple[int, int], child: Child
) -> MatrixBlock:
    facts = Metadata(entry if isinstance(entry, dict) else {}, manifest.path, manifest.offset)
    name = facts.take("path", str)
    if _UNSAFE.search(name):
        raise facts.error(
            "path", repr(name), "a bare file name", "a block must lie in the folder of blocks"
        )
    place = f"{os.path.basename(source.name)}.blocks/{name}"
    try:
        sibling = source.sibling(place)
    except OSError as error:
        raise facts.error(
            "path",
            repr(name),
            f"the file {place}",
            f"it cannot be opened ({error.strerror or error})",
        ) from error
    if sibling is None:
        raise facts.error(
            "path", repr(name), "a file beside this one", "open a BLOCK matrix by its path"
        )
    matrix, layout = child(sibling)
    if matrix.facts.get("payload_uuid") != facts.take("payload_uuid", str):
        raise TensorFormatError(
            sibling.name,
            "the metadata key 'payload_uuid'",
            matrix.facts.get("payload_uuid"),
            repr(facts.values["payload_uuid"]),
            f"it is not the block that {source.name} was saved with; save that again",
            offset=matrix.fields,
        )
    if layout.shape != shape:
        raise TensorFormatError(
            sibling.name,
            "the shape of a block",
            layout.shape,
            f"{shape} as in {source.name}",
            "the files do not belong together",
            offset=matrix.fields,
        )
    return MatrixBlock(sibling, layout)


MATRIX_DIMS = ("row", "col")
VECTOR_DIMS = ("index",)


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a PyCauset file."""
    options.check_all_stored(reader.source.name)
    opening = Opening()
    matrix, layout = opening.read(reader)
    dims = named_dims(options.dims, options.name, default_dims(len(layout.shape)))
    encoding = _encoding(matrix, layout)
    tensor = Tensor(options.name, dims, layout, shown_attrs(matrix), encoding)
    return Container(
        (tensor,),
        siblings=tuple(opening.siblings),
        findings=tuple(opening.findings),
        embedded=matrix.embedded,
        derived=matrix.derived,
    )


def default_dims(rank: int) -> tuple[str, ...]:
    """What the axes of a matrix or vector are called."""
    return MATRIX_DIMS if rank == len(MATRIX_DIMS) else VECTOR_DIMS


def shown_attrs(matrix: Matrix) -> dict[str, Any]:
    """What a file without a note has for attributes."""
    return {
        "matrix_type": matrix.matrix_type,
        "data_type": matrix.data_type,
        "seed": matrix.seed,
        "scalar": attribute_of(matrix.scalar),
        "is_transposed": int(matrix.transposed),
        "is_conjugated": int(matrix.conjugated),
        **matrix.attrs,
    }


def _encoding(matrix: Matrix, layout: Layout) -> dict[str, Any]:
    facts = {
        **shown_attrs(matrix),
        "format": "pycauset",
        "version": matrix.generation,
        "shape": (matrix.rows, matrix.columns),
        "offset": matrix.offset,
        "byteorder": "little",
        **matrix.facts,
    }
    return {"tensorfmt": facts, "dtype": stored_dtype(matrix, layout)}
