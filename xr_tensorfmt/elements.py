"""How the bytes of one element become one numpy value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, eq=False, repr=False)
class StoredDtype:
    """What a file holds where numpy has no dtype for it; for ``encoding["dtype"]``.

    It compares and prints as its name. Where a dtype is needed, as for writing to other formats,
    numpy takes it for that of the values.

    Parameters
    ----------
    name : str
        The field's usual word (``"bfloat16"``).
    dtype : dtype
        dtype of the values.
    """

    name: str
    dtype: np.dtype[Any]

    def __eq__(self, other: object) -> bool:
        return self.name == (other.name if isinstance(other, StoredDtype) else other)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return repr(self.name)

    def __str__(self) -> str:
        return self.name


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
    def decode_into(self, values: Array, raw: Array) -> None:
        """Turn stored elements into values, in one pass.

        Parameters
        ----------
        values : ndarray of `dtype`
            Where the values go; contiguous.
        raw : ndarray of `stored`
            The same shape, any strides, any alignment; it may be a window of the file.

        Raises
        ------
        ElementError
            An element has no value of this dtype.
        """

    def decode(self, raw: Array) -> Array:
        """Turn stored elements into values, in memory of their own; as `decode_into`."""
        values = np.empty(raw.shape, dtype=self.dtype)
        self.decode_into(values, raw)
        return values

    def encode(self, values: Array) -> Array:
        """Turn values into stored elements: the nearest ones where none is equal.

        Parameters
        ----------
        values : ndarray of `dtype`
            Any shape, any strides.

        Returns
        -------
        ndarray of `stored`
            The same shape, contiguous; it may be `values` itself.

        Raises
        ------
        NotImplementedError
            Nothing is written in this kind.
        """
        raise NotImplementedError(f"{self.name} is only read")

    @property
    def is_native(self) -> bool:
        """Whether the stored bytes are the values' bytes."""
        return False

    @property
    def encoding(self) -> np.dtype[Any] | StoredDtype:
        """What the file holds, for ``encoding["dtype"]``."""
        return StoredDtype(self.name, self.dtype)

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

    # numpy takes its time for these three, and a file may hold ten thousand tensors.
    @cached_property
    def name(self) -> str:
        """The dtype's name."""
        return self.file_dtype.name

    @property
    def stored(self) -> np.dtype[Any]:
        """The dtype with the byte order of the file."""
        return self.file_dtype

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The same in native byte order."""
        return self.stored.newbyteorder("=")

    @property
    def encoding(self) -> np.dtype[Any]:
        """The dtype with the byte order of the file."""
        return self.file_dtype

    @cached_property
    def is_native(self) -> bool:
        """Whether the file has the byte order of this machine."""
        return self.stored == self.dtype

    def decode_into(self, values: Array, raw: Array) -> None:
        """Copy into native byte order."""
        np.copyto(values, raw)

    def encode(self, values: Array) -> Array:
        """Copy into the byte order of the file, where it is another one."""
        return np.ascontiguousarray(values, dtype=self.stored).reshape(values.shape)

    def adopt(self, raw: Array) -> Array:
        """Change the byte order in place where that is possible at all."""
        if not raw.flags.aligned:
            return self.decode(raw)
        return raw if self.is_native else raw.byteswap(inplace=True).view(self.dtype)
