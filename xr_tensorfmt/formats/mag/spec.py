"""The dtypes of MAG tensors, and the numbers that stand for them.

bfloat16 was once put in at 2 and float8_e4m3fn at 3, so that a number means nothing without the
container and its version. Source: the history of magnetron, seen in files of every release.

"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal

import numpy as np
from google_crc32c import value as crc32c

from xr_tensorfmt.core.container import Names, named_dims
from xr_tensorfmt.core.elements import BFloat16, Boolean, Element, Float8E4M3FN, Plain
from xr_tensorfmt.core.findings import Finding, finding_of
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.errors import TensorFormatError

# Names of dtypes; the position of each is its number.
Numbering = tuple[str, ...]

_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")

FOUR: Numbering = ("float32", "float16", "bool", "int32")
"""Archive 1 and stream; archive 100 until November 2025."""

ELEVEN: Numbering = ("float32", "float16", "bool", *_INTEGERS)
"""Archive 100 from November 2025 on."""

TWELVE: Numbering = ("float32", "float16", "bfloat16", "bool", *_INTEGERS)
"""Snapshot 100."""

THIRTEEN: Numbering = ("float32", "float16", "bfloat16", "float8_e4m3fn", "bool", *_INTEGERS)
"""Snapshot 200 and 300."""


def element(name: str, *, big_endian: bool = False) -> Element:
    """What an element of a dtype is."""
    return (_BIG_ENDIAN if big_endian else _LITTLE_ENDIAN)[name]


def _elements(order: Literal["<", ">"]) -> dict[str, Element]:
    special = {
        "bool": Boolean(),
        "bfloat16": BFloat16(big_endian=order == ">"),
        "float8_e4m3fn": Float8E4M3FN(),
    }
    names = [name for name in THIRTEEN if name not in special]
    # By way of the text numpy finds its own dtype again where the order is that of the machine.
    plain = {name: Plain(np.dtype(np.dtype(name).newbyteorder(order).str)) for name in names}
    return plain | special


_LITTLE_ENDIAN, _BIG_ENDIAN = _elements("<"), _elements(">")


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a file."""

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
    """What the header of a container says."""

    container: str
    version: int
    tensors: tuple[Stored, ...]
    data_start: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


