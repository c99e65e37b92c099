"""Tensors as the JSON of Vespa."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, Literal

import numpy as np
from xarray import Variable

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.formats.vespa.forms import json_type
from xr_tensorfmt.formats.vespa.labels import Strings
from xr_tensorfmt.formats.vespa.spec import Header
from xr_tensorfmt.formats.vespa.write import arranged
from xr_tensorfmt.writing.atomic_file import Piece
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.conversion import Conversion
from xr_tensorfmt.writing.file_plan import FilePlan, FirstPass

Form = Literal["short", "long", "hex"]


def plan(checked: CheckedInput, form: Form = "short") -> FirstPass:
    """Plan a file of JSON, for which all values are computed."""
    make = _maker(checked, form)

    def look() -> FilePlan:
        content = json.dumps(make(), allow_nan=False).encode()
        return FilePlan(len(content), (Piece(0, content),), ())

    return FirstPass(look)


def json_of(checked: CheckedInput, form: Form) -> dict[str, Any]:
    """The JSON of a tensor, as Python's objects."""
    return _maker(checked, form)()


def _maker(checked: CheckedInput, form: Form) -> Callable[[], dict[str, Any]]:
    """What makes the JSON of a Dataset that has been found to fit."""
    header, dimensions, variable, conversion = arranged(checked)
    return partial(_data, header, list(dimensions.labels.values()), variable, conversion, form)


def _data(
    header: Header, columns: list[Strings], variable: Variable, conversion: Conversion, form: Form
) -> dict[str, Any]:
    element = header.element
    encoded = element.encode(conversion.apply(np.asarray(variable.values)))
    labels: list[tuple[str, ...]] = [()]
    if columns:
        labels = list(zip(*(column.tolist() for column in columns), strict=True))
    blocks = encoded.reshape(len(labels), *header.lengths)
    data: dict[str, Any] = {"type": json_type(header)}
    if form == "long" or (len(header.mapped) > 1 and not header.indexed):
        return data | {"cells": list(_cells(header, labels, _plain(blocks, element)))}
    is_hex = form == "hex" and bool(header.indexed)
    pack = _digits if is_hex else partial(_plain, element=element)
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


def _digits(encoded: Array) -> str:
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
