"""Definitions for all MAG containers: dtypes, the placement of data, and the header of version 300.

The number of a dtype depends on the container and its version: magnetron inserted bfloat16 at
number 2, and later float8_e4m3fn at number 3. Source: the history of magnetron, and files written
by its releases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from struct import Struct
from typing import Any, ClassVar, Self

import numpy as np

from xr_tensorfmt.core.chunk_grid import ceil_div
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Plain
from xr_tensorfmt.core.findings import Finding, Gap
from xr_tensorfmt.core.header import Cursor, HeaderReader
from xr_tensorfmt.core.narrow_floats import build_elements
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.mag import MAGIC

CORRUPT = "the header is corrupt"
FOREIGN = "the header is corrupt, or the file has another format"
INCOMPLETE = "the file is truncated or its header corrupt; fetch it again"

_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")

# Streams, archive 1, and archive 100 until November 2025.
EARLY_ARCHIVE_DTYPES = ("float32", "float16", "bool", "int32")
# Archive 100 from November 2025 on.
LATE_ARCHIVE_DTYPES = ("float32", "float16", "bool", *_INTEGERS)

SNAPSHOT_100_DTYPES = ("float32", "float16", "bfloat16", "bool", *_INTEGERS)

# Snapshot 200 and 300.
DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "bool", *_INTEGERS)

BYTE = Plain(np.dtype(np.uint8))
LITTLE_ENDIAN = build_elements(DTYPES)
BIG_ENDIAN = build_elements(DTYPES, ">")

# Version 300.
VERSION = 300
DTYPE_NAMES = tuple("boolean" if name == "bool" else name for name in DTYPES)
ALIGNMENT = 4096
# Limit on the JSON document. A document with a tokenizer has about 10 MB.
MAX_DOCUMENT_BYTES = 128 << 20
# Keys of the document: of a mapping of metadata, of a mapping of tensors, and of strings.
METADATA, TENSORS = "usr_metadata", "tensor_map"
FILE_INFO = ("manifest_ver", "timestamp", "magnetron_ver", "snapshot_ver")


@dataclass(frozen=True)
class MagFile:
    """Parsed header of a file, for any container."""

    container: str
    version: int
    layouts: Mapping[str, Dense]
    data_start: int
    data_stop: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    file_info: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    gaps: tuple[Gap, ...] = ()
    end: int | None = None  # of the reserved bytes of an archive
    fillers: tuple[int, ...] = (0,)  # bytes of the padding
    omitted: Mapping[str, TensorFormatError] = field(default_factory=dict)  # unsupported dtypes


def round_up(offset: int, multiple: int) -> int:
    """Round up to a multiple."""
    return ceil_div(offset, multiple) * multiple


def check_placement(
    reader: HeaderReader, file: MagFile, alignment: int = 0, max_spare: int = 0
) -> None:
    """Raise an error if data are out of bounds or overlap, or have other gaps than an alignment."""
    start, end = file.data_start, min(file.data_stop, reader.source.size)
    unreleased = f"{INCOMPLETE}, unless an unreleased version of magnetron wrote it"
    stop, previous = start, ""
    for key, layout in sorted(file.layouts.items(), key=lambda item: item[1].offset):
        first, last = layout.offset, layout.stop
        field, actual = f"the data of {key!r}", f"bytes {first} to {last}"
        if not start <= first <= last <= end:
            expected = f"a range between byte {start} and the end at byte {end}"
            raise reader.error(field, actual, expected, INCOMPLETE, first)
        if first == last:
            continue
        if first < stop:
            expected = f"data after the end of {previous!r} at byte {stop}"
            hint = "two tensors cannot share bytes; the header is corrupt"
            raise reader.error(field, actual, expected, hint, first)
        aligned = start + round_up(stop - start, alignment) if alignment else first
        if first != aligned:
            expected = f"data from byte {aligned} on, the first aligned one after other data"
            raise reader.error(field, actual, expected, unreleased, first)
        stop, previous = last, key
    if alignment and file.data_stop - stop > max_spare:
        actual = f"{file.data_stop - stop} bytes more than its tensors need"
        raise reader.error("the data section", actual, f"up to {max_spare}", unreleased, stop)


@dataclass(frozen=True)
class SnapshotHeader:
    """Offset and size of the document and of the data. `aux` is 1 if the data are big-endian."""

    aux: int
    document_start: int
    document_bytes: int
    data_start: int
    data_bytes: int

    struct: ClassVar[Struct] = Struct("<4sIIQQQQ")

    @classmethod
    def read(cls, reader: HeaderReader) -> Self:
        """Read and check the header."""
        header = cls(*Cursor(reader, 0).unpack(cls.struct, "the MAG header")[2:])
        if header.aux > 1:
            hint = f"{CORRUPT}, or a draft between magnetron 0.1.9 and 0.2.0 wrote the file"
            raise reader.error("aux", f"{header.aux:#x}", "0 or 1", hint, 8)
        document = header.document_start, header.document_start + header.document_bytes
        data = header.data_start, header.data_stop
        if [*document, *data] != sorted(document + data) or document[0] < cls.struct.size:
            field, actual = "the offsets of document and data", f"{document} and {data}"
            raise reader.error(field, actual, "ascending offsets", CORRUPT, 12)
        if header.data_stop > reader.source.size:
            actual = f"truncated by the end of the file at byte {reader.source.size}"
            expected = f"data up to byte {header.data_stop}"
            raise reader.error("the data", actual, expected, INCOMPLETE, header.data_start)
        return header

    def pack(self) -> bytes:
        """Encode the header."""
        return self.struct.pack(MAGIC, VERSION, *astuple(self))

    @property
    def data_stop(self) -> int:
        """Offset of the first byte after the data."""
        return self.data_start + self.data_bytes
