"""The header of a typed binary tensor as bytes, as Vespa's own C++ encoder arranges it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xr_tensorfmt.formats.vespa.cells import CELL_TYPES, CellType
from xr_tensorfmt.formats.vespa.header import DENSE, SPARSE, WITH_CELL_TYPE, Header
from xr_tensorfmt.layouts.labelled import LONG

LARGEST = (1 << 31) - 1
"""The largest count, size or length that the format has a number for."""

_LONG_WORD = LONG << 24


def new_header(
    cell_type: CellType,
    mapped: Sequence[str],
    indexed: Sequence[tuple[str, int]],
    blocks: int,
) -> Header:
    """Decide what the header of a tensor says.

    Parameters
    ----------
    cell_type : CellType
        What the cells are.
    mapped : sequence of str
        Names of the dimensions whose indices are labels; in any order.
    indexed : sequence of (str, int)
        The other dimensions and their lengths; in any order.
    blocks : int
        Number of blocks; 1 where no dimension is mapped.

    Returns
    -------
    Header
        With the dimensions in the order of the bytes of their names.
    """
    sized = sorted(indexed, key=lambda dim: dim[0].encode())
    names, lengths = tuple(name for name, _ in sized), tuple(length for _, length in sized)
    tag = SPARSE * bool(mapped) | DENSE * (bool(indexed) or not mapped)
    tag |= WITH_CELL_TYPE * (cell_type is not CELL_TYPES[0])
    by_name = tuple(sorted(mapped, key=str.encode))
    header = Header(tag, cell_type, by_name, names, lengths, blocks, 0)
    return replace(header, stop=len(header_bytes(header)))


def header_bytes(header: Header) -> bytes:
    """Put a header into bytes; the first block follows.

    Parameters
    ----------
    header : Header
        What it says; its tag tells which parts there are.

    Returns
    -------
    bytes
    """
    content = integer(header.tag)
    if header.tag & WITH_CELL_TYPE:
        content += integer(CELL_TYPES.index(header.cell_type))
    if header.tag & SPARSE:
        content += integer(len(header.mapped)) + b"".join(map(_text, header.mapped))
    if header.tag & DENSE:
        sized = zip(header.indexed, header.lengths, strict=True)
        content += integer(len(header.indexed))
        content += b"".join(_text(name) + integer(length) for name, length in sized)
    return content + (integer(header.blocks) if header.mapped else b"")


def integer(value: int) -> bytes:
    """An integer in one byte where it fits, else in four with the first bit set.

    Parameters
    ----------
    value : int
        The integer, from 0 to `LARGEST`.

    Returns
    -------
    bytes
    """
    if value < LONG:
        return bytes([value])
    return (value | _LONG_WORD).to_bytes(4, "big")


def _text(name: str) -> bytes:
    content = name.encode()
    return integer(len(content)) + content
