"""Versions 1 and 2: a header of 4096 bytes, then the values.

Sources: PyCauset, ``documentation/internals/File Format.md`` at commit 35c934d (the offsets that it
prints are those of a packed struct), and the files that PyCauset 0.1.0 to 0.2.8 write (in which the
struct is not packed, so that 4 zero bytes precede ``rows``).

"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any
from zlib import crc32

from xr_tensorfmt.core.findings import Finding, finding_of
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.pycauset import ZIP_MAGIC
from xr_tensorfmt.formats.pycauset.spec import Matrix, Metadata, Slot, decode_map, read_slots

HEADER_BYTES = 4096

MATRIX_TYPES = {
    1: "CAUSAL",
    2: "INTEGER",
    3: "TRIANGULAR_FLOAT",
    4: "DENSE_FLOAT",
    5: "IDENTITY",
    6: "VECTOR",
}
DATA_TYPES = {1: "BIT", 2: "INT32", 3: "FLOAT64", 4: "COMPLEX_FLOAT64"}

_TYPES_OFFSET = 12
_GAP_OFFSET = 20

FIELDS = {1: Struct("<3Q"), 2: Struct("<3Qd2B")}
"""Rows, columns and seed; of version 2 also scalar, is_temporary and is_transposed."""


@dataclass(frozen=True)
class _Fields:
    offset: int
    rows: int
    columns: int
    seed: int
    scalar: float = 1.0
    is_temporary: int = 0
    is_transposed: int = 0


def read_header(reader: HeaderReader, version: int) -> Matrix:
    """Read the header of version 1 or 2."""
    reader.bytes_at(0, HEADER_BYTES, "the header")
    matrix_type = _word(reader, _TYPES_OFFSET, "the matrix type", MATRIX_TYPES)
    data_type = _word(reader, _TYPES_OFFSET + 4, "the data type", DATA_TYPES)
    fields = _fields(reader, version)
    triangle_row = 8
    if matrix_type == "INTEGER":
        matrix_type, triangle_row = _integer_storage(reader, version, fields)
    elif data_type == "INT32":
        matrix_type = _OF_INTEGERS.get(matrix_type, matrix_type)
    return Matrix(
        f"v{version}",
        matrix_type,
        data_type,
        fields.rows,
        fields.columns,
        HEADER_BYTES,
        reader.source.size,
        _TYPES_OFFSET,
        fields.seed,
        fields.scalar,
        bool(fields.is_transposed),
        triangle_row=triangle_row,
        attrs={"is_temporary": int(bool(fields.is_temporary))},
        facts={"fields_at": fields.offset},
    )


# The names in files are placeholders; the pair of matrix type and data type decides.
_OF_INTEGERS = {"TRIANGULAR_FLOAT": "TRIANGULAR_INTEGER", "DENSE_FLOAT": "INTEGER"}


def _word(reader: HeaderReader, offset: int, field: str, words: dict[int, str]) -> str:
    number = reader.unsigned(offset, 4, field)
    if number not in words:
        raise TensorFormatError(
            reader.source.name,
            field,
            number,
            ", ".join(f"{key} ({word})" for key, word in words.items()),
            "the header is damaged, or of a version that is not known",
            offset=offset,
        )
    return words[number]


def _fields(reader: HeaderReader, version: int) -> _Fields:
    # The low half of a packed `rows` is not zero, the gap before an aligned one is.
    gap = reader.unsigned(_GAP_OFFSET, 4, "the gap before the number of rows")
    offset = _GAP_OFFSET if gap else _GAP_OFFSET + 4
    fields = FIELDS[version]
    values = fields.unpack(reader.bytes_at(offset, fields.size, "the shape"))
    return _Fields(offset, *values)


def _integer_storage(reader: HeaderReader, version: int, fields: _Fields) -> tuple[str, int]:
    """What matrix type 2 means: three readings, of which the size of the file picks one."""
    if version == 1:
        return "TRIANGULAR_INTEGER", 4
    order, payload = fields.rows, reader.source.size - HEADER_BYTES
    elements = order * (order - 1) // 2
    sizes = {
        ("INTEGER", 8): 4 * fields.rows * fields.columns,
        # Rows of 1 to N - 1 numbers, each padded to an even count of them.
        ("TRIANGULAR_INTEGER", 8): max(8, 4 * (elements + order // 2)),
        ("TRIANGULAR_INTEGER", 4): max(8, 4 * elements),
    }
    for reading, size in sizes.items():
        if payload == size:
            return reading
    raise TensorFormatError(
        reader.source.name,
        f"the payload of a matrix of type 2 (INTEGER) of order {order}",
        f"{payload} bytes",
        " or ".join(str(size) for size in dict.fromkeys(sizes.values())) + " bytes",
        "its size alone tells how such a matrix is stored; the file is cut off or damaged",
        offset=HEADER_BYTES,
    )


MOST_METADATA = 64 << 20
"""Limit on the bytes of a metadata block."""

BLOCK_HEADER = Struct("<4sIIIQII")
"""Magic, version, encoding, 0, length of the map, its checksum, 0."""

BLOCK_MAGIC = b"PCMB"

KNOWN_VERSION = 1


@dataclass(frozen=True)
class Content:
    """What a container says."""

    slot: Slot
    metadata: Mapping[str, Any]
    payload_limit: int
    findings: tuple[Finding, ...]


def read_container(reader: HeaderReader) -> Content:
    """Read slots and metadata."""
    slots, faults = read_slots(reader)
    errors: list[TensorFormatError] = []
    for slot in slots:
        try:
            metadata = read_slot(reader, slot)
        except TensorFormatError as error:
            errors.append(error)
            continue
        found = [*faults, *(finding_of(each) for each in errors)]
        blocks = [each.metadata_offset for each in slots]
        after = [offset for offset in blocks if offset > slot.payload_offset]
        return Content(slot, metadata, min(after, default=reader.source.size), tuple(found))
    raise errors[0]


def read_slot(reader: HeaderReader, slot: Slot) -> dict[str, Any]:
    """Read the metadata that a slot points to."""
    start, length = slot.metadata_offset, slot.metadata_length
    header = BLOCK_HEADER.size
    if not header <= length <= MOST_METADATA:
        raise _error(reader, slot, f"{length} bytes", f"from {header} to {MOST_METADATA} bytes")
    raw = reader.bytes_at(start, length, "the metadata block")
    magic, version, encoding, _, size, checksum, _ = BLOCK_HEADER.unpack(raw[:header])
    encoded = raw[header : header + size]
    if magic != BLOCK_MAGIC:
        raise _error(reader, slot, repr(magic), repr(BLOCK_MAGIC))
    if (version, encoding) != (KNOWN_VERSION, KNOWN_VERSION):
        raise _error(reader, slot, f"version {version}, encoding {encoding}", "version 1 of both")
    if len(encoded) != size:
        raise _error(reader, slot, f"a map of {size} bytes", f"at most {length - header} bytes")
    if crc32(encoded) != checksum:
        raise _error(
            reader, slot, f"checksum {checksum:#010x}", f"{crc32(encoded):#010x} as computed"
        )
    return decode_map(encoded, reader.source.name, start + header)


def _error(reader: HeaderReader, slot: Slot, found: str, expected: str) -> TensorFormatError:
    return TensorFormatError(
        reader.source.name,
        f"the metadata block of slot {slot.name}",
        found,
        expected,
        "the file is damaged, or of a newer version",
        offset=slot.metadata_offset,
    )


METADATA, DATA = "metadata.json", "data.bin"

MOST_ENTRIES = 64
"""Limit on the entries that are looked through."""

MOST_ARCHIVE_METADATA = 1 << 20
"""Limit on the bytes of ``metadata.json``."""

_LOCAL = Struct("<4s5H3I2H")
_STORED = 0
_SIZE_FOLLOWS = 8
_SIZE_IN_EXTRA = 0xFFFFFFFF
_ZIP64 = Struct("<HHQQ")
_ZIP64_TAG = 1


@dataclass(frozen=True)
class Entry:
    """One entry of an archive."""

    name: str
    offset: int
    size: int
    header: int
    checksum: int


def is_archive(head: bytes) -> bool:
    """Whether the first bytes are those of a zip that begins with ``metadata.json``, stored."""
    if len(head) < _LOCAL.size or not head.startswith(ZIP_MAGIC):
        return False
    _, _, _, method, *_, name_length, _ = _LOCAL.unpack(head[: _LOCAL.size])
    name = head[_LOCAL.size : _LOCAL.size + name_length]
    return method == _STORED and name == METADATA.encode()


def read_archive(reader: HeaderReader) -> Matrix:
    """Read the metadata of a zip container."""
    found: dict[str, Entry] = {}
    for entry in entries(reader):
        found.setdefault(entry.name, entry)
        if METADATA in found and DATA in found:
            break
    for name in (METADATA, DATA):
        if name not in found:
            raise reader.error(
                f"the entry {name!r}",
                f"missing among {', '.join(map(repr, found)) or 'no entries'}",
                "an entry that is stored as it is",
                "this zip is no matrix of PyCauset; a '.causet' archive holds one as 'matrix.bin' "
                "that opens once it is unzipped",
                0,
            )
    return _matrix(reader, found[METADATA], found[DATA])


def entries(reader: HeaderReader) -> Iterator[Entry]:
    """Walk from one local header to the next; the first of a name counts."""
    offset = 0
    for _ in range(MOST_ENTRIES):
        if offset + _LOCAL.size > reader.source.size:
            return
        fields = _LOCAL.unpack(reader.bytes_at(offset, _LOCAL.size, "a local header"))
        magic, _, flags, method, _, _, checksum, packed, size, name_length, extra_length = fields
        if magic != ZIP_MAGIC:
            return
        begin = offset + _LOCAL.size
        raw = reader.bytes_at(begin, name_length + extra_length, "the name of an entry")
        name = raw[:name_length].decode("utf-8", "replace")
        if method != _STORED or flags & _SIZE_FOLLOWS:
            raise reader.error(
                f"the entry {name!r}",
                "compressed" if method != _STORED else "without its size",
                "stored as it is",
                "unzip the archive, and open 'matrix.bin' if there is one",
                offset,
            )
        if _SIZE_IN_EXTRA in (size, packed):
            size = _long_size(reader, raw[name_length:], offset)
        entry = Entry(name, begin + len(raw), size, offset, checksum)
        if entry.offset + entry.size > reader.source.size:
            raise reader.error(
                f"the entry {name!r}",
                f"{entry.size} bytes from byte {entry.offset} on",
                f"to end within the {reader.source.size} bytes of the file",
                "the file is cut off; fetch it again",
                offset,
            )
        yield entry
        offset = entry.offset + entry.size


def _long_size(reader: HeaderReader, extra: bytes, offset: int) -> int:
    if len(extra) >= _ZIP64.size:
        tag, _, size, _ = _ZIP64.unpack(extra[: _ZIP64.size])
        if tag == _ZIP64_TAG:
            return int(size)
    raise reader.error(
        "the size of an entry",
        "missing",
        "a first extra field with sizes of 8 bytes",
        "the archive is damaged",
        offset,
    )


def _matrix(reader: HeaderReader, metadata: Entry, data: Entry) -> Matrix:
    if metadata.size > MOST_ARCHIVE_METADATA:
        raise reader.error(
            METADATA,
            f"{metadata.size} bytes",
            f"at most {MOST_ARCHIVE_METADATA}",
            "the archive is damaged, or of another kind",
            metadata.header,
        )
    raw = reader.bytes_at(metadata.offset, metadata.size, METADATA)
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError) as error:
        values = error
    if not isinstance(values, dict):
        raise reader.error(
            METADATA, repr(raw[:40]), "a map in JSON", "it is damaged", metadata.offset
        )
    facts = Metadata(values, reader.source.name, metadata.offset)
    return Matrix(
        "zip",
        facts.take("matrix_type", str),
        facts.take("data_type", str),
        facts.length("rows"),
        facts.length("cols"),
        data.offset,
        data.offset + data.size,
        metadata.offset,
        facts.take("seed", int, 0),
        facts.scalar("scalar"),
        facts.take("is_transposed", bool, False),
        attrs={"is_temporary": 0},
        derived=(f"the CRC-32 of {DATA!r}",),
    )
