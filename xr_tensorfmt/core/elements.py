"""Elements: how the stored bytes of a number are converted to a numpy value, and back.

Floating-point elements that numpy does not have are those of the package ml_dtypes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Literal

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


class Element(ABC):
    """A numeric type of a file, a frozen dataclass. Its values are in native byte order.

    Attributes
    ----------
    name : str
        The usual name of the stored type (``"float64"``).
    stored, dtype : numpy.dtype
        dtypes of the bytes in the file, and of the values.
    """

    if TYPE_CHECKING:  # a subclass has fields or properties

        @property
        def name(self) -> str: ...  # noqa: D102

        @property
        def stored(self) -> np.dtype[Any]: ...  # noqa: D102

        @property
        def dtype(self) -> np.dtype[Any]: ...  # noqa: D102

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


@dataclass(frozen=True)
class Plain(Element):
    """Elements that have a numpy dtype, with the byte order of the file."""

    file_dtype: np.dtype[Any]

    @property
    def name(self) -> str:
        """The dtype's name."""
        return get_dtype_name(self.file_dtype)

    @property
    def stored(self) -> np.dtype[Any]:
        """The dtype with the byte order of the file."""
        return self.file_dtype

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype in native byte order."""
        return self.file_dtype.newbyteorder("=")

    @property
    def encoding(self) -> np.dtype[Any]:
        """The dtype with the byte order of the file."""
        return build_file_dtype(self.name, self.file_dtype)

    @property
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


# numpy converts indices to 8 bytes. This number of indices fits into the cache.
_CACHED_INDICES = 1 << 15

FLOAT8_NAMES = tuple(
    f"float8_{kind}" for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")
)
"""Names of the one-byte dtypes of ml_dtypes that `Narrow` supports."""


@dataclass(frozen=True)
class Narrow(Element):
    """A floating-point number of one or two bytes, bfloat16, that ml_dtypes defines.

    Values are float32, without loss.
    """

    name: str
    order: Literal["<", ">"] = "<"
    dtype = np.dtype(np.float32)

    @property
    def stored(self) -> np.dtype[Any]:
        """The bits."""
        return np.dtype(np.uint8 if self.name in FLOAT8_NAMES else f"{self.order}u2")

    @property
    def narrow(self) -> Element:
        """Elements whose values have the dtype of ml_dtypes."""
        return Plain(_get_narrow_dtype(self.name).newbyteorder(self.order))

    def decode_into(self, values: Array, raw: Array) -> None:
        """Convert to float32. Looking up bytes is several times faster than ml_dtypes."""
        if raw.itemsize > 1:
            native = raw.astype(np.uint16, copy=False)
            np.copyto(values, native.view(_get_narrow_dtype(self.name)))
            return
        table = _compute_float8_values(self.name)
        flat, results = np.ravel(raw), values.reshape(-1)
        for start in range(0, flat.size, _CACHED_INDICES):
            part = slice(start, start + _CACHED_INDICES)
            # "clip" is the fastest mode, and no byte is out of bounds.
            np.take(table, flat[part], out=results[part], mode="clip")

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
