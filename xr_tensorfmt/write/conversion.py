"""From the dtype that a user has to the one that a file has, without losing anything in silence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.elements import Array, Element


@dataclass(frozen=True)
class Conversion:
    """What becomes of values before they are packed.

    Parameters
    ----------
    name : str
        The variable, for errors.
    element : Element
        What the file holds.
    exact : bool
        Whether every value must be one that the element has. Where the user has asked for the
        dtype, numbers of it may be rounded, but never become another integer or infinite.
    """

    name: str
    element: Element
    exact: bool

    def apply(self, values: Array) -> Array:
        """Convert some values.

        Parameters
        ----------
        values : ndarray
            The values.

        Returns
        -------
        ndarray of ``element.dtype``

        Raises
        ------
        ValueError
            One of them does not survive it.
        """
        dtype = self.element.dtype
        if values.dtype == dtype:
            converted = values
        else:
            with np.errstate(all="ignore"):
                converted = values.astype(dtype)
            self._check(values, self._kept(values, converted))
        if self.element.dtype != self.element.stored:
            self._check_stored(converted)
        return converted

    def _kept(self, values: Array, converted: Array) -> Array:
        """Which values are still what they were, or as near to it as was asked for."""
        if self.exact or converted.dtype.kind not in "fc":
            same = converted.astype(values.dtype) == values
            return np.asarray(same | ((converted != converted) & (values != values)))
        return np.asarray(np.isfinite(converted) | ~np.isfinite(values))

    def _check_stored(self, values: Array) -> None:
        if values.dtype.kind != "f":
            return
        stored = self.element.decode(self.element.encode(values))
        if self.exact:
            kept = (stored == values) | (np.isnan(stored) & np.isnan(values))
        else:
            kept = np.isfinite(stored) | ~np.isfinite(values)
            kept &= np.isnan(stored) == np.isnan(values)
        self._check(values, kept)

    def _check(self, values: Array, kept: Any) -> None:
        if np.all(kept):
            return
        found = values[~kept].flat[0]
        way_out = (
            f"pass encoding={{{self.name!r}: {{'dtype': {self.element.name!r}}}}} to round such "
            f"values, or drop_encoding() to keep them as {values.dtype}"
            if self.exact
            else "choose another dtype, or change the values"
        )
        raise ValueError(
            f"{self.name!r} holds {found!r}, which {self.element.name} has no value for; {way_out}"
        )
