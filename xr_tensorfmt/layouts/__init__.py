"""How values lie in bytes, one idea a module."""

from __future__ import annotations

from xr_tensorfmt.layouts.arithmetic import ComplexPlanes, Conjugated, Scaled
from xr_tensorfmt.layouts.base import Layout
from xr_tensorfmt.layouts.bits import Bits
from xr_tensorfmt.layouts.blocks import Blocks
from xr_tensorfmt.layouts.computed import Diagonal, Ones, UnitVector
from xr_tensorfmt.layouts.dense import Dense
from xr_tensorfmt.layouts.held import Held
from xr_tensorfmt.layouts.labels import Labels
from xr_tensorfmt.layouts.mosaic import Mosaic, Tile
from xr_tensorfmt.layouts.pairs import Pairs
from xr_tensorfmt.layouts.records import Records
from xr_tensorfmt.layouts.rows import PaddedRows, TriangleRows
from xr_tensorfmt.layouts.scattered import Scattered
from xr_tensorfmt.layouts.triangle import Mirrored, Triangle
from xr_tensorfmt.layouts.view import OnlyRow, Transposed, column_major, transposed

__all__ = [
    "Bits",
    "Blocks",
    "ComplexPlanes",
    "Conjugated",
    "Dense",
    "Diagonal",
    "Held",
    "Labels",
    "Layout",
    "Mirrored",
    "Mosaic",
    "Ones",
    "OnlyRow",
    "PaddedRows",
    "Pairs",
    "Records",
    "Scaled",
    "Scattered",
    "Tile",
    "Transposed",
    "Triangle",
    "TriangleRows",
    "UnitVector",
    "column_major",
    "transposed",
]
