"""Read a TENS file: the header, the chunks, and where the values are.

The header has 32 bytes, and 8 bytes per dimension. In version 1.0, chunks follow, and the last
one has the values. Source: cc4s, ``reference/binary_tensor_file_format.txt``, and files written by
cc4s and sisi4s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from xr_tensorfmt.core.elements import Plain
from xr_tensorfmt.core.embedded_metadata import MAX_EMBEDDED_BYTES
from xr_tensorfmt.core.extents import PAGE
from xr_tensorfmt.core.file_format import Container, End, OpenOptions, Tensor, name_dims
from xr_tensorfmt.core.header import MAX_DIMENSIONS, Cursor, HeaderReader, check_size
from xr_tensorfmt.core.layout import Dense, column_major
from xr_tensorfmt.errors import Finding
from xr_tensorfmt.formats.tens import MAGIC
from xr_tensorfmt.formats.tens.pairs import COUNT_BYTES, Pairs, Symmetry, build_group

VERSION_0_9 = 0x9000
VERSION_1_0 = 0x10000
_CODES = {b"IEEE": "<f", b"uint": "<u", b"UINT": ">u", b"sint": "<i", b"SINT": ">i"}
INDEX_VALUE_FLAG = 1

# Magic, version, number type, bytes per number, numbers per element, order, flags, zero.
_FIXED = Struct("<4sI4sIIIII")
FIXED_BYTES = _FIXED.size
_VERSION_AT, _TYPE_AT, _BYTES_AT, _NUMBERS_AT, _ORDER_AT, _FLAGS_AT, RESERVED_AT = range(4, 32, 4)

# Length and index name. Flags of sparse dimensions and reserved bytes are ignored.
_DIMENSION = Struct("<IB3x")

# Limit on the length of a dimension: the header has 32 bits for it.
MAX_LENGTH = (1 << 32) - 1


@dataclass(frozen=True)
class TensHeader:
    """Header of a TENS file."""

    version: int
    element: Plain
    lengths: tuple[int, ...]
    # One character per dimension.
    index_names: str
    # Numbers per element along a dimension of their own. A complex number counts as one.
    components: int = 1
    is_index_value: bool = False

    def pack(self) -> bytes:
        """Encode the header of sequential values, including the dimension headers."""
        dtype = self.element.dtype
        numbers = 2 if dtype.kind == "c" else 1
        number_type = {"u": b"uint", "i": b"sint"}.get(dtype.kind, b"IEEE")
        number = number_type, dtype.itemsize // numbers, numbers
        fixed = _FIXED.pack(MAGIC, self.version, *number, len(self.lengths), 0, 0)
        return fixed + b"".join(map(_DIMENSION.pack, self.lengths, map(ord, self.index_names)))

    @classmethod
    def read(cls, reader: HeaderReader) -> TensHeader:
        """Read and check the header of a file."""
        cursor = Cursor(reader, 0)
        fields = cursor.unpack(_FIXED, "the TENS header")
        magic, version, number_type, size, numbers, order, flags, _ = fields
        hint = "it is not a TENS file"
        cursor.check(magic == MAGIC, "the magic number", repr(magic), repr(MAGIC), hint)
        actual, expected = f"0x{version:08x}", "0x00009000 (0.9) or 0x00010000 (1.0)"
        hint = "another version or a corrupt header; write the file again with a supported one"
        cursor.check(version in DTYPES, "the version", actual, expected, hint, _VERSION_AT)
        field, expected = "the number type", f"one of {', '.join(map(repr, _CODES))}"
        cursor.check(number_type in _CODES, field, repr(number_type), expected, skip=_TYPE_AT)
        field, expected = "the count of numbers per element", "1, 2, 4 or 8"
        cursor.check(numbers in (1, 2, 4, 8), field, numbers, expected, skip=_NUMBERS_AT)
        is_complex = number_type == b"IEEE" and numbers == 2
        if version == VERSION_0_9 and is_complex and size == 16:
            size = 8  # cc4s since 2018 and sisi4s write the size of a complex number
        sizes = (4, 8) if number_type == b"IEEE" else (1, 2, 4, 8)
        field, hint = "the count of bytes per number", "numpy does not support such numbers"
        expected = f"one of {str(sizes)[1:-1]} for numbers of type {number_type.decode()}"
        cursor.check(size in sizes, field, size, expected, hint, _BYTES_AT)
        allowed = INDEX_VALUE_FLAG if version == VERSION_1_0 else 0
        field = "the tensor flags"
        expected = "0 or 1 (index-value storage)" if allowed else "0 in a version below 1.0"
        cursor.check(not flags & ~allowed, field, f"0x{flags:08x}", expected, skip=_FLAGS_AT)
        field, expected = "the rank of the tensor", f"at most {MAX_DIMENSIONS} dimensions"
        cursor.check(order <= MAX_DIMENSIONS, field, order, expected, skip=_ORDER_AT)
        raw = cursor.take(order * _DIMENSION.size, "the dimension headers")
        lengths, names = zip(*_DIMENSION.iter_unpack(raw), strict=True) if order else ((), ())
        dtype = np.dtype(f"<c{2 * size}" if is_complex else f"{_CODES[number_type]}{size}")
        components = 1 if is_complex else numbers
        index_names = "".join(map(chr, names))
        return cls(version, Plain(dtype), lengths, index_names, components, bool(flags))

    @property
    def stop(self) -> int:
        """Offset of the first byte after the dimension headers."""
        return FIXED_BYTES + _DIMENSION.size * len(self.lengths)

    @property
    def dimension_names(self) -> tuple[str, ...]:
        """Dimension names: the index names if printable and unique, otherwise dim_0, dim_1, ..."""
        names = tuple(self.index_names)
        if len(set(names)) == len(names) and all(is_index_name(name) for name in names):
            return names
        return tuple(f"dim_{number}" for number in range(len(names)))


def is_index_name(name: str) -> bool:
    """Return whether a string is one printable ASCII character other than a space."""
    return len(name) == 1 and "!" <= name <= "~"


# Magic number, and size of the chunk including this header.
_CHUNK_HEADER = Struct("<8sQ")
CHUNK_HEADER_BYTES = _CHUNK_HEADER.size

# Magic numbers of chunks. The last one, for embedded metadata, is an extension of this package.
DENSE_DATA, SYMMETRY, EMBEDDED = MAGICS = b"DENSDATA", b"SYMMETRY", b"XRTENSOR"

# Sizes of chunks are multiples of this.
CHUNK_UNIT = 8
MAX_CHUNKS = 4096


class Chunk(NamedTuple):
    """Header of a chunk, with its offset in the file."""

    magic: bytes
    size: int
    offset: int

    @property
    def content_offset(self) -> int:
        """Offset of the content."""
        return self.offset + CHUNK_HEADER_BYTES

    @property
    def stop(self) -> int:
        """Offset of the first byte after the chunk."""
        return self.offset + self.size


def compute_chunk_size(content_bytes: int) -> int:
    """Return the size of a chunk, including header and padding."""
    return CHUNK_HEADER_BYTES + content_bytes + -content_bytes % CHUNK_UNIT


def pack_chunk_header(magic: bytes, content_bytes: int) -> bytes:
    """Encode the header of a chunk. The content is padded to a multiple of 8 bytes."""
    return _CHUNK_HEADER.pack(magic, compute_chunk_size(content_bytes))


def read_chunks(reader: HeaderReader, start: int) -> Iterator[Chunk]:
    """Read the chunk headers up to the data: values in a chunk, or pairs without a magic number."""
    offset = start
    for _ in range(MAX_CHUNKS):
        remaining = reader.source.size - offset
        if remaining < CHUNK_HEADER_BYTES:
            return
        magic, size = Cursor(reader, offset).unpack(_CHUNK_HEADER, "a chunk's header")
        if not all(0x20 <= byte <= 0x7E for byte in magic):
            return
        chunk = Chunk(magic, size, offset)
        if magic == DENSE_DATA:
            yield chunk
            return
        field = f"the size of chunk {magic.decode()!r}"
        expected = f"a multiple of 8 from 16 to the {remaining} bytes that remain"
        fits = CHUNK_HEADER_BYTES <= size <= remaining and not size % CHUNK_UNIT
        hint = "the file is truncated or corrupt"
        reader.check(fits, field, size, expected, hint, offset + 8)
        yield chunk
        offset = chunk.stop
    field, actual = "the number of chunks before the data", f"more than {MAX_CHUNKS}"
    raise reader.error(field, actual, f"at most {MAX_CHUNKS}", offset=start)


# Writable dtypes of a version. Other numbers are only read.
DTYPES = {
    VERSION_0_9: ("float64", "complex128"),
    VERSION_1_0: (
        *("float64", "float32", "complex128", "complex64"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
    ),
}


COMPONENT = "component"


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a TENS file."""
    path = reader.source.name
    options.refuse_stored(path)
    header = TensHeader.read(reader)
    # The dimension headers of version 0.9 contain uninitialised bytes, and no chunks follow.
    chunks = [*read_chunks(reader, header.stop)] if header.version == VERSION_1_0 else []
    symmetries = [Symmetry.read(reader, header, x) for x in chunks if x.magic == SYMMETRY]
    has_data = bool(chunks) and chunks[-1].magic == DENSE_DATA
    locate = _locate_pairs if header.is_index_value and not has_data else _locate_dense
    layout, end = locate(reader, header, chunks, symmetries)
    itemsize = header.element.stored.itemsize * header.components
    check_size(path, header.lengths, itemsize, offset=FIXED_BYTES)
    if isinstance(layout, Pairs):
        total = prod(header.lengths)
        options.check_filled(path, "the tensor", total, layout.count, FIXED_BYTES)
    names = name_dims(options.dims, options.name, header.dimension_names)
    if COMPONENT in (options.name, *names):
        raise ValueError(
            f"{COMPONENT!r} is reserved for a dimension of TENS files; choose another name"
        )
    trailing = int(header.components > 1)
    tensor = Tensor(
        options.name,
        (*names, COMPONENT) if trailing else names,
        column_major(layout, trailing=trailing),
        encoding={
            "tensorfmt": _build_file_info(header, layout, chunks, symmetries),
            "dtype": header.element.encoding,
        },
    )
    embedded = None
    for chunk in chunks:
        if chunk.magic == EMBEDDED:  # JSON and padding; text beyond the limit is cut off
            limit = min(chunk.stop, chunk.content_offset + MAX_EMBEDDED_BYTES + PAGE)
            embedded = reader.read_bytes(chunk.content_offset, limit).rstrip(b"\0")
    return Container((tensor,), ends=(end,), embedded=embedded, parsed=chunks)


