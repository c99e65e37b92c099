"""Elements: how the stored bytes of a number are converted to a numpy value, and back.

Floating-point elements that numpy does not have are those of the package ml_dtypes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True)
class Element(ABC):
    """A numeric type of a file. Its values are in native byte order.

    Parameters
    ----------
    name : str
        The usual name of the stored type (``"float64"``).
    stored, dtype : numpy.dtype
        dtypes of the bytes in the file, and of the values.
    """

    name: str
    stored: np.dtype[Any]
    dtype: np.dtype[Any]

    @abstractmethod
    def decode(self, raw: Array) -> Array:
        """Convert stored elements to values, which may keep their byte order and alignment."""

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
        return self.stored == self.dtype

    @property
    def encoding(self) -> np.dtype[Any]:
        """The stored dtype, for ``encoding["dtype"]``."""
        return build_file_dtype(self.name, self.dtype)


class Plain(Element):
    """Elements that have a numpy dtype, with the byte order of the file."""

    def __init__(self, file_dtype: np.dtype[Any]) -> None:
        super().__init__(get_dtype_name(file_dtype), file_dtype, file_dtype.newbyteorder("="))

    @property
    def encoding(self) -> np.dtype[Any]:
        """The dtype with the byte order of the file."""
        return build_file_dtype(self.name, self.stored)

    def decode(self, raw: Array) -> Array:
        """Return the elements themselves."""
        return raw

    def encode(self, values: Array) -> Array:
        """Convert to the byte order of the file. Native values are not copied."""
        return np.ascontiguousarray(values, dtype=self.stored).reshape(values.shape)


class Boolean(Element):
    """A byte: 0 is False and any other value is True. numpy's bool allows only 0 and 1."""

    def __init__(self) -> None:
        super().__init__("bool", np.dtype(np.uint8), np.dtype(np.bool_))

    def decode(self, raw: Array) -> Array:
        """Compare with zero."""
        return raw.astype(np.bool_, order="C")

    def encode(self, values: Array) -> Array:
        """Convert to bytes 0 and 1, because an array of bool may contain other bytes."""
        raw: Array = np.ascontiguousarray(values).reshape(values.shape).view(np.uint8)
        return raw if raw.max(initial=0) <= 1 else np.minimum(raw, 1)


# numpy converts indices to 8 bytes. This number of indices fits into the cache.
_CACHED_INDICES = 1 << 15

FLOAT8_NAMES = tuple(
    f"float8_{kind}" for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")
)
"""Names of the one-byte dtypes of ml_dtypes that `Narrow` supports."""


class Narrow(Element):
    """A floating-point number of one or two bytes, bfloat16, that ml_dtypes defines.

    Values are float32, without loss.
    """

    def __init__(self, name: str, order: Literal["<", ">"] = "<") -> None:
        bits = np.dtype(np.uint8 if name in FLOAT8_NAMES else f"{order}u2")
        super().__init__(name, bits, np.dtype(np.float32))

    @property
    def narrow(self) -> Element:
        """Elements whose values have the dtype of ml_dtypes."""
        return Plain(_get_narrow_dtype(self.name).newbyteorder(self.stored.byteorder))

    def decode(self, raw: Array) -> Array:
        """Convert to float32. Looking up bytes is several times faster than ml_dtypes."""
        if raw.itemsize > 1:
            native = raw.astype(np.uint16, copy=False)
            return native.view(_get_narrow_dtype(self.name)).astype(np.float32, order="C")
        values, table = np.empty(raw.shape, self.dtype), _compute_float8_values(self.name)
        flat, results = np.ravel(raw), values.reshape(-1)
        for start in range(0, flat.size, _CACHED_INDICES):
            part = slice(start, start + _CACHED_INDICES)
            # "clip" is the fastest mode, and no byte is out of bounds.
            np.take(table, flat[part], out=results[part], mode="clip")
        return values

    def encode(self, values: Array) -> Array:
        """Round to nearest, ties to even. Values that are too large become infinite or NaN."""
        with np.errstate(invalid="ignore"):  # signaling NaNs become quiet
            rounded = values.astype(_get_narrow_dtype(self.name), order="C")
        return rounded.view(f"u{rounded.itemsize}").astype(self.stored, copy=False)


@cache
def _get_narrow_dtype(name: str) -> np.dtype[Any]:
    """Return a dtype of ml_dtypes, which is imported at first use."""
    import ml_dtypes  # noqa: PLC0415  # takes 10 ms

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


@cache
def _compute_float8_values(name: str) -> NDArray[np.float32]:
    """Return the value of every byte."""
    return np.arange(1 << 8, dtype=np.uint8).view(_get_narrow_dtype(name)).astype(np.float32)


def build_elements(dtypes: Iterable[str], order: Literal["<", ">"] = "<") -> dict[str, Element]:
    """Return the element of every dtype name, in a byte order."""
    narrow = (Narrow(name, order) for name in ("bfloat16", *FLOAT8_NAMES))
    special: dict[str, Element] = {element.name: element for element in (Boolean(), *narrow)}
    # The string makes numpy return its singleton if the byte order is native.
    return {
        name: special.get(name) or Plain(np.dtype(np.dtype(name).newbyteorder(order).str))
        for name in dtypes
    }
