"""Uncompressed members of a zip."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from struct import error as struct_error
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.core.findings import End, Finding
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError, shorten

ZIP_MAGIC = b"PK\x03\x04"
"""Magic number of a member, and of a zip that has members."""

_HEADER = Struct("<4s5H3I2H")  # the name and extra fields follow
_ENCRYPTED = 1
_END_OF_DIRECTORY, _END_BYTES = b"PK\5\6", 22
"""Magic number and size of the last record. It ends with the size of a comment that follows."""

_ZIP64_COUNT = 0xFFFF
"""Number of entries in the last record of a zip64, whose actual number is in another record."""

_CHECKED_AT_ONCE = 16 << 20

_DIRECTORY = "the directory of the zip"
_CORRUPT = "the file is corrupt; fetch it again"

_TAIL = _END_BYTES + (1 << 16)
"""Bytes read at the end of a file to find the directory, including the longest comment."""

_USUAL_EXTRA = 512
"""Usual limit on the bytes of extra fields, read with the header of a member."""

_RECOGNISED = 4096
"""Bytes of the first member to recognise a format by."""

_UTF8 = 1 << 11
"""Flag of a member with a name in UTF-8."""


def read_first_member(reader: HeaderReader) -> tuple[bytes, bytes]:
    """Return the name of the first member and the start of its content, or two empty strings.

    The content is empty if it is compressed in another way than by deflate.
    """
    head = reader.read_head(_HEADER.size)
    if len(head) < _HEADER.size or not head.startswith(ZIP_MAGIC):
        return b"", b""
    _, _, _, compression, *_, length, extra = _HEADER.unpack(head)
    head = reader.read_head(_HEADER.size + length + extra + _RECOGNISED)[_HEADER.size :]
    name, content = head[:length], head[length + extra :]
    if compression == ZIP_DEFLATED:
        with suppress(zlib.error):
            return name, zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, _RECOGNISED)
    return name, content if compression == ZIP_STORED else b""


class _File:
    """A file object for `zipfile` with a limit on each read."""

    def __init__(self, reader: HeaderReader, limit: int) -> None:
        self._reader, self._limit, self._size = reader, limit, reader.source.size
        self._position = max(0, self._size - _TAIL)
        tail = self.read()
        record = tail.rfind(_END_OF_DIRECTORY)
        self.count = int.from_bytes(tail[record:][10:12], "little")
        stop = record + _END_BYTES + int.from_bytes(tail[record:][20:22], "little")
        self.stop = self._size - len(tail) + stop if record >= 0 else self._size

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = max(0, offset + (0, self._position, self._size)[whence])
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        remaining = max(0, self._size - self._position)
        count = remaining if size < 0 else min(size, remaining)
        if count > self._limit:
            actual, expected = f"{count} bytes", f"at most {self._limit} bytes"
            raise self._reader.error(_DIRECTORY, actual, expected, _CORRUPT, self._position)
        content = self._reader.read_field(self._position, count, "the zip")
        self._position += count
        return content


@dataclass(frozen=True)
class Directory:
    """Members of a zip, and the end of the zip."""

    members: Sequence[ZipInfo]
    end: End


def read_directory(reader: HeaderReader, limit: int) -> Directory:
    """Read the directory of a zip.

    Raise an error if it exceeds `limit` bytes, repeats a name or has another number of entries than
    the end of the zip states.
    """
    file = _File(reader, limit)
    try:
        with ZipFile(file) as archive:
            members = archive.infolist()
    except TensorFormatError:
        raise
    except (BadZipFile, NotImplementedError, ValueError, struct_error) as fault:
        hint = "the file is truncated or corrupt; fetch it again"
        start = max(0, reader.source.size - _TAIL)
        actual = f"not readable ({fault})"
        raise reader.error(_DIRECTORY, actual, "a complete zip", hint, start) from fault
    if file.count not in (len(members), _ZIP64_COUNT):
        field = f"the number of entries in {_DIRECTORY}"
        expected = f"{file.count} as stated at the end of the file"
        raise reader.error(field, len(members), expected, _CORRUPT, archive.start_dir)
    names: set[str] = set()
    for member in members:
        if member.filename in names:
            actual, hint = f"{shorten(repr(member.filename))} twice", "write the file again"
            raise reader.error(_DIRECTORY, actual, "each name once", hint, member.header_offset)
        names.add(member.filename)
    return Directory(members, End(reader.source, file.stop, "the zip"))


def check_checksums(source: Source, members: Iterable[ZipInfo]) -> Iterator[Finding]:
    """Check the CRC-32 of members."""
    for member in members:
        field = f"the member {shorten(repr(member.filename))}"
        try:
            start, _ = locate_stored_content(
                HeaderReader(source), member, field, "write it without compression"
            )
        except TensorFormatError:
            continue  # the reader has reported it
        computed = 0
        stop = start + member.file_size
        for first in range(start, stop, _CHECKED_AT_ONCE):
            part = Extents.single(first, min(first + _CHECKED_AT_ONCE, stop))
            computed = zlib.crc32(source.read(part).data, computed)
        if computed != member.CRC:
            crc = f"{computed:#010x}, expected {member.CRC:#010x}"
            message = f"its CRC-32 is {crc}; fetch the file again"
            yield Finding(source.name, member.header_offset, field, message)


def locate_stored_content(
    reader: HeaderReader, member: ZipInfo, field: str, hint: str, length: int = 0
) -> tuple[int, bytes]:
    """Return the offset of a member's content, and up to `length` of its first bytes.

    Raise TensorFormatError if the content is compressed, with the hint, or out of bounds, or if the
    header has another name than the directory.
    """
    offset, size = member.header_offset, reader.source.size

    def error(actual: str, expected: str, hint: str) -> TensorFormatError:
        return reader.error(field, actual, expected, hint, offset)

    if member.compress_type != ZIP_STORED or member.flag_bits & _ENCRYPTED:
        actual = "encrypted" if member.flag_bits & _ENCRYPTED else "compressed"
        raise error(actual, "an uncompressed member", hint)
    name = member.orig_filename.encode("utf-8" if member.flag_bits & _UTF8 else "cp437")
    stop = min(size, offset + _HEADER.size + len(name) + _USUAL_EXTRA + length)
    head = reader.read_bytes(offset, stop) if 0 <= offset < stop else b""
    if len(head) < _HEADER.size or not head.startswith(ZIP_MAGIC):
        expected = f"a header that begins with {ZIP_MAGIC!r}"
        raise error("no header at this offset", expected, _CORRUPT)
    *_, name_length, extra_length = _HEADER.unpack_from(head)
    header_name = head[_HEADER.size :][:name_length]
    if header_name != name:
        actual = f"the name {shorten(repr(header_name))} in its header"
        raise error(actual, f"{shorten(repr(name))} as in the directory", _CORRUPT)
    start = offset + _HEADER.size + name_length + extra_length
    if start + member.file_size > size:
        actual = f"{member.file_size} bytes from byte {start} on"
        raise error(actual, f"bytes that end within the {size} bytes of the file", _CORRUPT)
    length = min(length, member.file_size)
    content = head[start - offset :][:length]
    return start, content if len(content) == length else reader.read_bytes(start, start + length)