def _build_file_info(
    header: TensHeader,
    layout: Dense | Pairs,
    chunks: Sequence[Chunk],
    symmetries: Sequence[Symmetry],
) -> dict[str, Any]:
    """Return the entry ``encoding["tensorfmt"]``, without empty properties."""
    properties = {
        "symmetries": ", ".join(map(str, symmetries)),
        "packed_symmetries": ", ".join(str(item) for item in symmetries if item.packed),
        "skipped_chunks": [x.magic.decode() for x in chunks if x.magic not in MAGICS],
    }
    return {
        "format": "tens",
        "version": "0.9" if header.version == VERSION_0_9 else "1.0",
        "shape": header.lengths,
        "storage": "dense" if isinstance(layout, Dense) else "pairs",
        "offset": layout.offset,
        "order": "F",
        "byteorder": "big" if header.element.stored.byteorder == ">" else "little",
        "dtype": header.element.name,
        "index_names": header.index_names,
        **{name: value for name, value in properties.items() if value},
    }


def _locate_dense(
    reader: HeaderReader, header: TensHeader, chunks: list[Chunk], symmetries: Iterable[Symmetry]
) -> tuple[Dense | Pairs, End]:
    """Find all values: after the header in version 0.9, otherwise in the last chunk, DENSDATA."""
    shape = (*header.lengths[::-1], *(() if header.components == 1 else (header.components,)))
    size, start = reader.source.size, chunks[-1].stop if chunks else header.stop
    if header.version == VERSION_0_9:
        layout = Dense(shape, header.element, start)
        field, actual = f"the data of a tensor of shape {header.lengths}", f"{size - start} bytes"
        expected = f"{layout.stop - start} bytes"
        hint = "the file is truncated or has trailing bytes, or its header is corrupt"
        if size != layout.stop and reader.has_fortran_records(start):
            hint = "the values are records of Fortran; write them with access='stream'"
        reader.check(size == layout.stop, field, actual, expected, hint, start)
        return layout, End(reader.source, layout.stop, "the data")
    has_data = bool(chunks) and chunks[-1].magic == DENSE_DATA
    actual = f"missing ({size - start} bytes remain)"
    reader.check(has_data, "the data", actual, "a chunk 'DENSDATA'", offset=start)
    chunk = chunks[-1]
    field, actual = "a chunk 'DENSDATA'", "in a file whose flags say index-value storage"
    reader.check(not header.is_index_value, field, actual, "one of the two", offset=chunk.offset)
    for symmetry in symmetries:
        field, actual = f"the symmetry {str(symmetry)!r}", "packed in a file of sequential values"
        hint = "TENS 1.0 does not define the order of such values; write them as pairs"
        expected, offset = "index-value storage", symmetry.offset
        reader.check(not symmetry.packed, field, actual, expected, hint, offset)
    layout = Dense(shape, header.element, chunk.content_offset)
    needed = compute_chunk_size(layout.stop - layout.offset)
    is_unpadded = chunk.stop == size == layout.stop
    expected = f"{needed} for a tensor of shape {header.lengths}"
    hint = "the file is corrupt, or its data are packed in an undefined way"
    field, fits = "the size of chunk 'DENSDATA'", chunk.size == needed or is_unpadded
    reader.check(fits, field, chunk.size, expected, hint, chunk.offset + 8)
    actual = f"truncated by the end of the file at byte {size}"
    expected, hint = f"{chunk.size} bytes of chunk 'DENSDATA'", "the file is truncated"
    reader.check(chunk.stop <= size, "the data", actual, expected, hint, chunk.offset)
    return layout, End(reader.source, chunk.stop, "the data")


