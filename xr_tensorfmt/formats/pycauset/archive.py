"""The zip container of the development version v0.3.0: ``metadata.json``, then ``data.bin``.

Sources: PyCauset at its tag v0.3.0, and files that it writes; APPNOTE.TXT of PKWARE for the zip.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from xr_tensorfmt.formats.header import HeaderReader
from xr_tensorfmt.formats.pycauset.matrix import Matrix
from xr_tensorfmt.formats.pycauset.metadata import Metadata

MAGIC = b"PK\x03\x04"
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


@dataclass(frozen=True)
class Entry:
    """One entry of an archive.

    Parameters
    ----------
    name : str
        Its name.
    offset, size : int
        Where its bytes are, and how many.
    header : int
        Where its local header begins.
    checksum : int
        CRC-32 of its bytes, as its header says.
    """

    name: str
    offset: int
    size: int
    header: int
    checksum: int


def is_archive(head: bytes) -> bool:
    """Whether the first bytes are those of a zip that begins with ``metadata.json``, stored."""
    if len(head) < _LOCAL.size or not head.startswith(MAGIC):
        return False
    _, _, _, method, *_, name_length, _ = _LOCAL.unpack(head[: _LOCAL.size])
    name = head[_LOCAL.size : _LOCAL.size + name_length]
    return method == _STORED and name == METADATA.encode()


def read_archive(reader: HeaderReader) -> Matrix:
    """Read the metadata of a zip container.

    Parameters
    ----------
    reader : HeaderReader
        The file.

    Returns
    -------
    Matrix

    Raises
    ------
    TensorFormatError
        It is another kind of zip, or damaged.
    """
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
    """Walk from one local header to the next; the first of a name counts.

    Parameters
    ----------
    reader : HeaderReader
        The file.

    Yields
    ------
    Entry
        Those that are stored as they are.

    Raises
    ------
    TensorFormatError
        An entry is compressed, or longer than the file.
    """
    offset = 0
    for _ in range(MOST_ENTRIES):
        if offset + _LOCAL.size > reader.source.size:
            return
        fields = _LOCAL.unpack(reader.bytes_at(offset, _LOCAL.size, "a local header"))
        magic, _, flags, method, _, _, checksum, packed, size, name_length, extra_length = fields
        if magic != MAGIC:
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
    if metadata.size > MOST_METADATA:
        raise reader.error(
            METADATA,
            f"{metadata.size} bytes",
            f"at most {MOST_METADATA}",
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
