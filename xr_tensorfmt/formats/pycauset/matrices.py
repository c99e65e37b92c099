"""The layouts of all types of matrices, and which one a matrix has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xr_tensorfmt.contract import (
    MAX_ITEM_BYTES,
    Array,
    ByteRead,
    Dense,
    Element,
    Elementwise,
    Encoded,
    Extents,
    Integers,
    Layout,
    Selection,
    Source,
    TensorFormatError,
    View,
    WritableLayout,
    check_size,
    contiguous_chunk,
    entry_from_indices,
    entry_indices,
)
from xr_tensorfmt.formats.pycauset import spec
from xr_tensorfmt.formats.pycauset.packed import Bits, Packed, PartlyStored
from xr_tensorfmt.formats.pycauset.rows import Rows
from xr_tensorfmt.formats.pycauset.spec import Matrix


@dataclass(frozen=True)
class Scaled(Elementwise):
    """Values of another layout times a number, conjugated or not.

    Products are in double precision. A zero becomes 0.0, never -0.0 or NaN.
    """

    scalar: complex
    is_conjugated: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the inner layout if the number is 1, else complex128 or float64."""
        if self.scalar == 1:
            return self.inner.dtype
        is_complex = self.inner.dtype.kind == "c" or self.scalar.imag != 0
        return np.dtype(np.complex128 if is_complex else np.float64)

    def apply(self, values: Array) -> Array:
        """Multiply, then conjugate."""
        if self.scalar != 1:
            values = self._multiplied(values)
        # In place, as what a layout reads belongs to the reader; zeros keep their signs.
        is_conjugated = self.is_conjugated and values.dtype.kind == "c"
        return np.conjugate(values, out=values, where=values != 0) if is_conjugated else values

    def _multiplied(self, values: Array) -> Array:
        real, imaginary = self.scalar.real, self.scalar.imag
        with np.errstate(invalid="ignore", over="ignore"):
            if imaginary:
                scaled = np.multiply(values, self.scalar, dtype=np.complex128)
            elif values.dtype.kind == "c":
                scaled = values.astype(np.complex128)
                scaled.real *= real
                scaled.imag *= real
            else:
                scaled = np.multiply(values, real, dtype=np.float64)
        if imaginary or not 0 < real < np.inf:
            np.copyto(scaled, 0, where=values == 0)
        return scaled