def _locate_pairs(
    reader: HeaderReader, header: TensHeader, chunks: list[Chunk], symmetries: Iterable[Symmetry]
) -> tuple[Dense | Pairs, End]:
    """Find the pairs after the chunks. Their number precedes them."""
    start, total = chunks[-1].stop if chunks else header.stop, prod(header.lengths)
    field = "the number of pairs"
    count = reader.read_unsigned(start, COUNT_BYTES, field)
    lengths, group = header.lengths[::-1], build_group(reader, header, symmetries)
    pairs = Pairs(lengths, header.element, header.components, start + COUNT_BYTES, count, group)
    room = (reader.source.size - pairs.offset) // pairs.record.itemsize
    limit = "pairs that fit in the file" if room <= total else "elements of the tensor"
    expected = f"at most the {min(room, total)} {limit}"
    reader.check(count <= min(room, total), field, count, expected, offset=start)
    return pairs, End(reader.source, pairs.bounds[1], "the pairs")


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:  # noqa: ARG001
    """Yield a finding about each chunk that the format does not define."""
    path, field = reader.source.name, "the magic of a chunk"
    for chunk in container.parsed:
        if chunk.magic not in MAGICS:
            actual = f"{chunk.magic.decode()!r}, which the format does not define"
            yield Finding(path, field, actual, offset=chunk.offset, severity="warning")