def decode_key(path: str, raw: bytes, offset: int) -> str:
    """The text of a key."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise TensorFormatError(
            path,
            "the key",
            f"the bytes {raw[error.start : error.end]!r}",
            "UTF-8",
            "the header is damaged, or the file is of another format",
            offset=offset + error.start,
        ) from None


def check_keys(path: str, tensors: Sequence[Stored]) -> None:
    """Refuse keys that occur twice, and those that no text can hold."""
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.key in seen:
            raise TensorFormatError(
                path,
                "the key",
                f"{tensor.key!r} twice",
                "a key of its own for each tensor",
                "the header is damaged",
            )
        if not tensor.key.isascii():
            _check_encodable(path, tensor.key)
        seen.add(tensor.key)


def _check_encodable(path: str, key: str) -> None:
    try:
        key.encode()
    except UnicodeEncodeError:
        raise TensorFormatError(
            path, "the key", ascii(key), "text that UTF-8 can hold", "the header is damaged"
        ) from None


def requested_names(requested: Names, tensors: Sequence[Stored]) -> Mapping[str, Sequence[str]]:
    """Names for dimensions by key."""
    if requested is None or isinstance(requested, Mapping):
        return requested or {}
    if len(tensors) != 1:
        raise ValueError(
            f"dims={requested!r} names the dimensions of one variable, but the file holds "
            f"{len(tensors)}; give a mapping of keys to such names"
        )
    return {tensors[0].key: requested}


def dims_of(
    tensor: Stored, requested: Mapping[str, Sequence[str]], keys: set[str]
) -> tuple[str, ...]:
    """Names for the dimensions of a tensor, none of which is a key."""
    key = tensor.key
    default = default_dims(key, len(tensor.shape), keys)
    if key not in requested:
        return default
    names = named_dims(requested, key, default)
    for name in names:
        if name in keys:
            raise ValueError(
                f"dims={requested!r} gives a dimension of {key!r} the name of the variable "
                f"{name!r}; choose another"
            )
    return names


def default_dims(key: str, rank: int, keys: set[str]) -> tuple[str, ...]:
    """Names for dimensions that no one has named."""
    default = tuple([f"{key}_dim_{axis}" for axis in range(rank)])
    if keys.isdisjoint(default):
        return default
    return tuple(_unlike(name, keys) for name in default)


def _unlike(name: str, keys: set[str]) -> str:
    while name in keys:
        name += "_"
    return name


_offset = attrgetter("offset")


def round_up(position: int, multiple: int) -> int:
    """The next multiple at or after a position."""
    return -(-position // multiple) * multiple


def check_placement(path: str, contents: Contents, size: int) -> None:
    """Refuse data outside of the file, in its header, or in the data of another tensor."""
    stop, before = contents.data_start, "the header"
    for tensor in sorted(contents.tensors, key=_offset):
        if not contents.data_start <= tensor.offset <= tensor.stop <= size:
            raise TensorFormatError(
                path,
                f"the data of {tensor.key!r}",
                f"bytes {tensor.offset} to {tensor.stop}",
                f"a place between byte {contents.data_start} and the end at byte {size}",
                "the file is incomplete or its header damaged; fetch it again",
                offset=tensor.offset,
            )
        if not tensor.nbytes:
            continue
        if tensor.offset < stop:
            raise TensorFormatError(
                path,
                f"the data of {tensor.key!r}",
                f"bytes {tensor.offset} to {tensor.stop}",
                f"data after byte {stop}, where those of {before} end",
                "two tensors cannot share bytes; the header is damaged",
                offset=tensor.offset,
            )
        stop, before = tensor.stop, repr(tensor.key)


def check_alignment(
    path: str, tensors: Sequence[Stored], start: int, stop: int, alignment: int
) -> None:
    """Refuse data that lie elsewhere than a writer puts them who aligns each tensor."""
    position = start
    for tensor in sorted(tensors, key=_offset):
        if not tensor.nbytes:
            continue
        if tensor.offset >= position + alignment or (tensor.offset - start) % alignment:
            raise TensorFormatError(
                path,
                f"the data of {tensor.key!r}",
                f"at byte {tensor.offset - start} of the data section",
                f"the first multiple of {alignment} from {position - start} on",
                "the header is damaged; fetch the file again",
                offset=tensor.offset,
            )
        position = max(position, tensor.stop)
    if stop - position >= alignment:
        raise TensorFormatError(
            path,
            "the data section",
            f"{stop - position} bytes more than its tensors need",
            f"fewer than {alignment}",
            "the header is damaged; fetch the file again",
            offset=position,
        )


def follow_each_other(tensors: Iterable[Stored], start: int, alignment: int) -> int | None:
    """Whether data lie without any gaps but those of their alignment."""
    position = start
    for tensor in sorted(tensors, key=_offset):
        if tensor.offset != round_up(position, alignment):
            return None
        position = tensor.stop
    return position


def first_that_fits(
    candidates: Sequence[Callable[[], tuple[Contents, bool]]],
) -> tuple[Contents, bool]:
    """The first reading of a header whose data lie as its writer puts them."""
    readable: list[tuple[Contents, bool]] = []
    errors: list[TensorFormatError] = []
    for candidate in candidates:
        try:
            contents, fits = candidate()
        except TensorFormatError as error:
            errors.append(error)
            continue
        if fits:
            return contents, True
        readable.append((contents, False))
    if readable:
        return readable[0]
    raise errors[0]


def check_checksum(
    reader: HeaderReader, options: OpenOptions, stored: int, at: int, start: int, stop: int
) -> tuple[Finding, ...]:
    """Compare the stored checksum with that of the header's bytes."""
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
