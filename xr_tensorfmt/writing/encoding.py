"""The argument ``encoding=`` of writers, and the conversion of values to the dtype of a file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from xarray import Variable

from xr_tensorfmt.core.elements import Array, Element, get_stored_name
from xr_tensorfmt.datasets import cf
from xr_tensorfmt.errors import did_you_mean, shorten

KEYS = cf.VALUE_KEYS | cf.RELATED | {"coordinates"}
"""Keys of the encoding of a variable."""

_READER_KEYS = frozenset({"original_shape", "preferred_chunks", "source", "tensorfmt"})
"""Keys that only readers set. Their other keys are not for this package, and are ignored."""

_CATEGORIES = {"f": "floating-point", "i": "integer", "u": "integer", "b": "bool", "c": "complex"}


def resolve_encoding(
    variables: Mapping[Any, Variable], coordinates: Collection[Any], encoding: Any
) -> dict[Any, Mapping[str, Any]]:
    """Return the encoding of every variable: by name, or the dtype of all of its kind."""
    error = TypeError(
        "encoding= must have the form {name: {'dtype': ...}}, or {'dtype': ...} for all, not "
        f"{encoding!r}"
    )
    if not isinstance(encoding, Mapping):
        raise error
    resolved: dict[Any, Mapping[str, Any]] = {}
    by_name = dict(encoding)
    if not isinstance(by_name.get("dtype", {}), Mapping):
        requested = {"dtype": by_name.pop("dtype")}
        data = {name: item for name, item in variables.items() if name not in coordinates}
        resolved = dict.fromkeys(_find_same_kind(data, requested["dtype"]), requested)
    for name, given in by_name.items():
        if not isinstance(given, Mapping):
            raise error
        if name not in variables:
            raise ValueError(
                f"encoding= names {name!r}{did_you_mean(name, variables)}, which is not one of "
                f"the variables {shorten(', '.join(map(repr, variables)))}"
            )
        resolved[name] = _select_keys(name, given, variables[name])
    return resolved


def _select_keys(name: Any, requested: Mapping[str, Any], variable: Variable) -> Mapping[str, Any]:
    """Return an encoding without the keys that only describe the file it was read from."""
    own = variable.encoding
    is_read = not _READER_KEYS.isdisjoint(requested)
    known = KEYS | {"tensorfmt"}
    if unknown := {key for key in requested if key not in known and not is_read and key not in own}:
        raise ValueError(
            f"encoding={{{name!r}: {requested!r}}} has {', '.join(sorted(map(repr, unknown)))}, "
            f"expected some of {', '.join(map(repr, sorted(KEYS)))}"
        )
    return {key: value for key, value in requested.items() if key in known}


def _find_same_kind(data: Mapping[Any, Variable], dtype: Any) -> list[Any]:
    """Return the variables of the kind of a dtype, or the only one. Raise if there is none."""
    category = _get_dtype_category(dtype)
    same = [n for n in data if category in (None, _get_dtype_category(data[n].dtype))]
    if not same and len(data) != 1:
        actual = ", ".join(f"{name!r} ({variable.dtype})" for name, variable in data.items())
        raise ValueError(
            f"encoding={ {'dtype': dtype} } matches no {category} variable; the variables are "
            f"{shorten(actual) or 'none'}"
        )
    return same or list(data)


def _get_dtype_category(dtype: Any) -> str | None:
    """Return the category of a dtype, or None if it is unknown."""
    name = format_dtype(dtype)
    if name.startswith(("float", "bfloat")):
        return _CATEGORIES["f"]
    try:
        return _CATEGORIES.get(np.dtype(name).kind, name)
    except TypeError:
        return None


def get_file_info(variable: Variable, format: str) -> Mapping[str, Any]:
    """Return the properties of the file of a format that a variable was opened from, if any."""
    file_info = variable.encoding.get("tensorfmt")
    if isinstance(file_info, Mapping) and file_info.get("format") == format:
        return file_info
    return {}


# Elements to check at a time, to keep temporary arrays in the cache.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Conversion:
    """The dtype of a variable in the file, and whether values must be exact or may be rounded."""

    name: str
    element: Element
    exact: bool
    is_fixed: bool = False
    """Whether an existing file determines the dtype."""

    def apply(self, values: Array) -> Array:
        """Convert values. Raise ValueError if a value would change or overflow."""
        exact = self.exact or values.dtype.kind in "iu"
        dtype = self.element.dtype
        if values.dtype == dtype:
            converted = values
        else:
            with np.errstate(all="ignore"):
                converted = values.astype(dtype)
            self._check(values, _is_preserved(values, converted, exact), values.dtype)
        if converted.dtype.kind == "f" and self.element.name != dtype.name:
            flat = np.ravel(converted, order="K")
            for first in range(0, flat.size, _BLOCK):
                self._check_stored(flat[first : first + _BLOCK], exact, values.dtype)
        return converted

    def _check_stored(self, values: Array, exact: bool, dtype: np.dtype[Any]) -> None:
        """Raise ValueError if a value cannot be stored."""
        element = self.element
        stored = element.decode(element.encode(values))
        if exact:
            preserved = stored == values
        else:  # rounded, but large values may have become the largest value
            limit = _find_limit(element)
            preserved = np.isfinite(stored) & (np.abs(values) <= limit) & np.isfinite(values)
        if preserved.all():
            return
        preserved |= np.isinf(values) & (stored == values)
        preserved |= np.isnan(values) & np.isnan(stored)
        self._check(values, preserved, dtype)

    def _check(self, values: Array, preserved: Any, dtype: np.dtype[Any]) -> None:
        """Raise ValueError if a value is not preserved. `dtype` is the dtype of the data."""
        if np.all(preserved):
            return
        way, keep = "change the values", "choose another dtype"
        if self.exact and self.element.dtype.kind in "fc" and dtype.kind not in "iu":
            encoding = {self.name: {"dtype": self.element.name}}
            way, keep = f"pass {encoding=} to round such values", f"use '{dtype}' there"
        keep = "rewrite the whole file" if self.is_fixed else keep
        raise ValueError(
            f"{self.name!r} contains {values[~preserved].flat[0]!r}, which {self.element.name} "
            f"cannot represent; {way}, or {keep} to keep them"
        )


@cache
def _find_limit(element: Element) -> float:
    """Return the finite value that an element stores for infinity, or infinity."""
    limit = element.decode(element.encode(np.array([np.inf], element.dtype)))[0]
    return float(limit) if np.isfinite(limit) else np.inf


def _is_preserved(values: Array, converted: Array, exact: bool) -> Array:
    """Return a mask of values that are unchanged, or rounded if rounding is allowed."""
    if exact or converted.dtype.kind not in "fc":
        if values.dtype.kind == "c":  # a NaN in one part does not excuse the other
            parts = ((values.real, converted.real), (values.imag, converted.imag))
            return np.logical_and(*(_is_preserved(*part, True) for part in parts))
        back = converted.real
        with np.errstate(all="ignore"):
            same = back.astype(values.dtype) == values
        same &= _is_in_range(values, converted.dtype) & _is_in_range(back, values.dtype)
        if values.dtype.kind in "iu" and converted.dtype.kind in "iu":
            same &= (values < 0) == (converted < 0)  # -1 and 255 are the same byte
        return np.asarray(same | ((converted != converted) & (values != values)))
    finite = np.isfinite(converted.real) | ~np.isfinite(values.real)
    if converted.dtype.kind == "c":
        finite &= np.isfinite(converted.imag) | ~np.isfinite(values.imag)
    return np.asarray(finite)


def _is_in_range(values: Array, dtype: np.dtype[Any]) -> Any:
    """Return a mask of floats in the range of an integer dtype. Other casts are undefined."""
    if values.dtype.kind != "f" or dtype.kind not in "iu":
        return True
    limit = 2.0 ** (np.iinfo(dtype).bits - (dtype.kind == "i"))
    with np.errstate(all="ignore"):  # the limits may be infinite in half precision
        return (
            np.isfinite(values)
            & (values < limit)
            & (values >= (-limit if dtype.kind == "i" else 0))
        )


def format_dtype(dtype: Any) -> str:
    """Return numpy's name of a dtype, or its str if numpy does not have the dtype."""
    try:
        return str(np.dtype(get_stored_name(dtype) or dtype).name)
    except TypeError:
        return get_stored_name(dtype) or str(dtype)


def is_numeric(dtype: Any) -> bool:
    """Return whether a dtype is a number or bool."""
    if not isinstance(dtype, np.dtype):
        return False
    return dtype.kind in "biufc" or (dtype.kind == "V" and np.can_cast(dtype, np.float32))
