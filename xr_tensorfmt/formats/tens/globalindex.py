"""The global index of a stored pair, taken apart into the indices of the dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.elements import Array, Element, ElementError


@dataclass(frozen=True)
class IndexAlong(Element):
    """The index along one dimension, of an element given by its global index.

    Parameters
    ----------
    inner : int
        Product of the lengths of the dimensions that vary faster.
    length : int
        Length of the dimension.
    total : int
        Number of elements of the tensor.
    """

    inner: int
    length: int
    total: int

    @property
    def name(self) -> str:
        """What the file holds."""
        return "uint64"

    @property
    def stored(self) -> np.dtype[Any]:
        """The global index; little-endian whatever the byte order of the values."""
        return np.dtype("<u8")

    @property
    def dtype(self) -> np.dtype[Any]:
        """As numpy's own indices."""
        return np.dtype(np.int64)

    def decode_into(self, values: Array, raw: Array) -> None:
        """Divide, after checking that the index is one of the tensor's."""
        index = raw.astype(np.uint64)
        outside = index >= np.uint64(self.total)
        if outside.any():
            position = int(np.argmax(outside))
            raise ElementError(
                position,
                f"the global index {int(index.flat[position])}",
                f"one below {self.total}",
                "the file is damaged, or its dimension headers are wrong",
            )
        along = index // np.uint64(self.inner) % np.uint64(self.length)
        np.copyto(values, along, casting="unsafe")
