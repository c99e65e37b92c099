"""The zip container of the development version 0.3.0: ``metadata.json``, then ``data.bin``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.formats.pycauset import ZIP_MAGIC
from xr_tensorfmt.formats.pycauset.metadata import Metadata
from xr_tensorfmt.formats.pycauset.spec import Matrix

METADATA, DATA = "metadata.json", "data.bin"

MOST_ENTRIES = 64
"""Limit on the entries that are looked through."""

MOST_METADATA = 1 << 20
"""Limit on the bytes of ``metadata.json``."""

_LOCAL = Struct("<4s5H3I2H")
_STORED = 0
_SIZE_FOLLOWS = 8
_SIZE_IN_EXTRA = 0xFFFFFFFF
_ZIP64 = Struct("<HHQQ")
_ZIP64_TAG = 1
# The end of the directory; its last field is the length of the comment that follows.
_END = Struct("<4s4H2IH")
_END_MAGIC = b"PK\5\6"
_LONGEST_COMMENT = 0xFFFF


@dataclass(frozen=True)
class Entry:
    """One entry of an archive: its bytes, and where its header is."""

    name: str
    offset: int
    size: int
    header: int
    checksum: int


def is_archive(head: bytes) -> bool:
    """Whether the first bytes are those of a zip that begins with ``metadata.json``, stored."""
    if len(head) < _LOCAL.size or not head.startswith(ZIP_MAGIC):
        return False
    _, _, _, method, *_, name_length, _ = _LOCAL.unpack_from(head)
    name = head[_LOCAL.size : _LOCAL.size + name_length]
    return method == _STORED and name == METADATA.encode()


def read_archive(reader: HeaderReader) -> Matrix:
    """What the metadata of an archive say."""
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
                "an entry that is stored without compression",
                "this zip is not a PyCauset matrix; a '.causet' archive has one as 'matrix.bin', "
                "which can be opened once it is unzipped",
                0,
            )
    data, metadata = found[DATA], _metadata(reader, found[METADATA])
    return Matrix(
        version="zip",
        matrix_type=metadata.get("matrix_type", str),
        data_type=metadata.get("data_type", str),
        rows=metadata.length("rows"),
        columns=metadata.length("cols"),
        offset=data.offset,
        limit=data.offset + data.size,
        stated_at=metadata.offset,
        seed=metadata.get("seed", int, 0),
        scalar=metadata.scalar("scalar"),
        is_transposed=metadata.get("is_transposed", bool, False),
        attrs={"is_temporary": 0},
        derived=(f"the CRC-32 of {DATA!r}",),
    )


def _metadata(reader: HeaderReader, entry: Entry) -> Metadata:
    if entry.size > MOST_METADATA:
        raise reader.error(
            METADATA,
            f"{entry.size} bytes",
            f"at most {MOST_METADATA}",
            "the archive is damaged, or of another program",
            entry.header,
        )
    raw = reader.bytes_at(entry.offset, entry.size, METADATA)
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise reader.error(
            METADATA, repr(raw[:40]), "an object in JSON", "the archive is damaged", entry.offset
        )
    return Metadata(values, reader.source.name, entry.offset)


def entries(reader: HeaderReader) -> Iterator[Entry]:
    """The entries in the order of the file, from one local header to the next."""
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
                "stored without compression",
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
        tag, _, size, _ = _ZIP64.unpack_from(extra)
        if tag == _ZIP64_TAG:
            return int(size)
    raise reader.error(
        "the size of an entry",
        "missing",
        "a first extra field with sizes of 8 bytes",
        "the archive is damaged",
        offset,
    )


def has_directory(source: Source) -> bool:
    """Whether an archive is complete to its end, which says where its directory is."""
    longest = _END.size + _LONGEST_COMMENT
    tail = source.read(Extents.single(max(0, source.size - longest), source.size)).tobytes()
    end = tail[tail.rfind(_END_MAGIC) :] if _END_MAGIC in tail else b""
    if len(end) < _END.size:
        return False
    *_, comment_length = _END.unpack_from(end)
    return len(end) >= _END.size + int(comment_length)
