"""What of a layout stands in the file: to look at the rest would take time and find nothing."""

from __future__ import annotations

from xr_tensorfmt.layouts import Diagonal, Layout, Mirrored, Ones, OnlyRow, Transposed, UnitVector
from xr_tensorfmt.layouts.arithmetic import Elementwise


def stored_part(layout: Layout) -> Layout | None:
    """The part of a layout that has bytes.

    Parameters
    ----------
    layout : Layout
        How the values of a tensor come from a file.

    Returns
    -------
    Layout or None
        One that computes and repeats nothing; None where nothing is stored.
    """
    while True:
        match layout:
            case OnlyRow() | Transposed() | Elementwise():
                layout = layout.inner
            case Mirrored():
                layout = layout.upper
            case Diagonal():
                layout = layout.values
            case Ones() | UnitVector():
                return None
            case _:
                return layout
