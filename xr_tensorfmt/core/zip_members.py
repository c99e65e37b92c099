"""What a zip says of its members, for formats whose members are stored as they are."""

from __future__ import annotations

from struct import Struct, error
from typing import IO
from zipfile import BadZipFile, ZipFile, ZipInfo

from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.errors import TensorFormatError

ZIP_MAGIC = b"PK\x03\x04"
"""What a member begins with, and so a zip that has one."""

_HEADER = Struct("<4s5H3I2H")
HEADER_BYTES = _HEADER.size
"""Bytes of the header of a member, after which its name and extra fields come."""


def content_start(header: bytes) -> int:
    """How many bytes after the beginning of a member its content begins."""
    *_, name_length, extra_length = _HEADER.unpack_from(header)
    return HEADER_BYTES + int(name_length) + int(extra_length)


def first_member(reader: HeaderReader) -> tuple[bytes, int]:
    """The name of the first member and how it is compressed; an empty name if there is none."""
    head = reader.first_bytes(HEADER_BYTES)
    if len(head) < HEADER_BYTES or not head.startswith(ZIP_MAGIC):
        return b"", 0
    _, _, _, compression, *_, length, _ = _HEADER.unpack(head)
    return reader.first_bytes(HEADER_BYTES + length)[HEADER_BYTES:], compression


def directory(reader: HeaderReader, file: IO[bytes], start: int) -> list[ZipInfo]:
    """The directory of a zip; TensorFormatError at byte `start` where it cannot be read.

    `file` has the bytes of the zip, or the last of them, to which offsets are then relative.
    """
    try:
        with ZipFile(file) as archive:
            return archive.infolist()
    except TensorFormatError:
        raise
    except (BadZipFile, NotImplementedError, ValueError, error) as fault:
        found, hint = f"not readable ({fault})", "the file is cut off or damaged; fetch it again"
        field, expected = "the directory of the zip", "that of a complete zip"
        raise reader.error(field, found, expected, hint, start) from fault
