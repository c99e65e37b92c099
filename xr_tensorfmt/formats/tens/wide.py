"""Floats of 16 bytes. numpy has no portable type for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import Array, Element

# Difference between the exponent biases of binary128 and binary64.
_REBIAS = 16383 - 1023


@dataclass(frozen=True)
class Binary128(Element):
    """IEEE quadruple precision, little-endian, rounded to double precision."""

    is_complex: bool = False

    @property
    def name(self) -> str:
        """Name in IEEE 754."""
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
        """Round to double precision, by batches that fit into the cache."""
        numbers = values.reshape(-1).view(np.float64)
        words = np.ascontiguousarray(raw).reshape(-1).view("<u8").reshape(-1, 2)
        for first in range(0, numbers.size, 1 << 16):
            batch = slice(first, first + (1 << 16))
            numbers[batch] = _to_float64(words[batch, 1], words[batch, 0])


def _to_float64(high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Round binary128 numbers to binary64, to nearest with ties to even."""
    exponent = ((high >> 48) & 0x7FFF).astype(np.int64)
    fraction = high & ((1 << 48) - 1)
    # The first 63 bits of the significand: a leading one, 52 bits to keep and 10 for rounding.
    # The last bit is also set if any lower bit is.
    rest = (low << 14 != 0).astype(np.uint64)
    significand = (1 << 62) | (fraction << 14) | (low >> 50) | rest
    rebiased = exponent - _REBIAS
    # Subnormal results keep fewer bits. Numbers below half of the smallest one become zero.
    significand[rebiased < -52] = 1
    shift = np.clip(11 - rebiased, 10, 63).astype(np.uint64)
    odd = (significand >> shift) & 1
    kept = (significand + (1 << (shift - 1)) - 1 + odd) >> shift
    with np.errstate(over="ignore"):
        values: Array = np.ldexp(kept.astype(np.float64), np.maximum(rebiased, 1) - 1075)
    values[(exponent == 0x7FFF) & ((fraction | low) != 0)] = np.nan
    return np.where(high >> 63 != 0, -values, values)
