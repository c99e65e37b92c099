"""TENS number types as Elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from xr_tensorfmt.elements import Element, Plain
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.tens.header import Header
from xr_tensorfmt.wide import Binary128, Integer128

_SIZES = {b"IEEE": (4, 8, 16)}
_INTEGER_SIZES = (1, 2, 4, 8, 16)
DTYPES = (
    *("float64", "float32", "complex128", "complex64"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
)
"""What is written; other numbers are only read."""

_KINDS = {b"uint": "<u", b"UINT": ">u", b"sint": "<i", b"SINT": ">i", b"IEEE": "<f"}


def element_of(header: Header, path: str) -> tuple[Element, int]:
    """What the elements of a tensor are.

    Two IEEE numbers are a complex element; other elements of several numbers get an axis of their
    own, as numpy has no type for them.

    Parameters
    ----------
    header : Header
        The file's header.
    path : str
        The file, for the message.

    Returns
    -------
    element : Element
        What lies along the fastest axis.
    components : int
        Length of the axis of components; 1 where there is none.

    Raises
    ------
    TensorFormatError
        No number of the type has that many bytes.
    """
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
    """The way back of `element_of`: how a header describes elements.

    Parameters
    ----------
    dtype : dtype
        One of `DTYPES`.
    components : int
        Length of the axis of components; 1 where there is none.

    Returns
    -------
    number_type : bytes
        One of the little-endian types.
    bytes_per_number : int
        Size of one number.
    numbers : int
        Numbers an element.
    """
    if dtype.kind == "c":
        return b"IEEE", dtype.itemsize // 2, 2
    return {"f": b"IEEE", "u": b"uint", "i": b"sint"}[dtype.kind], dtype.itemsize, components