@dataclass(frozen=True)
class OnlyRow(View, WritableLayout):
    """The only row of a matrix, as a vector."""

    inner: WritableLayout

    @property
    def shape(self) -> tuple[int, ...]:
        """The columns."""
        return self.inner.shape[1:]

    def _inward(self, selection: Selection) -> Selection:
        return Selection(self.inner.shape, (slice(0, 1, 1), *selection.entries))

    def _points_inward(self, points: tuple[Integers, ...]) -> tuple[Integers, ...]:
        return np.zeros_like(points[0]), *points

    def read(self, source: Source, selection: Selection) -> Array:
        """Read the row."""
        row: Array = self.inner.read(source, self._inward(selection))[0]
        return row

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Chunks of the inner layout."""
        return self.inner.chunk_shape(target)[1:]

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """Encode the row."""
        return self.inner.encode(self._inward(selection), values[np.newaxis])

    def stored_element(self) -> Element:
        """Return the element of the matrix."""
        return self.inner.stored_element()

    @property
    def write_units(self) -> tuple[int, ...]:
        """The write units of the columns."""
        return self.inner.write_units[1:]


@dataclass(frozen=True)
class ComplexPlanes(View):
    """Complex numbers of which all real parts are stored before all imaginary parts."""

    @property
    def shape(self) -> tuple[int, ...]:
        """That of each part."""
        return self.inner.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The narrowest complex type that numpy has."""
        return np.dtype(np.complex64)

    def _inward(self, selection: Selection) -> Selection:
        return Selection(self.inner.shape, (slice(0, 2, 1), *selection.entries))

    def _points_inward(self, points: tuple[Integers, ...]) -> tuple[Integers, ...]:
        return np.repeat([0, 1], points[0].size), *(np.tile(each, 2) for each in points)

    def read(self, source: Source, selection: Selection) -> Array:
        """Read both parts."""
        return _complex(*self.inner.read(source, self._inward(selection)))

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read both parts."""
        return _complex(*super().read_points(source, points).reshape(2, -1))

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Whole rows."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)


def _complex(real: Array, imaginary: Array) -> Array:
    values = np.empty(real.shape, dtype=np.complex64)
    values.real, values.imag = real, imaginary
    return values


@dataclass(frozen=True)
class Diagonal(PartlyStored):
    """A matrix or vector with zeros but on a diagonal, which is stored or all ones.

    It begins in the column `shift`. A vector is the only row of a matrix.
    """

    lengths: tuple[int, ...]
    values: WritableLayout | None = None
    shift: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths."""
        return self.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """Double precision."""
        return np.dtype(np.float64)

    def _part(self, selection: Selection) -> tuple[Selection, tuple[Integers, ...]]:
        """What is selected of the diagonal, and where it is among the selected values."""
        rows, columns = map(entry_indices, (slice(0, 1, 1), *selection.entries)[-2:])
        common, *places = np.intersect1d(
            rows + self.shift, columns, assume_unique=True, return_indices=True
        )
        part = Selection((min(self.lengths),), (entry_from_indices(common - self.shift),))
        return part, tuple(places[-len(self.lengths) :])

    def extents(self, selection: Selection) -> Extents:
        """Bytes of the selected part of the diagonal."""
        part, _ = self._part(selection)
        return self.values.extents(part) if self.values and part.size else Extents.none()

    def read(self, source: Source, selection: Selection) -> Array:
        """Zeros, and the selected part of the diagonal."""
        filled = np.zeros(selection.shape, dtype=self.dtype)
        part, places = self._part(selection)
        if part.size:
            filled[places] = self.values.read(source, part) if self.values else 1
        return filled

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Zeros, and those points that are on the diagonal."""
        filled = np.zeros(points[0].size, dtype=self.dtype)
        rows = points[0] if len(points) > 1 else np.zeros_like(points[0])
        on = np.flatnonzero(rows + self.shift == points[-1])
        if on.size:
            filled[on] = self.values.read_points(source, (rows[on],)) if self.values else 1
        return filled

    @property
    def unchecked(self) -> Layout | None:
        """The diagonal, if it is stored."""
        return self.values

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """The diagonal, if it is stored."""
        self.check_implied(selection, values)
        part, places = self._part(selection)
        if self.values and part.size:
            yield from self.values.encode(part, values[places])

    def check_implied(self, selection: Selection, values: Array) -> None:
        """Zeros beside the diagonal, and ones on it if it is not stored."""
        wrong, (_, places) = values != 0, self._part(selection)
        wrong[places] = False if self.values else values[places] != 1
        implied = "a diagonal matrix has 0"
        if len(self.lengths) == 1:
            implied = f"a unit vector has 1 at {self.shift}, 0 elsewhere"
        elif not self.values:
            implied = "an identity matrix has 1 on its diagonal and 0 beside it"
        self.refuse_first(wrong, implied, selection, values)


@dataclass(frozen=True)
class Mirrored(Packed):
    """A square matrix whose lower triangle is its upper one, mirrored."""

    sign: int

    def extents(self, selection: Selection) -> Extents:
        """What is stored of the selection, and what is stored of its mirror image."""
        mirror = selection.permuted((1, 0))
        return Extents.union([super().extents(selection), super().extents(mirror)])

    # A part cannot be written: its mirror image may be in the rest.
    stored_element = WritableLayout.stored_element

    def read(self, source: Source, selection: Selection) -> Array:
        """Read the stored part, then what lies below the diagonal from its mirror image."""
        values = super().read(source, selection)
        rows, columns = map(entry_indices, selection.entries)
        if values.size and rows[-1] > columns[0]:
            image = super().read(source, selection.permuted((1, 0))).T
            below = rows[:, np.newaxis] > columns
            np.copyto(values, image if self.sign > 0 else 0 - image, where=below)
        return values

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read points below the diagonal from their mirror image."""
        rows, columns = points
        mirrored = (np.minimum(rows, columns), np.maximum(rows, columns))
        values = super().read_points(source, mirrored)
        if self.sign < 0:
            np.subtract(0, values, out=values, where=rows > columns)
        return values

    def check_implied(self, selection: Selection, values: Array) -> None:
        """Nothing, as `compare` looks at what is below the diagonal."""

    def compare(self, source: Source, selection: Selection, values: Array) -> None:
        """Refuse values that are not the mirror images of those above the diagonal, or on it."""
        rows, columns = map(entry_indices, selection.entries)
        # The columns behind the last row are above the diagonal.
        columns = columns[: np.searchsorted(columns, rows[-1], side="right")]
        if not columns.size:
            return
        part = Selection(selection.extent, (selection.entries[0], entry_from_indices(columns)))
        image = self.sign * super().read(source, part.permuted((1, 0))).T
        values = values[:, : columns.size]
        wrong = (image != values) & ((image == image) | (values == values))
        wrong &= columns <= rows[:, np.newaxis]
        position = int(wrong.argmax())
        mirrored = f"that at {part.full_index(position)[::-1]} makes it {image.flat[position]}"
        self.refuse_first(wrong, mirrored, part, values)


