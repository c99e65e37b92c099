"""The header of an array, which numpy's own parser reads, and what of it xarray can hold."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from math import prod
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib import format as npy

from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Boolean, Element, Plain
from xr_tensorfmt.core.header import check_rank, check_size
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.views import column_major
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.npy import MAGIC

VERSIONS = ((1, 0), (2, 0), (3, 0))
"""Versions of the header."""

MOST_HEADER_BYTES = 10_000
"""Limit on the length of the header, the same as numpy's own."""

HEAD_BYTES = MOST_HEADER_BYTES + 16
"""Bytes from the start of an array that hold its header."""

_TIME_UNITS = ("s", "ms", "us", "ns")
"""Units of times that xarray holds."""

MOST_ELEMENT_BYTES = 1 << 24
"""Limit on the bytes of an element, which is a string then; dask makes one to look at its type."""

# What numpy's parser raises for headers that are damaged. They are short, so that where memory ends
# it is that of Python's parser, by signs or parentheses within each other.
_UNREADABLE = (
    ValueError,
    TypeError,
    SyntaxError,
    OverflowError,
    RecursionError,
    MemoryError,
    TokenError,
)


@dataclass(frozen=True)
class Header:
    """The header of an array, and where its values begin."""

    shape: tuple[int, ...]
    element: Element
    is_fortran: bool
    offset: int
    version: str

    @property
    def stop(self) -> int:
        """The byte after the values."""
        return self.offset + prod(self.shape) * self.element.stored.itemsize

    @property
    def layout(self) -> Layout:
        """Where the values are."""
        if self.is_fortran:
            return column_major(Dense(self.shape[::-1], self.element, self.offset))
        return Dense(self.shape, self.element, self.offset)

    def encoding(self, **more: str) -> dict[str, Any]:
        """The encoding of a variable, of which more is known."""
        facts = {
            **more,
            "version": self.version,
            "offset": self.offset,
            "order": "F" if self.is_fortran else "C",
            "dtype": self.element.stored.str,
        }
        return {"tensorfmt": facts, "dtype": self.element.encoding}


class NotHeldError(TensorFormatError):
    """An array is not damaged, and xarray cannot hold it lazily."""


def parse(path: str, head: bytes, offset: int, array: str) -> Header:
    """Parse the header of an array at an offset.

    Parameters
    ----------
    path : str
        The file, for errors.
    head : bytes
        What begins there, at most `HEAD_BYTES`.
    offset : int
        The offset.
    array : str
        What errors call the array.

    Returns
    -------
    Header

    Raises
    ------
    NotHeldError
        Its dtype is none that can be read lazily.
    TensorFormatError
        It is damaged.
    """
    if not head.startswith(MAGIC):
        hint = "the file is damaged, or of another format"
        found = repr(head[: len(MAGIC)])
        raise TensorFormatError(path, f"the start of {array}", found, repr(MAGIC), hint, offset)
    version = tuple(head[len(MAGIC) :][:2])
    if version not in VERSIONS:
        hint = "the file is of a newer numpy, which can save it again"
        field, expected = f"the version of {array}", "1.0, 2.0 or 3.0"
        raise TensorFormatError(path, field, _dotted(version), expected, hint, offset)
    file = BytesIO(head)
    try:
        npy.read_magic(file)
        # Version 3 differs from version 2 in the names of fields alone.
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, dtype = read(file, max_header_size=MOST_HEADER_BYTES)
    except _UNREADABLE as error:
        found = f"not readable ({str(error).partition(chr(10))[0]})"
        expected = "a header that numpy reads"
        hint = "the file is incomplete or damaged"
        field = f"the header of {array}"
        raise TensorFormatError(path, field, found, expected, hint, offset) from None
    shape = tuple(map(int, shape))
    element = _element(path, dtype, offset, array)
    check_rank(path, array, len(shape), offset)
    if min(shape, default=0) < 0:
        hint = "the header is damaged"
        raise TensorFormatError(path, f"the shape of {array}", shape, "lengths", hint, offset)
    if element.stored.itemsize > MOST_ELEMENT_BYTES:
        found, hint = f"{element.stored.itemsize} bytes", "the header is damaged"
        expected = f"at most {MOST_ELEMENT_BYTES} bytes"
        raise TensorFormatError(path, f"an element of {array}", found, expected, hint, offset)
    check_size(path, shape, element.stored.itemsize, offset)
    return Header(shape, element, is_fortran, offset + file.tell(), _dotted(version))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _element(path: str, dtype: np.dtype[Any], offset: int, array: str) -> Element:
    """How the elements of a dtype are stored."""
    expected = "numbers, bools, strings, or times in s, ms, us or ns"
    hint = None
    if dtype.hasobject:
        hint = (
            "Python objects are a pickle, which can run any code: where you trust the file, load "
            "it by np.load(path, allow_pickle=True) and make it an array of numbers or strings"
        )
    elif dtype.names is not None:
        fields = ", ".join(map(repr, dtype.names))
        hint = f"load it by np.load(path, mmap_mode='r') and take one of the fields {fields}"
    elif dtype.kind in "mM" and np.datetime_data(dtype) not in [(unit, 1) for unit in _TIME_UNITS]:
        hint = f"load it by np.load(path) and convert it by .astype('{dtype.kind}8[s]')"
    elif dtype.kind not in "biufcmMSU" or not dtype.itemsize or dtype.subdtype:
        hint = (
            "load it by np.load(path) and convert it by .view(...) or .astype(...); numpy writes "
            "so what other packages call bfloat16 or float8"
        )
    if hint is not None:
        raise NotHeldError(path, f"the dtype of {array}", dtype, expected, hint, offset)
    return Boolean() if dtype.kind == "b" else Plain(dtype)
