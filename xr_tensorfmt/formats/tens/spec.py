"""The fixed part of a TENS file: 32 bytes, then 8 for each dimension.

Source: cc4s, ``reference/binary_tensor_file_format.txt``, and the files that cc4s and sisi4s write.

"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from json import loads
from math import prod
from struct import pack
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Element, Plain
from xr_tensorfmt.core.embedded_metadata import MOST_BYTES
from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import HeaderReader, check_rank
from xr_tensorfmt.errors import TensorFormatError, shortened
from xr_tensorfmt.formats.tens import MAGIC
from xr_tensorfmt.formats.tens.wide import Binary128, Integer128

FIXED_BYTES = 32
DIMENSION_BYTES = 8
VERSION_0_9 = 0x9000
VERSION_1_0 = 0x10000
NUMBER_TYPES = (b"uint", b"UINT", b"sint", b"SINT", b"IEEE")
NUMBERS_PER_ELEMENT = (1, 2, 4, 8)

INDEX_VALUE_FLAG = 1
_SPARSE_FLAG = 1


@dataclass(frozen=True)
class Dimension:
    """One dimension header."""

    length: int
    index: int
    flags: int

    @property
    def is_sparse(self) -> bool:
        """Whether the writer called this dimension sparse, which changes nothing in the data."""
        return bool(self.flags & _SPARSE_FLAG)


@dataclass(frozen=True)
class Header:
    """The header fields of a TENS file, as they are."""

    version: int
    number_type: bytes
    bytes_per_number: int
    numbers: int
    flags: int
    dimensions: tuple[Dimension, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the dimensions."""
        return tuple(each.length for each in self.dimensions)

    @property
    def total(self) -> int:
        """Number of elements of the tensor, in Python's unbounded integers."""
        return prod(self.lengths)

    @property
    def stop(self) -> int:
        """The byte after the dimension headers."""
        return FIXED_BYTES + DIMENSION_BYTES * len(self.dimensions)

    @property
    def is_before_1_0(self) -> bool:
        """Whether the file has no chunks and uninitialised bytes in its dimension headers."""
        return self.version < VERSION_1_0

    @property
    def is_big_endian(self) -> bool:
        """Whether the numbers are: the case of integer types says so, IEEE is little-endian."""
        return self.number_type in (b"UINT", b"SINT")

    @property
    def is_index_value(self) -> bool:
        """Whether the tensor is stored as pairs of index and value."""
        return bool(self.flags & INDEX_VALUE_FLAG)

    @property
    def index_names(self) -> str:
        """The index names as they are, a character each."""
        return "".join(chr(each.index) for each in self.dimensions)

    @property
    def names(self) -> tuple[str, ...]:
        """Dimension names: the index names if they are printable and different, else dim_0..."""
        names = tuple(self.index_names)
        if len(set(names)) == len(names) and all("!" <= name <= "~" for name in names):
            return names
        return tuple(f"dim_{number}" for number in range(len(names)))


def recognises(head: bytes, size: int) -> bool:
    """Whether a file can only be TENS; four other formats are known that begin with its magic."""
    order = int.from_bytes(head[20:24], "little")
    return (
        min(size, len(head)) >= FIXED_BYTES
        and head.startswith(MAGIC)
        and int.from_bytes(head[4:8], "little") in (VERSION_0_9, VERSION_1_0)
        and head[8:12] in NUMBER_TYPES
        and int.from_bytes(head[16:20], "little") in NUMBERS_PER_ELEMENT
        and FIXED_BYTES + DIMENSION_BYTES * order <= size
    )


def read_header(reader: HeaderReader) -> Header:
    """Read and check the header of a TENS file."""
    fixed = reader.bytes_at(0, FIXED_BYTES, "the TENS header")
    path = reader.source.name
    _check_magic(path, fixed[:4])
    fields = [int.from_bytes(fixed[at : at + 4], "little") for at in range(0, FIXED_BYTES, 4)]
    _, version, _, bytes_per_number, numbers, order, flags, _ = fields
    _check_version(path, version)
    _check_number(path, fixed[8:12], numbers)
    _check_flags(path, version, flags)
    check_rank(path, "the tensor", order, offset=20)
    return Header(
        version, fixed[8:12], bytes_per_number, numbers, flags, _read_dimensions(reader, order)
    )


def _read_dimensions(reader: HeaderReader, order: int) -> tuple[Dimension, ...]:
    raw = reader.bytes_at(FIXED_BYTES, order * DIMENSION_BYTES, "the dimension headers")
    starts = range(0, len(raw), DIMENSION_BYTES)
    return tuple(
        Dimension(int.from_bytes(raw[at : at + 4], "little"), raw[at + 4], raw[at + 5])
        for at in starts
    )


