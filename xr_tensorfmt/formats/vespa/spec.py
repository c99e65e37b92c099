"""What the dimensions of a typed binary tensor are called in a Dataset."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.container import named_dims
from xr_tensorfmt.core.elements import BFloat16, Element, Plain
from xr_tensorfmt.core.extents import Bytes, Integers
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import MOST_DIMENSIONS, Cursor, HeaderReader, check_rank, check_size
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.errors import TensorFormatError, shortened

BLOCK = "block"
"""The dimension that counts blocks, where they have no index of their own."""

USUAL_NAME = re.compile(r"[-@A-Za-z0-9_][@$A-Za-z0-9_]*")
"""What Vespa's own parsers of types take, TensorType.java and value_type_spec.cpp together."""


def dimension_names(header: Header, options: OpenOptions, *taken: str) -> tuple[str, ...]:
    """Names of the mapped dimensions, then of the indexed ones."""
    own = header.mapped + header.indexed
    reserved = {options.name, *taken}
    used, free = reserved.union(own), []
    for name in own:
        unique = name
        if name in reserved:
            while unique in used:
                unique += "_"
            used.add(unique)
        free.append(unique)
    names = named_dims(options.dims, options.name, tuple(free))
    for name in taken:
        if name in names:
            raise ValueError(
                f"dims={options.dims!r} has {name!r}, which is the dimension that counts the "
                "blocks; choose another"
            )
    return names


def odd_names(path: str, header: Header) -> Iterator[Finding]:
    """Say which names Vespa's own parsers of types would refuse."""
    for name in header.mapped + header.indexed:
        if not USUAL_NAME.fullmatch(name):
            field = f"the dimension {shortened(repr(name))}"
            yield Finding(path, None, field, "it has a name that Vespa refuses in types", "warning")


@dataclass(frozen=True)
class CellType:
    """A cell type of Vespa."""

    name: str
    element: Element


# Vespa cuts bfloat16 off where ml_dtypes rounds.
CELL_TYPES = (
    CellType("double", Plain(np.dtype(">f8"))),
    CellType("float", Plain(np.dtype(">f4"))),
    CellType("bfloat16", BFloat16(big_endian=True, rounding="down")),
    CellType("int8", Plain(np.dtype(np.int8))),
)

MOST_NAME_BYTES = 1 << 12
"""Limit on the bytes of a dimension's name."""

SPARSE, DENSE, WITH_CELL_TYPE = 1, 2, 4

_LONG = 0x80
_DAMAGED = "the header is damaged, or the file is no typed binary tensor of Vespa"


@dataclass(frozen=True)
class Header:
    """The header fields of a typed binary tensor."""

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
    """Read and check the header of a typed binary tensor."""
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
    blocks = read_integer(cursor, "the number of blocks") if has_count else 1
    header = Header(
        tag, cell_type, tuple(mapped), tuple(indexed), tuple(lengths), blocks, cursor.offset
    )
    _check_fits(cursor, header)
    return header


def read_integer(cursor: Cursor, field: str) -> int:
    """An integer of one byte, or of four with the first bit set; both for any small value."""
    first = cursor.take(1, field)
    if first[0] < _LONG:
        return first[0]
    return int.from_bytes(first + cursor.take(3, field), "big") & 0x7FFFFFFF


def _tag(cursor: Cursor) -> int:
    tag = read_integer(cursor, "the tag")
    if tag > SPARSE | DENSE | WITH_CELL_TYPE or not tag & (SPARSE | DENSE):
        raise TensorFormatError(
            cursor.reader.source.name, "the tag", tag, "1, 2, 3, 5, 6 or 7", _DAMAGED, offset=0
        )
    return tag


def _cell_type(cursor: Cursor) -> CellType:
    start = cursor.offset
    number = read_integer(cursor, "the cell type")
    if number >= len(CELL_TYPES):
        known = ", ".join(f"{i} ({each.name})" for i, each in enumerate(CELL_TYPES))
        raise cursor.error(
            "the cell type", number, f"one of {known}", _DAMAGED, back=cursor.offset - start
        )
    return CELL_TYPES[number]


def _rank(cursor: Cursor, field: str) -> int:
    start = cursor.offset
    rank = read_integer(cursor, field)
    check_rank(cursor.reader.source.name, field, rank, start)
    return rank


def _name(cursor: Cursor, before: list[str], all_before: list[str]) -> str:
    start = cursor.offset
    field = f"the name of dimension {len(all_before)}"
    size = read_integer(cursor, field)
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
    length = read_integer(cursor, f"the size of dimension {name!r}")
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


_TAGS = (1, 2, 3, 5, 6, 7)
_CELL_TYPES = 4
# A tag, a cell type, two numbers of dimensions or blocks, and a cell of eight bytes.
_LARGEST_SCALAR = 12


