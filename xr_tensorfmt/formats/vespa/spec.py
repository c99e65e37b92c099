"""The header of a typed binary tensor, and what all of its blocks have in common."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import BFloat16, Element, Plain
from xr_tensorfmt.core.extents import Bytes, Integers
from xr_tensorfmt.core.header import MOST_DIMENSIONS, Cursor, HeaderReader, check_size
from xr_tensorfmt.formats.vespa.integers import pack, read_integer, unpack_at

SPARSE, DENSE, WITH_CELL_TYPE = 1, 2, 4
"""Bits of the tag: which parts the header has."""

TAGS = (1, 2, 3, 5, 6, 7)

MOST_NAME_BYTES = 1 << 12
"""Limit on the bytes of a dimension's name."""

USUAL_NAME = re.compile(r"[-@A-Za-z0-9_][@$A-Za-z0-9_]*")
"""Names that at least one of Vespa's type parsers, in Java and in C++, accepts."""

PORTABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names that both of Vespa's type parsers accept."""

BLOCK = "block"
"""The dimension of a Dataset that counts blocks, where these have several labels."""

TYPE = "vespa_type"
"""The attribute of a variable with the `Header.type` of its file."""

_NAME_IN_TYPE = re.compile(r"(\w+)[\[{]")
_DAMAGED = "the header is damaged, or the file is not a typed binary tensor of Vespa"


@dataclass(frozen=True)
class CellType:
    """A cell type of Vespa."""

    name: str
    element: Element


# In the order of their numbers. Vespa truncates to bfloat16 where ml_dtypes rounds.
CELL_TYPES = (
    CellType("double", Plain(np.dtype(">f8"))),
    CellType("float", Plain(np.dtype(">f4"))),
    CellType("bfloat16", BFloat16(big_endian=True, rounding="down")),
    CellType("int8", Plain(np.dtype(np.int8))),
)


@dataclass(frozen=True)
class Header:
    """The fields of the header, where it ends, and where in a file its names are."""

    tag: int
    cell_type: CellType
    mapped: tuple[str, ...]
    indexed: tuple[str, ...]
    lengths: tuple[int, ...]
    blocks: int
    stop: int
    name_offsets: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        cell_type: CellType,
        mapped: tuple[str, ...],
        indexed: tuple[str, ...],
        lengths: tuple[int, ...],
        blocks: int,
    ) -> Header:
        """The header that Vespa would write for a tensor, whose names must be sorted."""
        tag = SPARSE * bool(mapped) | DENSE * (bool(indexed) or not mapped)
        tag |= WITH_CELL_TYPE * (cell_type is not CELL_TYPES[0])
        header = cls(tag, cell_type, mapped, indexed, lengths, blocks, 0)
        return replace(header, stop=len(header.pack()))

    def pack(self) -> bytes:
        """Bytes of the header; the first block follows."""
        packed = pack(self.tag)
        if self.tag & WITH_CELL_TYPE:
            packed += pack(CELL_TYPES.index(self.cell_type))
        if self.tag & SPARSE:
            packed += pack(len(self.mapped)) + b"".join(map(_pack_name, self.mapped))
        if self.tag & DENSE:
            sized = zip(self.indexed, self.lengths, strict=True)
            packed += pack(len(self.indexed))
            packed += b"".join(_pack_name(name) + pack(length) for name, length in sized)
        return packed + (pack(self.blocks) if _has_count(self.tag, self.mapped) else b"")

    @classmethod
    def unpack(cls, reader: HeaderReader) -> Header:
        """Read and check the header of a file."""
        cursor = Cursor(reader, 0)
        tag = _read_tag(cursor)
        cell_type = _read_cell_type(cursor) if tag & WITH_CELL_TYPE else CELL_TYPES[0]
        names: dict[str, int] = {}
        lengths: list[int] = []
        if tag & SPARSE:
            for number in range(_read_rank(cursor, "the number of mapped dimensions")):
                _read_name(cursor, names, is_first=not number)
        mapped = tuple(names)
        if tag & DENSE:
            for number in range(_read_rank(cursor, "the number of indexed dimensions")):
                name = _read_name(cursor, names, is_first=not number)
                lengths.append(_read_length(cursor, name))
        _check_rank(reader, "the number of dimensions", len(names), 0)
        check_size(reader.source.name, lengths, cell_type.element.dtype.itemsize, cursor.offset)
        indexed, offsets = tuple(names)[len(mapped) :], tuple(names.values())
        has_count = _has_count(tag, mapped)
        blocks = read_integer(cursor, "the number of blocks") if has_count else 1
        stop = cursor.offset
        header = cls(tag, cell_type, mapped, indexed, tuple(lengths), blocks, stop, offsets)
        header.check_fits(reader)
        return header

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
        """The type as Vespa writes it: all dimensions sorted by name, double left out."""
        dims = [(name, "{}") for name in self.mapped]
        dims += [(n, f"[{m}]") for n, m in zip(self.indexed, self.lengths, strict=True)]
        cells = "" if self.cell_type.name == "double" else f"<{self.cell_type.name}>"
        if not dims and not cells:
            return "double"
        by_name = sorted(dims, key=lambda dim: dim[0].encode())
        return f"tensor{cells}({','.join(name + size for name, size in by_name)})"

    def check_fits(self, reader: HeaderReader) -> None:
        """Compare the counts with the size of the file, before anything is allocated."""
        left = reader.source.size - self.stop
        least = self.blocks * (len(self.mapped) + self.block_bytes)
        is_scalar = not self.mapped and not self.indexed
        if is_scalar and self.blocks > 1:
            field = "the number of cells of a scalar"
            raise reader.error(field, self.blocks, "0 or 1", _DAMAGED, self.stop)
        if least > left:
            raise reader.error(
                f"the cells of {self.type}",
                f"{left} bytes left in the file",
                f"at least {least} for {self.blocks} blocks of {self.cells} cells",
                "the file is incomplete or its header damaged; fetch it again",
                self.stop,
            )


