"""Snapshot 100 and 200: the containers of magnetron 0.1.5 to 0.1.9, in sections with markers.

A header of 32 bytes, a pool of strings (SRP!), metadata that were never implemented (MDT!),
descriptors of tensors (DSC!), data (BUF!). Source: ``mag_snapshot.c`` of magnetron and files of
these releases. They are read, and never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from struct import Struct, unpack
from typing import ClassVar, Self

from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import Cursor, HeaderReader, check_rank, check_size
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.mag.placement import (
    check_placement,
    end_of_consecutive,
    first_that_fits,
    round_up,
)
from xr_tensorfmt.formats.mag.spec import (
    SNAPSHOT_100_DTYPES,
    SNAPSHOT_200_DTYPES,
    Contents,
    Numbering,
    StoredTensor,
    check_checksum,
    decode_key,
    element,
)

POOL = b"SRP!"

MOST_STRINGS = 65534
"""Limit of the container on the strings of its pool."""

MOST_POOL_BYTES = 128 << 20
"""Limit of the container on the bytes of its pool."""

_CHECKSUM_OFFSET, _CHECKED_FROM = 16, 20
_COUNT = Struct("<I")

INTERPRETATIONS: dict[int, Sequence[tuple[Numbering, int]]] = {
    100: ((SNAPSHOT_100_DTYPES, 1), (SNAPSHOT_100_DTYPES, 16)),
    200: ((SNAPSHOT_200_DTYPES, 16), (SNAPSHOT_100_DTYPES, 16)),
}
"""Numbering and alignment by version, the released one first.

The others were in use for some days between two releases, under a version that does not tell."""


@dataclass(frozen=True)
class Header:
    """The first bytes of a snapshot."""

    magic: bytes
    version: int
    seconds: int
    checksum: int
    aux: int
    metadata_count: int
    tensor_count: int

    struct: ClassVar[Struct] = Struct("<4sIQIIII")

    @classmethod
    def read(cls, reader: HeaderReader) -> Self:
        """Read it; the errors of `HeaderReader.bytes_at`."""
        return cls(*cls.struct.unpack(reader.bytes_at(0, cls.struct.size, "the MAG header")))


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One tensor: rank, dtype, the number of its key in the pool, its offset and its shape."""

    key: int
    shape: tuple[int, ...]
    dtype: int
    offset: int
    at: int

    _struct: ClassVar[Struct] = Struct("<BBHIQQ")

    @classmethod
    def read(cls, cursor: Cursor, number: int) -> Self:
        """Read the descriptor of a number."""
        at, what = cursor.offset, f"tensor descriptor {number}"
        rank, dtype, reserved, key, count, offset = cursor.unpack(cls._struct, what)
        check_rank(cursor.reader.source.name, what, rank, at)
        shape = unpack(f"<{rank}Q", cursor.take(8 * rank, f"the shape of {what}"))
        if reserved or prod(shape) != count:
            raise cursor.error(
                what,
                f"{count} elements of shape {shape}, reserved bytes {reserved:#x}",
                "the product of the lengths, and zeros",
                "the header is damaged",
                back=cursor.offset - at,
            )
        return cls(key, shape, dtype, offset, at)


def read_snapshot(reader: HeaderReader, options: OpenOptions) -> Contents:
    """Read a snapshot of version 100 or 200."""
    header = Header.read(reader)
    cursor = Cursor(reader, Header.struct.size)
    if header.aux or header.metadata_count:
        raise cursor.error(
            "aux and the count of metadata",
            (header.aux, header.metadata_count),
            "zeros",
            "the header is damaged",
            back=12,
        )
    keys = _read_pool(cursor)
    if header.tensor_count > len(keys):
        raise cursor.error(
            "the count of tensors",
            header.tensor_count,
            f"up to {len(keys)}, as there are keys",
            "the header is damaged",
        )
    cursor.expect(b"MDT!")
    cursor.expect(b"DSC!")
    descriptors = [Descriptor.read(cursor, number) for number in range(header.tensor_count)]
    checked_to = cursor.offset
    findings = check_checksum(
        reader, options, header.checksum, _CHECKSUM_OFFSET, _CHECKED_FROM, checked_to
    )
    cursor.expect(b"BUF!")
    descriptors.sort(key=lambda each: each.key)
    return _interpreted(cursor, header, keys, descriptors, findings)


