"""The fixed part of a TENS file: 32 bytes, then 8 for each dimension.

Source: cc4s, ``reference/binary_tensor_file_format.txt``, and the files that cc4s and sisi4s write.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.header import HeaderReader
from xr_tensorfmt.formats.limits import check_rank

MAGIC = b"TENS"
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
    """One dimension header.

    Parameters
    ----------
    length : int
        Length of the axis.
    index : int
        The byte that is its index name.
    flags : int
        Bit 0: the dimension is sparse. Uninitialised memory in version 0.9.
    """

    length: int
    index: int
    flags: int

    @property
    def is_sparse(self) -> bool:
        """Whether the writer called this dimension sparse, which changes nothing in the data."""
        return bool(self.flags & _SPARSE_FLAG)


@dataclass(frozen=True)
class Header:
    """The header fields of a TENS file, as they are.

    Parameters
    ----------
    version : int
        0x9000 for "0.9", 0x10000 for "1.0".
    number_type : bytes
        One of `NUMBER_TYPES`.
    bytes_per_number : int
        Size of one number.
    numbers : int
        Numbers an element: 1 real, 2 complex, 4 quaternion, 8 octonion.
    flags : int
        Bit 0: index-value storage.
    dimensions : tuple of Dimension
        Leftmost index first, which varies fastest in the file.
    """

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
    """Read and check the header of a TENS file.

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
        A field has a value that no version of the format allows, or the file ends before it does.
    """
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