def _has_count(tag: int, mapped: tuple[str, ...]) -> bool:
    """Whether the header ends with the number of blocks; else there is one."""
    return bool(mapped) or not tag & DENSE


def _pack_name(name: str) -> bytes:
    content = name.encode()
    return pack(len(content)) + content


def names_in_type(type_: str) -> set[str]:
    """The names of the dimensions in what may be a `Header.type`."""
    return set(_NAME_IN_TYPE.findall(type_))


def _read_tag(cursor: Cursor) -> int:
    tag = read_integer(cursor, "the tag")
    if tag not in TAGS:
        expected = f"{', '.join(map(str, TAGS[:-1]))} or {TAGS[-1]}"
        raise cursor.reader.error("the tag", tag, expected, _DAMAGED, 0)
    return tag


def _read_cell_type(cursor: Cursor) -> CellType:
    start = cursor.offset
    number = read_integer(cursor, "the cell type")
    if number >= len(CELL_TYPES):
        known = ", ".join(f"{i} ({each.name})" for i, each in enumerate(CELL_TYPES))
        raise cursor.reader.error("the cell type", number, f"one of {known}", _DAMAGED, start)
    return CELL_TYPES[number]


def _read_rank(cursor: Cursor, field: str) -> int:
    start = cursor.offset
    rank = read_integer(cursor, field)
    _check_rank(cursor.reader, field, rank, start)
    return rank


def _check_rank(reader: HeaderReader, field: str, rank: int, offset: int) -> None:
    if rank > MOST_DIMENSIONS:
        raise reader.error(field, rank, f"at most {MOST_DIMENSIONS}", _DAMAGED, offset)


def _read_name(cursor: Cursor, names: dict[str, int], *, is_first: bool) -> str:
    """Read the name of a dimension, and add it with its offset to those before it."""
    start, reader = cursor.offset, cursor.reader
    field = name_field(len(names))
    size = read_integer(cursor, field)
    if not 0 < size <= MOST_NAME_BYTES:
        expected = f"1 to {MOST_NAME_BYTES} bytes"
        raise reader.error(field, f"{size} bytes long", expected, _DAMAGED, start)
    offset = cursor.offset
    raw = cursor.take(size, field)
    try:
        name = raw.decode()
    except UnicodeDecodeError as error:
        raise reader.error(field, repr(raw[:40]), "UTF-8", _DAMAGED, offset) from error
    if name in names:
        raise reader.error(field, repr(name), "a name that no other has", _DAMAGED, offset)
    if not is_first and raw < (previous := next(reversed(names))).encode():
        raise reader.error(
            field,
            f"{name!r} after {previous!r}",
            "names in the order of their bytes",
            "Vespa would mix the dimensions up; write the file anew with sorted names",
            offset,
        )
    names[name] = offset
    return name


def name_field(number: int) -> str:
    """What messages call the name of a dimension."""
    return f"the name of dimension {number}"


def _read_length(cursor: Cursor, name: str) -> int:
    start, field = cursor.offset, f"the size of dimension {name!r}"
    length = read_integer(cursor, field)
    if not length:
        raise cursor.reader.error(field, 0, "at least 1", _DAMAGED, start)
    return length


@dataclass(frozen=True)
class BlockForm:
    """What all blocks of a file have in common: the number of labels, and the bytes of cells."""

    labels: int
    cell_bytes: int

    def skip(self, window: Bytes, starts: Integers) -> tuple[Integers, NDArray[np.bool_]]:
        """Where the blocks at many positions end, and whether their labels are in the window."""
        within = np.ones(starts.shape, dtype=np.bool_)
        for _ in range(self.labels):
            lengths, begins = unpack_at(window, starts)
            within &= begins <= window.size
            starts = begins + lengths
        return starts + self.cell_bytes, within


# A tag, a cell type, two numbers of dimensions or blocks, and a cell of eight bytes.
_LARGEST_SCALAR = 12


def recognises(head: bytes, size: int) -> bool:
    """Look at the tag, the number of dimensions and the first name."""
    if not head or head[0] not in TAGS:
        return False
    tag, rest = head[0], head[1:]
    if tag & WITH_CELL_TYPE:
        if not rest or rest[0] >= len(CELL_TYPES):
            return False
        rest = rest[1:]
    if tag & SPARSE and tag & DENSE and rest[:1] == b"\0":
        # No mapped dimensions; the indexed ones follow.
        rest = rest[1:]
    if rest[:1] == b"\0":
        return size <= _LARGEST_SCALAR
    return bool(rest) and rest[0] <= MOST_DIMENSIONS and _begins_with_name(rest[1:])


def _begins_with_name(head: bytes) -> bool:
    name = head[1 : 1 + head[0]] if head else b""
    return bool(USUAL_NAME.fullmatch(name.decode("latin-1")))
