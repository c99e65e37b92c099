"""Validation of PyCauset files, beyond the errors of the reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod

import numpy as np

from xr_tensorfmt.core.container import Tensor
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Extents, Integers
from xr_tensorfmt.core.findings import Finding, Gap, check_gaps, finding_from_error
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.reading import read
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.value_checks import check_values
from xr_tensorfmt.core.views import get_stored_layout
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats._shared.symmetries import (
    MAX_CHECKED_ELEMENTS,
    check_claim,
    check_symmetry,
)
from xr_tensorfmt.formats._shared.zip_members import check_checksums
from xr_tensorfmt.formats.pycauset.container import (
    METADATA_ALIGNMENT,
    SLOT_OFFSETS,
    Slot,
    read_metadata,
    read_slots,
)
from xr_tensorfmt.formats.pycauset.earlier_versions import find_fields_stop
from xr_tensorfmt.formats.pycauset.matrix_file import MatrixFile
from xr_tensorfmt.formats.pycauset.packed import Packed
from xr_tensorfmt.formats.pycauset.read import get_default_dims
from xr_tensorfmt.formats.pycauset.rows import Rows
from xr_tensorfmt.formats.pycauset.spec import HEADER_BYTES

_ROWS_AT_ONCE = 1 << 16

# The operations that a transposed matrix with a property is equal to.
_SYMMETRIES: Mapping[str, Callable[[Array], Array]] = {
    "is_symmetric": np.asarray,
    "is_anti_symmetric": np.negative,
    "is_hermitian": np.conjugate,
    "is_skew_hermitian": lambda values: -np.conjugate(values),
}
# Elements that violate a property. `distance` is the column minus the row.
_VIOLATIONS: Mapping[str, Callable[[Array, Integers], Array]] = {
    "is_zero": lambda values, _: values != 0,
    "is_upper_triangular": lambda values, distance: (values != 0) & (distance < 0),
    "is_lower_triangular": lambda values, distance: (values != 0) & (distance > 0),
    "is_diagonal": lambda values, distance: (values != 0) & (distance != 0),
    "is_identity": lambda values, distance: values != (distance == 0),
    "has_zero_diagonal": lambda values, distance: (values != 0) & (distance == 0),
    "has_unit_diagonal": lambda values, distance: (values != 1) & (distance == 0),
}


def check(source: Source, file: MatrixFile, limit: int) -> Iterator[Finding]:
    """Check a parsed file and the files of its blocks."""
    for part in file.files:
        yield from _check_file(part)
        if part is not file and not part.blocks:
            dims = get_default_dims(len(part.stored.shape))
            yield from check_values(part.source, [Tensor("tensor", dims, part.stored)], limit)
    yield from _check_properties(source, file)


def _check_file(file: MatrixFile) -> Iterator[Finding]:
    if file.matrix.version == "r1":
        payload_stop = file.matrix.offset + file.payload_bytes
        yield from _check_container(HeaderReader(file.source), payload_stop)
    elif file.matrix.version == "zip":
        yield from check_checksums(file.source, file.matrix.members)
    else:
        gap = Gap(find_fields_stop(file.matrix), HEADER_BYTES, "the rest of the header")
        yield from check_gaps(file.source, [gap])
    stored = get_stored_layout(file.stored)
    if isinstance(stored, Packed):
        yield from _check_padding(file.source, stored.rows)
    if file.matrix.matrix_type == "ANTISYMMETRIC":
        is_wrong = _VIOLATIONS["has_zero_diagonal"]
        yield from _check_elements(file.source, file.stored, "ANTISYMMETRIC", is_wrong)


def _check_properties(source: Source, file: MatrixFile) -> Iterator[Finding]:
    """Check the properties that the metadata claim."""
    layout, properties = file.layout, file.matrix.properties
    if len(layout.shape) == 1:
        return
    claims = [name for name in (*_SYMMETRIES, *_VIOLATIONS) if properties.get(name) is True]
    count = prod(layout.shape)
    if claims and file.is_mostly_implied and count > MAX_CHECKED_ELEMENTS:
        message = (
            f"not checked because the matrix has {count} elements, expected at most "
            f"{MAX_CHECKED_ELEMENTS} if few elements are stored; check the parts that matter"
        )
        yield Finding(source.name, file.matrix.types_offset, "the properties", message, "warning")
        return
    for name in claims:
        if name in _SYMMETRIES:
            yield from check_symmetry(source, layout, name, (1, 0), _SYMMETRIES[name])
        else:
            yield from _check_elements(source, layout, name, _VIOLATIONS[name])


def _check_elements(
    source: Source, layout: Layout, name: str, is_wrong: Callable[[Array, Integers], Array]
) -> Iterator[Finding]:
    """Check a claim about the elements at some distance from the diagonal."""

    def find_wrong(selection: Selection) -> Array:
        rows, columns = selection.index_arrays
        return is_wrong(read(layout, source, selection), columns - rows[:, np.newaxis])

    yield from check_claim(source, layout, name, find_wrong)


def _check_container(reader: HeaderReader, payload_stop: int) -> Iterator[Finding]:
    """Check slots, their metadata, and the gaps around them."""
    source = reader.source
    slots, _ = read_slots(reader)  # the reader reports invalid slots
    for slot in slots:
        try:
            read_metadata(reader, slot)
        except TensorFormatError as error:
            yield finding_from_error(error)
    last = max(payload_stop, *(slot.metadata_stop for slot in slots))
    # Metadata of earlier generations may follow.
    padded = min(payload_stop + -payload_stop % METADATA_ALIGNMENT, last)
    slot_a, slot_b = SLOT_OFFSETS.values()
    gaps = (
        Gap(slot_a + Slot.STRUCT.size, slot_b, "the rest of a slot"),
        Gap(slot_b + Slot.STRUCT.size, HEADER_BYTES, "the rest of slot B and of the header"),
        Gap(payload_stop, padded, "the padding before the metadata"),
    )
    yield from check_gaps(source, gaps)


def _check_padding(source: Source, rows: Rows) -> Iterator[Finding]:
    """Check that the padding of rows is zero."""
    count = rows.count if rows.nbytes else 0  # a header may claim many empty rows
    for first in range(0, count, _ROWS_AT_ONCE):
        numbers = np.arange(first, min(first + _ROWS_AT_ONCE, count))
        used = np.maximum(rows.columns - rows.find_first_columns(numbers), 0) * rows.bits
        begins, stops = rows.compute_starts(numbers) + used // 8, rows.compute_starts(numbers + 1)
        padded = np.flatnonzero(begins < stops)
        if not padded.size:
            continue
        begins, lengths = begins[padded], (stops - begins)[padded]
        raw = source.read(Extents(begins, lengths))
        # The first byte of the padding may begin with the last elements.
        heads = np.cumsum(lengths) - lengths
        raw[heads] >>= (used[padded] % 8).astype(np.uint8)
        if raw.any():
            index = int(np.argmax(raw != 0))
            row = int(np.searchsorted(heads, index, side="right")) - 1
            yield Finding(
                source.name,
                int(begins[row] + index - heads[row]),
                f"the padding of row {int(numbers[padded[row]])}",
                "not zero, expected zeros; programs must ignore it, and PyCauset sets it when it "
                "inverts bits; save the file again to clear it",
                "warning",
            )
            return