def recognises(head: bytes, size: int) -> bool:
    """Look at the tag, the number of dimensions and the first name."""
    if not head or head[0] not in _TAGS:
        return False
    tag, rest = head[0], head[1:]
    if tag & WITH_CELL_TYPE:
        if not rest or rest[0] >= _CELL_TYPES:
            return False
        rest = rest[1:]
    if tag & SPARSE and tag & DENSE and rest[:1] == b"\0":
        # No mapped dimensions; the indexed ones follow.
        rest = rest[1:]
    if rest[:1] == b"\0":
        return size <= _LARGEST_SCALAR
    return bool(rest) and rest[0] <= MOST_DIMENSIONS and _begins_with_name(rest[1:])


def _begins_with_name(text: bytes) -> bool:
    name = text[1 : 1 + text[0]] if text else b""
    return bool(USUAL_NAME.fullmatch(name.decode("latin-1")))


LONG = 0x80
"""The bit that says that a length has four bytes."""


@dataclass(frozen=True)
class BlockForm:
    """What every block of a file has in common."""

    labels: int
    cell_bytes: int

    def after(self, window: Bytes, starts: Integers) -> tuple[Integers, NDArray[np.bool_]]:
        """Step over one block at each of several positions."""
        within = np.ones(starts.shape, dtype=np.bool_)
        for _ in range(self.labels):
            texts, lengths = label_at(window, starts)
            within &= texts <= window.size
            starts = texts + lengths
        return starts + self.cell_bytes, within


def label_at(window: Bytes, starts: Integers) -> tuple[Integers, Integers]:
    """The texts of the labels whose lengths are at some positions."""
    first = window.take(starts, mode="clip")
    if not first.size or first.max() < LONG:
        return starts + 1, first.astype(np.int64)
    long = first >= LONG
    word = (first & (LONG - 1)).astype(np.int64)
    for number in range(1, 4):
        word = (word << 8) | window.take(starts + number, mode="clip")
    return starts + np.where(long, 4, 1), np.where(long, word, first)


def walk(window: Bytes, start: int, end: int, form: BlockForm, most: int) -> tuple[list[int], int]:
    """Step from block to block, one at a time."""
    view, size = window.data, window.size
    labels, cell_bytes = range(form.labels), form.cell_bytes
    starts: list[int] = []
    while start < end and len(starts) < most:
        position = start
        for _ in labels:
            if position >= size:
                return starts, start
            length = view[position]
            if length < LONG:
                position += 1 + length
                continue
            if position + 4 > size:
                return starts, start
            length = int.from_bytes(view[position : position + 4], "big") & 0x7FFFFFFF
            position += 4 + length
        starts.append(start)
        start = position + cell_bytes
    return starts, start


LARGEST = (1 << 31) - 1
"""The largest count, size or length that the format has a number for."""

_LONG_WORD = LONG << 24


def new_header(
    cell_type: CellType,
    mapped: Sequence[str],
    indexed: Sequence[tuple[str, int]],
    blocks: int,
) -> Header:
    """Decide what the header of a tensor says."""
    sized = sorted(indexed, key=lambda dim: dim[0].encode())
    names, lengths = tuple(name for name, _ in sized), tuple(length for _, length in sized)
    tag = SPARSE * bool(mapped) | DENSE * (bool(indexed) or not mapped)
    tag |= WITH_CELL_TYPE * (cell_type is not CELL_TYPES[0])
    by_name = tuple(sorted(mapped, key=str.encode))
    header = Header(tag, cell_type, by_name, names, lengths, blocks, 0)
    return replace(header, stop=len(header_bytes(header)))


def header_bytes(header: Header) -> bytes:
    """Put a header into bytes; the first block follows."""
    content = integer_bytes(header.tag)
    if header.tag & WITH_CELL_TYPE:
        content += integer_bytes(CELL_TYPES.index(header.cell_type))
    if header.tag & SPARSE:
        content += integer_bytes(len(header.mapped)) + b"".join(map(_text, header.mapped))
    if header.tag & DENSE:
        sized = zip(header.indexed, header.lengths, strict=True)
        content += integer_bytes(len(header.indexed))
        content += b"".join(_text(name) + integer_bytes(length) for name, length in sized)
    return content + (integer_bytes(header.blocks) if header.mapped else b"")


def integer_bytes(value: int) -> bytes:
    """An integer in one byte where it fits, else in four with the first bit set."""
    if value < LONG:
        return bytes([value])
    return (value | _LONG_WORD).to_bytes(4, "big")


def _text(name: str) -> bytes:
    content = name.encode()
    return integer_bytes(len(content)) + content
