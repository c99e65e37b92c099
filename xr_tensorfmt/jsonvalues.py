"""Attributes and labels as JSON that gives them back as they were."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.elements import Array

TAG = "__numpy__"
"""The one key of an object that stands for an array."""

_KINDS = "biufcmMSU"


def to_json(value: Any, what: str) -> Any:
    """What JSON can hold of a value, without loss.

    Parameters
    ----------
    value : object
        Texts, numbers, bools, None, and lists, mappings and arrays of such. numpy's scalars become
        Python's, tuples become lists; these are equal to what they were.
    what : str
        What it is, for errors.

    Returns
    -------
    object
        Of dicts with texts as keys, lists, texts, numbers, bools and None.

    Raises
    ------
    TypeError
        JSON has nothing like it.
    """
    if isinstance(value, np.generic) and value.dtype.kind in "biufU":
        value = value.item()
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _encodable(value, what)
    if isinstance(value, list | tuple):
        return [to_json(each, what) for each in value]
    if isinstance(value, np.ndarray | np.generic | complex):
        return {TAG: array_to_json(np.asarray(value), what)}
    if isinstance(value, Mapping) and TAG not in value:
        return {_key(key, what): to_json(each, what) for key, each in value.items()}
    raise TypeError(
        f"{what} is a {type(value).__name__}, which JSON cannot hold; "
        "make it a text, a number, an array, or a list or dict of such"
    )


def from_json(value: Any) -> Any:
    """The value that `to_json` made this of.

    Parameters
    ----------
    value : object
        What JSON gave.

    Returns
    -------
    object

    Raises
    ------
    TypeError, ValueError, KeyError
        It was not made so.
    """
    if isinstance(value, Mapping):
        if set(value) == {TAG}:
            array = array_from_json(value[TAG])
            return array if array.ndim else array[()]
        return {key: from_json(each) for key, each in value.items()}
    return [from_json(each) for each in value] if isinstance(value, list) else value


def array_to_json(array: Array, what: str) -> dict[str, Any]:
    """An array as JSON: texts as they are, other values as bytes in base64.

    Parameters
    ----------
    array : ndarray
        Numbers, bools, times, or texts.
    what : str
        What it is, for errors.

    Returns
    -------
    dict

    Raises
    ------
    TypeError
        It holds other objects.
    """
    facts = {"dtype": array.dtype.str, "shape": list(array.shape)}
    if array.dtype.kind in "OUT" and all(isinstance(each, str) for each in array.ravel().tolist()):
        texts = [_encodable(each, what) for each in array.ravel().tolist()]
        return facts | {"texts": texts}
    if array.dtype.kind not in _KINDS:
        raise TypeError(
            f"{what} has dtype {array.dtype}, which JSON cannot hold; "
            "make it an array of numbers or texts"
        )
    return facts | {"base64": b64encode(np.ascontiguousarray(array).tobytes()).decode()}


def array_from_json(facts: Mapping[str, Any]) -> Array:
    """The array that `array_to_json` made this of.

    Parameters
    ----------
    facts : mapping
        What JSON gave.

    Returns
    -------
    ndarray
        In native byte order, memory of its own.

    Raises
    ------
    TypeError, ValueError, KeyError
        It was not made so.
    """
    dtype, shape = np.dtype(facts["dtype"]), tuple(facts["shape"])
    if "texts" in facts:
        texts = facts["texts"]
        if dtype.kind not in "OUT" or not all(isinstance(each, str) for each in texts):
            raise TypeError("texts of another dtype")
        array: Array = np.empty(len(texts), dtype=dtype)
        array[:] = texts
        return array.reshape(shape)
    raw = b64decode(facts["base64"], validate=True)
    if dtype.kind not in _KINDS or prod(shape) * dtype.itemsize != len(raw):
        raise ValueError("an array whose bytes do not fit its shape")
    return np.frombuffer(raw, dtype).reshape(shape).astype(dtype.newbyteorder("="))


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
