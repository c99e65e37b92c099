"""How the bytes of one element become one numpy value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Element(ABC):
    """A kind of stored element; its values are native-endian numpy values.

    Elements are frozen dataclasses, so that they compare and pickle by value.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """What the file holds, in the field's usual word (``"float64"``, ``"binary128"``)."""

    @property
    @abstractmethod
    def stored(self) -> np.dtype[Any]:
        """dtype under which the file's bytes are looked at."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""

    @abstractmethod
    def decode(self, raw: Array) -> Array:
        """Turn stored elements into values.

        Parameters
        ----------
        raw : ndarray of `stored`
            Any shape, any strides, any alignment; it may be a window of the file.

        Returns
        -------
        ndarray of `dtype`
            The same shape, in memory of its own.

        Raises
        ------
        ElementError
            An element has no value of this dtype.
        """

    @property
    def is_native(self) -> bool:
        """Whether the stored bytes are the values' bytes."""
        return False

    def adopt(self, raw: Array) -> Array:
        """Like `decode`, but the memory of `raw` may be used and become the result."""
        return self.decode(raw)


@dataclass(eq=False)
class ElementError(ValueError):
    """One element has no value; the Layout that reads it knows where it is.

    Parameters
    ----------
    position : int
        Flat C-order position in the array that was decoded.
    found : object
        What is there.
    expected : str
        What would have a value.
    hint : str
        What the user can do.
    """

    position: int
    found: Any
    expected: str
    hint: str


@dataclass(frozen=True)
class Plain(Element):
    """Elements that numpy knows, in either byte order.

    Parameters
    ----------
    file_dtype : dtype
        The dtype with the byte order of the file.
    """

    file_dtype: np.dtype[Any]

    @property
    def name(self) -> str:
        """The dtype's name."""
        return self.file_dtype.name

    @property
    def stored(self) -> np.dtype[Any]:
        """The dtype with the byte order of the file."""
        return self.file_dtype

    @property
    def dtype(self) -> np.dtype[Any]:
        """The same in native byte order."""
        return self.stored.newbyteorder("=")

    @property
    def is_native(self) -> bool:
        """Whether the file has the byte order of this machine."""
        return self.stored == self.dtype

    def decode(self, raw: Array) -> Array:
        """Copy into native byte order, in one pass."""
        values = np.empty(raw.shape, dtype=self.dtype)
        np.copyto(values, raw)
        return values

    def adopt(self, raw: Array) -> Array:
        """Change the byte order in place where that is possible at all."""
        if not raw.flags.aligned:
            return self.decode(raw)
        return raw if self.is_native else raw.byteswap(inplace=True).view(self.dtype)
