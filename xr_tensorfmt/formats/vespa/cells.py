"""The four cell types, by their numbers in the file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xr_tensorfmt.elements import Element, Plain
from xr_tensorfmt.narrow import BFloat16


@dataclass(frozen=True)
class CellType:
    """A cell type of Vespa.

    Parameters
    ----------
    name : str
        Vespa's word.
    element : Element
        How it is stored: big-endian, as everything in the format.
    """

    name: str
    element: Element


# Vespa cuts bfloat16 off where ml_dtypes rounds.
CELL_TYPES = (
    CellType("double", Plain(np.dtype(">f8"))),
    CellType("float", Plain(np.dtype(">f4"))),
    CellType("bfloat16", BFloat16(big_endian=True, rounding="down")),
    CellType("int8", Plain(np.dtype(np.int8))),
)
