"""How values lie in bytes, one idea a module."""

from __future__ import annotations

from xr_tensorfmt.layouts.base import Layout
from xr_tensorfmt.layouts.blocks import Blocks
from xr_tensorfmt.layouts.dense import Dense
from xr_tensorfmt.layouts.held import Held
from xr_tensorfmt.layouts.labels import Labels
from xr_tensorfmt.layouts.pairs import Pairs
from xr_tensorfmt.layouts.records import Records
from xr_tensorfmt.layouts.scattered import Scattered
from xr_tensorfmt.layouts.view import Transposed, column_major, transposed

__all__ = [
    "Blocks",
    "Dense",
    "Held",
    "Labels",
    "Layout",
    "Pairs",
    "Records",
    "Scattered",
    "Transposed",
    "column_major",
    "transposed",
]
