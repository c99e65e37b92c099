"""What stands between the dimension headers and the data of a TENS 1.0 file.

Each variable chunk begins with 8 characters and its size in 8 bytes, which counts all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.header import HeaderReader

CHUNK_HEADER_BYTES = 16
DENSE_DATA = b"DENSDATA"
SYMMETRY = b"SYMMETRY"

MOST_VARIABLE_CHUNKS = 4096
"""Limit on the chunks before the data, so that a hostile file cannot keep a reader busy."""


@dataclass(frozen=True)
class VariableChunk:
    """The header of one chunk.

    Parameters
    ----------
    magic : bytes
        Its 8 characters.
    offset : int
        Byte of the file at which it begins.
    size : int
        Its bytes, header and padding included.
    """

    magic: bytes
    offset: int
    size: int

    @property
    def body(self) -> int:
        """Byte at which its content begins."""
        return self.offset + CHUNK_HEADER_BYTES

    @property
    def stop(self) -> int:
        """The byte after it."""
        return self.offset + self.size


def variable_chunks(reader: HeaderReader, start: int) -> Iterator[VariableChunk]:
    """Walk through the chunks from a byte on, up to the data.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    start : int
        The byte after the dimension headers.

    Yields
    ------
    VariableChunk
        Each chunk; the one of the dense data is the last, and its size is not checked here. The
        walk ends as well where no 8 printable characters follow.

    Raises
    ------
    TensorFormatError
        A chunk's size is not a multiple of 8, smaller than its header, or passes the end of the
        file, or there are more than 4096 of them.
    """
    offset = start
    for _ in range(MOST_VARIABLE_CHUNKS):
        chunk = _chunk_at(reader, offset)
        if chunk is None:
            return
        if chunk.magic == DENSE_DATA:
            yield chunk
            return
        _check_size(reader, chunk)
        yield chunk
        offset = chunk.stop
    raise TensorFormatError(
        reader.source.name,
        "the number of chunks before the data",
        f"more than {MOST_VARIABLE_CHUNKS}",
        "far fewer",
        "the file is damaged or made to keep readers busy",
        offset=start,
    )


def first_chunk(reader: HeaderReader, offset: int) -> VariableChunk | None:
    """Look at what stands at a byte.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    offset : int
        Where a chunk may begin.

    Returns
    -------
    VariableChunk or None
        The chunk; None if there is something else, such as values without a chunk.
    """
    chunk = _chunk_at(reader, offset)
    if chunk is None or chunk.magic == DENSE_DATA or _has_valid_size(reader, chunk):
        return chunk
    return None


def has_magic(reader: HeaderReader, offset: int, magics: Iterable[bytes]) -> bool:
    """Whether a chunk begins at a byte, however little the file has of it.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    offset : int
        Where the chunk may begin.
    magics : iterable of bytes
        Those of the chunks that are known.

    Returns
    -------
    bool
    """
    found = reader.bytes_at(offset, min(8, reader.source.size - offset), "a chunk's magic")
    return bool(found) and any(magic.startswith(found) for magic in magics)


def _chunk_at(reader: HeaderReader, offset: int) -> VariableChunk | None:
    if reader.source.size - offset < CHUNK_HEADER_BYTES:
        return None
    magic = reader.bytes_at(offset, 8, "a chunk's magic")
    if not all(0x20 <= byte <= 0x7E for byte in magic):
        return None
    return VariableChunk(magic, offset, reader.unsigned(offset + 8, 8, "a chunk's size"))


def _has_valid_size(reader: HeaderReader, chunk: VariableChunk) -> bool:
    fits = CHUNK_HEADER_BYTES <= chunk.size <= reader.source.size - chunk.offset
    return fits and chunk.size % 8 == 0


def _check_size(reader: HeaderReader, chunk: VariableChunk) -> None:
    if not _has_valid_size(reader, chunk):
        raise TensorFormatError(
            reader.source.name,
            f"the size of chunk {chunk.magic.decode()!r}",
            chunk.size,
            f"a multiple of 8 from 16 to the {reader.source.size - chunk.offset} bytes that remain",
            "the file is damaged or cut off",
            offset=chunk.offset + 8,
        )
