"""Attributes and labels as JSON that gives them back as they were."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.errors import shortened

TAG = "__numpy__"
"""The one key of an object that stands for an array."""

MOST_LEVELS = 100
"""Limit on lists within lists; Python follows a few hundred."""

MOST_DIMENSIONS = 64
"""Limit on the dimensions of an array, which is numpy's."""

_KINDS = "biufcmMSU"
_DTYPE = re.compile(r"[<>|]([biufcSU]\d{1,8}|[mM]8(\[\w{1,8}\])?)|\|O|T")
# numpy gives each text of an array the room of the longest, so that few bytes can ask for many.
_MOST_ROOM = 32


def to_json(value: Any, what: str, level: int = 0) -> Any:
    """What JSON can hold of a value, without loss."""
    if level > MOST_LEVELS:
        raise TypeError(f"{what} is nested deeper than {MOST_LEVELS} levels; make it flatter")
    if isinstance(value, np.ndarray | np.generic | complex) and not isinstance(value, str):
        return {TAG: array_to_json(np.asanyarray(value), what)}
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return _printable(value, what)
    if isinstance(value, str):
        return _encodable(value, what)
    if isinstance(value, list | tuple):
        return [to_json(each, what, level + 1) for each in value]
    if isinstance(value, Mapping) and TAG not in value:
        return {_key(key, what): to_json(each, what, level + 1) for key, each in value.items()}
    raise TypeError(
        f"{what} holds a {type(value).__name__}, which JSON cannot; "
        f"make it a text, a number, an array, or a list or dict of such (without {TAG!r})"
    )


def from_json(value: Any, level: int = 0) -> Any:
    """The value that `to_json` made this of."""
    if level > MOST_LEVELS:
        raise ValueError(f"more than {MOST_LEVELS} levels")
    if isinstance(value, Mapping):
        if set(value) == {TAG}:
            array = array_from_json(value[TAG])
            return array if array.ndim else array[()]
        return {key: from_json(each, level + 1) for key, each in value.items()}
    return [from_json(each, level + 1) for each in value] if isinstance(value, list) else value


def without_dtypes(value: Any) -> Any:
    """What `to_json` makes of Python's numbers instead of numpy's, for programs that know no tag."""
    if isinstance(value, Mapping):
        if set(value) != {TAG}:
            return {key: without_dtypes(each) for key, each in value.items()}
        array = array_from_json(value[TAG])
        number = array.item() if not array.ndim and array.dtype.kind in "biuf" else None
        return number if isinstance(number, bool | int | float) else value
    return [without_dtypes(each) for each in value] if isinstance(value, list) else value


def array_to_json(array: Array, what: str) -> dict[str, Any]:
    """An array as JSON: texts as they are, other values as bytes in base64."""
    if np.ma.isMaskedArray(array):
        raise TypeError(f"{what} has masked values, which JSON cannot hold; fill them first")
    shape = list(array.shape)
    if array.dtype.kind in "OUT" and all(isinstance(each, str) for each in array.ravel().tolist()):
        texts = [_encodable(each, what) for each in array.ravel().tolist()]
        return {"dtype": _text_dtype(array.dtype, texts, what), "shape": shape, "texts": texts}
    if array.dtype.kind not in _KINDS:
        raise TypeError(
            f"{what} has dtype {array.dtype}, which JSON cannot hold; "
            "make it an array of numbers or texts"
        )
    raw = b64encode(array.tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": shape, "base64": raw}


def _text_dtype(dtype: np.dtype[Any], texts: Sequence[str], what: str) -> str:
    if dtype == np.dtypes.StringDType():
        return "T"
    for each in (dtype, np.array(texts, dtype=np.str_).dtype):
        if dtype.kind == "O" or _has_room(each, texts):
            return each.str
    raise TypeError(
        f"{what} is an array of texts of very different lengths; make it one of objects"
    )


def _has_room(dtype: np.dtype[Any], texts: Sequence[str]) -> bool:
    """Whether an array of texts takes no more memory than their bytes give reason for."""
    return dtype.itemsize * len(texts) <= _MOST_ROOM * (64 + sum(map(len, texts)) + len(texts))


def array_from_json(facts: Mapping[str, Any]) -> Array:
    """The array that `array_to_json` made this of."""
    dtype, shape = _dtype(facts["dtype"]), _shape(facts["shape"])
    if "texts" in facts:
        return _texts(facts["texts"], dtype).reshape(shape)
    raw = b64decode(facts["base64"], validate=True)
    if dtype.kind not in _KINDS or prod(shape) * dtype.itemsize != len(raw) or not dtype.itemsize:
        raise ValueError("an array whose bytes do not fit its shape")
    return np.frombuffer(raw, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _dtype(text: str) -> np.dtype[Any]:
    if not _DTYPE.fullmatch(text):
        raise ValueError(f"the dtype {shortened(repr(text))}")
    return np.dtypes.StringDType() if text == "T" else np.dtype(text)


def _shape(lengths: Sequence[int]) -> tuple[int, ...]:
    known = all(type(each) is int and 0 <= each < 1 << 62 for each in lengths)
    if len(lengths) > MOST_DIMENSIONS or not known:
        raise ValueError(f"the shape {shortened(repr(lengths))}")
    return tuple(lengths)


def _texts(texts: Sequence[str], dtype: np.dtype[Any]) -> Array:
    known = isinstance(texts, list) and all(isinstance(each, str) for each in texts)
    if dtype.kind not in "OUT" or not known:
        raise TypeError("texts of another dtype")
    if dtype.kind == "U":
        if not _has_room(dtype, texts):
            raise ValueError("texts that take much more room than they need")
        dtype = dtype.newbyteorder("=")
    array: Array = np.empty(len(texts), dtype=dtype)
    array[:] = texts
    return array


def _printable(number: int, what: str) -> int:
    try:
        str(number)
    except ValueError:
        raise TypeError(
            f"{what} has more digits than Python reads from a text; make it a float or a text"
        ) from None
    return number


def _key(key: object, what: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{what} has the key {key!r}, which is no text; rename it to {str(key)!r}")
    return _encodable(key, what)


def _encodable(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TypeError(f"{what} holds {text!a}, which UTF-8 cannot hold; change it") from None
    return str(text)
