"""The plan of a file."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from xarray import Variable

from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.selection import Indices
from xr_tensorfmt.writing.encoding import Conversion


@dataclass(frozen=True)
class Piece:
    """Bytes of a file that do not depend on values, such as a header, at an offset."""

    offset: int
    data: bytes


@dataclass(frozen=True, eq=False)
class PlannedVariable:
    """A variable (in memory, lazy or in dask chunks), and its layout and dtype in the file."""

    variable: Variable
    layout: Layout
    conversion: Conversion
    indices: tuple[Indices, ...] | None = None
    """The elements to write along every axis in file order. By default, all."""


@dataclass(frozen=True, eq=False)
class FilePlan:
    """A file whose values are not computed yet.

    Parameters
    ----------
    size : int
        Size in bytes. Bytes without a piece or variable are zero.
    pieces : tuple of Piece
        The header, then other known bytes, in file order.
    variables : tuple of PlannedVariable
        The variables.
    siblings : tuple of FilePlan
        Other files in the same directory, which are complete before this file appears.
    find_orphans : callable, optional
        Returns the names of sibling files that only the replaced file describes, given the content
        of that file. They are removed after the new file appears. Raises ValueError, also before
        values are computed, if that file must not be replaced.
    conflicts : tuple of str
        Names of siblings with another form of the data. Writing is refused if one exists.
    name : str
        File name of a sibling.
    is_kept : callable, optional
        Returns whether an existing sibling with this content is kept. Raises ValueError if it must
        not be replaced.
    """

    size: int
    pieces: tuple[Piece, ...]
    variables: tuple[PlannedVariable, ...]
    siblings: tuple[FilePlan, ...] = ()
    find_orphans: Callable[[bytes], Collection[str]] | None = None
    conflicts: tuple[str, ...] = ()
    name: str = ""
    is_kept: Callable[[bytes], bool] | None = None
