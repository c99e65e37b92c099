"""The padding of matrices whose rows are padded: bits and bytes that should be zero."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import gt, lt
from struct import Struct
from typing import Any
from zlib import crc32

import numpy as np

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.core.findings import Finding, Gap, check_gaps, finding_of, trailing
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.value_checks import Symmetry, Zeros, check_symmetry, check_zeros
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.pycauset.bits import Bits
from xr_tensorfmt.formats.pycauset.containers import (
    BLOCK_HEADER,
    BLOCK_MAGIC,
    DATA,
    FIELDS,
    METADATA,
    entries,
    read_slot,
)
from xr_tensorfmt.formats.pycauset.containers import HEADER_BYTES as HEADER_HEADER_BYTES
from xr_tensorfmt.formats.pycauset.read import BLOCK, Opening, sized_layout
from xr_tensorfmt.formats.pycauset.rows import Rows
from xr_tensorfmt.formats.pycauset.spec import (
    HEADER_BYTES,
    METADATA_ALIGNMENT,
    SLOTS,
    Matrix,
    check_slot,
    slot_finding,
)
from xr_tensorfmt.formats.pycauset.triangle import Triangle

_ROWS_AT_ONCE = 1 << 16


def check_row_padding(source: Source, layout: Layout) -> Iterator[Finding]:
    """Look at what follows the last element of each row."""
    stored = layout.stored
    if isinstance(stored, Bits | Triangle):
        yield from _check_rows(source, stored.rows)


def _check_rows(source: Source, rows: Rows) -> Iterator[Finding]:
    count, columns = rows.shape
    begin, stop = rows.starts(np.array([0, count]))
    if begin == stop:  # however many rows a header may claim
        return
    for first in range(0, count, _ROWS_AT_ONCE):
        numbers = np.arange(first, min(first + _ROWS_AT_ONCE, count))
        used = np.maximum(columns - rows.firsts(numbers), 0) * rows.bits
        begins, stops = rows.starts(numbers) + used // 8, rows.starts(numbers + 1)
        padded = begins < stops
        numbers, begins, stops = numbers[padded], begins[padded], stops[padded]
        if not numbers.size:
            continue
        lengths = stops - begins
        raw = source.read(Extents(begins, lengths))
        heads = np.cumsum(lengths) - lengths
        # The lower bits of the first byte are of the last elements.
        raw[heads] >>= (used[padded] % 8).astype(np.uint8)
        if raw.any():
            place = int(np.argmax(raw != 0))
            row = int(np.searchsorted(heads, place, side="right")) - 1
            yield Finding(
                source.name,
                int(begins[row]) + place - int(heads[row]),
                f"the padding of row {int(numbers[row])}",
                "it is not zero, as after an inversion by PyCauset, which programs must ignore; "
                "write the file anew to clear it",
                "warning",
            )
            return


_PREAMBLE_BYTES = 16
_SLOT_BYTES = 128
_POINTER_BYTES = 60
_UNUSED = Struct("<2Q")
_UNUSED_AT = 40


def check_container(reader: HeaderReader, payload: int, payload_stop: int) -> Iterator[Finding]:
    """Check slots, blocks of metadata, and all bytes that nothing points to."""
    source = reader.source
    blocks: dict[int, int] = {}
    for name, offset in SLOTS.items():
        slot, fault = check_slot(reader, name, offset)
        if fault is not None:
            yield slot_finding(reader, name, offset, fault)
            continue
        blocks[slot.metadata_offset] = slot.metadata_offset + slot.metadata_length
        try:
            read_slot(reader, slot)
        except TensorFormatError as error:
            yield finding_of(error)
    yield from _check_places(reader, blocks, payload, payload_stop)
    used = {payload: payload_stop, **blocks}
    for start, stop in _old_blocks(reader, used, payload_stop):
        yield from _check_old(reader, start, stop)
        used[start] = stop
    yield from trailing(source, max(used.values()), "the last block of metadata")
    yield from check_gaps(source, [*_header_gaps(), *_between(used)])


def _check_places(
    reader: HeaderReader, blocks: dict[int, int], payload: int, payload_stop: int
) -> Iterator[Finding]:
    """Metadata may follow the payload or precede it, but never lie in it or in the header."""
    for start, stop in blocks.items():
        within = start < payload_stop and stop > payload and payload_stop > payload
        if within or start < HEADER_BYTES:
            yield Finding(
                reader.source.name,
                start,
                "the metadata block",
                f"bytes {start} to {stop}, expected outside of the header and of the payload, "
                f"which is bytes {payload} to {payload_stop}; the header is damaged",
            )
    for name, offset in SLOTS.items():
        unused = reader.bytes_at(offset + _UNUSED_AT, _UNUSED.size, f"slot {name}")
        if any(unused):
            message = f"{unused.hex(' ')}, expected zeros; the file may be of a newer version"
            place = offset + _UNUSED_AT
            yield Finding(reader.source.name, place, f"the unused part of slot {name}", message)


def _header_gaps() -> Iterator[Gap]:
    begins = sorted(SLOTS.values())
    for begin in begins:
        yield Gap(begin + _POINTER_BYTES, begin + _SLOT_BYTES, "the rest of a slot")
    yield Gap(begins[-1] + _SLOT_BYTES, HEADER_BYTES, "the rest of the header")


def _between(used: dict[int, int]) -> Iterator[Gap]:
    position = HEADER_BYTES
    for start, stop in sorted(used.items()):
        yield Gap(position, start, "the padding before the next part of the file")
        position = max(position, stop)


def _old_blocks(
    reader: HeaderReader, used: dict[int, int], start: int
) -> Iterator[tuple[int, int]]:
    """Metadata of earlier generations, which stay in the file: they begin at multiples of 16."""
    known = dict(used)
    while start < reader.source.size:
        start = -(-start // METADATA_ALIGNMENT) * METADATA_ALIGNMENT
        if start in known:
            start = max(known[start], start + 1)
            continue
        if start + BLOCK_HEADER.size > reader.source.size:
            return
        header = reader.bytes_at(start, BLOCK_HEADER.size, "a metadata block")
        magic, _, _, _, size, _, _ = BLOCK_HEADER.unpack(header)
        stop = start + BLOCK_HEADER.size + size
        if magic != BLOCK_MAGIC or stop > reader.source.size:
            following = [begin for begin in known if begin > start]
            if not following:
                return
            start = min(following)
            continue
        yield start, stop
        start = stop


def _check_old(reader: HeaderReader, start: int, stop: int) -> Iterable[Finding]:
    raw = reader.bytes_at(start, stop - start, "a metadata block")
    header, encoded = raw[: BLOCK_HEADER.size], raw[BLOCK_HEADER.size :]
    stored = BLOCK_HEADER.unpack(header)[5]
    if crc32(encoded) != stored:
        message = (
            f"checksum {stored:#010x}, expected {crc32(encoded):#010x}; it is of an earlier "
            "generation, and no slot points to it: the values are not touched by it"
        )
        yield Finding(reader.source.name, start, "an old metadata block", message, "warning")


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


def check(reader: HeaderReader, container: Container) -> Iterator[Finding]:
    """Check a file whose header can be read, and those of its blocks."""
    source = reader.source
    for each in (source, *container.siblings):
        yield from _check_file(each)
    (tensor,) = container.tensors
    # With a note, attributes are the user's, and what the file says of itself is an encoding.
    facts = tensor.attrs if container.embedded is None else tensor.encoding["tensorfmt"]
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
    yield from trailing(
        reader.source, max(stop, HEADER_HEADER_BYTES + _LEAST), "the payload", "warning"
    )
    yield from check_gaps(
        reader.source, [Gap(fields, HEADER_HEADER_BYTES, "the rest of the header")]
    )


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