@dataclass(frozen=True)
class Block:
    """A block of a BLOCK matrix: its file, its layout, and its first row and column."""

    source: Source
    layout: Layout
    corner: tuple[int, int]


@dataclass(frozen=True)
class BlockMatrix(Layout):
    """A matrix that is put together of others."""

    lengths: tuple[int, int]
    blocks: tuple[Block, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns of all blocks together."""
        return self.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that holds the values of all blocks."""
        return np.result_type(*{block.layout.dtype for block in self.blocks})

    # The check of PyCauset reads what each block stores, which may be very little.
    unchecked = None

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Whole rows."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def extents(self, selection: Selection) -> Extents:
        """None in this file: each block has a file of its own."""
        return Extents.none()

    def _parts(self, selection: Selection) -> Iterator[tuple[Block, tuple[slice, ...], Selection]]:
        """Each block that a selection meets, where its values go, and what is selected of it."""
        indices = [entry_indices(entry) for entry in selection.entries]
        for block in self.blocks:
            shape, parts, entries = block.layout.shape, [], []
            for each, low, length in zip(indices, block.corner, shape, strict=True):
                parts.append(slice(*np.searchsorted(each, (low, low + length)).tolist()))
                entries.append(entry_from_indices(each[parts[-1]] - low))
            inner = Selection(shape, tuple(entries))
            if inner.size:
                yield block, tuple(parts), inner

    def _points(
        self, points: tuple[Integers, ...]
    ) -> Iterator[tuple[Block, Integers, tuple[Integers, ...]]]:
        """Each block that a point is in, which points those are, and where they are in it."""
        for block in self.blocks:
            moved = np.stack(points) - np.array(block.corner)[:, np.newaxis]
            inside = (moved >= 0) & (moved < np.array(block.layout.shape)[:, np.newaxis])
            here = np.flatnonzero(inside.all(axis=0))
            if here.size:
                yield block, here, tuple(moved[:, here])

    def reads(self, source: Source, selection: Selection) -> list[ByteRead]:
        """Those of every block that the selection meets."""
        parts = self._parts(selection)
        return [each for block, _, part in parts for each in block.layout.reads(block.source, part)]

    def point_reads(self, source: Source, points: tuple[Integers, ...]) -> list[ByteRead]:
        """Those of every block that a point is in."""
        found = self._points(points)
        return [
            each for block, _, at in found for each in block.layout.point_reads(block.source, at)
        ]

    def read(self, source: Source, selection: Selection) -> Array:
        """Read from every block that the selection meets."""
        values = np.empty(selection.shape, dtype=self.dtype)
        for block, places, part in self._parts(selection):
            values[places] = block.layout.read(block.source, part)
        return values

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read from every block that a point is in."""
        values = np.empty(points[0].size, dtype=self.dtype)
        for block, here, at in self._points(points):
            values[here] = block.layout.read_points(block.source, at)
        return values


def sized_layout(matrix: Matrix, path: str) -> tuple[Layout, int]:
    """The stored values and their bytes, whether or not the file is long enough."""
    _check(matrix, path)
    check_size(path, (matrix.rows, matrix.columns), MAX_ITEM_BYTES, matrix.stated_at)
    layout, size = _layout(matrix)
    if matrix.offset + size > matrix.limit and matrix.row_bytes > spec.WORD_BYTES:
        # Unreleased containers pad rows of bits as the versions before them.
        return _layout(replace(matrix, row_bytes=spec.WORD_BYTES))
    return layout, size


def _check(matrix: Matrix, path: str) -> None:
    """Refuse types that do not go together, and shapes that are not those of the type."""
    kind, data_type, known = matrix.matrix_type, matrix.data_type, spec.DATA_TYPES
    found, expected = f"{matrix.rows} rows and {matrix.columns} columns", ""
    field = f"the shape of a {kind}"
    if kind not in known or data_type not in known[kind]:
        is_known = kind in known
        field = f"the data type of a {kind} matrix" if is_known else "the matrix type"
        found = repr(data_type if is_known else kind)
        expected = f"one of {', '.join(sorted(known[kind] if is_known else known))}"
    elif kind in spec.SQUARE and matrix.rows != matrix.columns:
        expected = "as many rows as columns"
    elif matrix.is_vector and matrix.columns != 1:
        expected = "one column"
    elif kind == "UNIT_VECTOR" and not 0 <= matrix.seed < matrix.rows:
        expected = f"more rows than the active index {matrix.seed}"
    if expected:
        hint = "the header is damaged, or of a version that is not known"
        raise TensorFormatError(path, field, found, expected, hint, offset=matrix.stated_at)


def _layout(matrix: Matrix) -> tuple[Layout, int]:
    """The stored values and their bytes."""
    kind, element, offset = matrix.matrix_type, spec.ELEMENTS[matrix.data_type], matrix.offset
    shape = (1, matrix.rows) if matrix.is_vector else (matrix.rows, matrix.columns)
    # A transposed vector is a matrix of one row.
    is_flat = matrix.is_vector and not matrix.is_transposed
    lengths = shape[1:] if is_flat else shape
    if kind in ("IDENTITY", "UNIT_VECTOR"):
        return Diagonal(lengths, shift=matrix.seed if matrix.is_vector else 0), 0
    if kind in spec.TRIANGLES or matrix.data_type == spec.BIT:
        rows, sign = _rows(matrix, shape, element), spec.MIRROR_SIGNS.get(kind)
        layout = Bits(rows) if matrix.data_type == spec.BIT else Packed(rows, element)
        if sign is not None:
            layout = Mirrored(rows, element, sign)
        return OnlyRow(layout) if is_flat else layout, rows.nbytes
    if kind == "DIAGONAL":
        dense = Dense(lengths[:1], element, offset)
        return Diagonal(lengths, dense), dense.stop - offset
    if matrix.data_type == spec.COMPLEX_FLOAT16:
        dense = Dense((2, *lengths), element, offset)
        return ComplexPlanes(dense), dense.stop - offset
    dense = Dense(lengths, element, offset)
    return dense, dense.stop - offset


def _rows(matrix: Matrix, shape: tuple[int, int], element: Element) -> Rows:
    bits = 1 if matrix.data_type == spec.BIT else 8 * element.stored.itemsize
    diagonal = None
    if matrix.matrix_type in spec.TRIANGLES:
        diagonal = 0 if matrix.has_diagonal or matrix.matrix_type in spec.MIRROR_SIGNS else 1
    return Rows(*shape, bits, matrix.row_bytes, matrix.offset, diagonal)
