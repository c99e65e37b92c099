"""The chunks of a file of version 1.0, which stand between the header and the values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from xr_tensorfmt.contract import MAX_EMBEDDED_BYTES, PAGE, HeaderReader

DENSE_DATA = b"DENSDATA"
SYMMETRY = b"SYMMETRY"
EMBEDDED = b"XRTENSOR"
"""Magic of the chunk for embedded metadata, which is our own."""

KNOWN = (DENSE_DATA, SYMMETRY, EMBEDDED)

# Magic, and size of the whole chunk with this header.
_HEADER = Struct("<8sQ")
HEADER_BYTES = _HEADER.size

UNIT = 8
"""Bytes that the size of every chunk is a multiple of."""

MAX_CHUNKS = 4096
"""Limit on the chunks before the data, so that a hostile file cannot keep a reader busy."""


@dataclass(frozen=True)
class Chunk:
    """The header of one chunk, and where it is."""

    magic: bytes
    size: int
    offset: int

    @classmethod
    def at(cls, reader: HeaderReader, offset: int) -> Chunk | None:
        """Read the header of a chunk; None where the bytes are not one."""
        if reader.source.size - offset < HEADER_BYTES:
            return None
        raw = reader.read_field(offset, HEADER_BYTES, "a chunk's header")
        magic, size = _HEADER.unpack(raw)
        return cls(magic, size, offset) if all(0x20 <= byte <= 0x7E for byte in magic) else None

    @property
    def size_at(self) -> int:
        """Byte at which its size is."""
        return self.offset + len(self.magic)

    def has_valid_size(self, reader: HeaderReader) -> bool:
        """Whether its size is allowed and the file is as long."""
        fits = HEADER_BYTES <= self.size <= reader.source.size - self.offset
        return fits and self.size % UNIT == 0

    @property
    def body(self) -> int:
        """Byte at which its content begins."""
        return self.offset + HEADER_BYTES

    @property
    def stop(self) -> int:
        """The byte after it."""
        return self.offset + self.size


def packed_chunk(magic: bytes, content: bytes) -> bytes:
    """A whole chunk as it is in a file."""
    return packed_header(magic, len(content)) + content + bytes(-len(content) % UNIT)


def packed_header(magic: bytes, content_bytes: int) -> bytes:
    """The header of a chunk, whose content is filled up to the next multiple of 8."""
    return _HEADER.pack(magic, padded_size(content_bytes))


def padded_size(content_bytes: int) -> int:
    """Size of a chunk with a content of so many bytes."""
    return HEADER_BYTES + content_bytes + -content_bytes % UNIT


def walk(reader: HeaderReader, start: int) -> Iterator[Chunk]:
    """Walk through the chunks from a byte on, up to the data."""
    offset = start
    for _ in range(MAX_CHUNKS):
        chunk = Chunk.at(reader, offset)
        if chunk is None:
            return
        if chunk.magic == DENSE_DATA:
            yield chunk
            return
        _check_size(reader, chunk)
        yield chunk
        offset = chunk.stop
    raise reader.error(
        "the number of chunks before the data",
        f"more than {MAX_CHUNKS}",
        "far fewer",
        "the file is damaged or made to keep readers busy",
        start,
    )


def begins_with_chunk(reader: HeaderReader, offset: int) -> bool:
    """Whether a chunk begins at a byte, be it one of a known kind that is cut off."""
    chunk = Chunk.at(reader, offset)
    if chunk is not None and (chunk.magic in KNOWN or chunk.has_valid_size(reader)):
        return True
    found = reader.read_field(offset, min(8, reader.source.size - offset), "a chunk's magic")
    return bool(found) and any(magic.startswith(found) for magic in KNOWN)


def _check_size(reader: HeaderReader, chunk: Chunk) -> None:
    if not chunk.has_valid_size(reader):
        raise reader.error(
            f"the size of chunk {chunk.magic.decode()!r}",
            chunk.size,
            f"a multiple of 8 from 16 to the {reader.source.size - chunk.offset} bytes that remain",
            "the file is damaged or cut off",
            chunk.size_at,
        )


def embedded_metadata(reader: HeaderReader, chunk: Chunk) -> bytes:
    """The JSON in a chunk, without the zeros behind it; of more than the limit only a part."""
    length = min(chunk.size - HEADER_BYTES, MAX_EMBEDDED_BYTES + PAGE)
    return reader.read_field(chunk.body, length, "the embedded metadata").rstrip(b"\0")
