"""Build the JSON forms of a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, Literal

import numpy as np

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.formats.vespa.json_input import format_type
from xr_tensorfmt.formats.vespa.spec import VespaHeader

Form = Literal["short", "long", "hex"]

Rows = Sequence[tuple[str, ...]]
"""The labels of some blocks."""


def build_json(header: VespaHeader, labels: Rows, blocks: Array, form: Form) -> dict[str, Any]:
    """Build the JSON of a tensor from the labels and the encoded cells of its blocks."""
    element = header.element
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


def _build_cells(header: VespaHeader, labels: Rows, values: Any) -> Iterator[dict[str, Any]]:
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
