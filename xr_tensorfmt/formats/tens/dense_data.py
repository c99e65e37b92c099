"""The chunk DENSDATA: all values of a tensor, one after the other."""

from __future__ import annotations

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.header import HeaderReader
from xr_tensorfmt.formats.tens.header import Header
from xr_tensorfmt.formats.tens.variable_chunks import CHUNK_HEADER_BYTES, VariableChunk


def _padded(payload: int) -> int:
    """Size of a chunk that holds so many bytes."""
    return CHUNK_HEADER_BYTES + payload + -payload % 8


def fits(reader: HeaderReader, chunk: VariableChunk, payload: int) -> bool:
    """Whether a chunk's size is right for its payload.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    chunk : VariableChunk
        The chunk; the last of a file may lack its padding.
    payload : int
        Bytes of the values.

    Returns
    -------
    bool
    """
    is_last = chunk.stop == reader.source.size
    is_exact = chunk.size == CHUNK_HEADER_BYTES + payload
    return chunk.size == _padded(payload) or (is_exact and is_last)


def check_dense(
    reader: HeaderReader, header: Header, chunk: VariableChunk, element_bytes: int
) -> None:
    """Check that a chunk holds all values of a tensor.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    header : Header
        Its header.
    chunk : VariableChunk
        The chunk 'DENSDATA'.
    element_bytes : int
        Bytes of one element.

    Raises
    ------
    TensorFormatError
        Its size is wrong, the file ends before it, or the file should have pairs instead.
    """
    path, size = reader.source.name, reader.source.size
    if header.is_index_value:
        raise TensorFormatError(
            path,
            "a chunk 'DENSDATA'",
            "in a file whose flags say index-value storage",
            "one of the two",
            "the header is damaged",
            offset=chunk.offset,
        )
    payload = header.total * element_bytes
    if not fits(reader, chunk, payload):
        raise TensorFormatError(
            path,
            "the size of chunk 'DENSDATA'",
            chunk.size,
            f"{_padded(payload)} for a tensor of shape {header.lengths}",
            "the file is damaged, or its data are packed in a way that the format does not define",
            offset=chunk.offset + 8,
        )
    if chunk.stop > size:
        raise TensorFormatError(
            path,
            "the data",
            f"cut off by the end of the file at byte {size}",
            f"{chunk.size} bytes of chunk 'DENSDATA'",
            "the file is incomplete; fetch it again",
            offset=chunk.offset,
        )
