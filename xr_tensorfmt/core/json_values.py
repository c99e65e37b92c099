"""Attributes and arrays as JSON, and back, without loss of values or dtypes."""

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
"""The only member of a JSON object that stands for a numpy array or number."""

MAX_LEVELS = 32
"""Limit on lists and dicts within each other in an attribute; dask allows less than a hundred."""

MAX_ARRAY_DIMENSIONS = 64
"""Limit on the dimensions of an array, the same as numpy's."""

_DTYPE_KINDS = "biufcmMS"  # strings are not bytes in JSON
_DTYPE_NAME = re.compile(r"[<>|]([biufcSU]\d{1,8}|[mM]8(\[\w{1,8}\])?)|\|O|T")
# In a numpy array every string takes the memory of the longest, so that a short JSON could ask for
# an enormous array.
_MAX_BYTES_PER_CHARACTER = 32


def to_json(value: Any, what: str, level: int = 0) -> Any:
    """Encode a value; TypeError where JSON cannot hold it. `what` names it in the message."""
    if level > MAX_LEVELS:
        raise TypeError(f"{what} is nested deeper than {MAX_LEVELS} levels; make it flatter")
    if isinstance(value, np.ndarray | np.generic | complex) and not isinstance(value, str):
        return {DTYPE_TAG: array_to_json(np.asanyarray(value), what)}
    if isinstance(value, int | float | None):
        return value
    if isinstance(value, str):
        return _encodable(value, what)
    if isinstance(value, list | tuple):
        return [to_json(item, what, level + 1) for item in value]
    if isinstance(value, Mapping) and DTYPE_TAG not in value:
        return {_key(key, what): to_json(item, what, level + 1) for key, item in value.items()}
    raise TypeError(
        f"{what} contains a {type(value).__name__}, which JSON cannot hold; make it a str, a "
        f"number, an array, or a list or dict of such (without the key {DTYPE_TAG!r})"
    )


def from_json(value: Any) -> Any:
    """Decode what `to_json` has encoded, from JSON whose nesting is limited."""
    if isinstance(value, Mapping):
        if set(value) == {DTYPE_TAG}:
            array = array_from_json(value[DTYPE_TAG])
            return array if array.ndim else array[()]
        return {key: from_json(item) for key, item in value.items()}
    return [from_json(item) for item in value] if isinstance(value, list) else value


def strip_dtypes(value: Any) -> Any:
    """Replace tagged numpy numbers by plain ones, for programs that do not know the tag."""
    if isinstance(value, Mapping):
        if set(value) != {DTYPE_TAG}:
            return {key: strip_dtypes(item) for key, item in value.items()}
        array = array_from_json(value[DTYPE_TAG])
        number = array.item() if not array.ndim and array.dtype.kind in "biuf" else None
        return number if isinstance(number, bool | int | float) else value
    return [strip_dtypes(item) for item in value] if isinstance(value, list) else value


def array_to_json(array: Array, what: str) -> dict[str, Any]:
    """Encode an array: strings as they are, other values as bytes in base64."""
    if np.ma.isMaskedArray(array):
        raise TypeError(f"{what} has masked values, which JSON cannot hold; fill them first")
    shape = list(array.shape)
    may_be_strings = array.dtype.kind in "OUT"
    items: list[Any] = array.ravel().tolist() if may_be_strings else []
    if may_be_strings and all(isinstance(item, str) for item in items):
        strings = [_encodable(item, what) for item in items]
        dtype = _string_dtype(array.dtype, strings, what)
        return {"dtype": dtype, "shape": shape, "strings": strings}
    if array.dtype.kind not in _DTYPE_KINDS:
        raise TypeError(
            f"{what} has dtype {array.dtype}, which JSON cannot hold; "
            "make it an array of numbers or strings"
        )
    raw = b64encode(array.tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": shape, "base64": raw}


def _string_dtype(dtype: np.dtype[Any], strings: Sequence[str], what: str) -> str:
    if dtype == np.dtypes.StringDType():
        return "T"
    for candidate in (dtype, np.array(strings, dtype=np.str_).dtype):
        if dtype.kind == "O" or _is_compact(candidate, strings):
            return candidate.str
    raise TypeError(
        f"{what} is an array of strings of very different lengths; give it dtype object"
    )


def _is_compact(dtype: np.dtype[Any], strings: Sequence[str]) -> bool:
    """Whether an array of strings takes no more memory than their lengths give reason for."""
    characters = 64 + sum(map(len, strings)) + len(strings)
    return dtype.itemsize * len(strings) <= _MAX_BYTES_PER_CHARACTER * characters


def array_from_json(facts: Mapping[str, Any]) -> Array:
    """Decode what `array_to_json` has encoded."""
    dtype, shape = _dtype(facts["dtype"]), _shape(facts["shape"])
    if "strings" in facts:
        return _strings(facts["strings"], dtype).reshape(shape)
    raw = b64decode(facts["base64"], validate=True)
    nbytes = prod(shape) * dtype.itemsize
    if dtype.kind not in _DTYPE_KINDS or nbytes != len(raw) or not dtype.itemsize:
        raise ValueError("the bytes of an array do not fit its shape")
    return np.frombuffer(raw, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _dtype(name: str) -> np.dtype[Any]:
    if not _DTYPE_NAME.fullmatch(name):
        raise ValueError(f"the dtype {shorten(repr(name))} is unknown")
    return np.dtypes.StringDType() if name == "T" else np.dtype(name)


def _shape(lengths: Sequence[int]) -> tuple[int, ...]:
    known = all(type(length) is int and 0 <= length < 1 << 62 for length in lengths)
    if len(lengths) > MAX_ARRAY_DIMENSIONS or not known:
        raise ValueError(f"the shape {shorten(repr(lengths))} is not one of an array")
    return tuple(lengths)


def _strings(strings: Sequence[str], dtype: np.dtype[Any]) -> Array:
    known = isinstance(strings, list) and all(isinstance(string, str) for string in strings)
    if dtype.kind not in "OUT" or not known:
        raise TypeError(f"an array of dtype {dtype} needs a list of strings")
    if dtype.kind == "U":
        if not _is_compact(dtype, strings):
            raise ValueError(f"strings of dtype {dtype} would take far more memory than they need")
        dtype = dtype.newbyteorder("=")
    array: Array = np.empty(len(strings), dtype=dtype)
    array[:] = strings
    return array


def _key(key: object, what: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{what} has the key {key!r}, which must be a str; use {str(key)!r}")
    return _encodable(key, what)


def _encodable(string: str, what: str) -> str:
    try:
        string.encode()
    except UnicodeEncodeError:
        raise TypeError(
            f"{what} contains {string!a}, which UTF-8 cannot encode; change it"
        ) from None
    return str(string)
