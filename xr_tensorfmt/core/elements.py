"""Elements: how the stored bytes of a number are converted to a numpy value, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, eq=False, repr=False)
class StoredDtype:
    """A stored dtype that numpy does not have, for ``encoding["dtype"]``."""

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
    """A numeric type of a file. Its values are numpy values in native byte order.

    Elements are frozen dataclasses, so they compare and pickle by value.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The usual name of the stored type (``"float64"``, ``"binary128"``)."""

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
        """Convert stored elements to values.

        Parameters
        ----------
        values : ndarray of `dtype`
            The output, contiguous.
        raw : ndarray of `stored`
            The elements, of the same shape, with any strides and alignment.

        Raises
        ------
        ElementError
            An element has no value of this dtype.
        """

    def decode(self, raw: Array) -> Array:
        """Convert stored elements to a new array. See `decode_into`."""
        values = np.empty(raw.shape, dtype=self.dtype)
        self.decode_into(values, raw)
        return values

    def encode(self, values: Array) -> Array:
        """Convert values to stored elements, rounded to the nearest.

        Parameters
        ----------
        values : ndarray of `dtype`
            The values, of any shape and strides.

        Returns
        -------
        ndarray of `stored`
            The elements, of the same shape and contiguous. May be `values` itself.

        Raises
        ------
        NotImplementedError
            The element can only be read.
        """
        raise NotImplementedError(f"{self.name} can only be read")

    @property
    def is_native(self) -> bool:
        """Whether the stored bytes equal the bytes of the values."""
        return False

    @property
    def encoding(self) -> np.dtype[Any] | StoredDtype:
        """The stored dtype, for ``encoding["dtype"]``."""
        return StoredDtype(self.name, self.dtype)

    @cached_property
    def token(self) -> str:
        """Identifier for names in dask."""
        return f"{self.name} in {self.stored}"

    def adopt(self, raw: Array) -> Array:
        """Convert stored elements, reusing their memory if possible."""
        return self.decode(raw)


@dataclass(eq=False)
class ElementError(ValueError):
    """An element has no value. The layout adds the path and offset.

    Parameters
    ----------
    position : int
        Flat position of the element in the array.
    actual : object
        The stored bytes or number.
    expected : str
        Description of a valid element.
    hint : str
        What the user can do.
    """

    position: int
    actual: Any
    expected: str
    hint: str


@dataclass(frozen=True)
class Plain(Element):
    """Elements that have a numpy dtype, in either byte order.

    Parameters
    ----------
    file_dtype : dtype
        The dtype with the byte order of the file.
    """

    file_dtype: np.dtype[Any]

    # Cached because numpy computes them slowly and a file may contain 10,000 tensors.
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
        """The dtype in native byte order."""
        return self.stored.newbyteorder("=")

    @property
    def encoding(self) -> np.dtype[Any]:
        """The dtype with the byte order of the file."""
        return self.file_dtype

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

    def adopt(self, raw: Array) -> Array:
        """Swap bytes in place if the array is aligned."""
        if not raw.flags.aligned:
            return self.decode(raw)
        return raw if self.is_native else raw.byteswap(inplace=True).view(self.dtype)


# numpy converts indices to 8 bytes. This number of indices fits into the cache.
_CACHED_INDICES = 1 << 15
_HALF = np.uint32(16)


@dataclass(frozen=True)
class BFloat16(Element):
    """The upper half of a float32. Values are float32, without loss."""

    big_endian: bool = False
    rounding: Literal["nearest", "down"] = "nearest"
    name = "bfloat16"
    dtype = np.dtype(np.float32)

    @property
    def stored(self) -> np.dtype[Any]:
        """The bits."""
        return np.dtype(">u2" if self.big_endian else "<u2")

    def decode_into(self, values: Array, raw: Array) -> None:
        """Shift the bits, to keep the payload of NaN."""
        np.left_shift(raw, np.uint32(16), out=values.view(np.uint32), dtype=np.uint32)

    def encode(self, values: Array) -> Array:
        """Keep the upper half; NaN stays NaN."""
        bits = _bits(values)
        upper = bits >> _HALF
        if self.rounding == "nearest":
            # Add half of the last place, or a little less if the last place is even.
            upper &= np.uint32(1)
            upper += np.uint32(0x7FFF)
            upper += bits
            upper >>= _HALF
        stored = np.asarray(upper).astype(self.stored)
        nan = np.isnan(values)
        if nan.any():
            kept = bits[nan] >> _HALF
            # A NaN without bits in the upper half would become an infinity.
            stored[nan] = np.where(kept & np.uint32(0x7F) == 0, kept | np.uint32(0x40), kept)
        return stored


class _Float8(Element):
    """A byte that indexes a table of 256 values. Values are float32, without loss."""

    stored = np.dtype(np.uint8)
    dtype = np.dtype(np.float32)
    fraction_bits: int
    beyond: tuple[float, ...]
    """Values of the bytes that follow the largest finite value."""
    nan: int

    def decode_into(self, values: Array, raw: Array) -> None:
        """Look up each byte in a table."""
        table, flat, results = _float8_values(self), np.ravel(raw), values.reshape(-1)
        for first in range(0, flat.size, _CACHED_INDICES):
            part = slice(first, first + _CACHED_INDICES)
            # "clip" is the fastest mode, and no byte is out of bounds.
            np.take(table, flat[part], out=results[part], mode="clip")

    def encode(self, values: Array) -> Array:
        """Round to nearest, ties to even. Values that are too large become infinite or NaN."""
        bits = _bits(values)
        upper = bits >> _HALF
        # Values and midpoints have no bits in the lower half, so one bit can stand for it.
        upper |= bits.astype(np.uint16) != 0
        return np.asarray(np.take(_float8_bits(self), upper, mode="clip"))


@dataclass(frozen=True)
class Float8E4M3FN(_Float8):
    """A sign, 4 bits of exponent and 3 of fraction, without infinities. The maximum is 448."""

    name = "float8_e4m3fn"
    fraction_bits, beyond, nan = 3, (np.nan,), 0x7F


@dataclass(frozen=True)
class Float8E5M2(_Float8):
    """A sign, 5 bits of exponent and 2 of fraction: the upper half of a float16."""

    name = "float8_e5m2"
    fraction_bits, beyond, nan = 2, (np.inf, np.nan, np.nan, np.nan), 0x7E


@dataclass(frozen=True)
class Boolean(Element):
    """A byte: 0 is False and any other value is True. numpy's bool allows only 0 and 1."""

    name = "bool"
    stored = np.dtype(np.uint8)
    dtype = encoding = np.dtype(np.bool_)

    def decode_into(self, values: Array, raw: Array) -> None:
        """Compare with zero."""
        np.not_equal(raw, 0, out=values)

    def encode(self, values: Array) -> Array:
        """Convert to bytes 0 and 1, since an array of bool may contain other bytes."""
        raw: Array = np.ascontiguousarray(values).reshape(values.shape).view(np.uint8)
        return raw if raw.max(initial=0) <= 1 else np.minimum(raw, 1)


