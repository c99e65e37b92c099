"""What can be wrong with a PyCauset file beside what its reader refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import gt, lt
from typing import Any
from zlib import crc32

import numpy as np

from xr_tensorfmt.extents import Extents
from xr_tensorfmt.formats.header import HeaderReader
from xr_tensorfmt.formats.pycauset.archive import DATA, METADATA, entries
from xr_tensorfmt.formats.pycauset.header import FIELDS, HEADER_BYTES
from xr_tensorfmt.formats.pycauset.matrix import Matrix
from xr_tensorfmt.formats.pycauset.reading import BLOCK, Opening
from xr_tensorfmt.formats.pycauset.storage import sized_layout
from xr_tensorfmt.layouts import Layout
from xr_tensorfmt.sources import Source
from xr_tensorfmt.tensor import Container
from xr_tensorfmt.validation.claims import Symmetry, Zeros, check_symmetry, check_zeros
from xr_tensorfmt.validation.container import check_container
from xr_tensorfmt.validation.finding import Finding
from xr_tensorfmt.validation.gaps import Gap, check_gaps, trailing
from xr_tensorfmt.validation.rowpadding import check_row_padding

_PIECE = 16 << 20
_END, _END_MAGIC = 22, b"PK\5\6"
_LONGEST_END = _END + 0xFFFF
# The payload of versions 1 and 2 takes so many bytes even where nothing is stored.
_LEAST = 8

_SYMMETRIES = (
    Symmetry("is_symmetric", (1, 0), np.asarray),
    Symmetry("is_anti_symmetric", (1, 0), np.negative),
    Symmetry("is_hermitian", (1, 0), np.conjugate),
    Symmetry("is_skew_hermitian", (1, 0), lambda values: -np.conjugate(values)),
)
_ZEROS = (
    Zeros("is_zero", lambda row, column: (row == row) & (column == column)),
    Zeros("is_upper_triangular", gt),
    Zeros("is_lower_triangular", lt),
    Zeros("is_diagonal", np.not_equal),
    Zeros("is_identity", np.not_equal),
    Zeros("is_identity", np.equal, 1),
    Zeros("has_zero_diagonal", np.equal),
    Zeros("has_unit_diagonal", np.equal, 1),
)


def check_pycauset(source: Source, container: Container) -> Iterator[Finding]:
    """Check a file whose header can be read, and those of its blocks.

    Parameters
    ----------
    source : Source
        The file.
    container : Container
        What its reader makes of it.

    Yields
    ------
    Finding
    """
    for each in (source, *container.siblings):
        yield from _check_file(each)
    (tensor,) = container.tensors
    # With a note, attributes are the user's, and what the file says of itself is an encoding.
    facts = tensor.attrs if container.note is None else tensor.encoding["tensorfmt"]
    yield from _check_claims(source, tensor.layout, facts)


def _check_file(source: Source) -> Iterator[Finding]:
    reader = HeaderReader(source)
    matrix, _ = Opening().read(reader)
    is_grid = matrix.matrix_type == BLOCK
    layout, size = (None, 0) if is_grid else sized_layout(matrix, source.name)
    stop = matrix.offset + size
    if matrix.generation == "r1":
        yield from check_container(reader, matrix.offset, stop)
    elif matrix.generation == "zip":
        yield from _check_archive(reader)
    else:
        yield from _check_header(reader, matrix, stop)
    if layout is not None:
        yield from check_row_padding(source, layout)
    if matrix.matrix_type == "ANTISYMMETRIC":
        assert layout is not None
        yield from check_zeros(source, layout, Zeros("ANTISYMMETRIC", np.equal))


def _check_header(reader: HeaderReader, matrix: Matrix, stop: int) -> Iterator[Finding]:
    """Versions 1 and 2."""
    fields = matrix.facts["fields_at"] + FIELDS[int(matrix.generation[1:])].size
    # PyCauset itself reads longer files.
    yield from trailing(reader.source, max(stop, HEADER_BYTES + _LEAST), "the payload", "warning")
    yield from check_gaps(reader.source, [Gap(fields, HEADER_BYTES, "the rest of the header")])


def _check_archive(reader: HeaderReader) -> Iterator[Finding]:
    source = reader.source
    for entry in entries(reader):
        if entry.name not in (METADATA, DATA):
            continue
        found = 0
        for start in range(entry.offset, entry.offset + entry.size, _PIECE):
            stop = min(start + _PIECE, entry.offset + entry.size)
            found = crc32(source.read(Extents.single(start, stop)).data, found)
        if found != entry.checksum:
            yield Finding(
                source.name,
                entry.header,
                f"the checksum of the entry {entry.name!r}",
                f"{entry.checksum:#010x}, expected {found:#010x}; fetch the file again",
            )
    if not _has_directory(source):
        yield Finding(
            source.name,
            source.size,
            "the directory of the zip",
            "cut off, so that no zip program opens the file; the values are complete: fetch the "
            "file again, or write it anew",
        )


def _has_directory(source: Source) -> bool:
    """Whether a zip has its end, which says where its directory is, and how long a comment."""
    tail = source.read(Extents.single(max(0, source.size - _LONGEST_END), source.size)).tobytes()
    end = tail[tail.rfind(_END_MAGIC) :] if _END_MAGIC in tail else b""
    return len(end) >= _END and len(end) >= _END + int.from_bytes(end[_END - 2 : _END], "little")


def _check_claims(source: Source, layout: Layout, facts: Mapping[str, Any]) -> Iterator[Finding]:
    square = len(layout.shape) == 2
    for symmetry in _SYMMETRIES:
        if square and facts.get(f"property_{symmetry.name}") == 1:
            yield from check_symmetry(source, layout, symmetry)
    for zeros in _ZEROS:
        if square and facts.get(f"property_{zeros.name}") == 1:
            yield from check_zeros(source, layout, zeros)
