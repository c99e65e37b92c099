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
    """The stored dtype where numpy has none for it; for ``encoding["dtype"]``."""

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
    """A type of stored number, whose values are numpy values in native byte order.

    Elements are frozen dataclasses, which compare and pickle by value.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The usual name of the stored type (``"float64"``, ``"binary128"``)."""

    @property
    @abstractmethod
    def stored(self) -> np.dtype[Any]:
        """dtype as which the bytes of the file are viewed."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""

    @abstractmethod
    def decode_into(self, values: Array, raw: Array) -> None:
        """Convert stored elements to values, in one pass.

        Parameters
        ----------
        values : ndarray of `dtype`
            The output; contiguous.
        raw : ndarray of `stored`
            The same shape, any strides, any alignment; it may be a window of the file.

        Raises
        ------
        ElementError
            An element cannot be represented in this dtype.
        """

    def decode(self, raw: Array) -> Array:
        """Convert stored elements to values in new memory; as `decode_into`."""
        values = np.empty(raw.shape, dtype=self.dtype)
        self.decode_into(values, raw)
        return values

    def encode(self, values: Array) -> Array:
        """Convert values to stored elements, rounded to the nearest.

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
            The element can only be read.
        """
        raise NotImplementedError(f"{self.name} can only be read")

    @property
    def is_native(self) -> bool:
        """Whether the stored bytes are those of the values."""
        return False

    @property
    def encoding(self) -> np.dtype[Any] | StoredDtype:
        """The stored dtype, for ``encoding["dtype"]``."""
        return StoredDtype(self.name, self.dtype)

    @cached_property
    def token(self) -> str:
        """What tells it from other elements, for names in dask."""
        return f"{self.name} in {self.stored}"

    def adopt(self, raw: Array) -> Array:
        """As `decode`, but the result may use the memory of `raw`."""
        return self.decode(raw)


@dataclass(eq=False)
class ElementError(ValueError):
    """An element has no value; the Layout that reads it adds its offset."""

    position: int
    found: Any
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

    # Cached, as these are slow in numpy and a file may contain ten thousand tensors.
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
        """Convert to native byte order."""
        np.copyto(values, raw)

    def encode(self, values: Array) -> Array:
        """Convert to the byte order of the file, without a copy where it is native."""
        return np.ascontiguousarray(values, dtype=self.stored).reshape(values.shape)

    def adopt(self, raw: Array) -> Array:
        """Swap the bytes in place where the array is aligned."""
        if not raw.flags.aligned:
            return self.decode(raw)
        return raw if self.is_native else raw.byteswap(inplace=True).view(self.dtype)


# numpy converts indices to 8 bytes each; for this many elements they fit into the cache.
_BLOCK = 1 << 15
_HALF = np.uint32(16)


@dataclass(frozen=True)
class BFloat16(Element):
    """The upper half of a float32; every value is exact as float32."""

    big_endian: bool = False
    rounding: Literal["nearest", "down"] = "nearest"
    name = "bfloat16"
    dtype = np.dtype(np.float32)

    @property
    def stored(self) -> np.dtype[Any]:
        """The bits."""
        return np.dtype(">u2" if self.big_endian else "<u2")

    def decode_into(self, values: Array, raw: Array) -> None:
        """Shift the bits, which keeps the payload of NaN."""
        np.left_shift(raw, np.uint32(16), out=values.view(np.uint32), dtype=np.uint32)

    def encode(self, values: Array) -> Array:
        """Keep the upper half; NaN stays NaN."""
        bits = _bits(values)
        upper = bits >> _HALF
        if self.rounding == "nearest":
            # Half of the last place, or a little less where it is even.
            upper &= np.uint32(1)
            upper += np.uint32(0x7FFF)
            upper += bits
            upper >>= _HALF
        stored = np.asarray(upper).astype(self.stored)
        nan = np.isnan(values)
        if nan.any():
            kept = bits[nan] >> _HALF
            # Without a bit in the upper half it would be an infinity.
            stored[nan] = np.where(kept & np.uint32(0x7F) == 0, kept | np.uint32(0x40), kept)
        return stored


class _Float8(Element):
    """A byte whose value is in a table; every value is exact as float32."""

    stored = np.dtype(np.uint8)
    dtype = np.dtype(np.float32)
    fraction_bits: int
    beyond: tuple[float, ...]
    """The values of the bytes above that of the largest finite one."""
    nan: int

    def decode_into(self, values: Array, raw: Array) -> None:
        """Look up each byte in a table."""
        table, flat, results = _float8_values(self), np.ravel(raw), values.reshape(-1)
        for first in range(0, flat.size, _BLOCK):
            block = slice(first, first + _BLOCK)
            # Every byte is in the table, so the mode has no effect; "clip" is the fastest.
            np.take(table, flat[block], out=results[block], mode="clip")

    def encode(self, values: Array) -> Array:
        """Round to the nearest value, the even one of two; what is too large has none."""
        bits = _bits(values)
        upper = bits >> _HALF
        # Of the lower half only matters whether it is zero: no value or midpoint has bits there.
        upper |= bits.astype(np.uint16) != 0
        return np.asarray(np.take(_float8_bits(self), upper, mode="clip"))


@dataclass(frozen=True)
class Float8E4M3FN(_Float8):
    """A sign, 4 bits of exponent and 3 of fraction, without infinities; beyond 448 is NaN."""

    name = "float8_e4m3fn"
    fraction_bits, beyond, nan = 3, (np.nan,), 0x7F


@dataclass(frozen=True)
class Float8E5M2(_Float8):
    """A sign, 5 bits of exponent and 2 of fraction; the upper half of a float16."""

    name = "float8_e5m2"
    fraction_bits, beyond, nan = 2, (np.inf, np.nan, np.nan, np.nan), 0x7E


@dataclass(frozen=True)
class Boolean(Element):
    """A byte: 0 is False and anything else is True, which is not so for numpy's own bool."""

    name = "bool"
    stored = np.dtype(np.uint8)
    dtype = encoding = np.dtype(np.bool_)

    def decode_into(self, values: Array, raw: Array) -> None:
        """Compare with zero."""
        np.not_equal(raw, 0, out=values)

    def encode(self, values: Array) -> Array:
        """Bytes 0 and 1; an array of bool may contain other bytes."""
        raw: Array = np.ascontiguousarray(values).reshape(values.shape).view(np.uint8)
        return raw if raw.max(initial=0) <= 1 else np.minimum(raw, 1)


