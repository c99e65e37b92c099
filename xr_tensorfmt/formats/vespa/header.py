"""The header of a typed binary tensor: what its cells are and what its dimensions are called.

Source: vespa-engine/vespa, ``eval/src/vespa/eval/eval/binary_format.txt`` and ``value_codec.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xr_tensorfmt.elements import Element
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.header import Cursor, HeaderReader
from xr_tensorfmt.formats.limits import check_rank, check_size
from xr_tensorfmt.formats.vespa.cells import CELL_TYPES, CellType

MOST_NAME_BYTES = 1 << 12
"""Limit on the bytes of a dimension's name."""

SPARSE, DENSE, WITH_CELL_TYPE = 1, 2, 4

_LONG = 0x80
_DAMAGED = "the header is damaged, or the file is no typed binary tensor of Vespa"


@dataclass(frozen=True)
class Header:
    """The header fields of a typed binary tensor.

    Parameters
    ----------
    tag : int
        Bit 0: sparse, bit 1: dense, bit 2: with cell type.
    cell_type : CellType
        What the cells are.
    mapped : tuple of str
        Names of the dimensions whose indices are labels.
    indexed : tuple of str
        Names of the dimensions whose indices are numbers.
    lengths : tuple of int
        Lengths of the indexed dimensions.
    blocks : int
        Number of dense blocks, each with a label for each mapped dimension.
    stop : int
        The byte after the header.
    """

    tag: int
    cell_type: CellType
    mapped: tuple[str, ...]
    indexed: tuple[str, ...]
    lengths: tuple[int, ...]
    blocks: int
    stop: int

    @property
    def element(self) -> Element:
        """What a cell is."""
        return self.cell_type.element

    @property
    def cells(self) -> int:
        """Cells of a block, in Python's unbounded integers."""
        return prod(self.lengths)

    @property
    def block_bytes(self) -> int:
        """Bytes of the cells of a block."""
        return self.cells * self.element.stored.itemsize

    @property
    def type(self) -> str:
        """The type as Vespa writes it: all dimensions sorted by name, no word for double."""
        dims = [(name, "{}") for name in self.mapped]
        dims += [(n, f"[{m}]") for n, m in zip(self.indexed, self.lengths, strict=True)]
        cells = "" if self.cell_type.name == "double" else f"<{self.cell_type.name}>"
        if not dims and not cells:
            return "double"
        by_name = sorted(dims, key=lambda dim: dim[0].encode())
        return f"tensor{cells}({','.join(name + size for name, size in by_name)})"


def read_header(reader: HeaderReader) -> Header:
    """Read and check the header of a typed binary tensor.

    Parameters
    ----------
    reader : HeaderReader
        The file.

    Returns
    -------
    Header

    Raises
    ------
    TensorFormatError
        The file ends too early, or a field has no meaning.
    """
    cursor = Cursor(reader, 0)
    tag = _tag(cursor)
    cell_type = _cell_type(cursor) if tag & WITH_CELL_TYPE else CELL_TYPES[0]
    mapped: list[str] = []
    indexed: list[str] = []
    lengths: list[int] = []
    if tag & SPARSE:
        for _ in range(_rank(cursor, "the number of mapped dimensions")):
            mapped.append(_name(cursor, mapped, mapped))
    if tag & DENSE:
        for _ in range(_rank(cursor, "the number of indexed dimensions")):
            indexed.append(_name(cursor, indexed, mapped + indexed))
            lengths.append(_length(cursor, indexed[-1]))
    rank = len(mapped) + len(indexed)
    check_rank(reader.source.name, "the number of dimensions", rank, 0)
    check_size(reader.source.name, lengths, cell_type.element.dtype.itemsize, cursor.offset)
    has_count = bool(mapped) or not tag & DENSE
    blocks = integer(cursor, "the number of blocks") if has_count else 1
    header = Header(
        tag, cell_type, tuple(mapped), tuple(indexed), tuple(lengths), blocks, cursor.offset
    )
    _check_fits(cursor, header)
    return header


def integer(cursor: Cursor, field: str) -> int:
    """An integer of one byte, or of four with the first bit set; both for any small value."""
    first = cursor.take(1, field)
    if first[0] < _LONG:
        return first[0]
    return int.from_bytes(first + cursor.take(3, field), "big") & 0x7FFFFFFF


def _tag(cursor: Cursor) -> int:
    tag = integer(cursor, "the tag")
    if tag > SPARSE | DENSE | WITH_CELL_TYPE or not tag & (SPARSE | DENSE):
        raise TensorFormatError(
            cursor.reader.source.name, "the tag", tag, "1, 2, 3, 5, 6 or 7", _DAMAGED, offset=0
        )
    return tag


def _cell_type(cursor: Cursor) -> CellType:
    start = cursor.offset
    number = integer(cursor, "the cell type")
    if number >= len(CELL_TYPES):
        known = ", ".join(f"{i} ({each.name})" for i, each in enumerate(CELL_TYPES))
        raise cursor.error(
            "the cell type", number, f"one of {known}", _DAMAGED, back=cursor.offset - start
        )
    return CELL_TYPES[number]


def _rank(cursor: Cursor, field: str) -> int:
    start = cursor.offset
    rank = integer(cursor, field)
    check_rank(cursor.reader.source.name, field, rank, start)
    return rank


def _name(cursor: Cursor, before: list[str], all_before: list[str]) -> str:
    start = cursor.offset
    field = f"the name of dimension {len(all_before)}"
    size = integer(cursor, field)
    if not 0 < size <= MOST_NAME_BYTES:
        raise TensorFormatError(
            cursor.reader.source.name,
            field,
            f"{size} bytes long",
            f"1 to {MOST_NAME_BYTES} bytes",
            _DAMAGED,
            offset=start,
        )
    raw = cursor.take(size, field)
    try:
        name = raw.decode()
    except UnicodeDecodeError as error:
        raise cursor.error(field, repr(raw[:40]), "UTF-8", _DAMAGED, back=size) from error
    if name in all_before:
        raise cursor.error(field, repr(name), "a name that no other has", _DAMAGED, back=size)
    if before and name.encode() < before[-1].encode():
        raise cursor.error(
            field,
            f"{name!r} after {before[-1]!r}",
            "names in the order of their bytes",
            "Vespa would mix the dimensions up; write the file anew with sorted names",
            back=size,
        )
    return name


def _length(cursor: Cursor, name: str) -> int:
    start = cursor.offset
    length = integer(cursor, f"the size of dimension {name!r}")
    if not length:
        raise cursor.error(
            f"the size of dimension {name!r}",
            0,
            "at least 1",
            _DAMAGED,
            back=cursor.offset - start,
        )
    return length


def _check_fits(cursor: Cursor, header: Header) -> None:
    """Compare the counts with the size of the file, before anything is allocated by them."""
    left = cursor.reader.source.size - header.stop
    least = header.blocks * (len(header.mapped) + header.block_bytes)
    is_scalar = not header.mapped and not header.indexed
    if is_scalar and header.blocks > 1:
        raise cursor.error("the number of cells of a scalar", header.blocks, "0 or 1", _DAMAGED)
    if least > left:
        raise cursor.error(
            f"the cells of {header.type}",
            f"{left} bytes left in the file",
            f"at least {least} for {header.blocks} blocks of {header.cells} cells",
            "the file is incomplete or its header damaged; fetch it again",
        )
