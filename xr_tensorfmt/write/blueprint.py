"""What a file will be, before any of its values is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xarray import Variable

from xr_tensorfmt.layouts import Layout
from xr_tensorfmt.write.conversion import Conversion
from xr_tensorfmt.write.draft import Piece


@dataclass(frozen=True, eq=False)
class Placed:
    """A variable and its place in the file.

    Parameters
    ----------
    variable : Variable
        The values, in memory, lazy or in chunks, and never gathered.
    layout : Layout
        Where they go: the layout with which they will be read.
    conversion : Conversion
        What becomes of their dtype.
    origin : tuple of int, optional
        Index of the first value in the layout, where the values are a part of it.
    """

    variable: Variable
    layout: Layout
    conversion: Conversion
    origin: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A whole file.

    Parameters
    ----------
    size : int
        Its bytes; those that no piece and no variable gives are zero.
    pieces : tuple of Piece
        The header first, then other bytes that are known already, in ascending order.
    placed : tuple of Placed
        The variables.
    """

    size: int
    pieces: tuple[Piece, ...]
    placed: tuple[Placed, ...]

    @property
    def compared(self) -> tuple[Placed, ...]:
        """The variables that must be compared with the file once it is written."""
        return tuple(each for each in self.placed if each.layout.is_compared_after_writing)


@dataclass(frozen=True, eq=False)
class Survey:
    """A file that is planned when its values have been looked at.

    Parameters
    ----------
    look : callable
        Computes what must be known of the values, without keeping them, and makes the Blueprint.
    """

    look: Callable[[], Blueprint]
