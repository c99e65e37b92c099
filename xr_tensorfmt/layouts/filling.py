"""Elements that are filled in one by one, and the check that none is given two values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.elements import Array
from xr_tensorfmt.extents import Integers


class Filling:
    """Zeros, some of which become values.

    Parameters
    ----------
    size : int
        Number of elements.
    components : int
        Numbers that make up an element.
    dtype : dtype
        What each number is.

    Attributes
    ----------
    values : ndarray
        Shape ``(size, components)``.
    """

    def __init__(self, size: int, components: int, dtype: np.dtype[Any]) -> None:
        self.values: Array = np.zeros((size, components), dtype=dtype)
        self._known = np.zeros(size, dtype=bool)

    def repeated(self, positions: Integers) -> int | None:
        """Find an element that would be filled for the second time.

        Parameters
        ----------
        positions : ndarray
            Elements about to be filled.

        Returns
        -------
        int or None
            Where in `positions` the first such element is.
        """
        again = self._known[positions]
        order = np.argsort(positions, kind="stable")
        again[order[1:]] |= positions[order[1:]] == positions[order[:-1]]
        return int(np.argmax(again)) if again.any() else None

    def put(self, positions: Integers, values: Array) -> int | None:
        """Fill elements.

        Parameters
        ----------
        positions : ndarray
            The elements.
        values : ndarray
            What they are, a row an element.

        Returns
        -------
        int or None
            Where in `positions` the first element is that has another value already.
        """
        unequal = self._known[positions] & ~_equal(self.values[positions], values)
        self.values[positions] = values
        self._known[positions] = True
        unequal |= ~_equal(self.values[positions], values)
        return int(np.argmax(unequal)) if unequal.any() else None


def _equal(left: Array, right: Array) -> NDArray[np.bool_]:
    """Rows all of whose numbers are the same; NaN is the same as NaN."""
    with np.errstate(invalid="ignore"):  # comparing signalling NaNs warns
        same = (left == right) | ((left != left) & (right != right))
    return np.asarray(same.all(axis=-1))
