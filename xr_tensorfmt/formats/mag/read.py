"""Definitions for all MAG containers, and the reader of version 300. `earlier` reads the others.

A snapshot of version 300, written by magnetron 0.2, has a header of 44 bytes, a JSON document that
describes the tensors, padding, and data. Tensors begin at multiples of 4096 bytes. There is no
checksum.

The number of a dtype depends on the container and its version: magnetron inserted bfloat16 at
number 2, and later float8_e4m3fn at number 3. Source: the history of magnetron, and files written
by its releases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from operator import itemgetter
from struct import Struct
from typing import Any, ClassVar, Self

import numpy as np

from xr_tensorfmt.core.elements import Plain, build_elements
from xr_tensorfmt.core.extents import ceil_div
from xr_tensorfmt.core.file_format import Container, End, OpenOptions
from xr_tensorfmt.core.header import Cursor, Fields, HeaderReader, read_json
from xr_tensorfmt.core.layout import Dense
from xr_tensorfmt.errors import Finding, TensorFormatError
from xr_tensorfmt.formats import keyed
from xr_tensorfmt.formats.mag import MAGIC

INCOMPLETE = "the file is truncated or its header corrupt; fetch it again"

INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
# dtypes of snapshots 200 and 300 by number.
DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "bool", *INTEGERS)
LITTLE_ENDIAN = build_elements(DTYPES)
BIG_ENDIAN = build_elements(DTYPES, ">")

VERSION = 300
DTYPE_NAMES = tuple("boolean" if name == "bool" else name for name in DTYPES)
ALIGNMENT = 4096
# Limit on the JSON document. A document with a tokenizer has about 10 MB.
MAX_DOCUMENT_BYTES = 128 << 20
# Keys of the document: of a mapping of metadata, of a mapping of tensors, and of strings.
METADATA, TENSORS = "usr_metadata", "tensor_map"
FILE_INFO = ("manifest_ver", "timestamp", "magnetron_ver", "snapshot_ver")

_MAGIC_AND_VERSION = MAGIC + VERSION.to_bytes(4, "little")
_entry_fields = itemgetter("shape", "dtype_id", "offset", "nbytes")


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
    end: int | None = None  # of the reserved bytes of an archive
    omitted: Mapping[str, TensorFormatError] = field(default_factory=dict)  # unsupported dtypes


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
        hint = "the header is corrupt, or a draft between magnetron 0.1.9 and 0.2.0 wrote the file"
        reader.check(header.aux <= 1, "aux", f"{header.aux:#x}", "0 or 1", hint, 8)
        document = header.document_start, header.document_start + header.document_bytes
        data = header.data_start, header.data_stop
        offsets = [cls.struct.size, *document, *data]
        field, actual = "the offsets of document and data", f"{document} and {data}"
        reader.check(offsets == sorted(offsets), field, actual, "ascending offsets", offset=12)
        size = reader.source.size
        actual = f"truncated by the end of the file at byte {size}"
        expected = f"data up to byte {data[1]}"
        reader.check(data[1] <= size, "the data", actual, expected, INCOMPLETE, data[0])
        return header

    def pack(self) -> bytes:
        """Encode the header."""
        return self.struct.pack(MAGIC, VERSION, *astuple(self))

    @property
    def data_stop(self) -> int:
        """Offset of the first byte after the data."""
        return self.data_start + self.data_bytes


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a MAG file."""
    if reader.read_head(8) == _MAGIC_AND_VERSION:
        file = _read_document_snapshot(reader)
    else:
        from xr_tensorfmt.formats.mag import earlier  # noqa: PLC0415  # rare, and slow to import

        file = earlier.read_file(reader, options)
    tensor_info = {"format": "mag", "version": file.version}
    layouts = {key: x for key, x in file.layouts.items() if key not in file.omitted}
    container = keyed.build_container(
        *(options, reader.source.name, layouts, tensor_info, file.metadata),
        findings=file.findings,
        omitted=file.omitted,
    )
    file_info = {**tensor_info, "container": file.container, **file.file_info}
    end = End(reader.source, file.end or file.data_stop, "the data")
    return replace(container, encoding={"tensorfmt": file_info}, ends=(end,))


