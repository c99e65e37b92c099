"""Write tensors as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, Literal

import numpy as np
from xarray import Variable

from xr_tensorfmt.contract import (
    Array,
    CheckedInput,
    Conversion,
    DeferredPlans,
    Element,
    FilePlan,
    Piece,
)
from xr_tensorfmt.formats.vespa.spec import VespaHeader
from xr_tensorfmt.formats.vespa.type_string import format_type
from xr_tensorfmt.formats.vespa.write import Dimensions, arrange_tensor, check_name_dropped

Form = Literal["short", "long", "hex"]


def plan(checked: CheckedInput, form: Form = "short") -> DeferredPlans:
    """Plan a JSON file, which requires all values."""
    check_name_dropped(checked)
    tensor = arrange_tensor(checked)

    def plans() -> Iterator[FilePlan]:
        content = json.dumps(build_json(*tensor, form), allow_nan=False).encode()
        yield FilePlan(len(content), (Piece(0, content),), ())

    return DeferredPlans(plans)


def build_json(
    header: VespaHeader,
    dimensions: Dimensions,
    variable: Variable,
    conversion: Conversion,
    form: Form,
) -> dict[str, Any]:
    """Build the JSON of a tensor from Python objects."""
    element, columns = header.element, dimensions.labels.values()
    encoded = element.encode(conversion.apply(np.asarray(variable.values)))
    labels: list[tuple[str, ...]] = [()]
    if columns:
        labels = list(zip(*(column.tolist() for column in columns), strict=True))
    blocks = encoded.reshape(len(labels), *header.lengths)
    data: dict[str, Any] = {"type": format_type(header)}
    if form == "long" or (len(header.mapped) > 1 and not header.indexed):
        return data | {"cells": list(_build_cells(header, labels, _list_values(blocks, element)))}
    is_hex = form == "hex" and bool(header.indexed)
    pack = _format_hex if is_hex else partial(_list_values, element=element)
    if not header.mapped:
        values = pack(blocks[0])
        return data | {"values": values if header.indexed else [values]}
    values = [pack(block) for block in blocks]
    if len(header.mapped) == 1:
        by_label = {label: block for (label,), block in zip(labels, values, strict=True)}
        return data | {"blocks" if header.indexed else "cells": by_label}
    addresses = [dict(zip(header.mapped, row, strict=True)) for row in labels]
    listed = [{"address": a, "values": v} for a, v in zip(addresses, values, strict=True)]
    return data | {"blocks": listed}


def _build_cells(
    header: VespaHeader, labels: list[tuple[str, ...]], values: Any
) -> Iterator[dict[str, Any]]:
    """Yield all cells with their addresses. The dimensions are sorted by name."""
    indices = list(product(*map(range, header.lengths)))
    names = (*header.mapped, *header.indexed)
    for label, block in zip(labels, values, strict=True):
        for index in indices:
            value = block
            for position in index:
                value = value[position]
            address = dict(zip(names, (*label, *map(str, index)), strict=True))
            yield {"address": dict(sorted(address.items())), "value": value}


def _format_hex(encoded: Array) -> str:
    """Return two hexadecimal digits per byte, in big-endian order."""
    return encoded.tobytes().hex().upper()


def _list_values(encoded: Array, element: Element) -> Any:
    """Return nested lists of numbers. NaN is None, and an infinity is a str."""
    values = element.decode(encoded)
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return values.tolist()
    plain = values.astype(object)
    plain[np.isnan(values)] = None
    plain[np.isposinf(values)] = "Infinity"
    plain[np.isneginf(values)] = "-Infinity"
    return plain.tolist()
