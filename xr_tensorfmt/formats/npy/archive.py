"""Reading of the zip of several arrays: its directory, and the header of each array."""

from __future__ import annotations

from dataclasses import replace
from io import RawIOBase
from typing import IO, cast
from zipfile import ZIP_STORED, ZipInfo

import numpy as np

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.core.findings import Finding, finding_of
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.keyed import KeyedDims
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.zip_members import (
    HEADER_BYTES,
    ZIP_MAGIC,
    content_start,
    directory,
    first_member,
)
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.npy.spec import HEAD_BYTES, Header, NotHeldError, parse

SUFFIX = ".npy"

MOST_MEMBERS = 1 << 17
"""Limit on the number of arrays."""

MOST_DIRECTORY = 16 << 20
"""Limit on the bytes of the directory, all of which is read when a file is opened."""

_TAIL = 64 << 10
"""Bytes at the end of a file in which its directory is looked for first."""

_USUAL_NAME = 512
_ENCRYPTED = 1


def recognises(reader: HeaderReader) -> bool:
    """Whether the first member of a zip has the name of an array."""
    name, _ = first_member(reader)
    return name.endswith(SUFFIX.encode())


class _File(RawIOBase):
    """A file for `zipfile`, over the bytes of a source."""

    def __init__(self, reader: HeaderReader) -> None:
        self._reader, self._size, self._position = reader, reader.source.size, 0
        start = max(0, self._size - _TAIL)
        reader.bytes_at(start, self._size - start, "the directory of the zip")

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a position."""
        self._position = max(0, offset + (0, self._position, self._size)[whence])
        return self._position

    def tell(self) -> int:
        """The position."""
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Read from the position on, and no more than a directory may have."""
        left = max(0, self._size - self._position)
        count = left if size < 0 else min(size, left)
        if count > MOST_DIRECTORY:
            hint = "the file is damaged; write it again by numpy.savez"
            expected = f"at most {MOST_DIRECTORY} bytes"
            raise self._reader.error(
                "the directory of the zip", f"{count} bytes", expected, hint, self._position
            )
        content = self._reader.bytes_at(self._position, count, "the zip")
        self._position += count
        return content


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the directory, and the headers of all arrays at once where that takes requests."""
    source = reader.source
    options.check_unnamed(source.name)
    options.check_all_stored(source.name)
    members, findings = _members(reader)
    headers: dict[str, Header | Finding] = {}

    def read_one(number: int) -> None:
        member = members[number]
        try:
            headers[_key(member)] = _header(source, member)
        except NotHeldError as fault:
            finding = finding_of(fault)
            message = f"{finding.message}; it is left out"
            headers[_key(member)] = replace(finding, message=message, severity="warning")

    source.run(read_one, range(len(members)))
    dims = KeyedDims(options.dims, [_key(each) for each in members])
    tensors = []
    for key in map(_key, members):
        header = headers[key]
        if isinstance(header, Finding):
            findings.append(header)
            continue
        names, encoding = dims.of(key, len(header.shape)), header.encoding(format="npz", key=key)
        tensors.append(Tensor(key, names, header.layout, encoding=encoding))
    return Container(
        tuple(tensors),
        encoding={"tensorfmt": {"format": "npz"}},
        findings=tuple(findings),
    )


def _key(member: ZipInfo) -> str:
    return member.filename.removesuffix(SUFFIX)


def _members(reader: HeaderReader) -> tuple[list[ZipInfo], list[Finding]]:
    """The arrays in the directory, and what to say of other members."""
    path, size = reader.source.name, reader.source.size
    every = directory(reader, cast("IO[bytes]", _File(reader)), max(0, size - _TAIL))
    members = [each for each in every if each.filename.endswith(SUFFIX)]
    findings = [
        Finding(path, each.header_offset, f"the member {each.filename!r}", message, "warning")
        for each in every
        if not each.filename.endswith(SUFFIX)
        for message in [f"its name does not end with {SUFFIX}, so that it is left out; unzip it"]
    ]
    seen: set[str] = set()
    for each in members:
        if each.filename in seen or len(seen) >= MOST_MEMBERS:
            found = f"{each.filename!r} twice" if each.filename in seen else "more members"
            expected = f"up to {MOST_MEMBERS} members with different names"
            hint = "the file is damaged; write it again by numpy.savez"
            raise reader.error(
                "the directory of the zip", found, expected, hint, each.header_offset
            )
        seen.add(each.filename)
    return members, findings


def _header(source: Source, member: ZipInfo) -> Header:
    """The header of an array, behind that of its member."""
    path, at, key = source.name, member.header_offset, repr(_key(member))

    def refused(found: str, expected: str, hint: str) -> TensorFormatError:
        return TensorFormatError(path, f"the member {key}", found, expected, hint, at)

    if member.compress_type != ZIP_STORED or member.flag_bits & _ENCRYPTED:
        raise refused(
            "encrypted" if member.flag_bits & _ENCRYPTED else "compressed",
            "a member that is stored as it is",
            "parts of it cannot be read: load it by np.load and write it by np.savez, which does "
            "not compress",
        )
    head = _bytes_at(source, at, HEADER_BYTES + _USUAL_NAME + HEAD_BYTES)
    if not 0 <= at <= source.size - HEADER_BYTES or not head.startswith(ZIP_MAGIC):
        raise refused("no header where the directory has it", repr(ZIP_MAGIC), "fetch it again")
    start = content_start(head)
    stop = at + start + member.file_size
    if len(head) < start + min(HEAD_BYTES, member.file_size):
        content = _bytes_at(source, at + start, min(HEAD_BYTES, member.file_size))
    else:
        content = head[start : start + member.file_size]
    if stop > source.size:
        raise refused(
            f"bytes up to {stop}",
            f"the end of the file at byte {source.size} behind them",
            "the file is incomplete; fetch it again",
        )
    header = parse(path, content, at + start, f"the array {key}")
    if header.stop > stop:
        expected = f"{header.stop - at - start} for its shape {header.shape}"
        raise refused(f"{member.file_size} bytes", expected, "the file is damaged")
    return header


def _bytes_at(source: Source, start: int, length: int) -> bytes:
    """Bytes from an offset on, fewer where the file ends."""
    start, stop = max(0, start), min(source.size, start + length)
    if start >= stop:
        return b""
    return np.asarray(source.read(Extents.single(start, stop))).tobytes()
