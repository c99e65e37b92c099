"""From the dtype of a variable to that of a file, without losing anything in silence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Array, Element, StoredDtype

# Elements that are checked together, so that temporary arrays stay in the cache.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Conversion:
    """The dtype that the values of a variable are stored with, and whether they may be rounded."""

    name: str
    element: Element
    exact: bool

    def apply(self, values: Array) -> Array:
        """Convert values; ValueError where one is not kept."""
        dtype = self.element.dtype
        if values.dtype == dtype:
            converted = values
        else:
            with np.errstate(all="ignore"):
                converted = values.astype(dtype)
            self._check(values, self._kept(values, converted))
        if isinstance(self.element.encoding, StoredDtype) and converted.dtype.kind == "f":
            flat = np.ravel(converted, order="K")
            for first in range(0, flat.size, _BLOCK):
                self._check_stored(flat[first : first + _BLOCK])
        return converted

    def _kept(self, values: Array, converted: Array) -> Array:
        """Which values are equal to what they were, or rounded where that was asked for."""
        if self.exact or converted.dtype.kind not in "fc":
            back = converted if values.dtype.kind == "c" else converted.real
            with np.errstate(all="ignore"):
                same = back.astype(values.dtype) == values
            same &= _within(values, converted.dtype) & _within(converted, values.dtype)
            if values.dtype.kind in "iu" and converted.dtype.kind in "iu":
                same &= (values < 0) == (converted < 0)  # -1 and 255 are the same byte
            return np.asarray(same | ((converted != converted) & (values != values)))
        if converted.dtype.kind == "f":
            return _as_finite(converted, values)
        return _as_finite(converted.real, values.real) & _as_finite(converted.imag, values.imag)

    def _check_stored(self, values: Array) -> None:
        stored = self.element.decode(self.element.encode(values))
        kept = stored == values if self.exact else np.isfinite(stored)
        if kept.all():  # nearly always, and the rest is slower
            return
        same_kind = np.isnan(stored) == np.isnan(values)
        if self.exact:
            kept |= np.isnan(stored) & same_kind
        else:
            kept = _as_finite(stored, values) & same_kind
        self._check(values, kept)

    def _check(self, values: Array, kept: Any) -> None:
        if np.all(kept):
            return
        found = values[~kept].flat[0]
        hint = (
            f"pass encoding={{{self.name!r}: {{'dtype': {self.element.name!r}}}}} to round such "
            f"values, or '{values.dtype}' in its place to keep them"
            if self.exact
            else "choose another dtype, or change the values"
        )
        raise ValueError(
            f"{self.name!r} holds {found!r}, which {self.element.name} has no value for; {hint}"
        )


def _as_finite(converted: Array, values: Array) -> Array:
    """Which values have not become infinite."""
    return np.asarray(np.isfinite(converted) | ~np.isfinite(values))


def _within(values: Array, dtype: np.dtype[Any]) -> Any:
    """Which floats are in the range of an integer dtype; casts of others are undefined."""
    if values.dtype.kind != "f" or dtype.kind not in "iu":
        return True
    with np.errstate(all="ignore"):  # the limit may be infinite in half precision
        return values < 2.0 ** np.iinfo(dtype).bits / (2 if dtype.kind == "i" else 1)


def check_dense(name: str, values: Any) -> None:
    """Raise TypeError for a sparse array, such as `sparse.COO`, which numpy does not convert."""
    if hasattr(values, "todense"):
        raise TypeError(
            f"{name!r} has values in a sparse {type(values).__name__}, expected a dense array; "
            "call .todense() on them first, or on each chunk with map_blocks"
        )


def dtype_name(dtype: Any) -> str:
    """The name of a dtype as numpy has it, or its str where numpy has none."""
    try:
        return str(np.dtype(str(dtype) if isinstance(dtype, StoredDtype) else dtype).name)
    except TypeError:
        return str(dtype)


def is_numeric(dtype: Any) -> bool:
    """Whether values of a dtype are numbers or bools."""
    if not isinstance(dtype, np.dtype):
        return False
    return dtype.kind in "biufc" or (dtype.kind == "V" and np.can_cast(dtype, np.float32))
