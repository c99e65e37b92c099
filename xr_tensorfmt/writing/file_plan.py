"""The plan of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from xarray import Variable

from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.writing.block_grids import GriddedVariable, build_block_grids
from xr_tensorfmt.writing.conversion import Conversion
from xr_tensorfmt.writing.write_target import Piece


@dataclass(frozen=True, eq=False)
class PlannedVariable:
    """A variable and the layout that it has in the file.

    Parameters
    ----------
    variable : Variable
        The values: in memory, lazy or in chunks of dask.
    layout : Layout
        The layout with which they will be read.
    conversion : Conversion
        The dtype that they are stored with.
    origin : tuple of int, optional
        Index of the first value in the layout, where the variable is only a part of it.
    """

    variable: Variable
    layout: Layout
    conversion: Conversion
    origin: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class SiblingFile:
    """Another file of a format that has several in one directory.

    Parameters
    ----------
    name : str
        Its name.
    file_plan : FilePlan
        Its content.
    is_kept : callable, optional
        Whether a file of that name with this content says the same, so that it stays as it is;
        ValueError where it must not be replaced.
    """

    name: str
    file_plan: FilePlan
    is_kept: Callable[[bytes], bool] | None = None


@dataclass(frozen=True, eq=False)
class FilePlan:
    """A file before any of its values is computed.

    Parameters
    ----------
    size : int
        Its length in bytes; bytes that neither a piece nor a variable sets are zero.
    pieces : tuple of Piece
        The header first, then other bytes that are known, in ascending order.
    placed : tuple of PlannedVariable
        The variables.
    beside : tuple of SiblingFile
        Files in the same directory that are complete before this one appears.
    orphans : tuple of str
        Names of local files in the same directory that only the replaced file describes. They are
        removed after the new file appears.
    """

    size: int
    pieces: tuple[Piece, ...]
    placed: tuple[PlannedVariable, ...]
    beside: tuple[SiblingFile, ...] = ()
    orphans: tuple[str, ...] = ()

    @cached_property
    def block_grids(self) -> list[GriddedVariable]:
        """The variables that have elements, and their blocks."""
        return build_block_grids(self.placed)

    @property
    def compared(self) -> tuple[PlannedVariable, ...]:
        """The variables that must be compared with the file once it is written."""
        return tuple(
            each for each in self.placed if type(each.layout).compare is not Layout.compare
        )


@dataclass(frozen=True, eq=False)
class DeferredPlans:
    """A file whose plan depends on its values.

    Parameters
    ----------
    plans : callable
        Returns plans in the order in which to try them, and may compute values for each. The next
        plan is tried if a layout of a plan cannot represent a value.
    """

    plans: Callable[[], Iterable[FilePlan]]