def build_elements(dtypes: Iterable[str], order: Literal["<", ">"] = "<") -> dict[str, Element]:
    """How the elements of dtypes are stored in a byte order, by the names of the dtypes."""
    own = Boolean(), BFloat16(big_endian=order == ">"), Float8E4M3FN(), Float8E5M2()
    special: dict[str, Element] = {each.name: each for each in own}
    # By way of the string numpy finds its own dtype again where the order is that of the machine.
    return {
        name: special.get(name) or Plain(np.dtype(np.dtype(name).newbyteorder(order).str))
        for name in dtypes
    }


def _bits(values: Array) -> NDArray[np.uint32]:
    bits: NDArray[np.uint32] = np.ascontiguousarray(values).reshape(values.shape).view(np.uint32)
    return bits


@cache
def _float8_bits(element: _Float8) -> NDArray[np.uint8]:
    """For each upper half of a float32 the nearest of the 256 bytes, the even one of two."""
    upper = np.arange(1 << 16, dtype=np.uint32)
    values = (upper << _HALF).view(np.float32)
    # What is nearer to the first value that there is no more than to the largest is beyond it.
    first = 0x80 - len(element.beyond)
    magnitudes = _magnitudes(element.fraction_bits)[: first + 1]
    between = np.append((magnitudes[1:] + magnitudes[:-1]) / 2, np.inf)
    with np.errstate(invalid="ignore"):  # some kinds of NaN become another kind
        magnitude = np.abs(values).astype(np.float64)
    bits = np.searchsorted(between[:-1], magnitude, side="left")
    bits += (bits < first) & (bits & 1 == 1) & (between[bits] == magnitude)
    bits[np.isnan(magnitude)] = element.nan
    return (bits | upper >> 8 & 0x80).astype(np.uint8)


@cache
def _float8_values(element: _Float8) -> NDArray[np.float32]:
    """The value of each byte."""
    magnitudes = _magnitudes(element.fraction_bits)
    magnitudes[0x80 - len(element.beyond) :] = element.beyond
    return np.concatenate([magnitudes, -magnitudes]).astype(np.float32)


def _magnitudes(fraction_bits: int) -> NDArray[np.float64]:
    """The values of the bytes without a sign, as if all of them were finite."""
    bits = np.arange(0x80)
    one = 1 << fraction_bits
    exponent, fraction = bits >> fraction_bits, bits & (one - 1)
    # Without an exponent there is no leading one: these are the subnormal numbers.
    significand = np.where(exponent == 0, fraction, fraction + one).astype(np.float64)
    bias = (1 << (6 - fraction_bits)) - 1
    return np.asarray(np.ldexp(significand, np.maximum(exponent, 1) - bias - fraction_bits))
