"""Floats of 16 bytes, which numpy has no portable type for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import Array, Element

Words = NDArray[np.uint64]

# Elements decoded at a time, so that the temporaries stay in the cache.
_BLOCK = 1 << 16
# The exponents of binary128 and binary64 count from 16383 and 1023.
_REBIAS = 16383 - 1023


@dataclass(frozen=True)
class Binary128(Element):
    """IEEE quadruple precision, little-endian; values are rounded to double precision."""

    is_complex: bool = False

    @property
    def name(self) -> str:
        """The format's name in IEEE 754."""
        return "complex binary128" if self.is_complex else "binary128"

    @property
    def stored(self) -> np.dtype[Any]:
        """Opaque bytes."""
        return np.dtype("V32" if self.is_complex else "V16")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Double precision."""
        return np.dtype(np.complex128 if self.is_complex else np.float64)

    def decode_into(self, values: Array, raw: Array) -> None:
        """Round to double precision."""
        numbers = values.reshape(-1).view(np.float64)
        words = np.ascontiguousarray(raw).reshape(-1).view("<u8").reshape(-1, 2)
        for first in range(0, numbers.size, _BLOCK):
            block = slice(first, first + _BLOCK)
            numbers[block] = to_float64(words[block, 1], words[block, 0])


def to_float64(high: Words, low: Words) -> NDArray[np.float64]:
    """Round binary128 numbers to binary64, to nearest with ties to even."""
    sign = high & np.uint64(1 << 63)
    exponent = ((high >> np.uint64(48)) & np.uint64(0x7FFF)).astype(np.int64)
    fraction = high & np.uint64((1 << 48) - 1)
    # The significand's first 63 bits: a leading one, 52 bits to keep, 10 to round by. The last of
    # them says too whether any lower bit is set, which is all that rounding asks of those.
    significand = (
        np.uint64(1 << 62)
        | (fraction << np.uint64(14))
        | (low >> np.uint64(50))
        | ((low & np.uint64((1 << 50) - 1)) != 0).astype(np.uint64)
    )
    rebiased = exponent - _REBIAS
    # Of subnormal results fewer bits are kept; of what is smaller than half of the smallest, none.
    significand[rebiased < -52] = 1
    shift = np.clip(11 - rebiased, 10, 63).astype(np.uint64)
    kept = significand >> shift
    half, rest = np.uint64(1) << (shift - np.uint64(1)), significand - (kept << shift)
    kept += ((rest > half) | ((rest == half) & (kept & np.uint64(1) == 1))).astype(np.uint64)
    # Adding lets a carry of the rounding move on into the exponent, up to infinity. The leading
    # one of a normal number adds one to the exponent by itself.
    bits = kept + (np.clip(rebiased - 1, 0, 0x7FE).astype(np.uint64) << np.uint64(52))
    infinite = np.uint64(0x7FF << 52)
    bits = np.where(rebiased >= 0x7FF, infinite, bits)
    is_nan = (exponent == 0x7FFF) & ((fraction | low) != 0)
    bits = np.where(is_nan, infinite | np.uint64(1 << 51), bits)
    return (sign | bits).view(np.float64)
