"""Floating-point elements of the package ml_dtypes, and the elements of dtype names."""

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


@cache
def get_narrow_dtype(name: str) -> np.dtype[Any]:
    """Return a dtype of ml_dtypes, which is imported at first use."""
    import ml_dtypes  # noqa: PLC0415  # takes 10 ms

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


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

    @property
    def narrow(self) -> Element:
        """Elements whose values are bfloat16."""
        return Plain(get_narrow_dtype(self.name).newbyteorder(self.stored.byteorder))

    @property
    def largest(self) -> float:
        """The largest finite value."""
        return 0xFF * 2.0**120

    def decode_into(self, values: Array, raw: Array) -> None:
        """Convert to float32. The payload of NaN is kept."""
        native = raw.astype(np.uint16, copy=False)
        np.copyto(values, native.view(get_narrow_dtype(self.name)))

    def encode(self, values: Array) -> Array:
        """Round to nearest, ties to even, or keep the upper half. NaN keeps its upper half."""
        values = np.ascontiguousarray(values).reshape(values.shape)
        bits, nan = values.view(np.uint32), np.isnan(values)
        if self.rounding == "down":
            stored = (bits >> _HALF).astype(self.stored)
        else:
            with np.errstate(invalid="ignore"):  # signaling NaNs become quiet
                rounded = values.astype(get_narrow_dtype(self.name))
            stored = rounded.view(np.uint16).astype(self.stored, copy=False)
        if nan.any():
            kept = bits[nan] >> _HALF
            # Set a bit of a NaN that has bits in the lower half only. It must not become infinite.
            stored[nan] = np.where(kept & np.uint32(0x7F) == 0, kept | np.uint32(0x40), kept)
        return stored


@dataclass(frozen=True)
class Float8(Element):
    """A byte that ml_dtypes defines. Values are float32, without loss."""

    dtype_name: str
    stored = np.dtype(np.uint8)
    dtype = np.dtype(np.float32)

    @property
    def name(self) -> str:
        """The name in ml_dtypes."""
        return self.dtype_name

    @property
    def narrow(self) -> Element:
        """Elements whose values are the bytes, with the dtype of ml_dtypes."""
        return Plain(get_narrow_dtype(self.name))

    @property
    def largest(self) -> float:
        """The largest finite value."""
        table = _compute_float8_values(self.name)
        return float(table[np.isfinite(table)].max())

    @property
    def has_inf(self) -> bool:
        """Whether infinity is a value."""
        return bool(np.isinf(_compute_float8_values(self.name)).any())

    @property
    def has_nan(self) -> bool:
        """Whether NaN is a value."""
        return bool(np.isnan(_compute_float8_values(self.name)).any())

    def decode_into(self, values: Array, raw: Array) -> None:
        """Look up each byte in a table, which is several times faster than ml_dtypes."""
        table = _compute_float8_values(self.name)
        flat, results = np.ravel(raw), values.reshape(-1)
        for start in range(0, flat.size, _CACHED_INDICES):
            part = slice(start, start + _CACHED_INDICES)
            # "clip" is the fastest mode, and no byte is out of bounds.
            np.take(table, flat[part], out=results[part], mode="clip")

    def encode(self, values: Array) -> Array:
        """Round as ml_dtypes does. Values that are too large become infinite or NaN."""
        with np.errstate(invalid="ignore"):  # signaling NaNs become quiet
            return values.astype(get_narrow_dtype(self.name), order="C").view(np.uint8)


FLOAT8_NAMES = tuple(
    f"float8_{kind}" for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")
)
"""Names of the dtypes of ml_dtypes that `Float8` supports."""


def build_elements(dtypes: Iterable[str], order: Literal["<", ">"] = "<") -> dict[str, Element]:
    """Return the element of every dtype name, in a byte order."""
    elements = Boolean(), BFloat16(big_endian=order == ">"), *map(Float8, FLOAT8_NAMES)
    special: dict[str, Element] = {element.name: element for element in elements}
    # The string makes numpy return its singleton if the byte order is native.
    return {
        name: special.get(name) or Plain(np.dtype(np.dtype(name).newbyteorder(order).str))
        for name in dtypes
    }


@cache
def _compute_float8_values(name: str) -> NDArray[np.float32]:
    """Return the value of every byte."""
    return np.arange(1 << 8, dtype=np.uint8).view(get_narrow_dtype(name)).astype(np.float32)