def _check_magic(path: str, magic: bytes) -> None:
    if magic != MAGIC:
        raise TensorFormatError(
            path, "the magic number", repr(magic), repr(MAGIC), "it is not a TENS file", offset=0
        )


def _check_version(path: str, version: int) -> None:
    swapped = int.from_bytes(version.to_bytes(4, "big"), "little")
    if version > VERSION_1_0 or swapped in (VERSION_0_9, VERSION_1_0):
        raise TensorFormatError(
            path,
            "the version",
            f"0x{version:08x}",
            "0x00009000 (0.9) or 0x00010000 (1.0)",
            "the integers of the header are big-endian, which TENS does not allow"
            if swapped in (VERSION_0_9, VERSION_1_0)
            else "it is of a newer version; write it as one of these",
            offset=4,
        )


def _check_number(path: str, number_type: bytes, numbers: int) -> None:
    if number_type not in NUMBER_TYPES:
        raise TensorFormatError(
            path,
            "the number type",
            repr(number_type),
            "one of " + ", ".join(map(repr, NUMBER_TYPES)),
            "the header is damaged, or the file is of another format",
            offset=8,
        )
    if numbers not in NUMBERS_PER_ELEMENT:
        raise TensorFormatError(
            path,
            "the count of numbers per element",
            numbers,
            "1, 2, 4 or 8",
            "the header is damaged, or the file is of another format",
            offset=16,
        )


def _check_flags(path: str, version: int, flags: int) -> None:
    allowed = INDEX_VALUE_FLAG if version >= VERSION_1_0 else 0
    if flags & ~allowed:
        raise TensorFormatError(
            path,
            "the tensor flags",
            f"0x{flags:08x}",
            "0" + (" or 1 (index-value storage)" if allowed else " in a version below 1.0"),
            "a reserved flag may change how the data lie, so that they cannot be read",
            offset=24,
        )


