"""Tensors that are given as hexadecimal digits, as JSON, and as Python's objects that JSON has."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any, Literal, get_args

import numpy as np
from xarray import DataArray, Dataset, Variable, open_dataset

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.formats.vespa.forms import json_type, loaded, packed_tensor
from xr_tensorfmt.formats.vespa.spec import Header
from xr_tensorfmt.formats.vespa.write import Dimensions, arranged
from xr_tensorfmt.writing.atomic_file import Piece
from xr_tensorfmt.writing.checked_input import CheckedInput, Encoding, Part, check_input
from xr_tensorfmt.writing.conversion import Conversion
from xr_tensorfmt.writing.file_plan import FilePlan, FirstPass

Form = Literal["short", "long", "hex"]

# The value of a dense field with format.tensors=hex-value; a JSON number is no field of a tensor.
_DIGITS = re.compile(r"(?:[0-9A-Fa-f]{2})+")


def from_hex(digits: str, **keywords: Any) -> Dataset:
    """Open a tensor given as hexadecimal digits, as Vespa's tools print its bytes.

    Parameters
    ----------
    digits : str
        Two for each byte, with or without ``0x`` before them; white space is ignored.
    **keywords
        Keywords of `xarray.open_dataset` and of this engine.

    Returns
    -------
    Dataset

    Raises
    ------
    ValueError
        The string has other characters, or the bytes are not a typed binary tensor.
    TypeError
        `digits` is not a string.

    See Also
    --------
    xr_tensorfmt.vespa_from_json : A tensor as JSON.

    Examples
    --------
    >>> from_hex("0x0601010178023F80000040000000").tensor.values
    array([1., 2.], dtype=float32)
    """
    if not isinstance(digits, str):
        raise TypeError(f"digits={digits!r} must be a str of hexadecimal digits, as '0x0200...'")
    stripped = digits.strip()
    try:
        content = bytes.fromhex(stripped[2:] if stripped[:2] in ("0x", "0X") else stripped)
    except ValueError as error:
        raise ValueError(
            f"digits={stripped[:40]!r} must be hexadecimal digits, two for each byte ({error})"
        ) from error
    return _opened(content, keywords)


def vespa_from_json(data: Any, type: str | None = None, **keywords: Any) -> Dataset:
    """Open a tensor given as JSON, in any form that Vespa returns or accepts.

    Parameters
    ----------
    data : dict, list, str or bytes
        The value of a tensor field as pyvespa and `json.loads` give it, or JSON text: cells,
        values or blocks, also as hexadecimal digits, with or without an object around them.
    type : str, optional
        The type of the field or constant, such as ``"tensor<float>(user{},x[3])"``; needed where
        `data` does not state it.
    **keywords
        Keywords of `xarray.open_dataset` and of this engine.

    Returns
    -------
    Dataset
        As a file with the same tensor opens.

    Raises
    ------
    ValueError
        `data` is not such a tensor, or not of the type.

    See Also
    --------
    vespa_to_json : The inverse.

    Examples
    --------
    >>> field = {"type": "tensor<float>(user{},x[2])", "blocks": {"ada": [1, 2], "bob": [3, 4]}}
    >>> vespa_from_json(field).tensor.sel(user="bob").values
    array([3., 4.], dtype=float32)
    >>> vespa_from_json("FF00118022FE", "tensor<int8>(x[6])").tensor.values
    array([  -1,    0,   17, -128,   34,   -2], dtype=int8)
    """
    is_digits = isinstance(data, str) and _DIGITS.fullmatch(data)
    content = {"values": data} if is_digits else loaded(data)
    return _opened(packed_tensor(content, type), keywords)


def _opened(content: bytes, keywords: Mapping[str, Any]) -> Dataset:
    # xarray can name chunks of a memoryview, but not of bytes.
    keywords = {"format": "vespa", **keywords}
    return open_dataset(memoryview(content), engine="tensorfmt", **keywords)


def vespa_to_json(
    data: Dataset | DataArray,
    form: Form = "short",
    *,
    encoding: Encoding | None = None,
    drop: Collection[Part] = (),
) -> dict[str, Any]:
    """Make the JSON of a tensor, as Vespa returns it and as fields of documents are fed.

    Parameters
    ----------
    data : Dataset or DataArray
        One variable, as `to_vespa` takes it.
    form : {"short", "long", "hex"}
        Nested lists of values (the default), a list of cells with their addresses, or the short
        form with hexadecimal digits for dense values, which are exact and quick to parse.
    encoding : mapping, optional
        ``{name: {"dtype": ...}}``, as `to_vespa` takes it.
    drop : list of {"coords", "attrs"}
        What may be left out, which is an error otherwise.

    Returns
    -------
    dict
        With the ``"type"`` and ``"values"``, ``"cells"`` or ``"blocks"``, for `json.dumps` or
        pyvespa. NaN is None, and infinities are strings, as JSON has no numbers for them.

    Raises
    ------
    ValueError
        Vespa cannot hold something; the message says what, and what would work.

    See Also
    --------
    vespa_from_json : The inverse.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> vector = xr.DataArray(np.float32([1, 2]), dims="x")
    >>> vespa_to_json(vector)
    {'type': 'tensor<float>(x[2])', 'values': [1.0, 2.0]}
    >>> vespa_to_json(vector, "hex")
    {'type': 'tensor<float>(x[2])', 'values': '3F80000040000000'}
    """
    if form not in get_args(Form):
        raise ValueError(f"form={form!r} is not one of {', '.join(map(repr, get_args(Form)))}")
    return _data(*arranged(check_input(data, "the JSON", "Vespa", encoding, drop)), form)


def plan(checked: CheckedInput, form: Form = "short") -> FirstPass:
    """Plan a file of JSON, for which all values are computed."""
    fitting = arranged(checked)

    def look() -> FilePlan:
        content = json.dumps(_data(*fitting, form), allow_nan=False).encode()
        return FilePlan(len(content), (Piece(0, content),), ())

    return FirstPass(look)


def _data(
    header: Header, dimensions: Dimensions, variable: Variable, conversion: Conversion, form: Form
) -> dict[str, Any]:
    """The JSON of a tensor, as Python's objects."""
    element, columns = header.element, dimensions.labels.values()
    encoded = element.encode(conversion.apply(np.asarray(variable.values)))
    labels: list[tuple[str, ...]] = [()]
    if columns:
        labels = list(zip(*(column.tolist() for column in columns), strict=True))
    blocks = encoded.reshape(len(labels), *header.lengths)
    data: dict[str, Any] = {"type": json_type(header)}
    if form == "long" or (len(header.mapped) > 1 and not header.indexed):
        return data | {"cells": list(_cells(header, labels, _plain(blocks, element)))}
    is_hex = form == "hex" and bool(header.indexed)
    pack = _hex if is_hex else partial(_plain, element=element)
    if not header.mapped:
        values = pack(blocks[0])
        return data | {"values": values if header.indexed else [values]}
    values = [pack(block) for block in blocks]
    if len(header.mapped) == 1:
        by_label = {label: each for (label,), each in zip(labels, values, strict=True)}
        return data | {"blocks" if header.indexed else "cells": by_label}
    addresses = [dict(zip(header.mapped, each, strict=True)) for each in labels]
    listed = [{"address": a, "values": v} for a, v in zip(addresses, values, strict=True)]
    return data | {"blocks": listed}


def _cells(header: Header, labels: list[tuple[str, ...]], values: Any) -> Iterator[dict[str, Any]]:
    """Each cell with its address, whose dimensions are sorted by name."""
    places = list(product(*map(range, header.lengths)))
    names = (*header.mapped, *header.indexed)
    for label, block in zip(labels, values, strict=True):
        for place in places:
            value = block
            for index in place:
                value = value[index]
            address = dict(zip(names, (*label, *map(str, place)), strict=True))
            yield {"address": dict(sorted(address.items())), "value": value}


def _hex(encoded: Array) -> str:
    """Two hexadecimal digits for each byte, big-endian as Vespa has them."""
    return encoded.tobytes().hex().upper()


def _plain(encoded: Array, element: Element) -> Any:
    """Numbers in nested lists; what JSON has no number for is null or a str."""
    values = element.decode(encoded)
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return values.tolist()
    plain = values.astype(object)
    plain[np.isnan(values)] = None
    plain[np.isposinf(values)] = "Infinity"
    plain[np.isneginf(values)] = "-Infinity"
    return plain.tolist()
