"""The plan of a file: its bytes, its variables, and the conversion of their values."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from xarray import Variable

from xr_tensorfmt.core.elements import Array, Element, Plain, get_stored_name
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.selection import Indices


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
    list_replaced : callable, optional
        Returns the names of the siblings of the replaced file, given its content. Those that are
        not written again are removed at the end. Raises ValueError if it must not be replaced.
    conflicts : tuple of str
        Names of siblings with another form of the data. Writing is refused if one exists.
    rename : callable, optional
        Returns the plan with new names of siblings, which replace no file.
    name : str
        File name of a sibling.
    """

    size: int
    pieces: tuple[Piece, ...]
    variables: tuple[PlannedVariable, ...]
    siblings: tuple[FilePlan, ...] = ()
    list_replaced: Callable[[bytes], Collection[str]] | None = None
    conflicts: tuple[str, ...] = ()
    rename: Callable[[], FilePlan] | None = None
    name: str = ""


# Elements to check at a time, to keep temporary arrays in the cache.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Conversion:
    """The dtype of a variable in the file, and whether values must be exact or may be rounded."""

    name: str
    element: Element
    exact: bool

    def apply(self, values: Array) -> Array:
        """Convert values. Raise ValueError if a value would change or overflow."""
        exact = self.exact or values.dtype.kind in "iu"
        dtype = self.element.dtype
        if values.dtype == dtype:
            converted = values
        else:
            with np.errstate(all="ignore"):
                converted = values.astype(dtype)
            self._check(values, _is_preserved(values, converted, exact), values.dtype)
        if converted.dtype.kind == "f" and not isinstance(self.element, Plain):
            flat, limit = np.ravel(converted, order="K"), _find_limit(self.element)
            for first in range(0, flat.size, _BLOCK):
                block = flat[first : first + _BLOCK]
                stored = self.element.decode(self.element.encode(block))
                self._check(block, _is_preserved(block, stored, exact, limit), values.dtype)
        return converted

    def _check(self, values: Array, preserved: Any, dtype: np.dtype[Any]) -> None:
        """Raise ValueError if a value is not preserved. `dtype` is the dtype of the data."""
        if np.all(preserved):
            return
        way, other = "change the values", "another dtype"
        if self.exact and self.element.dtype.kind in "fc" and dtype.kind not in "iu":
            encoding = {self.name: {"dtype": self.element.name}}
            option = f"--dtype {self.name}={self.element.name}"
            way, other = f"pass {encoding=} or {option} to approximate such values", f"'{dtype}'"
        value = values[~preserved].flat[0]
        note = " (NaT in times)" if dtype == np.int64 and value == np.iinfo(np.int64).min else ""
        raise ValueError(
            f"{self.name!r} contains {value!r}{note}, which {self.element.name} cannot represent; "
            f"{way}, or choose {other} for the file to keep them"
        )


@cache
def _find_limit(element: Element) -> float:
    """Return the finite value that an element stores for infinity, or infinity."""
    limit = element.decode(element.encode(np.array([np.inf], element.dtype)))[0]
    return float(limit) if np.isfinite(limit) else np.inf


def _is_preserved(values: Array, stored: Array, exact: bool, limit: float = np.inf) -> Array:
    """Return a mask of values that are unchanged, or rounded if that is allowed up to a limit."""
    if "c" in (values.dtype.kind, stored.dtype.kind):  # a NaN in one part does not excuse the other
        parts = ((values.real, stored.real), (values.imag, stored.imag))
        return np.logical_and(*(_is_preserved(*part, exact) for part in parts))
    with np.errstate(all="ignore"):
        same = stored.astype(values.dtype) == values
    same &= _is_in_range(values, stored.dtype) & _is_in_range(stored, values.dtype)
    if values.dtype.kind in "iu" and stored.dtype.kind in "iu":
        same &= (values < 0) == (stored < 0)  # -1 and 255 are the same byte
    same |= (stored != stored) & (values != values)
    if not exact and stored.dtype.kind == "f":  # large values may be stored as the largest value
        same |= np.isfinite(values) & np.isfinite(stored) & (np.abs(values) <= limit)
    return np.asarray(same)


def _is_in_range(values: Array, dtype: np.dtype[Any]) -> Any:
    """Return a mask of floats in the range of an integer dtype. Other casts are undefined."""
    if values.dtype.kind != "f" or dtype.kind not in "iu":
        return True
    least, stop = float(np.iinfo(dtype).min), float(np.iinfo(dtype).max) + 1
    with np.errstate(all="ignore"):  # the limits may be infinite in half precision
        return np.isfinite(values) & (values >= least) & (values < stop)


def format_dtype(dtype: Any) -> str:
    """Return numpy's name of a dtype, or its str if numpy does not have the dtype."""
    try:
        return str(np.dtype(get_stored_name(dtype) or dtype).name)
    except TypeError:
        return get_stored_name(dtype) or str(dtype)


def is_numeric(dtype: Any) -> bool:
    """Return whether a dtype is a number or bool."""
    if not isinstance(dtype, np.dtype):
        return False
    return dtype.kind in "biufc" or (dtype.kind == "V" and np.can_cast(dtype, np.float32))