_SIZES = {b"IEEE": (4, 8, 16)}
_INTEGER_SIZES = (1, 2, 4, 8, 16)
DTYPES = (
    *("float64", "float32", "complex128", "complex64"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
)
"""What is written; other numbers are only read."""

_KINDS = {b"uint": "<u", b"UINT": ">u", b"sint": "<i", b"SINT": ">i", b"IEEE": "<f"}


def element_of(header: Header, path: str) -> tuple[Element, int]:
    """What the elements of a tensor are."""
    kind, size = header.number_type, header.bytes_per_number
    allowed = _SIZES.get(kind, _INTEGER_SIZES)
    if size not in allowed:
        raise TensorFormatError(
            path,
            "the count of bytes per number",
            size,
            f"one of {', '.join(map(str, allowed))} for numbers of type {kind.decode()}",
            "the header is damaged, or the file is of another format",
            offset=12,
        )
    is_complex = kind == b"IEEE" and header.numbers == 2
    components = 1 if is_complex else header.numbers
    if size == 16 and kind == b"IEEE":
        return Binary128(is_complex), components
    if size == 16:
        return Integer128(signed=kind.lower() == b"sint", big_endian=kind.isupper()), components
    return Plain(_dtype(kind, size, is_complex)), components


def _dtype(kind: bytes, size: int, is_complex: bool) -> np.dtype[Any]:
    return np.dtype(f"<c{2 * size}" if is_complex else f"{_KINDS[kind]}{size}")


def number_fields(dtype: np.dtype[Any], components: int) -> tuple[bytes, int, int]:
    """The way back of `element_of`: how a header describes elements."""
    if dtype.kind == "c":
        return b"IEEE", dtype.itemsize // 2, 2
    return {"f": b"IEEE", "u": b"uint", "i": b"sint"}[dtype.kind], dtype.itemsize, components


CHUNK_HEADER_BYTES = 16
DENSE_DATA = b"DENSDATA"
SYMMETRY = b"SYMMETRY"

MOST_VARIABLE_CHUNKS = 4096
"""Limit on the chunks before the data, so that a hostile file cannot keep a reader busy."""


@dataclass(frozen=True)
class VariableChunk:
    """The header of one chunk."""

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
    """Walk through the chunks from a byte on, up to the data."""
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
    """Look at what stands at a byte."""
    chunk = _chunk_at(reader, offset)
    if chunk is None or chunk.magic == DENSE_DATA or _has_valid_size(reader, chunk):
        return chunk
    return None


def has_magic(reader: HeaderReader, offset: int, magics: Iterable[bytes]) -> bool:
    """Whether a chunk begins at a byte, however little the file has of it."""
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


MOST_OPERATIONS = 5040
"""Limit on the size of a group: all permutations of 7 axes."""


@dataclass(frozen=True)
class Operation:
    """``T[i] = sign * T[j]`` with ``j[p] = i[axes[p]]``."""

    axes: tuple[int, ...]
    sign: int

    def after(self, other: Operation) -> Operation:
        """The operation that applies `other` and then this one."""
        return Operation(tuple(other.axes[axis] for axis in self.axes), self.sign * other.sign)

    def images(self, flat: Integers, shape: Sequence[int]) -> Integers:
        """Flat indices ``i`` of the elements that stored elements at flat ``j`` determine."""
        if self.axes == tuple(range(len(shape))):
            return flat
        stored = np.unravel_index(flat, tuple(shape))
        image = [stored[self.axes.index(axis)] for axis in range(len(shape))]
        return np.ravel_multi_index(tuple(image), tuple(shape)).astype(np.int64)


def generated(operations: Iterable[Operation], rank: int) -> tuple[Operation, ...] | None:
    """All products of operations, the identity first."""
    group = {Operation(tuple(range(rank)), 1): None}
    generators: list[Operation] = []
    for operation in operations:
        # One that the others generate adds nothing; any other at least doubles the group.
        if operation in group:
            continue
        generators.append(operation)
        fresh = list(group)
        while fresh:
            made, fresh = fresh, []
            for product in (each.after(other) for each in made for other in generators):
                if product not in group:
                    group[product] = None
                    fresh.append(product)
                    if len(group) > MOST_OPERATIONS:
                        return None
    return tuple(group)


_PACKED_FLAG = 1
_SIGNS = {"x": 1, "-x": -1}


@dataclass(frozen=True)
class Symmetry:
    """``T[a, b, ...] = s(T[index_map])``."""

    code: str
    index_map: str
    packed: bool
    offset: int

    def __str__(self) -> str:
        """As it stands in the file, operation code first."""
        return f"{self.code} {self.index_map}"


def read_symmetry(reader: HeaderReader, header: Header, chunk: VariableChunk) -> Symmetry:
    """Read one SYMMETRY chunk."""
    flags, length = reader.bytes_at(chunk.body, 2, "the symmetry flags")
    order = len(header.dimensions)
    if chunk.body + 2 + length + order > chunk.stop:
        raise TensorFormatError(
            reader.source.name,
            "the size of chunk 'SYMMETRY'",
            chunk.size,
            f"at least {18 + length + order} for {length} characters of code and {order} indices",
            "the file is damaged",
            offset=chunk.offset + 8,
        )
    text = reader.bytes_at(chunk.body + 2, length + order, "the symmetry").decode("latin-1")
    names = header.index_names
    if sorted(text[length:]) != sorted(names):
        raise TensorFormatError(
            reader.source.name,
            "the index map of a symmetry",
            repr(text[length:]),
            f"a permutation of the index names {names!r}",
            "the file is damaged",
            offset=chunk.body + 2 + length,
        )
    return Symmetry(text[:length], text[length:], bool(flags & _PACKED_FLAG), chunk.offset)


def packing_operations(
    symmetries: Iterable[Symmetry], header: Header, path: str
) -> tuple[Operation, ...]:
    """The packed symmetries, as operations on the axes in file order (last index slowest)."""
    packed = [each for each in symmetries if each.packed]
    for each in packed:
        problem = obstacle(each, header)
        if problem is not None:
            raise TensorFormatError(
                path,
                f"the symmetry {str(each)!r}",
                problem.found,
                problem.expected,
                "the format does not say which elements such a file stands for",
                offset=each.offset,
            )
    return tuple(operation_of(each, header) for each in packed)


@dataclass(frozen=True)
class Obstacle:
    """Why a symmetry cannot be packed."""

    found: str
    expected: str


def obstacle(symmetry: Symmetry, header: Header) -> Obstacle | None:
    """Why a symmetry cannot be packed, if it cannot."""
    names = header.index_names
    if symmetry.code not in _SIGNS:
        return Obstacle(f"packed by operation {symmetry.code!r}", "'x' or '-x'")
    if len(set(names)) != len(names):
        return Obstacle("packed", "index names that are all different")
    lengths = dict(zip(names, header.lengths, strict=True))
    if any(lengths[a] != lengths[b] for a, b in zip(names, symmetry.index_map, strict=True)):
        return Obstacle(f"packed for lengths {header.lengths}", "indices of equal lengths")
    if header.number_type.lower() == b"uint" and symmetry.code == "-x":
        return Obstacle("antisymmetric", "numbers that can be negative")
    return None


def operation_of(symmetry: Symmetry, header: Header) -> Operation:
    """A symmetry without obstacle, as an operation on the axes in file order."""
    names = header.index_names
    source = [names.index(name) for name in symmetry.index_map]
    axes = tuple(len(names) - 1 - axis for axis in reversed(source))
    return Operation(axes, _SIGNS[symmetry.code])


EMBEDDED_CHUNK = b"XRTENSOR"
"""Its magic."""

PAGE = 4096
"""Where the chunk ends, the first value begins, at a multiple of this."""

TENSOR = "tensor"
"""What the note calls the one tensor of a file."""


def read_embedded_metadata(
    reader: HeaderReader, chunk: VariableChunk
) -> tuple[Any, tuple[Finding, ...]]:
    """Read the note of a file."""
    length = chunk.size - CHUNK_HEADER_BYTES
    if length > MOST_BYTES + PAGE:
        return None, (_warning(reader, chunk, f"{length} bytes, more than {MOST_BYTES}"),)
    text = reader.bytes_at(chunk.body, length, "the note").rstrip(b"\0")
    try:
        return loads(text), ()
    except (ValueError, RecursionError) as error:
        return None, (_warning(reader, chunk, f"{type(error).__name__}: {error}"),)


def _warning(reader: HeaderReader, chunk: VariableChunk, problem: str) -> Finding:
    message = (
        "it does not hold names, dims, attributes and coordinates as JSON and is not used "
        f"({shortened(problem)})"
    )
    field = f"the chunk {EMBEDDED_CHUNK.decode()!r}"
    return Finding(reader.source.name, chunk.offset, field, message, "warning")


def embedded_dims(embedded: Any, rank: int) -> tuple[str, ...] | None:
    """The names of the dimensions of a tensor, that of components included."""
    try:
        dims = embedded["tensors"][TENSOR]["dims"]
        fits = len(set(dims)) == len(dims) == rank and all(isinstance(dim, str) for dim in dims)
    except (KeyError, TypeError):
        return None
    return tuple(dims) if fits else None


def noted_name(embedded: Any) -> str | None:
    """What the variable is called; None where the note does not say."""
    try:
        name = embedded["tensors"][TENSOR]["name"]
    except (KeyError, TypeError):
        return None
    return name if isinstance(name, str) else None


def note_of_pairs(embedded: Any, dims: Collection[str]) -> Any:
    """What a note says of the pairs alone, without what labels the dimensions of the tensor."""
    try:
        tensor = {key: each for key, each in embedded["tensors"][TENSOR].items() if key != "dims"}
        coordinates = {
            name: each
            for name, each in embedded["coordinates"].items()
            if not {name, *each["dims"]} & set(dims)
        }
    except (KeyError, TypeError, AttributeError):
        return embedded
    return {**embedded, "tensors": {TENSOR: tensor}, "coordinates": coordinates}


UNIT = 8
"""Bytes that the length of every chunk is a multiple of."""


def header_bytes(header: Header) -> bytes:
    """A header as it stands in a file."""
    order = len(header.dimensions)
    counts = header.bytes_per_number, header.numbers, order, header.flags, 0
    parts = [MAGIC, pack("<I", header.version), header.number_type, pack("<5I", *counts)]
    parts += [pack("<IBBH", each.length, each.index, each.flags, 0) for each in header.dimensions]
    made = b"".join(parts)
    assert len(made) == FIXED_BYTES + DIMENSION_BYTES * order
    return made


def chunk(magic: bytes, content: bytes) -> bytes:
    """A variable chunk, with zeros up to the next multiple of 8."""
    padded = content + bytes(-len(content) % UNIT)
    return _chunk_header(magic, len(padded)) + padded


def symmetry_chunk(symmetry: Symmetry) -> bytes:
    """The chunk that states a symmetry."""
    code = symmetry.code.encode("latin-1")
    head = bytes([symmetry.packed, len(code)])
    return chunk(SYMMETRY, head + code + symmetry.index_map.encode("latin-1"))


def before_dense_values(
    header: Header, symmetries: Sequence[Symmetry], embedded: bytes, payload: int
) -> bytes:
    """All of a file of version 1.0 before its values, which begin on a page."""
    data = _chunk_header(DENSE_DATA, payload + -payload % UNIT)
    return _up_to_page(header, symmetries, embedded, len(data)) + data


def before_pair_count(header: Header, symmetries: Sequence[Symmetry], embedded: bytes) -> bytes:
    """All of a file of pairs before their number, behind which the first of them begins on a page."""
    return _up_to_page(header, symmetries, embedded, UNIT)


def _up_to_page(
    header: Header, symmetries: Sequence[Symmetry], embedded: bytes, following: int
) -> bytes:
    """Header and chunks, with zeros behind the note; so many bytes follow before the page."""
    start = header_bytes(header) + b"".join(map(symmetry_chunk, symmetries))
    known = len(start) + CHUNK_HEADER_BYTES + len(embedded) + following
    return start + chunk(EMBEDDED_CHUNK, embedded + bytes(-known % PAGE))


def _chunk_header(magic: bytes, length: int) -> bytes:
    return magic + pack("<Q", CHUNK_HEADER_BYTES + length)
