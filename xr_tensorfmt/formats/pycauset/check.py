"""Validation of PyCauset files, beyond the errors of the reader."""

from __future__ import annotations

from collections.abc import Iterator

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.findings import Finding, Gap, check_gaps, finding_from_error
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.value_checks import check_values
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.pycauset import container as r1
from xr_tensorfmt.formats.pycauset.earlier_versions import find_fields_stop
from xr_tensorfmt.formats.pycauset.read import MatrixFile, get_default_dims
from xr_tensorfmt.formats.pycauset.spec import HEADER_BYTES
from xr_tensorfmt.formats.zip_members import check_checksums


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:  # noqa: ARG001
    """Check a parsed file and the files of its blocks."""
    file: MatrixFile = container.parsed
    for part in file.files:
        matrix = part.matrix
        if matrix.version == "r1":
            payload_stop = matrix.offset + part.payload_bytes
            yield from _check_container(HeaderReader(part.source), payload_stop)
        elif matrix.version == "zip":
            yield from check_checksums(part.source, matrix.members)
        else:
            gap = Gap(find_fields_stop(matrix), HEADER_BYTES, "the rest of the header")
            yield from check_gaps(part.source, [gap])
        if part is not file and not part.blocks:
            dims = get_default_dims(len(part.stored.shape))
            yield from check_values(part.source, [Tensor("tensor", dims, part.stored)], limit)


def _check_container(reader: HeaderReader, payload_stop: int) -> Iterator[Finding]:
    """Check slots, their metadata, and the gaps around them."""
    slots, _ = r1.read_slots(reader)  # the reader reports invalid slots
    for slot in slots:
        try:
            r1.read_metadata(reader, slot)
        except TensorFormatError as error:
            yield finding_from_error(error)
    last = max(payload_stop, *(slot.metadata_stop for slot in slots))
    # Metadata of earlier generations may follow.
    padded = min(payload_stop + -payload_stop % r1.METADATA_ALIGNMENT, last)
    slot_a, slot_b = r1.SLOT_OFFSETS.values()
    gaps = (
        Gap(slot_a + r1.Slot.STRUCT.size, slot_b, "the rest of a slot"),
        Gap(slot_b + r1.Slot.STRUCT.size, HEADER_BYTES, "the rest of slot B and of the header"),
        Gap(payload_stop, padded, "the padding before the metadata"),
    )
    yield from check_gaps(reader.source, gaps)
