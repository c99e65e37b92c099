"""Members of a zip, stored or deflated."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from struct import error as struct_error
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.file_format import End
from xr_tensorfmt.core.gathered import PIECE_BYTES, WholeLayout
from xr_tensorfmt.core.header import CORRUPT, HeaderReader
from xr_tensorfmt.core.layout import Dense
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import Finding, SourceChangedError, TensorFormatError, shorten

# Magic number of a member, and of a zip that has members.
ZIP_MAGIC = b"PK\x03\x04"

_HEADER = Struct("<4s5H3I2H")  # of a member; the name and extra fields follow
_ENCRYPTED = 1
_UTF8 = 1 << 11  # the name of the member is UTF-8
# Magic number and size of the last record. It ends with the size of a comment that follows.
_END_OF_DIRECTORY, _END_BYTES = b"PK\5\6", 22
# Number of entries in the last record of a zip64, whose actual number is in another record.
_ZIP64_COUNT = 0xFFFF

_CHECKED_AT_ONCE = 16 << 20

_DIRECTORY = "the directory of the zip"

# Bytes read at the end of a file to find the directory, including the longest comment.
_TAIL = _END_BYTES + (1 << 16)
# Usual limit on the bytes of extra fields, read with the header of a member.
_USUAL_EXTRA = 512
# Limit of deflate on the bytes that a byte expands to, rounded up.
MAX_EXPANSION = 1100
# Bytes of the first member to recognise a format by.
_RECOGNISED = 4096


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
        count, start = remaining if size < 0 else min(size, remaining), self._position
        actual, expected = f"{count} bytes", f"at most {self._limit} bytes"
        self._reader.check(count <= self._limit, _DIRECTORY, actual, expected, offset=start)
        self._position += count
        return self._reader.read_field(start, count, "the zip")


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
        actual = f"not readable ({fault})"
        raise reader.error(_DIRECTORY, actual, "a complete zip", offset=start) from fault
    record = tail.rfind(_END_OF_DIRECTORY)
    count, comment = (int.from_bytes(tail[record:][i : i + 2], "little") for i in (10, 20))
    field, expected = f"the number of entries in {_DIRECTORY}", f"{count} as stated at its end"
    is_complete = count in (len(members), _ZIP64_COUNT)
    reader.check(is_complete, field, len(members), expected, offset=archive.start_dir)
    names = [member.filename for member in members]
    repeated = next((name for name, times in Counter(names).items() if times > 1), None)
    actual = f"{shorten(repr(repeated))} twice"
    is_unique = repeated is None
    reader.check(is_unique, _DIRECTORY, actual, "each name once", offset=archive.start_dir)
    return members, End(reader.source, start + record + _END_BYTES + comment, "the zip")


@dataclass(frozen=True)
class Deflated(WholeLayout):
    """An array in a deflated member, which the first read inflates whole, with its checksum."""

    member: ZipInfo
    offset: int  # of the compressed bytes
    shape: tuple[int, ...]
    element: Element
    start: int  # of the array in the content

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the array."""
        return self.element.dtype

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """Identify the layout in its file."""
        array = self.shape, self.element.stored.str, self.start
        return type(self).__name__, self.offset, self.member.CRC, array

    @property
    def bounds(self) -> tuple[int, int]:
        """The range of the member."""
        return self.offset, self.offset + self.member.compress_size

    def parse(self, source: Source, pieces: Iterable[Bytes]) -> Array:
        """Inflate the member."""
        content = np.empty(self.member.file_size, dtype=np.uint8)
        for start, raw in self._inflate(source, pieces):
            content[start : start + len(raw)] = np.frombuffer(raw, dtype=np.uint8)
        array = Dense(self.shape, self.element, self.start)
        stored = content[array.offset : array.stop]
        return array.decode(stored, Selection.everything(self.shape))

    def check(self, source: Source) -> None:
        """Inflate the member without keeping its content."""
        for _ in self._inflate(source, self.read_pieces(source)):
            pass

    def _inflate(self, source: Source, pieces: Iterable[Bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield parts of the content and their offsets. Raise TensorFormatError if it is wrong."""
        member, size, checksum = self.member, 0, 0
        with suppress(zlib.error):
            for raw in _inflate_pieces(pieces):
                size, checksum = size + len(raw), zlib.crc32(raw, checksum)
                if size > member.file_size:
                    break
                yield size - len(raw), raw
        HeaderReader(source).check(
            size == member.file_size and checksum == member.CRC,
            f"the member {shorten(repr(member.filename))}",
            f"deflated data of {size} bytes, or with another CRC-32",
            f"{member.file_size} bytes with CRC-32 {member.CRC:#010x}",
            offset=member.header_offset,
        )

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return the whole shape: each process would inflate all for each chunk."""
        return tuple(max(1, length) for length in self.shape)


def _inflate_pieces(pieces: Iterable[Bytes]) -> Iterator[bytes]:
    """Yield what pieces of deflated bytes expand to, up to `PIECE_BYTES` at once."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    for piece in pieces:
        rest: Any = piece.data
        while len(rest):
            yield inflater.decompress(rest, PIECE_BYTES)
            rest = inflater.unconsumed_tail
    yield inflater.flush()


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
        field, expected = f"the member {shorten(repr(member.filename))}", f"{member.CRC:#010x}"
        actual, offset = f"its CRC-32 is {checksum:#010x}", member.header_offset
        if checksum != member.CRC:
            yield Finding(source.name, field, actual, expected, CORRUPT, offset)


def open_member(
    reader: HeaderReader, member: ZipInfo, field: str, length: int = 0
) -> tuple[int, bytes]:
    """Return the offset of a member in the file, and the first bytes of its content."""
    offset, size, method = member.header_offset, reader.source.size, member.compress_type

    def check(holds: bool, actual: str, expected: str, hint: str = CORRUPT) -> None:
        reader.check(holds, field, actual, expected, hint, offset)

    is_encrypted = bool(member.flag_bits & _ENCRYPTED)
    actual = "encrypted" if is_encrypted else f"compressed by method {method}"
    is_supported = not is_encrypted and method in (ZIP_STORED, ZIP_DEFLATED)
    check(is_supported, actual, "a member that is stored or deflated", "unzip it, and zip it again")
    name = member.orig_filename.encode("utf-8" if member.flag_bits & _UTF8 else "cp437")
    stop = min(size, offset + _HEADER.size + len(name) + _USUAL_EXTRA + length)
    head = reader.read_bytes(offset, stop) if 0 <= offset < stop else b""
    has_header = len(head) >= _HEADER.size and head.startswith(ZIP_MAGIC)
    check(has_header, "no header at this offset", f"a header that begins with {ZIP_MAGIC!r}")
    *_, name_length, extra_length = _HEADER.unpack_from(head)
    header_name = head[_HEADER.size :][:name_length]
    actual = f"the name {shorten(repr(header_name))} in its header"
    check(header_name == name, actual, f"{shorten(repr(name))} as in the directory")
    start = offset + _HEADER.size + name_length + extra_length
    actual = f"{member.compress_size} bytes from byte {start} on"
    expected = f"bytes that end within the {size} bytes of the file"
    check(start + member.compress_size <= size, actual, expected)
    most = MAX_EXPANSION * member.compress_size if method == ZIP_DEFLATED else member.compress_size
    actual = f"{member.file_size} bytes of content"
    check(member.file_size <= most, actual, f"at most {most} from its {member.compress_size} bytes")
    count = min(length, member.compress_size)
    raw = head[start - offset :][:count]
    if len(raw) < count:
        raw = reader.read_bytes(start, start + count)
    if length and method == ZIP_DEFLATED:
        try:
            raw = zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, length)
        except zlib.error as fault:
            check(False, f"not readable ({fault})", "deflated bytes")
    return start, raw
