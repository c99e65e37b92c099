"""Members of a zip that are stored as they are, so that parts of them can be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct, error
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo
from zlib import crc32

from xr_tensorfmt.contract import (
    End,
    Extents,
    Finding,
    HeaderReader,
    Source,
    TensorFormatError,
    shorten,
)

ZIP_MAGIC = b"PK\x03\x04"
"""What a member begins with, and so a zip that has one."""

_HEADER = Struct("<4s5H3I2H")  # its name and extra fields follow
_ENCRYPTED = 1
_END_OF_DIRECTORY, _END_BYTES = b"PK\5\6", 22
"""The record that ends a zip; a comment follows, whose length is in its last two bytes."""

_CHECKED_AT_ONCE = 16 << 20

_DAMAGED = "the file is damaged; fetch it again"

_TAIL = 64 << 10
"""Bytes at the end of a file in which its directory is looked for first."""

_USUAL_NAME = 512
"""Bytes that the name and the extra fields of a member rarely exceed."""


def first_member(reader: HeaderReader) -> tuple[bytes, int]:
    """The name of the first member and how it is compressed; an empty name if there is none."""
    head = reader.read_head(_HEADER.size)
    if len(head) < _HEADER.size or not head.startswith(ZIP_MAGIC):
        return b"", 0
    _, _, _, compression, *_, length, _ = _HEADER.unpack(head)
    return reader.read_head(_HEADER.size + length)[_HEADER.size :], compression


class _File:
    """A file for `zipfile`, which reads no more than a directory may have."""

    def __init__(self, reader: HeaderReader, most: int) -> None:
        self._reader, self._most, self._size = reader, most, reader.source.size
        self._position = max(0, self._size - _TAIL)
        tail = self.read()
        record = tail.rfind(_END_OF_DIRECTORY)
        stop = record + _END_BYTES + int.from_bytes(tail[record:][20:22], "little")
        self.stop = self._size - len(tail) + stop if record >= 0 else self._size

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = max(0, offset + (0, self._position, self._size)[whence])
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._position)
        count = left if size < 0 else min(size, left)
        if count > self._most:
            found, expected = f"{count} bytes", f"at most {self._most} bytes"
            field = "the directory of the zip"
            raise self._reader.error(field, found, expected, _DAMAGED, self._position)
        content = self._reader.read_field(self._position, count, "the zip")
        self._position += count
        return content


@dataclass(frozen=True)
class Directory:
    """The directory of a zip: its members, and the byte after the end of the zip."""

    members: Sequence[ZipInfo]
    end: End


def read_directory(reader: HeaderReader, most: int) -> Directory:
    """Read the directory of a zip, of at most `most` bytes, and refuse repeated names."""
    file = _File(reader, most)
    try:
        with ZipFile(file) as archive:
            members = archive.infolist()
    except TensorFormatError:
        raise
    except (BadZipFile, NotImplementedError, ValueError, error) as fault:
        found, hint = f"not readable ({fault})", "the file is cut off or damaged; fetch it again"
        field, expected = "the directory of the zip", "that of a complete zip"
        start = max(0, reader.source.size - _TAIL)
        raise reader.error(field, found, expected, hint, start) from fault
    names: set[str] = set()
    for member in members:
        if member.filename in names:
            found, hint = f"{shorten(repr(member.filename))} twice", "write the file again"
            field = "the directory of the zip"
            raise reader.error(field, found, "each name once", hint, member.header_offset)
        names.add(member.filename)
    return Directory(members, End(reader.source, file.stop, "the zip"))


def check_checksums(source: Source, members: Iterable[ZipInfo]) -> Iterator[Finding]:
    """Compare the contents of members with their CRC-32, some MiB at a time."""
    for member in members:
        field = f"the member {shorten(repr(member.filename))}"
        try:
            start, _ = stored_content(
                HeaderReader(source), member, field, "write it without compression"
            )
        except TensorFormatError:
            continue  # the reader has reported it
        computed, stop = 0, start + member.file_size
        for first in range(start, stop, _CHECKED_AT_ONCE):
            part = Extents.single(first, min(first + _CHECKED_AT_ONCE, stop))
            computed = crc32(source.read(part).data, computed)
        if computed != member.CRC:
            message = (
                f"its CRC-32 is {computed:#010x}, expected {member.CRC:#010x}; fetch the file again"
            )
            yield Finding(source.name, member.header_offset, field, message)


def stored_content(
    reader: HeaderReader, member: ZipInfo, field: str, hint: str, most: int = 0
) -> tuple[int, bytes]:
    """Where the content of a member begins, and so many of its first bytes.

    TensorFormatError where it is not stored as it is, with a way out, or not within the file.
    """
    at, size = member.header_offset, reader.source.size

    def refused(found: str, expected: str, hint: str) -> TensorFormatError:
        return reader.error(field, found, expected, hint, at)

    if member.compress_type != ZIP_STORED or member.flag_bits & _ENCRYPTED:
        found = "encrypted" if member.flag_bits & _ENCRYPTED else "compressed"
        raise refused(found, "a member that is stored as it is", hint)
    stop = min(size, at + _HEADER.size + _USUAL_NAME + most)
    head = reader.read_bytes(at, stop) if 0 <= at < stop else b""
    if len(head) < _HEADER.size or not head.startswith(ZIP_MAGIC):
        expected = f"a header, which begins with {ZIP_MAGIC!r}"
        raise refused("no header where the directory has it", expected, _DAMAGED)
    *_, name_length, extra_length = _HEADER.unpack_from(head)
    start = at + _HEADER.size + name_length + extra_length
    if start + member.file_size > size:
        found = f"{member.file_size} bytes from byte {start} on"
        raise refused(found, f"bytes that end within the {size} of the file", _DAMAGED)
    length = min(most, member.file_size)
    content = head[start - at :][:length]
    return start, content if len(content) == length else reader.read_bytes(start, start + length)
