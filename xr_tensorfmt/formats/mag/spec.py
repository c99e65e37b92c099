"""What the containers of MAG have in common: dtypes, checksums, keys, and where data lie.

bfloat16 was once inserted at number 2 of the dtypes and float8_e4m3fn at 3, so that a number means
nothing without the container and its version. Source: the history of magnetron, seen in files of
every release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from operator import attrgetter
from typing import Any

from google_crc32c import value as crc32c

from xr_tensorfmt.contract import (
    Cursor,
    Finding,
    Gap,
    HeaderReader,
    OpenOptions,
    build_elements,
    finding_from_error,
)
from xr_tensorfmt.formats._shared.keyed import StoredTensor

MAGIC = b"MAG!"
STREAM_MAGIC = b"MAG&"

DAMAGED = "the header is damaged"
FOREIGN = "the header is damaged, or the file is of another format"
INCOMPLETE = "the file is incomplete or its header damaged; fetch it again"
"""What a user is told about most faults."""

Numbering = tuple[str, ...]
"""Names of dtypes; the position of a name is the number of the dtype."""

_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")

ARCHIVE_1_DTYPES = ("float32", "float16", "bool", "int32")
"""Archive 1 and stream; archive 100 until November 2025."""

ARCHIVE_100_DTYPES = ("float32", "float16", "bool", *_INTEGERS)
"""Archive 100 from November 2025 on."""

SNAPSHOT_100_DTYPES = ("float32", "float16", "bfloat16", "bool", *_INTEGERS)

SNAPSHOT_200_DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "bool", *_INTEGERS)
"""Snapshot 200 and 300."""

LITTLE_ENDIAN = build_elements(SNAPSHOT_200_DTYPES)
BIG_ENDIAN = build_elements(SNAPSHOT_200_DTYPES, ">")
"""How elements are stored, by the name of the dtype."""

ARCHIVE_ALIGNMENT = 64
"""Multiple of bytes at which data begin in an archive."""


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """What a container says at byte `at` of a tensor; its dtype is a number."""

    key: str
    shape: tuple[int, ...]
    dtype: int
    offset: int
    length: int | None = None
    at: int = 0

    def stored(self, reader: HeaderReader, numbering: Numbering, base: int) -> StoredTensor:
        """What it means if the dtype is of a numbering, and the offset counts from a byte."""
        if self.dtype >= len(numbering):
            field, expected = f"the dtype of {self.key!r}", f"a number below {len(numbering)}"
            raise reader.error(field, self.dtype, expected, DAMAGED, self.at)
        path, element = reader.source.name, LITTLE_ENDIAN[numbering[self.dtype]]
        start = base + self.offset
        tensor = StoredTensor.of(path, self.key, self.shape, element, start, self.at)
        count, nbytes = prod(self.shape), tensor.nbytes
        # Elements in all releases; padded bytes before; bytes in the published text.
        if self.length not in (None, count, round_up(nbytes, ARCHIVE_ALIGNMENT), nbytes):
            field = f"the length of {self.key!r}"
            expected = f"{count} elements or {nbytes} bytes for shape {self.shape}"
            raise reader.error(field, self.length, expected, DAMAGED, self.at)
        return tensor


@dataclass(frozen=True)
class Contents:
    """What the header of a file says, whatever its container, and the padding before the data."""

    container: str
    version: int
    tensors: tuple[StoredTensor, ...]
    data_start: int
    data_stop: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    gaps: tuple[Gap, ...] = ()
    reserved_stop: int | None = None

    @property
    def end(self) -> int:
        """Where the file ends; magnetron reserves more bytes for an archive than it fills."""
        return self.data_stop if self.reserved_stop is None else self.reserved_stop


def take_key(cursor: Cursor, length: int, what: str) -> str:
    """Read a key of UTF-8."""
    start, raw = cursor.offset, cursor.take(length, f"the key of {what}")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        found = f"the bytes {raw[error.start : error.end]!r}"
        raise cursor.reader.error("the key", found, "UTF-8", FOREIGN, start + error.start) from None


def check_checksum(
    cursor: Cursor, options: OpenOptions, stored: int, at: int
) -> tuple[Finding, ...]:
    """Compare the checksum at a byte with that of what follows it, up to the cursor."""
    start, stop = at + 4, cursor.offset
    found = crc32c(cursor.reader.read_field(start, stop - start, "the header"))
    if found == stored:
        return ()
    error = cursor.reader.error(
        "the checksum",
        f"{stored:#010x}",
        f"{found:#010x}, the CRC-32C of bytes {start} to {stop}",
        "the header is damaged, so fetch the file again; verify=False tries to read the rest",
        at,
    )
    if options.verify:
        raise error
    return (finding_from_error(error),)


def round_up(position: int, multiple: int) -> int:
    """The first multiple at or after a position."""
    return -(-position // multiple) * multiple


def check_placement(reader: HeaderReader, contents: Contents) -> None:
    """Refuse data outside of the file, in its header, or in the data of another tensor."""
    start, end = contents.data_start, min(contents.data_stop, reader.source.size)
    stop, before = start, ""
    for tensor in sorted(contents.tensors, key=attrgetter("offset")):
        at, expected, hint = tensor.offset, "", INCOMPLETE
        if not start <= at <= tensor.stop <= end:
            expected = f"a place between byte {start} and the end at byte {end}"
        elif tensor.nbytes and at < stop:
            expected = f"data after byte {stop}, where those of {before!r} end"
            hint = "two tensors cannot share bytes; the header is damaged"
        if expected:
            found = f"bytes {at} to {tensor.stop}"
            raise reader.error(f"the data of {tensor.key!r}", found, expected, hint, at)
        if tensor.nbytes:
            stop, before = tensor.stop, tensor.key


def check_alignment(
    reader: HeaderReader, contents: Contents, alignment: int, most_spare: int = 0
) -> None:
    """Refuse gaps other than those of a writer that aligns every tensor from the first byte on.

    Up to `most_spare` bytes may follow the last tensor.
    """
    start = position = contents.data_start
    hint = f"{INCOMPLETE}, unless an unreleased version of magnetron wrote it"
    for tensor in sorted(contents.tensors, key=attrgetter("offset")):
        if tensor.nbytes:
            position = start + round_up(position - start, alignment)
            if tensor.offset != position:
                check_placement(reader, contents)
                field, at = f"the data of {tensor.key!r}", tensor.offset
                actual = f"at byte {at - start} of the data section"
                expected = f"the first multiple of {alignment} after other data, {position - start}"
                raise reader.error(field, actual, expected, hint, at)
            position = tensor.stop
    spare = contents.data_stop - position
    if not 0 <= spare <= most_spare:
        check_placement(reader, contents)
        actual, expected = f"{spare} bytes more than its tensors need", f"up to {most_spare}"
        raise reader.error("the data section", actual, expected, hint, position)
