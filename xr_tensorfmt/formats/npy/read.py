"""Reading of arrays, whose headers numpy's own parser reads: one in a file, or several in a zip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from tokenize import TokenError
from typing import Any
from zipfile import ZipInfo

import numpy as np
from numpy.lib import format as npy

from xr_tensorfmt.contract import (
    Boolean,
    Container,
    End,
    Finding,
    HeaderReader,
    OpenOptions,
    Plain,
    Severity,
    Source,
    SourceChangedError,
    TensorFormatError,
    check_rank,
    finding_from_error,
    name_dims,
)
from xr_tensorfmt.formats._shared.keyed import StoredTensor, keyed_container
from xr_tensorfmt.formats._shared.zip_members import (
    Directory,
    check_checksums,
    read_directory,
    stored_content,
)
from xr_tensorfmt.formats.npy.spec import MAGIC, SUFFIX, default_dims

MAX_HEADER_BYTES = 10_000
"""Limit on the length of the header, the same as numpy's own."""

HEAD_BYTES = MAX_HEADER_BYTES + 16
"""Bytes from the start of an array that hold its header."""

MAX_ELEMENT_BYTES = 1 << 24
"""Limit on the bytes of an element, which is a string then; dask makes one to look at its type."""

MAX_DIRECTORY = 8 << 20
"""Limit on the bytes of the directory of a zip, enough for a hundred thousand arrays."""

# Version 3 differs from version 2 in the names of fields alone.
_PARSERS = {
    MAGIC + b"\1\0": npy.read_array_header_1_0,
    MAGIC + b"\2\0": npy.read_array_header_2_0,
    MAGIC + b"\3\0": npy.read_array_header_2_0,
}

# What the parsers raise for headers that are damaged. They are short, so that where memory ends it
# is that of Python's own parser, by signs or parentheses within each other.
_UNREADABLE = (ValueError, TypeError, SyntaxError, IndexError, OverflowError, TokenError)
_TOO_DEEP = (RecursionError, MemoryError)

_TIMES = [(unit, 1) for unit in ("s", "ms", "us", "ns")]
"""Units of times that xarray holds."""


class NotHeldError(TensorFormatError):
    """A member of a zip is not damaged, and no variable can be made of it."""


