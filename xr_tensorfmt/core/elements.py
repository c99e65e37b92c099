"""Elements: how the stored bytes of a number are converted to a numpy value, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.locks import cached_property
from xr_tensorfmt.errors import TensorFormatError

Array = NDArray[Any]


@lru_cache
def build_file_dtype(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype of values for ``encoding["dtype"]`` that has the name of the stored dtype.

    The name is metadata of the dtype, which a copy or a pickle has, too. So a dtype of a file
    differs from a dtype that the user has set.
    """
    return np.dtype(dtype, metadata={"stored": name})


def get_stored_name(dtype: Any) -> str | None:
    """Return the name of the stored dtype, or None if a reader has not defined the dtype."""
    return (getattr(dtype, "metadata", None) or {}).get("stored")


@lru_cache
def get_dtype_name(dtype: Any) -> str:
    """Return the name of a dtype. numpy computes it slowly, and a file may have 10,000 tensors."""
    return str(dtype.name)


class Element(ABC):
    """A numeric type of a file, a frozen dataclass. Its values are in native byte order."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The usual name of the stored type (``"float64"``)."""

    @property
    @abstractmethod
    def stored(self) -> np.dtype[Any]:
        """dtype of the bytes in the file."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""

    @abstractmethod
    def decode_into(self, values: Array, raw: Array) -> None:
        """Convert stored elements, of any strides and alignment, to contiguous `values`."""

    def decode(self, raw: Array) -> Array:
        """Convert stored elements, without a copy if they are native and aligned."""
        if self.is_native and raw.flags.aligned:
            return raw
        values = np.empty(raw.shape, dtype=self.dtype)
        self.decode_into(values, raw)
        return values

    def encode(self, values: Array) -> Array:
        """Convert values to contiguous stored elements, rounded to the nearest."""
        raise NotImplementedError(f"{self.name} can only be read")

    @property
    def narrow(self) -> Element:
        """Elements whose values have the stored dtype, if ml_dtypes defines it."""
        return self

    @property
    def is_native(self) -> bool:
        """Whether the stored bytes equal the bytes of the values."""
        return False

    @property
    def encoding(self) -> np.dtype[Any]:
        """The stored dtype, for ``encoding["dtype"]``."""
        return build_file_dtype(self.name, self.dtype)

    @property
    def largest(self) -> float:
        """The largest finite value."""
        if self.dtype.kind == "b":
            return 1
        return float((np.iinfo if self.dtype.kind in "iu" else np.finfo)(self.dtype).max)

    @property
    def has_inf(self) -> bool:
        """Whether infinity is a value."""
        return self.dtype.kind in "fc"

    @property
    def has_nan(self) -> bool:
        """Whether NaN is a value."""
        return self.dtype.kind in "fc"


@dataclass(eq=False)
class ElementError(ValueError):
    """An element has no value. The reader adds the path, and the offset unless it is known."""

    position: int
    actual: Any
    expected: str
    hint: str
    field: str = "the element"
    offset: int | None = None

    def in_file(self, path: str, offset: int | None) -> TensorFormatError:
        """Return the error about the file, with the offset of the element."""
        return TensorFormatError(
            path, self.field, self.actual, self.expected, self.hint, offset=offset
        )


@dataclass(frozen=True)
class Plain(Element):
    """Elements that have a numpy dtype, with the byte order of the file."""

    file_dtype: np.dtype[Any]

    @cached_property
    def name(self) -> str:
        """The dtype's name."""
        return get_dtype_name(self.file_dtype)

    @property
    def stored(self) -> np.dtype[Any]:
        """The dtype with the byte order of the file."""
        return self.file_dtype

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The dtype in native byte order."""
        return self.file_dtype.newbyteorder("=")

    @property
    def encoding(self) -> np.dtype[Any]:
        """The dtype with the byte order of the file."""
        return build_file_dtype(self.name, self.file_dtype)

    @cached_property
    def is_native(self) -> bool:
        """Whether the byte order is native."""
        return self.stored == self.dtype

    def decode_into(self, values: Array, raw: Array) -> None:
        """Convert to native byte order."""
        np.copyto(values, raw)

    def encode(self, values: Array) -> Array:
        """Convert to the byte order of the file. Native values are not copied."""
        return np.ascontiguousarray(values, dtype=self.stored).reshape(values.shape)


@dataclass(frozen=True)
class Boolean(Element):
    """A byte: 0 is False and any other value is True. numpy's bool allows only 0 and 1."""

    name = "bool"
    stored = np.dtype(np.uint8)
    dtype = np.dtype(np.bool_)

    def decode_into(self, values: Array, raw: Array) -> None:
        """Compare with zero."""
        np.not_equal(raw, 0, out=values)

    def encode(self, values: Array) -> Array:
        """Convert to bytes 0 and 1, because an array of bool may contain other bytes."""
        raw: Array = np.ascontiguousarray(values).reshape(values.shape).view(np.uint8)
        return raw if raw.max(initial=0) <= 1 else np.minimum(raw, 1)
