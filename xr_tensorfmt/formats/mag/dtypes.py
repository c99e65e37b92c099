"""The dtypes of MAG tensors, and the numbers that stand for them.

bfloat16 was once put in at 2 and float8_e4m3fn at 3, so that a number means nothing without the
container and its version. Source: the history of magnetron, seen in files of every release.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from xr_tensorfmt.elements import Element, Plain
from xr_tensorfmt.narrow import BFloat16, Boolean, Float8E4M3FN

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
    """What an element of a dtype is.

    Parameters
    ----------
    name : str
        A name of one of the numberings.
    big_endian : bool
        Byte order of the data; only a snapshot 300 can say so.

    Returns
    -------
    Element
    """
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
