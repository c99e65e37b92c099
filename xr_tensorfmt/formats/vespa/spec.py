"""Header of a typed binary tensor, and a search for its blocks.

The header has a tag, [the cell type], [the mapped dimensions], [the indexed dimensions and their
lengths], and [the number of blocks]. Integers from 128 take four big-endian bytes, with the first
bit set. A block has no length, so its labels must be read to find the next.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import Array, Element, Narrow, Plain
from xr_tensorfmt.core.extents import Bytes, Extents, Integers
from xr_tensorfmt.core.header import MAX_DIMENSIONS, Cursor, HeaderReader, check_size
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.vespa import TAGS, VespaFormat

LONG_BIT = 0x80
"""The bit of the first byte of integers with four bytes."""

ID_START = re.compile(r"id:[^:]*:[^:]+:[^:]*:")
"""The parts of the id of a document before its own: namespace, document type, key and value."""

MAX_INTEGER = (1 << 31) - 1
"""The largest integer of the format."""

COUNTS = range(MAX_INTEGER + 1)

# Bits of the tag that state the parts of the header.
SPARSE, DENSE, WITH_CELL_TYPE = 1, 2, 4

MAX_NAME_BYTES = 1 << 12
"""Limit on the bytes of a dimension name."""

# Bytes of a remote file to scan at a time, and of others. Reusing 4 MiB of memory is far faster
# than allocating more.
WINDOW_BYTES, LOCAL_WINDOW_BYTES = 32 << 20, 4 << 20
# Bytes to read at a time if the window should only contain the labels of one block.
_LABEL_WINDOW_BYTES = 4 << 10
# Blocks to scan one by one before numpy looks for more with labels of the same lengths, and the
# number of those.
_SCANNED_BLOCKS, _MAX_ALIKE = 512, 1 << 13
# Cells of a local file that are larger than this are skipped rather than read.
_LARGE_BLOCK_BYTES = 64 << 10

BLOCK = "block"
"""The dimension of a Dataset that counts blocks with several labels."""

TYPE = "vespa_type"
"""The attribute of a variable that contains `VespaHeader.type`."""

Names = tuple[str, ...]

Strings = NDArray[Any]
"""A one-dimensional array of Python strings."""

STRING_DTYPE = np.dtype(object, metadata={"element_type": str})
"""The dtype of Python strings in xarray. Thanks to the metadata, it does not check every one."""

_CORRUPT = "the header is corrupt, or the file is not a typed binary tensor of Vespa"


@lru_cache
def pack(value: int) -> bytes:
    """Pack an integer in its shortest form."""
    if value > MAX_INTEGER:
        raise ValueError(f"{value} is more than {MAX_INTEGER}, the largest integer of Vespa")
    if value < LONG_BIT:
        return bytes([value])
    return (value | LONG_BIT << 24).to_bytes(4, "big")


def unpack(packed: bytes | memoryview) -> int:
    """Unpack one byte or four. Small integers may also take four bytes."""
    return int.from_bytes(packed, "big") & MAX_INTEGER


def pack_string(string: str) -> bytes:
    """Pack a name or a label, and restore bytes from ``surrogateescape``."""
    content = string.encode("utf-8", "surrogateescape")
    return pack(len(content)) + content


class _Truncated(Narrow):
    """A bfloat16 of Vespa, which drops the lower bits, whereas ml_dtypes rounds."""

    def encode(self, values: Array) -> Array:
        """Keep the upper half, in which a NaN has a bit of the mantissa."""
        upper = values.view(np.uint32) >> 16
        is_lost = np.isnan(values) & (upper & 0x7F == 0)
        return np.where(is_lost, upper | 0x40, upper).astype(self.stored)


# In the order of their numbers.
CELL_TYPES: dict[str, Element] = {
    "double": Plain(np.dtype(">f8")),
    "float": Plain(np.dtype(">f4")),
    "bfloat16": _Truncated("bfloat16", ">"),
    "int8": Plain(np.dtype(np.int8)),
}


@dataclass(frozen=True)
class VespaHeader:
    """The fields of the header, and its end."""

    tag: int
    cell_type: str
    mapped: Names
    indexed: Names
    lengths: tuple[int, ...]
    blocks: int
    stop: int
    decode_floats: bool = True

    @classmethod
    def create(
        cls, cell_type: str, mapped: Names, indexed: Names, lengths: tuple[int, ...], blocks: int
    ) -> VespaHeader:
        """Create the header that Vespa writes for a tensor. The names must be sorted."""
        tag = SPARSE * bool(mapped) | DENSE * (bool(indexed) or not mapped)
        tag |= WITH_CELL_TYPE * (cell_type != "double")
        header = cls(tag, cell_type, mapped, indexed, lengths, blocks, 0)
        return replace(header, stop=len(header.pack()))

    def pack(self) -> bytes:
        """Pack the header."""
        packed = pack(self.tag)
        if self.tag & WITH_CELL_TYPE:
            packed += pack(list(CELL_TYPES).index(self.cell_type))
        if self.tag & SPARSE:
            packed += pack(len(self.mapped)) + b"".join(map(pack_string, self.mapped))
        if self.tag & DENSE:
            sized = zip(self.indexed, self.lengths, strict=True)
            packed += pack(len(self.indexed))
            packed += b"".join(pack_string(name) + pack(length) for name, length in sized)
        return packed + (pack(self.blocks) if self.mapped or not self.tag & DENSE else b"")

    @classmethod
    def read(cls, reader: HeaderReader) -> VespaHeader:
        """Read and check the header of a file."""
        fields = _Fields(reader, 0)
        _, hint = VespaFormat().describe_unsupported(reader) or ("", _CORRUPT)
        tag = fields.read_integer("the tag", TAGS, "1, 2, 3, 5, 6 or 7", hint)
        cell_type = "double"
        if tag & WITH_CELL_TYPE:
            types = ", ".join(f"{number} ({name})" for number, name in enumerate(CELL_TYPES))
            number = fields.read_integer("the cell type", range(len(CELL_TYPES)), f"one of {types}")
            cell_type = list(CELL_TYPES)[number]
        mapped = fields.read_names("mapped", ()) if tag & SPARSE else {}
        indexed = fields.read_names("indexed", mapped, has_lengths=True) if tag & DENSE else {}
        item = CELL_TYPES[cell_type].dtype.itemsize
        lengths = tuple(indexed.values())
        check_size(reader.source.name, lengths, item, fields.offset)
        has_count = mapped or not tag & DENSE
        blocks = fields.read_integer("the number of blocks") if has_count else 1
        stop = fields.offset
        header = cls(tag, cell_type, tuple(mapped), tuple(indexed), lengths, blocks, stop)
        header.check_fits(reader)
        return header

    @property
    def element(self) -> Element:
        """Type of the cells."""
        element = CELL_TYPES[self.cell_type]
        return element if self.decode_floats else element.narrow

    @property
    def cells(self) -> int:
        """Number of cells in a block."""
        return prod(self.lengths)

    @property
    def block_bytes(self) -> int:
        """Size of the cells of a block."""
        return self.cells * self.element.stored.itemsize

    @property
    def type(self) -> str:
        """The type as Vespa formats it, with dimensions sorted by name and without double."""
        sizes = dict.fromkeys(self.mapped, "{}")
        sizes |= {n: f"[{length}]" for n, length in zip(self.indexed, self.lengths, strict=True)}
        cells = "" if self.cell_type == "double" else f"<{self.cell_type}>"
        if not sizes and not cells:
            return "double"
        names = sorted(sizes, key=str.encode)
        return f"tensor{cells}({','.join(name + sizes[name] for name in names)})"

    def check_fits(self, reader: HeaderReader) -> None:
        """Raise an error if the file is too short for its blocks, before memory is allocated."""
        available = reader.source.size - self.stop
        min_bytes = self.blocks * (len(self.mapped) + self.block_bytes)
        is_valid, field = bool(self.mapped) or self.blocks < 2, "the number of cells of a scalar"
        reader.check(is_valid, field, self.blocks, "0 or 1", _CORRUPT, self.stop)
        reader.check(
            min_bytes <= available,
            field=f"the cells of {self.type}",
            actual=f"{available} bytes left in the file",
            expected=f"at least {min_bytes} for {self.blocks} blocks of {self.cells} cells",
            hint="the file is incomplete or its header is corrupt; fetch the file again",
            offset=self.stop,
        )


class _Fields(Cursor):
    """Reads and checks the fields of a header in sequence."""

    def read_integer(
        self, field: str, valid: Container[int] = COUNTS, expected: str = "", hint: str = _CORRUPT
    ) -> int:
        """Read an integer. Raise an error if it is not valid."""
        start = self.offset
        first = self.take(1, field)
        value = unpack(first + self.take(3, field) if first[0] & LONG_BIT else first)
        self.reader.check(value in valid, field, value, expected, hint, start)
        return value

    def read_names(
        self, role: str, previous: Collection[str], *, has_lengths: bool = False
    ) -> dict[str, int]:
        """Read unique and sorted names of dimensions, and their lengths if they have some."""
        limit = MAX_DIMENSIONS - len(previous)
        field = f"the number of {role} dimensions"
        rank = self.read_integer(field, range(limit + 1), f"at most {limit}")
        lengths: dict[str, int] = {}
        for number in range(len(previous), len(previous) + rank):
            field, limits = f"the name of dimension {number}", range(1, MAX_NAME_BYTES + 1)
            size = self.read_integer(f"the size of {field}", limits, f"1 to {MAX_NAME_BYTES} bytes")
            raw = self.take(size, field)
            try:
                name = raw.decode()
            except UnicodeDecodeError as error:
                actual = repr(raw[:40])
                raise self.reader.error(field, actual, "UTF-8", _CORRUPT, self.last) from error
            is_unique = name not in previous and name not in lengths
            self.check(is_unique, field, repr(name), "a unique name", _CORRUPT)
            last = next(reversed(lengths), "")
            hint = "Vespa would confuse the dimensions; write the file again with sorted names"
            self.check(raw > last.encode(), field, repr(name), f"a name after {last!r}", hint)
            field = f"the size of dimension {name!r}"
            lengths[name] = self.read_integer(field, COUNTS[1:], "at least 1") if has_lengths else 0
        return lengths


def find_blocks(source: Source, header: VespaHeader) -> Iterator[tuple[int, Bytes, Integers]]:
    """Scan a file. Yield an offset, the bytes there, and the positions as `scan_blocks`."""
    size = WINDOW_BYTES if source.high_latency else LOCAL_WINDOW_BYTES
    # Downloading many cells is faster than another request.
    if header.block_bytes > (WINDOW_BYTES // 4 if source.high_latency else _LARGE_BLOCK_BYTES):
        size = _LABEL_WINDOW_BYTES
    first, offset = 0, header.stop
    while first < header.blocks:
        window = source.read(Extents.single(offset, min(offset + size, source.size)))
        positions = scan_blocks(window, header, header.blocks - first)
        # The labels of a block may be longer than the window.
        part, start, stop = "labels", offset, offset + size + 1
        if positions.size > 1:
            part, (start, stop) = "cells", (offset + positions[-2:]).tolist()
            first += positions.size - 1
        if stop > source.size:
            raise TensorFormatError(
                source.name,
                field=f"block {first - (part == 'cells')}",
                actual=f"truncated by the end of the file at byte {source.size}",
                expected=f"its {part} within the file",
                hint="fetch the file again: it is incomplete, or the length of a label is corrupt",
                offset=start,
            )
        if part == "cells":
            yield offset, window, positions
            offset = stop
        else:
            size *= 2


def scan_blocks(window: Bytes, header: VespaHeader, limit: int) -> Integers:
    """Return the positions of up to `limit` blocks with complete labels, and of their end."""
    parts, found, stop = [np.zeros(1, np.int64)], 0, 0
    while found < limit:
        ends = _scan_each(window, header, stop, min(_SCANNED_BLOCKS, limit - found))
        if not ends:
            break
        found += len(ends)
        start, stop = [stop, *ends][-2:]
        step = stop - start
        alike = _count_alike(window, header, start, stop, min(_MAX_ALIKE, limit - found))
        parts += [np.array(ends), stop + step * np.arange(1, alike + 1)]
        found, stop = found + alike, stop + step * alike
    return np.concatenate(parts)


def _count_alike(window: Bytes, header: VespaHeader, start: int, stop: int, limit: int) -> int:
    """Return how many of the next blocks have labels as long as those at `start`."""
    step, position = stop - start, start
    # Only the labels of the last block must be within the window.
    count = min(limit, (window.size + header.block_bytes - stop) // step)
    for _ in header.mapped:
        if (length := int(window[position])) >= LONG_BIT:
            return 0
        is_other = window[position + step : position + count * step + 1 : step] != length
        count = int(is_other.argmax()) if is_other.any() else count
        position += 1 + length
    return count


def _scan_each(window: Bytes, header: VespaHeader, position: int, limit: int) -> list[int]:
    """Return the ends of up to `limit` blocks from a position on."""
    view, size, ends, block_bytes = window.data, window.size, list[int](), header.block_bytes
    with suppress(IndexError):  # a length after the end of the window
        for _ in range(limit):
            for _ in header.mapped:
                length = view[position]
                if length >= LONG_BIT:
                    length = unpack(view[position : position + 4]) + 3
                position += 1 + length
            if position > size:
                break
            position += block_bytes
            ends.append(position)
    return ends


def decode_labels(window: Bytes, starts: Integers, dimension: int) -> list[str]:
    """Decode one label per block, with surrogates in place of bytes that are not UTF-8."""
    lengths = np.zeros(1, np.int64)
    for _ in range(dimension + 1):
        starts = starts + lengths
        lengths = window[starts].astype(np.int64)
        is_long = lengths >= LONG_BIT
        for block in np.flatnonzero(is_long).tolist():
            lengths[block] = unpack(window[starts[block] :][:4].tobytes())
        starts += np.where(is_long, 4, 1)
    # One call decodes all labels if NUL can separate them. A byte of a length precedes each.
    positions = np.cumsum(lengths + 1) - lengths - 1
    shifts = np.repeat(starts - 1 - positions, lengths + 1)
    joined = window[np.arange(shifts.size) + shifts]
    joined[positions] = 0
    if np.count_nonzero(joined) == lengths.sum():
        return str(joined.data[1:], "utf-8", "surrogateescape").split("\0")
    view, slices = window.data, zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return [str(view[start:stop], "utf-8", "surrogateescape") for start, stop in slices]