def _interpreted(
    cursor: Cursor,
    header: Header,
    keys: list[str],
    descriptors: list[Descriptor],
    findings: tuple[Finding, ...],
) -> Contents:
    """The tensors, in the numbering and with the alignment that fit the file."""
    reader, markers_stop = cursor.reader, cursor.offset
    source = reader.source
    facts = {"checksum": header.checksum, "seconds_since_1970": header.seconds}
    candidates = INTERPRETATIONS[header.version]

    def interpreted(numbering: Numbering, alignment: int) -> tuple[Contents, bool]:
        start = round_up(markers_stop, alignment)
        tensors = tuple(_stored(source.name, each, keys, numbering, start) for each in descriptors)
        is_released = (numbering, alignment) == candidates[0]
        doubts = () if is_released else (_unreleased(source.name, start),)
        contents = Contents(
            "snapshot",
            header.version,
            tensors,
            start,
            source.size,
            facts=facts,
            findings=findings + doubts,
        )
        is_filled = end_of_consecutive(tensors, start, alignment) == source.size
        return contents, is_filled and _is_zero(reader, markers_stop, start)

    contents, fits = first_that_fits([partial(interpreted, *each) for each in candidates])
    if not fits:
        check_placement(source.name, contents, source.size)
        raise cursor.error(
            "the data",
            f"{source.size - markers_stop} bytes",
            "those of all tensors one after the other, and then the end of the file",
            "the file is incomplete, or something was added to it; fetch it again",
        )
    return contents


def _is_zero(reader: HeaderReader, start: int, stop: int) -> bool:
    """Whether a range consists of zeros; the file may end within it."""
    padding = reader.bytes_at(start, min(stop, reader.source.size) - start, "the padding")
    return not any(padding)


def _unreleased(path: str, offset: int) -> Finding:
    message = (
        "they are placed or numbered as by commits of some days between two releases of magnetron, "
        "and are read accordingly; compare some values with their origin"
    )
    return Finding(path, offset, "the data", message, "warning")


def _read_pool(cursor: Cursor) -> list[str]:
    cursor.expect(POOL)
    (count,) = cursor.unpack(_COUNT, "the count of strings")
    if count > MOST_STRINGS:
        raise cursor.error(
            "the count of strings", count, f"up to {MOST_STRINGS}", "the header is damaged", back=4
        )
    offsets = unpack(f"<{count + 1}I", cursor.take(4 * (count + 1), "the offsets of strings"))
    if offsets[0] or any(stop <= start for start, stop in pairwise(offsets)):
        raise cursor.error(
            "the offsets of strings",
            f"{offsets[:8]}",
            "0 and then ever larger ones",
            "the header is damaged",
            back=4 * (count + 1),
        )
    if offsets[-1] > MOST_POOL_BYTES:
        raise cursor.error(
            "the bytes of all strings",
            offsets[-1],
            f"up to {MOST_POOL_BYTES}",
            "the header is damaged",
        )
    origin, path = cursor.offset, cursor.reader.source.name
    pool = cursor.take(offsets[-1], "the strings")
    return [decode_key(path, pool[start:stop], origin + start) for start, stop in pairwise(offsets)]


def _stored(
    path: str, descriptor: Descriptor, keys: list[str], numbering: Numbering, start: int
) -> StoredTensor:
    at, shape = descriptor.at, descriptor.shape
    if descriptor.dtype >= len(numbering) or descriptor.key >= len(keys):
        raise TensorFormatError(
            path,
            "the tensor descriptor",
            f"dtype {descriptor.dtype} and key {descriptor.key}",
            f"a dtype below {len(numbering)} and a key below {len(keys)}",
            "the header is damaged",
            offset=at,
        )
    stored = element(numbering[descriptor.dtype])
    check_size(path, shape, stored.stored.itemsize, at)
    nbytes = prod(shape) * stored.stored.itemsize
    return StoredTensor(keys[descriptor.key], shape, stored, start + descriptor.offset, nbytes)