def _read_document_snapshot(reader: HeaderReader) -> MagFile:
    """Read a snapshot of version 300."""
    header = SnapshotHeader.read(reader)
    document = read_json(reader, header.document_start, header.document_bytes, MAX_DOCUMENT_BYTES)
    entries, metadata = document.get(TENSORS, dict), document.get(METADATA, dict)
    shapes: keyed.Shapes = {}
    layouts, omitted = dict[str, Dense](), dict[str, TensorFormatError]()
    for key, entry in entries.items():
        layouts[key], unsupported = _parse_entry(document, key, entry, header, shapes)
        if unsupported is not None:
            omitted[key] = unsupported
    file_info = {name: document.values[name] for name in FILE_INFO if name in document.values}
    file_info["byteorder"] = "big" if header.aux else "little"
    start, stop = header.data_start, header.data_stop
    file = MagFile("snapshot", VERSION, layouts, start, stop, metadata, file_info, omitted=omitted)
    check_placement(reader, file, ALIGNMENT, ALIGNMENT - 1)
    return file


def _parse_entry(
    document: Fields, key: str, entry: Any, header: SnapshotHeader, shapes: keyed.Shapes
) -> tuple[Dense, TensorFormatError | None]:
    """Return the layout of an entry, or its bytes and the reason if the dtype is not supported."""
    error = partial(keyed.build_error, document)  # texts for each of 10^5 entries are slow
    try:
        shape, dtype_id, offset, nbytes = _entry_fields(entry)
    except (KeyError, TypeError):
        expected = "an object with shape, dtype_id, offset and nbytes"
        raise error("the entry", key, entry, expected) from None
    name, is_known = entry.get("dtype"), keyed.is_count(dtype_id) and dtype_id < len(DTYPES)
    is_newer = keyed.is_count(dtype_id) and not is_known and name not in (*DTYPE_NAMES, None)
    if not (is_known or is_newer):
        raise error("the dtype_id", key, dtype_id, f"a number below {len(DTYPES)}")
    for member, number in (("the offset", offset), ("nbytes", nbytes)):
        if not keyed.is_count(number):
            raise error(member, key, number, "a number of bytes")
    start = header.data_start + offset
    if is_newer:
        expected = f"one of {', '.join(DTYPE_NAMES)}"
        hint = "update xr_tensorfmt, or load it with magnetron"
        unsupported = error("the dtype", key, name, expected, hint)
        return Dense((nbytes,), Plain(np.dtype(np.uint8)), start), unsupported
    if name not in (DTYPE_NAMES[dtype_id], DTYPES[dtype_id], None):
        # magnetron has inserted dtypes twice, so either may be right.
        expected = f"{DTYPE_NAMES[dtype_id]!r}, the dtype with this dtype_id"
        raise error("the dtype and dtype_id", key, (name, dtype_id), expected)
    element = (BIG_ENDIAN if header.aux else LITTLE_ENDIAN)[DTYPES[dtype_id]]
    lengths, size = keyed.parse_shape(document, key, shape, element, shapes)
    if nbytes != size:
        raise error("nbytes", key, nbytes, f"{size} for {shape} of {element.name}")
    return Dense(lengths, element, start), None


def round_up(offset: int, multiple: int) -> int:
    """Round up to a multiple."""
    return ceil_div(offset, multiple) * multiple


def check_placement(
    reader: HeaderReader, file: MagFile, alignment: int = 0, max_spare: int = 0
) -> None:
    """Raise an error if data are out of bounds or overlap, or have other gaps than an alignment."""
    start, end = file.data_start, min(file.data_stop, reader.source.size)
    hint = f"{INCOMPLETE}, unless an unreleased version of magnetron wrote it"
    stop = start
    for key, layout in sorted(file.layouts.items(), key=lambda item: item[1].offset):
        first, last = layout.offset, layout.stop
        if first == last and start <= first <= end:
            continue
        lowest = start + round_up(stop - start, alignment or 1)
        if not lowest <= first <= (lowest if alignment else end) or last > end:
            field, actual = f"the data of {key!r}", f"bytes {first} to {last}"
            expected = f"data from byte {lowest} on, after other data, up to the end at byte {end}"
            raise reader.error(field, actual, expected, hint, first)
        stop = last
    actual = f"{file.data_stop - stop} bytes more than its tensors need"
    fits = not alignment or file.data_stop - stop <= max_spare
    reader.check(fits, "the data section", actual, f"up to {max_spare}", hint, stop)
