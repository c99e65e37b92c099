"""Validation of PyCauset files, beyond the errors of the reader."""

from __future__ import annotations

from collections.abc import Iterator

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.findings import Finding, finding_from_error
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.value_checks import check_values
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.pycauset import container as r1
from xr_tensorfmt.formats.pycauset.read import MatrixFile, get_default_dims
from xr_tensorfmt.formats.zip_members import check_checksums


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:  # noqa: ARG001
    """Check a parsed file and the files of its blocks."""
    file: MatrixFile = container.parsed
    for part in file.files:
        matrix = part.matrix
        if matrix.version == "r1":
            yield from _check_container(HeaderReader(part.source))
        elif matrix.version == "zip":
            yield from check_checksums(part.source, matrix.members)
        if part is not file and not part.blocks:
            dims = get_default_dims(len(part.stored.shape))
            yield from check_values(part.source, [Tensor("tensor", dims, part.stored)], limit)


def _check_container(reader: HeaderReader) -> Iterator[Finding]:
    """Check slots and their metadata."""
    slots, _ = r1.read_slots(reader)  # the reader reports invalid slots
    for slot in slots:
        try:
            r1.read_metadata(reader, slot)
        except TensorFormatError as error:
            yield finding_from_error(error)
