"""The bytes before the values of a TENS file."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack

from xr_tensorfmt.formats.tens.header import DIMENSION_BYTES, FIXED_BYTES, MAGIC, Header
from xr_tensorfmt.formats.tens.notechunk import NOTE, PAGE
from xr_tensorfmt.formats.tens.symmetry import Symmetry
from xr_tensorfmt.formats.tens.variable_chunks import CHUNK_HEADER_BYTES, DENSE_DATA, SYMMETRY

UNIT = 8
"""Bytes that the length of every chunk is a multiple of."""


def header_bytes(header: Header) -> bytes:
    """A header as it stands in a file.

    Parameters
    ----------
    header : Header
        The header.

    Returns
    -------
    bytes
        Zeros where bytes are reserved.
    """
    order = len(header.dimensions)
    counts = header.bytes_per_number, header.numbers, order, header.flags, 0
    parts = [MAGIC, pack("<I", header.version), header.number_type, pack("<5I", *counts)]
    parts += [pack("<IBBH", each.length, each.index, each.flags, 0) for each in header.dimensions]
    made = b"".join(parts)
    assert len(made) == FIXED_BYTES + DIMENSION_BYTES * order
    return made


def chunk(magic: bytes, content: bytes) -> bytes:
    """A variable chunk, with zeros up to the next multiple of 8.

    Parameters
    ----------
    magic : bytes
        Its 8 characters.
    content : bytes
        What follows its size.

    Returns
    -------
    bytes
    """
    padded = content + bytes(-len(content) % UNIT)
    return _chunk_header(magic, len(padded)) + padded


def symmetry_chunk(symmetry: Symmetry) -> bytes:
    """The chunk that states a symmetry.

    Parameters
    ----------
    symmetry : Symmetry
        The symmetry.

    Returns
    -------
    bytes
    """
    code = symmetry.code.encode("latin-1")
    head = bytes([symmetry.packed, len(code)])
    return chunk(SYMMETRY, head + code + symmetry.index_map.encode("latin-1"))


def before_dense_values(
    header: Header, symmetries: Sequence[Symmetry], note: bytes, payload: int
) -> bytes:
    """All of a file of version 1.0 before its values, which begin on a page.

    Parameters
    ----------
    header : Header
        The header.
    symmetries : sequence of Symmetry
        What is known of the tensor.
    note : bytes
        What the format has no place for.
    payload : int
        Bytes of the values.

    Returns
    -------
    bytes
    """
    data = _chunk_header(DENSE_DATA, payload + -payload % UNIT)
    return _up_to_page(header, symmetries, note, len(data)) + data


def before_pair_count(header: Header, symmetries: Sequence[Symmetry], note: bytes) -> bytes:
    """All of a file of pairs before their number, behind which the first of them begins on a page.

    Parameters
    ----------
    header, symmetries, note
        As for `before_dense_values`.

    Returns
    -------
    bytes
    """
    return _up_to_page(header, symmetries, note, UNIT)


def _up_to_page(
    header: Header, symmetries: Sequence[Symmetry], note: bytes, following: int
) -> bytes:
    """Header and chunks, with zeros behind the note; so many bytes follow before the page."""
    start = header_bytes(header) + b"".join(map(symmetry_chunk, symmetries))
    known = len(start) + CHUNK_HEADER_BYTES + len(note) + following
    return start + chunk(NOTE, note + bytes(-known % PAGE))


def _chunk_header(magic: bytes, length: int) -> bytes:
    return magic + pack("<Q", CHUNK_HEADER_BYTES + length)
