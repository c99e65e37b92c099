"""Chunks of a file of version 1.0. They follow the header, and the last one has the values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from xr_tensorfmt.core.chunk_grid import PAGE
from xr_tensorfmt.core.embedded_metadata import MAX_EMBEDDED_BYTES
from xr_tensorfmt.core.header import HeaderReader

DENSE_DATA = b"DENSDATA"
SYMMETRY = b"SYMMETRY"
EMBEDDED = b"XRTENSOR"
"""Magic number of the chunk for embedded metadata, an extension of this package."""

DEFINED_MAGICS = (DENSE_DATA, SYMMETRY, EMBEDDED)

# Magic number, and size of the chunk including this header.
_HEADER = Struct("<8sQ")
HEADER_BYTES = _HEADER.size

UNIT = 8
"""Sizes of chunks are multiples of this."""

MAX_HEADER_CHUNKS = 4096
"""Limit on the chunks before the data."""


@dataclass(frozen=True)
class Chunk:
    """Header of a chunk, with its offset in the file."""

    magic: bytes
    size: int
    offset: int

    @classmethod
    def read(cls, reader: HeaderReader, offset: int) -> Chunk | None:
        """Read the header of a chunk. Return None if the bytes are not one."""
        if reader.source.size - offset < HEADER_BYTES:
            return None
        raw = reader.read_field(offset, HEADER_BYTES, "a chunk's header")
        magic, size = _HEADER.unpack(raw)
        return cls(magic, size, offset) if all(0x20 <= byte <= 0x7E for byte in magic) else None

    @property
    def size_offset(self) -> int:
        """Offset of the size field."""
        return self.offset + len(self.magic)

    def has_valid_size(self, reader: HeaderReader) -> bool:
        """Return whether the size is valid and the file contains the chunk."""
        fits = HEADER_BYTES <= self.size <= reader.source.size - self.offset
        return fits and self.size % UNIT == 0

    @property
    def content_offset(self) -> int:
        """Offset of the content."""
        return self.offset + HEADER_BYTES

    @property
    def stop(self) -> int:
        """Offset of the first byte after the chunk."""
        return self.offset + self.size


def pack_chunk_header(magic: bytes, content_bytes: int) -> bytes:
    """Encode the header of a chunk. The content is padded to a multiple of 8 bytes."""
    return _HEADER.pack(magic, compute_chunk_size(content_bytes))


def compute_chunk_size(content_bytes: int) -> int:
    """Return the size of a chunk, including header and padding."""
    return HEADER_BYTES + content_bytes + -content_bytes % UNIT


def read_chunks(reader: HeaderReader, start: int) -> Iterator[Chunk]:
    """Read the chunk headers up to the data."""
    offset = start
    for _ in range(MAX_HEADER_CHUNKS):
        chunk = Chunk.read(reader, offset)
        if chunk is None:
            return
        if chunk.magic == DENSE_DATA:
            yield chunk
            return
        if not chunk.has_valid_size(reader):
            remaining = reader.source.size - offset
            raise reader.error(
                field=f"the size of chunk {chunk.magic.decode()!r}",
                actual=chunk.size,
                expected=f"a multiple of 8 from 16 to the {remaining} bytes that remain",
                hint="the file is truncated or corrupt",
                offset=chunk.size_offset,
            )
        yield chunk
        offset = chunk.stop
    raise reader.error(
        field="the number of chunks before the data",
        actual=f"more than {MAX_HEADER_CHUNKS}",
        expected=f"at most {MAX_HEADER_CHUNKS}",
        hint="the file is corrupt; fetch it again",
        offset=start,
    )


def read_embedded_metadata(reader: HeaderReader, chunk: Chunk) -> bytes:
    """Return the JSON text in a chunk without padding. Text beyond the limit is cut off."""
    length = min(chunk.size - HEADER_BYTES, MAX_EMBEDDED_BYTES + PAGE)
    return reader.read_field(chunk.content_offset, length, "the embedded metadata").rstrip(b"\0")
