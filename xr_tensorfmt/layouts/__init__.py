"""How values lie in bytes, one idea a module."""

from __future__ import annotations

from xr_tensorfmt.layouts.base import Layout
from xr_tensorfmt.layouts.dense import Dense
from xr_tensorfmt.layouts.pairs import Pairs
from xr_tensorfmt.layouts.records import Records
from xr_tensorfmt.layouts.view import Transposed, column_major, transposed

__all__ = ["Dense", "Layout", "Pairs", "Records", "Transposed", "column_major", "transposed"]