def build_elements(dtypes: Iterable[str], order: Literal["<", ">"] = "<") -> dict[str, Element]:
    """Return the element of every dtype name, in a byte order."""
    elements = Boolean(), BFloat16(big_endian=order == ">"), Float8E4M3FN(), Float8E5M2()
    special: dict[str, Element] = {element.name: element for element in elements}
    # The string makes numpy return its singleton if the byte order is native.
    return {
        name: special.get(name) or Plain(np.dtype(np.dtype(name).newbyteorder(order).str))
        for name in dtypes
    }


def _bits(values: Array) -> NDArray[np.uint32]:
    bits: NDArray[np.uint32] = np.ascontiguousarray(values).reshape(values.shape).view(np.uint32)
    return bits


@cache
def _float8_bits(element: _Float8) -> NDArray[np.uint8]:
    """Return the nearest of the 256 bytes for every upper half of a float32, ties to even."""
    upper = np.arange(1 << 16, dtype=np.uint32)
    values = (upper << _HALF).view(np.float32)
    # `first` is the first byte without a finite value. A magnitude is too large if it is closer
    # to the value that `first` would have than to the largest finite value.
    first = 0x80 - len(element.beyond)
    magnitudes = _magnitudes(element.fraction_bits)[: first + 1]
    between = np.append((magnitudes[1:] + magnitudes[:-1]) / 2, np.inf)
    with np.errstate(invalid="ignore"):  # signaling NaNs become quiet
        magnitude = np.abs(values).astype(np.float64)
    bits = np.searchsorted(between[:-1], magnitude, side="left")
    bits += (bits < first) & (bits & 1 == 1) & (between[bits] == magnitude)
    bits[np.isnan(magnitude)] = element.nan
    return (bits | upper >> 8 & 0x80).astype(np.uint8)


@cache
def _float8_values(element: _Float8) -> NDArray[np.float32]:
    """Return the value of every byte."""
    magnitudes = _magnitudes(element.fraction_bits)
    magnitudes[0x80 - len(element.beyond) :] = element.beyond
    return np.concatenate([magnitudes, -magnitudes]).astype(np.float32)


def _magnitudes(fraction_bits: int) -> NDArray[np.float64]:
    """Return the values of the positive bytes as if all were finite."""
    bits = np.arange(0x80)
    one = 1 << fraction_bits
    exponent, fraction = bits >> fraction_bits, bits & (one - 1)
    # Subnormal numbers have no leading one.
    significand = np.where(exponent == 0, fraction, fraction + one).astype(np.float64)
    bias = (1 << (6 - fraction_bits)) - 1
    return np.asarray(np.ldexp(significand, np.maximum(exponent, 1) - bias - fraction_bits))
