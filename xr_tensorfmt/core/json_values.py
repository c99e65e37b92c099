"""Lossless conversion of attributes and arrays to JSON and back."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.errors import shorten

DTYPE_TAG = "__numpy__"
"""Key of a JSON object that encodes a numpy array or number."""

MAX_LEVELS = 32
"""Limit on nested lists and dicts in an attribute. dask allows less than 100."""

_DTYPE_KINDS = "biufcmMS"
_DTYPE_NAME = re.compile(r"[<>|]([biufcSU]\d{1,8}|[mM]8(\[\w{1,8}\])?)|\|O|T")
# Every string of a numpy array takes the memory of the longest one, so short JSON could require a
# huge array.
_MAX_BYTES_PER_CHARACTER = 32


def to_json(value: Any, subject: str, level: int = 0) -> Any:
    """Encode a value. Raise TypeError, with the name `subject`, if JSON does not support it."""
    if level > MAX_LEVELS:
        raise TypeError(f"{subject} is nested deeper than {MAX_LEVELS} levels; flatten it")
    if isinstance(value, np.ndarray | np.generic | complex) and not isinstance(value, str):
        return {DTYPE_TAG: array_to_json(np.asanyarray(value), subject)}
    if isinstance(value, int | float | None):
        return value
    if isinstance(value, str):
        return _check_string(value, subject)
    if isinstance(value, list | tuple):
        return [to_json(item, subject, level + 1) for item in value]
    if isinstance(value, Mapping) and DTYPE_TAG not in value:
        return {
            _check_string(key, subject): to_json(item, subject, level + 1)
            for key, item in value.items()
        }
    raise TypeError(
        f"{subject} contains a {type(value).__name__}, which JSON does not support; convert it to "
        f"a str, a number, an array, or a list or dict of these (without the key {DTYPE_TAG!r})"
    )


def from_json(value: Any) -> Any:
    """Decode JSON that `to_json` encoded. The nesting must be limited."""
    if isinstance(value, Mapping):
        if set(value) == {DTYPE_TAG}:
            return array_from_json(value[DTYPE_TAG])[()]
        return {key: from_json(item) for key, item in value.items()}
    return [from_json(item) for item in value] if isinstance(value, list) else value


def strip_dtypes(value: Any) -> Any:
    """Replace tagged numpy numbers by plain numbers, for programs that do not know the tag."""
    if isinstance(value, Mapping):
        if set(value) != {DTYPE_TAG}:
            return {key: strip_dtypes(item) for key, item in value.items()}
        array = array_from_json(value[DTYPE_TAG])
        number = array.item() if not array.ndim and array.dtype.kind in "biuf" else None
        return number if isinstance(number, bool | int | float) else value
    return [strip_dtypes(item) for item in value] if isinstance(value, list) else value


def array_to_json(array: Array, subject: str) -> dict[str, Any]:
    """Encode an array: strings as a list, other values in base64."""
    if np.ma.isMaskedArray(array):
        raise TypeError(
            f"{subject} has masked values, which JSON does not support; fill them first"
        )
    data = {"dtype": array.dtype.str, "shape": list(array.shape)}
    if array.dtype.kind in "OUT":
        items: list[Any] = array.ravel().tolist()
        if all(isinstance(item, str) for item in items):
            strings = [_check_string(item, subject) for item in items]
            dtype = _choose_string_dtype(array.dtype, strings, subject)
            return data | {"dtype": dtype, "strings": strings}
    if array.dtype.kind not in _DTYPE_KINDS:
        raise TypeError(
            f"{subject} has dtype {array.dtype}, which JSON does not support; "
            "convert it to numbers or strings"
        )
    return data | {"base64": b64encode(array.tobytes()).decode()}


def _choose_string_dtype(dtype: np.dtype[Any], strings: Sequence[str], subject: str) -> str:
    if dtype.kind == "T":  # with any options, such as na_object
        return "T"
    for candidate in (dtype, np.array(strings, dtype=np.str_).dtype):
        if dtype.kind == "O" or _is_compact(candidate, strings):
            return candidate.str
    raise TypeError(
        f"{subject} is an array of strings of very different lengths; convert it to dtype object"
    )


def _is_compact(dtype: np.dtype[Any], strings: Sequence[str]) -> bool:
    """Return whether the memory of an array is in proportion to its strings."""
    characters = 64 + sum(map(len, strings)) + len(strings)
    return dtype.itemsize * len(strings) <= _MAX_BYTES_PER_CHARACTER * characters


def array_from_json(data: Mapping[str, Any]) -> Array:
    """Decode an array of `array_to_json`. Raise TypeError or ValueError if it is invalid."""
    name, shape = data["dtype"], tuple(data["shape"])
    if not _DTYPE_NAME.fullmatch(name):
        raise ValueError(f"the dtype {shorten(repr(name))} is invalid")
    dtype: np.dtype[Any] = np.dtypes.StringDType() if name == "T" else np.dtype(name)
    if "strings" in data:
        return _parse_strings(data["strings"], dtype).reshape(shape)
    raw = b64decode(data["base64"], validate=True)
    nbytes = prod(shape) * dtype.itemsize
    if dtype.kind not in _DTYPE_KINDS or nbytes != len(raw) or not dtype.itemsize:
        raise ValueError("the bytes of an array do not fit its shape")
    return np.frombuffer(raw, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _parse_strings(strings: Sequence[str], dtype: np.dtype[Any]) -> Array:
    is_valid = isinstance(strings, list) and all(isinstance(string, str) for string in strings)
    if dtype.kind not in "OUT" or not is_valid:
        raise TypeError(f"an array of dtype {dtype} needs a list of strings")
    if dtype.kind == "U" and not _is_compact(dtype, strings):
        raise ValueError(f"strings of dtype {dtype} would take too much memory")
    native = dtype.newbyteorder("=") if dtype.kind == "U" else dtype
    array: Array = np.empty(len(strings), dtype=native)
    array[:] = strings
    return array


def _check_string(string: object, subject: str) -> str:
    if not isinstance(string, str):
        raise TypeError(f"{subject} has the key {string!r}, expected a str; use {str(string)!r}")
    try:
        string.encode()
    except UnicodeEncodeError:
        raise TypeError(
            f"{subject} contains {string!a}, which UTF-8 cannot encode; change it"
        ) from None
    return str(string)
