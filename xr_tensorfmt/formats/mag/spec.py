"""Definitions for all MAG containers: dtypes, checksums, keys and the placement of data.

The number of a dtype depends on the container and its version: magnetron inserted bfloat16 at
number 2, and later float8_e4m3fn at number 3. Source: the history of magnetron, and files written
by its releases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from operator import attrgetter
from typing import Any

from google_crc32c import value as crc32c

from xr_tensorfmt.core.chunk_grid import ceil_div
from xr_tensorfmt.core.findings import Finding, Gap, finding_from_error
from xr_tensorfmt.core.header import Cursor, HeaderReader
from xr_tensorfmt.core.narrow_floats import build_elements
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.errors import Hint
from xr_tensorfmt.formats._shared.keyed import StoredTensor

MAGIC = b"MAG!"
STREAM_MAGIC = b"MAG&"

CORRUPT = "the header is corrupt"
FOREIGN = "the header is corrupt, or the file has another format"
INCOMPLETE = "the file is truncated or its header corrupt; fetch it again"
"""Hints for errors."""

Numbering = tuple[str, ...]
"""Names of dtypes, in the order of their numbers."""

_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")

EARLY_ARCHIVE_DTYPES = ("float32", "float16", "bool", "int32")
"""Streams, archive 1, and archive 100 until November 2025."""

LATE_ARCHIVE_DTYPES = ("float32", "float16", "bool", *_INTEGERS)
"""Archive 100 from November 2025 on."""

SNAPSHOT_100_DTYPES = ("float32", "float16", "bfloat16", "bool", *_INTEGERS)

SNAPSHOT_200_DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "bool", *_INTEGERS)
"""Snapshot 200 and 300."""

LITTLE_ENDIAN = build_elements(SNAPSHOT_200_DTYPES)
BIG_ENDIAN = build_elements(SNAPSHOT_200_DTYPES, ">")
"""Elements by dtype name."""

ARCHIVE_ALIGNMENT = 64
"""Offsets of data in an archive are multiples of this."""


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """Description of a tensor."""

    key: str
    shape: tuple[int, ...]
    dtype: int
    offset: int
    length: int | None = None
    record_offset: int = 0

    def to_stored(self, reader: HeaderReader, numbering: Numbering, base: int) -> StoredTensor:
        """Return the tensor, given the numbering of dtypes and the origin of offsets."""
        if self.dtype >= len(numbering):
            field, expected = f"the dtype of {self.key!r}", f"a number below {len(numbering)}"
            raise reader.error(field, self.dtype, expected, CORRUPT, self.record_offset)
        element = LITTLE_ENDIAN[numbering[self.dtype]]
        path = reader.source.name
        start = base + self.offset
        tensor = StoredTensor.create(path, self.key, self.shape, element, start, self.record_offset)
        count, nbytes = prod(self.shape), tensor.nbytes
        # Elements in releases, padded bytes in earlier commits, bytes in the specification.
        if self.length not in (None, count, round_up(nbytes, ARCHIVE_ALIGNMENT), nbytes):
            field = f"the length of {self.key!r}"
            expected = f"{count} elements or {nbytes} bytes for shape {self.shape}"
            raise reader.error(field, self.length, expected, CORRUPT, self.record_offset)
        return tensor


@dataclass(frozen=True)
class MagFile:
    """Parsed header of a file, for any container."""

    container: str
    version: int
    tensors: tuple[StoredTensor, ...]
    data_start: int
    data_stop: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    file_info: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    gaps: tuple[Gap, ...] = ()
    reserved_stop: int | None = None

    @property
    def end(self) -> int:
        """Offset of the first trailing byte. Archives may have reserved bytes before it."""
        return self.data_stop if self.reserved_stop is None else self.reserved_stop


def take_key(cursor: Cursor, length: int, record_name: str) -> str:
    """Read a key in UTF-8."""
    start = cursor.offset
    raw = cursor.take(length, f"the key of {record_name}")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        actual, offset = f"the bytes {raw[error.start : error.end]!r}", start + error.start
        raise cursor.reader.error("the key", actual, "UTF-8", FOREIGN, offset) from None


def check_checksum(
    cursor: Cursor, options: OpenOptions, stored: int, offset: int
) -> tuple[Finding, ...]:
    """Check the checksum at an offset. It covers the following bytes up to the cursor."""
    start, stop = offset + 4, cursor.offset
    computed = crc32c(cursor.reader.read_field(start, stop - start, "the header"))
    if computed == stored:
        return ()
    error = cursor.reader.error(
        field="the checksum",
        actual=f"{stored:#010x}",
        expected=f"{computed:#010x}, the CRC-32C of bytes {start} to {stop}",
        hint=Hint(
            "the header is corrupt; fetch the file again ({verify} ignores the checksum)",
            verify=False,
        ),
        offset=offset,
    )
    if options.verify:
        raise error
    return (finding_from_error(error),)


def round_up(offset: int, multiple: int) -> int:
    """Round up to a multiple."""
    return ceil_div(offset, multiple) * multiple


def check_placement(reader: HeaderReader, file: MagFile) -> None:
    """Raise an error if data are out of bounds or overlap."""
    start, end = file.data_start, min(file.data_stop, reader.source.size)
    stop = start
    previous = ""
    for tensor in sorted(file.tensors, key=attrgetter("offset")):
        field, actual = f"the data of {tensor.key!r}", f"bytes {tensor.offset} to {tensor.stop}"
        if not start <= tensor.offset <= tensor.stop <= end:
            expected = f"a range between byte {start} and the end at byte {end}"
            raise reader.error(field, actual, expected, INCOMPLETE, tensor.offset)
        if tensor.nbytes and tensor.offset < stop:
            expected = f"data after the end of {previous!r} at byte {stop}"
            hint = "two tensors cannot share bytes; the header is corrupt"
            raise reader.error(field, actual, expected, hint, tensor.offset)
        if tensor.nbytes:
            stop, previous = tensor.stop, tensor.key


def check_alignment(
    reader: HeaderReader, file: MagFile, alignment: int, max_spare: int = 0
) -> None:
    """Check the placement. Raise an error if there are gaps other than for alignment.

    Up to `max_spare` bytes may follow the last tensor.
    """
    check_placement(reader, file)  # data at a wrong offset also leave a gap
    start = stop = file.data_start
    hint = f"{INCOMPLETE}, unless an unreleased version of magnetron wrote it"
    for tensor in sorted(file.tensors, key=attrgetter("offset")):
        if tensor.nbytes:
            aligned = start + round_up(stop - start, alignment)
            if tensor.offset != aligned:
                field = f"the data of {tensor.key!r}"
                actual = f"at byte {tensor.offset - start} of the data section"
                expected = f"the first multiple of {alignment} after other data, {aligned - start}"
                raise reader.error(field, actual, expected, hint, tensor.offset)
            stop = tensor.stop
    spare = file.data_stop - stop
    if spare > max_spare:
        actual, expected = f"{spare} bytes more than its tensors need", f"up to {max_spare}"
        raise reader.error("the data section", actual, expected, hint, stop)
