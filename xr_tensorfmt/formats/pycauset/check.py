"""What can be wrong with a PyCauset file beside what its reader refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod

import numpy as np

from xr_tensorfmt.contract import (
    Array,
    Extents,
    Finding,
    Gap,
    HeaderReader,
    Integers,
    Layout,
    Selection,
    Source,
    Tensor,
    TensorFormatError,
    check_gaps,
    check_values,
    entry_indices,
    finding_from_error,
    stored_layout,
)
from xr_tensorfmt.formats._shared.symmetries import Symmetry, check_claim, check_symmetry
from xr_tensorfmt.formats._shared.zip_members import check_checksums
from xr_tensorfmt.formats.pycauset.container import (
    METADATA_ALIGNMENT,
    SLOT_OFFSETS,
    Slot,
    read_metadata,
    read_slots,
)
from xr_tensorfmt.formats.pycauset.earlier_versions import fields_stop
from xr_tensorfmt.formats.pycauset.packed import Packed
from xr_tensorfmt.formats.pycauset.read import MatrixFile, default_dims
from xr_tensorfmt.formats.pycauset.rows import Rows
from xr_tensorfmt.formats.pycauset.spec import HEADER_BYTES, Matrix

MAX_CHECKED = 1 << 28
"""Elements of a matrix that stores few of them up to which its properties are checked."""

_ROWS_AT_ONCE = 1 << 16
_BYTES_AT_ONCE = 16 << 20

_SYMMETRIES = (
    Symmetry("is_symmetric", (1, 0), np.asarray),
    Symmetry("is_anti_symmetric", (1, 0), np.negative),
    Symmetry("is_hermitian", (1, 0), np.conjugate),
    Symmetry("is_skew_hermitian", (1, 0), lambda values: -np.conjugate(values)),
)
# Where values are other than by a property, by how many columns they are behind the diagonal.
_WRONG: Mapping[str, Callable[[Array, Integers], Array]] = {
    "is_zero": lambda values, _: values != 0,
    "is_upper_triangular": lambda values, behind: (values != 0) & (behind < 0),
    "is_lower_triangular": lambda values, behind: (values != 0) & (behind > 0),
    "is_diagonal": lambda values, behind: (values != 0) & (behind != 0),
    "is_identity": lambda values, behind: values != (behind == 0),
    "has_zero_diagonal": lambda values, behind: (values != 0) & (behind == 0),
    "has_unit_diagonal": lambda values, behind: (values != 1) & (behind == 0),
}


def check(source: Source, file: MatrixFile, most: int) -> Iterator[Finding]:
    """Check a file whose header can be read, and those of its blocks."""
    for each in file.files:
        yield from _check_file(each)
        if each is not file and not each.blocks:
            dims = default_dims(len(each.stored.shape))
            yield from check_values(each.source, [Tensor("tensor", dims, each.stored)], most)
    yield from _check_properties(source, file)


def _check_file(file: MatrixFile) -> Iterator[Finding]:
    payload_stop = file.matrix.offset + file.payload_bytes
    reader = HeaderReader(file.source)
    if file.matrix.version == "r1":
        yield from _check_container(reader, payload_stop)
    elif file.matrix.version == "zip":
        yield from check_checksums(file.source, file.matrix.members)
    else:
        yield from _check_header(reader, file.matrix)
    stored = stored_layout(file.stored)
    if isinstance(stored, Packed):
        yield from _check_padding(file.source, stored.rows)
    if file.matrix.matrix_type == "ANTISYMMETRIC":
        is_wrong = _WRONG["has_zero_diagonal"]
        yield from _check_places(file.source, file.stored, "ANTISYMMETRIC", is_wrong)


def _check_properties(source: Source, file: MatrixFile) -> Iterator[Finding]:
    """Look at the values for what the metadata claim of them."""
    layout, attrs = file.layout, file.matrix.attrs
    if len(layout.shape) == 1:
        return
    symmetries = [each for each in _SYMMETRIES if attrs.get(f"property_{each.name}") == 1]
    others = [name for name in _WRONG if attrs.get(f"property_{name}") == 1]
    if (symmetries or others) and file.is_mostly_implied and prod(layout.shape) > MAX_CHECKED:
        message = (
            f"not checked, as the matrix has {prod(layout.shape)} elements, and expected at most "
            f"{MAX_CHECKED}, since few of them are stored; look at the parts that matter"
        )
        yield Finding(source.name, file.matrix.stated_at, "the properties", message, "warning")
        return
    for symmetry in symmetries:
        yield from check_symmetry(source, layout, symmetry)
    for name in others:
        yield from _check_places(source, layout, name, _WRONG[name])


def _check_places(
    source: Source, layout: Layout, name: str, is_wrong: Callable[[Array, Integers], Array]
) -> Iterator[Finding]:
    """Check a claim about values by their places."""

    def wrong(selection: Selection) -> Array:
        rows, columns = map(entry_indices, selection.entries)
        return is_wrong(layout.read(source, selection), columns - rows[:, np.newaxis])

    yield from check_claim(source, layout, name, wrong)


def _check_header(reader: HeaderReader, matrix: Matrix) -> Iterator[Finding]:
    """Check a file of version 1 or 2."""
    gap = Gap(fields_stop(matrix), HEADER_BYTES, "the rest of the header")
    yield from check_gaps(reader.source, [gap])


def _check_container(reader: HeaderReader, payload_stop: int) -> Iterator[Finding]:
    """Check slots, the metadata that they point to, and what is around them."""
    source = reader.source
    slots, _ = read_slots(reader)  # what is wrong with the others, the reader has found
    for slot in slots:
        try:
            read_metadata(reader, slot)
        except TensorFormatError as error:
            yield finding_from_error(error)
    last = max(payload_stop, *(slot.metadata_stop for slot in slots))
    # Metadata of earlier generations may follow these.
    padded = min(payload_stop + -payload_stop % METADATA_ALIGNMENT, last)
    slot_a, slot_b = SLOT_OFFSETS.values()
    gaps = (
        Gap(slot_a + Slot.STRUCT.size, slot_b, "the rest of a slot"),
        Gap(slot_b + Slot.STRUCT.size, HEADER_BYTES, "the rest of slot B and of the header"),
        Gap(payload_stop, padded, "the padding before the metadata"),
    )
    yield from check_gaps(source, gaps)


def _check_padding(source: Source, rows: Rows) -> Iterator[Finding]:
    """Look at what follows the last element of each row."""
    count = rows.count if rows.nbytes else 0  # however many rows a header may claim
    for first in range(0, count, _ROWS_AT_ONCE):
        numbers = np.arange(first, min(first + _ROWS_AT_ONCE, count))
        used = np.maximum(rows.columns - rows.firsts(numbers), 0) * rows.bits
        begins, stops = rows.starts(numbers) + used // 8, rows.starts(numbers + 1)
        padded = np.flatnonzero(begins < stops)
        if not padded.size:
            continue
        begins, lengths = begins[padded], (stops - begins)[padded]
        raw, heads = source.read(Extents(begins, lengths)), np.cumsum(lengths) - lengths
        # The lower bits of the first byte are of the last elements.
        raw[heads] >>= (used[padded] % 8).astype(np.uint8)
        if raw.any():
            place = int(np.argmax(raw != 0))
            row = int(np.searchsorted(heads, place, side="right")) - 1
            yield Finding(
                source.name,
                int(begins[row] + place - heads[row]),
                f"the padding of row {int(numbers[padded[row]])}",
                "it is not zero, as after an inversion by PyCauset, which programs must ignore; "
                "write the file anew to clear it",
                "warning",
            )
            return