def read_npy(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a file of one array."""
    path = reader.source.name
    array = parse(path, reader.read_head(HEAD_BYTES), 0, options.name, "the array")
    reader.check_complete(array.stop)
    dims = name_dims(options.dims, options.name, default_dims(len(array.shape)))
    # numpy.save appends arrays to a file that is open.
    end = End(reader.source, array.stop, "the first array")
    return Container((array.tensor(dims, {"format": "npy"}),), ends=(end,))


def read_npz(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the directory of a zip, and the headers of all arrays at once if that takes requests."""
    directory = read_directory(reader, MAX_DIRECTORY)
    arrays: dict[int, StoredTensor] = {}
    errors: dict[int, TensorFormatError] = {}

    def read_one(number: int) -> None:
        try:
            arrays[number] = _member(reader, directory.members[number])
        except SourceChangedError:
            raise
        except TensorFormatError as error:
            errors[number] = error

    reader.source.run(read_one, range(len(directory.members)))
    damaged = [error for error in errors.values() if not isinstance(error, NotHeldError)]
    if damaged and not arrays:
        raise damaged[0]
    tensors = [arrays[number] for number in sorted(arrays)]
    left_out = [_left_out(errors[number]) for number in sorted(errors)]
    path = reader.source.name
    container = keyed_container(path, options, tensors, {"format": "npz"}, findings=left_out)
    return replace(container, ends=(directory.end,), parsed=directory)


def _left_out(error: TensorFormatError) -> Finding:
    """Return the finding about a member that no variable represents."""
    finding = finding_from_error(error)
    severity: Severity = "warning" if isinstance(error, NotHeldError) else "error"
    return replace(finding, message=f"{finding.message}; it is left out", severity=severity)


def check_npz(source: Source, directory: Directory) -> Iterator[Finding]:
    """Check the CRC-32 of every member."""
    yield from check_checksums(source, directory.members)


def _member(reader: HeaderReader, member: ZipInfo) -> StoredTensor:
    """The array of a member, whose header follows that of the member."""
    path, at, file = reader.source.name, member.header_offset, member.filename
    key = file.removesuffix(SUFFIX)
    if key == file:
        found, expected = f"no name with {SUFFIX}", "an array"
        raise NotHeldError(path, f"the member {file!r}", found, expected, "unzip it", at)
    field = f"the member {key!r}"
    hint = (
        "parts of it cannot be read: load it by np.load and write it by np.savez, which does not "
        "compress"
    )
    start, head = stored_content(reader, member, field, hint, HEAD_BYTES)
    array = parse(path, head, start, key, f"the array {key!r}")
    if array.stop > start + member.file_size:
        found = f"{member.file_size} bytes"
        expected = f"{array.stop - start} for its shape {array.shape}"
        raise TensorFormatError(path, field, found, expected, "the file is damaged", at)
    return array


def parse(path: str, head: bytes, offset: int, key: str, title: str) -> StoredTensor:
    """Parse the header of an array at an offset, which begins with at most `HEAD_BYTES`."""

    def error(field: str, found: object, expected: str, hint: str) -> TensorFormatError:
        return TensorFormatError(path, f"{field} of {title}", found, expected, hint, offset)

    read, file = _PARSERS.get(head[:8]), BytesIO(head[8:])
    if read is None:
        expected = f"{MAGIC!r} and 1.0, 2.0 or 3.0"
        hint = "the file is damaged, of another format, or of a newer numpy that can save it again"
        raise error("magic and version", repr(head[:8]), expected, hint)
    try:
        lengths, is_fortran, dtype = read(file, max_header_size=MAX_HEADER_BYTES)
    except (*_UNREADABLE, *_TOO_DEEP) as fault:
        found = f"not readable ({str(fault).partition(chr(10))[0]})"
        expected, hint = "a header that numpy reads", "the file is incomplete or damaged"
        raise error("the header", found, expected, hint) from None
    if hint := _way_out(dtype):
        expected = "numbers, bools, strings, or times in s, ms, us or ns"
        raise NotHeldError(path, f"the dtype of {title}", dtype, expected, hint, offset)
    shape = tuple(map(int, lengths))
    check_rank(path, title, len(shape), offset)
    if min(shape, default=0) < 0:
        raise error("the shape", shape, "lengths", "the header is damaged")
    if dtype.itemsize > MAX_ELEMENT_BYTES:
        found, expected = f"{dtype.itemsize} bytes", f"at most {MAX_ELEMENT_BYTES} bytes"
        raise error("an element", found, expected, "the header is damaged")
    element = Boolean() if dtype.kind == "b" else Plain(dtype)
    start = offset + 8 + file.tell()
    stored = StoredTensor.of(path, key, shape, element, start, offset)
    return replace(stored, order="F" if is_fortran else "C")


def _way_out(dtype: np.dtype[Any]) -> str:
    """How else to load values that cannot be read lazily; an empty string where they can be."""
    if dtype.hasobject:
        return (
            "Python objects are a pickle, which can run any code: where you trust the file, load "
            "it by np.load(path, allow_pickle=True) and make it an array of numbers or strings"
        )
    if dtype.names is not None:
        fields = ", ".join(map(repr, dtype.names))
        return f"load it by np.load(path, mmap_mode='r') and take one of the fields {fields}"
    if dtype.kind in "mM" and np.datetime_data(dtype) not in _TIMES:
        return f"load it by np.load(path) and convert it by .astype('{dtype.kind}8[s]')"
    if dtype.kind not in "biufcmMSU" or not dtype.itemsize or dtype.subdtype:
        return (
            "load it by np.load(path) and convert it by .view(...) or .astype(...); numpy writes "
            "so what other packages call bfloat16 or float8"
        )
    return ""
