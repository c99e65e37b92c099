"""Floating-point elements that numpy does not have, and the elements of dtype names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import Array, Boolean, Element, Plain

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
        bits = _get_bits(values)
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
            # Set a bit of a NaN that has bits in the lower half only. It must not become infinite.
            stored[nan] = np.where(kept & np.uint32(0x7F) == 0, kept | np.uint32(0x40), kept)
        return stored


class _Float8(Element):
    """A byte that indexes a table of 256 values. Values are float32, without loss."""

    stored = np.dtype(np.uint8)
    dtype = np.dtype(np.float32)
    fraction_bits: int
    special_values: tuple[float, ...]
    """Values of the bytes that follow the largest finite value."""
    nan: int

    def decode_into(self, values: Array, raw: Array) -> None:
        """Look up each byte in a table."""
        table = _compute_float8_values(self)
        flat, results = np.ravel(raw), values.reshape(-1)
        for start in range(0, flat.size, _CACHED_INDICES):
            part = slice(start, start + _CACHED_INDICES)
            # "clip" is the fastest mode, and no byte is out of bounds.
            np.take(table, flat[part], out=results[part], mode="clip")

    def encode(self, values: Array) -> Array:
        """Round to nearest, ties to even. Values that are too large become infinite or NaN."""
        bits = _get_bits(values)
        upper = bits >> _HALF
        # Values and midpoints have no bits in the lower half, so one bit can stand for it.
        upper |= bits.astype(np.uint16) != 0
        return np.asarray(np.take(_encode_float8(self), upper, mode="clip"))


@dataclass(frozen=True)
class Float8E4M3FN(_Float8):
    """A sign, 4 bits of exponent and 3 of fraction, without infinities. The maximum is 448."""

    name = "float8_e4m3fn"
    fraction_bits = 3
    special_values = (np.nan,)
    nan = 0x7F


@dataclass(frozen=True)
class Float8E5M2(_Float8):
    """A sign, 5 bits of exponent and 2 of fraction: the upper half of a float16."""

    name = "float8_e5m2"
    fraction_bits = 2
    special_values = (np.inf, np.nan, np.nan, np.nan)
    nan = 0x7E


def build_elements(dtypes: Iterable[str], order: Literal["<", ">"] = "<") -> dict[str, Element]:
    """Return the element of every dtype name, in a byte order."""
    elements = Boolean(), BFloat16(big_endian=order == ">"), Float8E4M3FN(), Float8E5M2()
    special: dict[str, Element] = {element.name: element for element in elements}
    # The string makes numpy return its singleton if the byte order is native.
    return {
        name: special.get(name) or Plain(np.dtype(np.dtype(name).newbyteorder(order).str))
        for name in dtypes
    }


def _get_bits(values: Array) -> NDArray[np.uint32]:
    bits: NDArray[np.uint32] = np.ascontiguousarray(values).reshape(values.shape).view(np.uint32)
    return bits


@cache
def _encode_float8(element: _Float8) -> NDArray[np.uint8]:
    """Return the nearest of the 256 bytes for every upper half of a float32, ties to even."""
    upper = np.arange(1 << 16, dtype=np.uint32)
    values = (upper << _HALF).view(np.float32)
    # `first` is the first byte without a finite value. A magnitude is too large if it is closer
    # to the value that `first` would have than to the largest finite value.
    first = 0x80 - len(element.special_values)
    magnitudes = _compute_magnitudes(element.fraction_bits)[: first + 1]
    between = np.append((magnitudes[1:] + magnitudes[:-1]) / 2, np.inf)
    with np.errstate(invalid="ignore"):  # signaling NaNs become quiet
        magnitude = np.abs(values).astype(np.float64)
    bits = np.searchsorted(between[:-1], magnitude, side="left")
    bits += (bits < first) & (bits & 1 == 1) & (between[bits] == magnitude)
    bits[np.isnan(magnitude)] = element.nan
    return (bits | upper >> 8 & 0x80).astype(np.uint8)


@cache
def _compute_float8_values(element: _Float8) -> NDArray[np.float32]:
    """Return the value of every byte."""
    magnitudes = _compute_magnitudes(element.fraction_bits)
    magnitudes[0x80 - len(element.special_values) :] = element.special_values
    return np.concatenate([magnitudes, -magnitudes]).astype(np.float32)


def _compute_magnitudes(fraction_bits: int) -> NDArray[np.float64]:
    """Return the values of the positive bytes as if all were finite."""
    bits = np.arange(0x80)
    one = 1 << fraction_bits
    exponent, fraction = bits >> fraction_bits, bits & (one - 1)
    # Subnormal numbers have no leading one.
    significand = np.where(exponent == 0, fraction, fraction + one).astype(np.float64)
    bias = (1 << (6 - fraction_bits)) - 1
    return np.asarray(np.ldexp(significand, np.maximum(exponent, 1) - bias - fraction_bits))
