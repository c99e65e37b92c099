"""What the containers of MAG have in common: dtypes, checksums, and what is read of a file.

bfloat16 was once inserted at number 2 of the dtypes and float8_e4m3fn at 3, so that a number means
nothing without the container and its version. Source: the history of magnetron, seen in files of
every release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import numpy as np
from google_crc32c import value as crc32c

from xr_tensorfmt.core.elements import BFloat16, Boolean, Element, Float8E4M3FN, Plain
from xr_tensorfmt.core.findings import Finding, Gap, finding_of
from xr_tensorfmt.core.header import HeaderReader, check_size
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.errors import TensorFormatError

DAMAGED = "the header is damaged"
FOREIGN = "the header is damaged, or the file is of another format"
"""What a user is told about most faults."""

Numbering = tuple[str, ...]
"""Names of dtypes; the position of a name is the number of the dtype."""

_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")

ARCHIVE_1_DTYPES = ("float32", "float16", "bool", "int32")
"""Archive 1 and stream; archive 100 until November 2025."""

ARCHIVE_100_DTYPES = ("float32", "float16", "bool", *_INTEGERS)
"""Archive 100 from November 2025 on."""

SNAPSHOT_100_DTYPES = ("float32", "float16", "bfloat16", "bool", *_INTEGERS)

SNAPSHOT_200_DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "bool", *_INTEGERS)
"""Snapshot 200 and 300."""


def element(name: str, *, big_endian: bool = False) -> Element:
    """How an element of a dtype is stored."""
    return (_BIG_ENDIAN if big_endian else _LITTLE_ENDIAN)[name]


def elements(numbering: Numbering) -> dict[str, Element]:
    """How the elements of all dtypes that a writer uses are stored."""
    return {name: element(name) for name in numbering}


def _elements(order: Literal["<", ">"]) -> dict[str, Element]:
    special = {
        "bool": Boolean(),
        "bfloat16": BFloat16(big_endian=order == ">"),
        "float8_e4m3fn": Float8E4M3FN(),
    }
    names = [name for name in SNAPSHOT_200_DTYPES if name not in special]
    # By way of the string numpy finds its own dtype again where the order is that of the machine.
    plain = {name: Plain(np.dtype(np.dtype(name).newbyteorder(order).str)) for name in names}
    return plain | special


_LITTLE_ENDIAN, _BIG_ENDIAN = _elements("<"), _elements(">")


def data_bytes(path: str, shape: Sequence[int], element: Element, offset: int) -> int:
    """Bytes of a tensor that is described at an offset; the errors of `check_size`."""
    item = element.stored.itemsize
    check_size(path, shape, item, offset)
    return prod(shape) * item


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file; `offset` counts from the start of the file."""

    key: str
    shape: tuple[int, ...]
    element: Element
    offset: int
    nbytes: int

    @property
    def stop(self) -> int:
        """The byte after the data."""
        return self.offset + self.nbytes


@dataclass(frozen=True)
class Contents:
    """What the header of a file says, whatever its container, and the padding before the data."""

    container: str
    version: int
    tensors: tuple[StoredTensor, ...]
    data_start: int
    data_stop: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    gaps: tuple[Gap, ...] = ()


def decode_key(path: str, raw: bytes, offset: int) -> str:
    """Decode a key at a byte of the file."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise TensorFormatError(
            path,
            "the key",
            f"the bytes {raw[error.start : error.end]!r}",
            "UTF-8",
            FOREIGN,
            offset=offset + error.start,
        ) from None


def check_checksum(
    reader: HeaderReader, options: OpenOptions, stored: int, at: int, start: int, stop: int
) -> tuple[Finding, ...]:
    """Compare the checksum that is stored at a byte with that of a range of the header."""
    found = crc32c(reader.bytes_at(start, stop - start, "the header"))
    if found == stored:
        return ()
    error = TensorFormatError(
        reader.source.name,
        "the checksum",
        f"{stored:#010x}",
        f"{found:#010x}, the CRC-32C of bytes {start} to {stop}",
        "the header is damaged, so fetch the file again; verify=False tries to read the rest",
        offset=at,
    )
    if options.verify:
        raise error
    return (finding_of(error),)


def default_dims(key: str, rank: int, keys: set[str]) -> tuple[str, ...]:
    """Names for dimensions that nobody has named, none of which is a key."""
    default = tuple([f"{key}_dim_{axis}" for axis in range(rank)])
    if keys.isdisjoint(default):
        return default
    return tuple(_different(name, keys) for name in default)


def _different(name: str, keys: set[str]) -> str:
    while name in keys:
        name += "_"
    return name
