"""Members of a zip, stored or deflated."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from struct import Struct
from struct import error as struct_error
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.file_format import End
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Dense, WholeLayout, pick_values
from xr_tensorfmt.core.locks import CachedValue
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import Finding, SourceChangedError, TensorFormatError, shorten

# Magic number of a member, and of a zip that has members.
ZIP_MAGIC = b"PK\x03\x04"

# Magic number and size of the last record. It ends with the size of a comment that follows.
_HEADER = Struct("<4s5H3I2H")  # the name and extra fields follow
_ENCRYPTED = 1
_UTF8 = 1 << 11  # the name of the member is UTF-8
_END_OF_DIRECTORY, _END_BYTES = b"PK\5\6", 22
# Number of entries in the last record of a zip64, whose actual number is in another record.
_ZIP64_COUNT = 0xFFFF

_CHECKED_AT_ONCE = 16 << 20

_DIRECTORY = "the directory of the zip"
_CORRUPT = "the file is corrupt; fetch it again"

# Bytes read at the end of a file to find the directory, including the longest comment.
_TAIL = _END_BYTES + (1 << 16)
# Usual limit on the bytes of extra fields, read with the header of a member.
_USUAL_EXTRA = 512
# Bytes of the first member to recognise a format by.
_RECOGNISED = 4096


def _inflate(raw: bytes, length: int) -> bytes:
    """Return up to `length` of the first bytes of deflated content."""
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, length)


def read_first_member(reader: HeaderReader) -> tuple[bytes, bytes]:
    """Return the name of the first member and the start of its content, empty if compressed."""
    head = reader.read_head(_HEADER.size)
    if len(head) < _HEADER.size or not head.startswith(ZIP_MAGIC):
        return b"", b""
    _, _, _, compression, *_, length, extra = _HEADER.unpack(head)
    head = reader.read_head(_HEADER.size + length + extra + _RECOGNISED)[_HEADER.size :]
    return head[:length], head[length + extra :] if compression == ZIP_STORED else b""


class _File:
    """A file object for `zipfile` with a limit on each read."""

    def __init__(self, reader: HeaderReader, limit: int) -> None:
        self._reader, self._limit, self._position = reader, limit, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = max(0, offset + (0, self._position, self._reader.source.size)[whence])
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        remaining = max(0, self._reader.source.size - self._position)
        count = remaining if size < 0 else min(size, remaining)
        if count > self._limit:
            actual, expected = f"{count} bytes", f"at most {self._limit} bytes"
            raise self._reader.error(_DIRECTORY, actual, expected, _CORRUPT, self._position)
        content = self._reader.read_field(self._position, count, "the zip")
        self._position += count
        return content


def read_directory(reader: HeaderReader, limit: int) -> tuple[list[ZipInfo], End]:
    """Return the members, checked, and the end of a zip with a directory of up to `limit` bytes."""
    size = reader.source.size
    start = max(0, size - _TAIL)
    tail = reader.read_field(start, size - start, "the zip")
    try:
        with ZipFile(_File(reader, limit)) as archive:
            members = archive.infolist()
    except TensorFormatError:
        raise
    except (BadZipFile, NotImplementedError, ValueError, struct_error) as fault:
        hint = "the file is truncated or corrupt; fetch it again"
        actual = f"not readable ({fault})"
        raise reader.error(_DIRECTORY, actual, "a complete zip", hint, start) from fault
    record = tail.rfind(_END_OF_DIRECTORY)
    count, comment = (int.from_bytes(tail[record:][i : i + 2], "little") for i in (10, 20))
    if count not in (len(members), _ZIP64_COUNT):
        field, expected = f"the number of entries in {_DIRECTORY}", f"{count} as stated at its end"
        raise reader.error(field, len(members), expected, _CORRUPT, archive.start_dir)
    names: set[str] = set()
    for member in members:
        if member.filename in names:
            actual, hint = f"{shorten(repr(member.filename))} twice", "write the file again"
            raise reader.error(_DIRECTORY, actual, "each name once", hint, member.header_offset)
        names.add(member.filename)
    return members, End(reader.source, start + record + _END_BYTES + comment, "the zip")


@dataclass(frozen=True)
class Deflated(WholeLayout):
    """An array in a deflated member, which the first read inflates whole, with its checksum."""

    member: ZipInfo
    offset: int  # of the compressed bytes
    array: Dense  # at an offset in the content
    kept: CachedValue[Array] = field(default_factory=CachedValue, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the array."""
        return self.array.dtype

    @property
    def element(self) -> Element:
        """Element of the array."""
        return self.array.element

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """Identify the layout in its file."""
        return type(self).__name__, self.offset, self.member.CRC, self.array

    def locate(self, selection: Selection) -> Extents:  # all bytes are needed
        """Return the range of the member."""
        return Extents.single(self.offset, self.offset + self.member.compress_size)

    def parse(self, source: Source, pieces: Iterable[Bytes]) -> Array:
        """Inflate the member."""
        member, inflater = self.member, zlib.decompressobj(-zlib.MAX_WBITS)
        content, size = np.empty(member.file_size, dtype=np.uint8), 0
        with suppress(zlib.error):
            for piece in pieces:
                raw = inflater.decompress(piece.data, member.file_size + 1 - size)
                size += len(raw)
                if size > member.file_size:
                    break
                content[size - len(raw) : size] = np.frombuffer(raw, dtype=np.uint8)
        if size != member.file_size or zlib.crc32(content.data) != member.CRC:
            raise TensorFormatError(
                source.name,
                field=f"the member {shorten(repr(member.filename))}",
                actual=f"deflated data of {size} bytes, or with another CRC-32",
                expected=f"{member.file_size} bytes with CRC-32 {member.CRC:#010x}",
                hint=_CORRUPT,
                offset=member.header_offset,
            )
        stored = content[self.array.offset : self.array.stop]
        return self.array.decode(stored, Selection.everything(self.shape))

    def pick(self, source: Source, content: Array, selection: Selection) -> Array:
        """Copy the selected values."""
        return pick_values(content, selection)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return the whole shape: each process would inflate all for each chunk."""
        return tuple(max(1, length) for length in self.shape)


def check_checksums(source: Source, members: Iterable[ZipInfo]) -> Iterator[Finding]:
    """Check the CRC-32 of stored members. Reading deflated members checks them."""
    for member in members:
        if member.compress_type != ZIP_STORED:
            continue
        try:
            start, _ = open_member(HeaderReader(source), member, "")
        except SourceChangedError:
            raise
        except TensorFormatError:
            continue  # the reader has reported it
        checksum, stop = 0, start + member.file_size
        for first in range(start, stop, _CHECKED_AT_ONCE):
            part = Extents.single(first, min(first + _CHECKED_AT_ONCE, stop))
            checksum = zlib.crc32(source.read(part).data, checksum)
        if checksum != member.CRC:
            field = f"the member {shorten(repr(member.filename))}"
            actual, expected = f"its CRC-32 is {checksum:#010x}", f"{member.CRC:#010x}"
            hint, offset = "fetch the file again", member.header_offset
            yield Finding(source.name, field, actual, expected, hint, offset)


def open_member(
    reader: HeaderReader, member: ZipInfo, field: str, length: int = 0
) -> tuple[int, bytes]:
    """Return the offset of a member in the file, and the first bytes of its content."""
    offset, size = member.header_offset, reader.source.size

    def error(actual: str, expected: str, hint: str = _CORRUPT) -> TensorFormatError:
        return reader.error(field, actual, expected, hint, offset)

    is_encrypted = bool(member.flag_bits & _ENCRYPTED)
    if is_encrypted or member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        actual = "encrypted" if is_encrypted else f"compressed by method {member.compress_type}"
        raise error(actual, "a member that is stored or deflated", "unzip it, and zip it again")
    name = member.orig_filename.encode("utf-8" if member.flag_bits & _UTF8 else "cp437")
    stop = min(size, offset + _HEADER.size + len(name) + _USUAL_EXTRA + length)
    head = reader.read_bytes(offset, stop) if 0 <= offset < stop else b""
    if len(head) < _HEADER.size or not head.startswith(ZIP_MAGIC):
        raise error("no header at this offset", f"a header that begins with {ZIP_MAGIC!r}")
    *_, name_length, extra_length = _HEADER.unpack_from(head)
    header_name = head[_HEADER.size :][:name_length]
    if header_name != name:
        actual = f"the name {shorten(repr(header_name))} in its header"
        raise error(actual, f"{shorten(repr(name))} as in the directory")
    start = offset + _HEADER.size + name_length + extra_length
    if start + member.compress_size > size:
        actual = f"{member.compress_size} bytes from byte {start} on"
        raise error(actual, f"bytes that end within the {size} bytes of the file")
    count = min(length, member.compress_size)
    raw = head[start - offset :][:count]
    if len(raw) < count:
        raw = reader.read_bytes(start, start + count)
    if not length or member.compress_type == ZIP_STORED:
        return start, raw
    try:
        return start, _inflate(raw, length)
    except zlib.error as fault:
        raise error(f"not readable ({fault})", "deflated bytes") from None
