"""Parse the JSON forms of a tensor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xr_tensorfmt.contract import Array, did_you_mean, shorten
from xr_tensorfmt.formats.vespa.spec import CELL_TYPES, STRING_DTYPE, Strings, VespaHeader
from xr_tensorfmt.formats.vespa.type_string import format_type, parse_type

MAX_JSON_CELLS = 1 << 22
"""Limit on the cells of a tensor if JSON lists only some of them."""

_CONTENT_KEYS = ("cells", "values", "blocks")
_WRAPPER_KEYS = {*_CONTENT_KEYS, "type", "dimensions"}

HEX = re.compile(r"(?:[0-9A-Fa-f]{2})+")
_NUMBER = re.compile(
    r"[-+]?(inf(inity)?|nan|(\d+\.?\d*|\.\d+)(e[-+]?\d+)?)", re.IGNORECASE | re.ASCII
)
_ELEMENT_BY_DIGITS = {2 * element.stored.itemsize: element for element in CELL_TYPES.values()}

Labels = tuple[str, ...]
"""The labels of a block, one per mapped dimension."""


@dataclass(frozen=True)
class ParsedTensor:
    """A tensor from JSON: a header, a column of labels per mapped dimension, and all cells."""

    header: VespaHeader
    labels: tuple[Strings, ...]
    cells: Array


def select_field(data: Any, field: str | None) -> Any:
    """Return a field of a document or mapping, or `data` itself if it is a tensor."""
    fields = data.get("fields") if isinstance(data, dict) else None
    if not isinstance(fields, dict):  # a map of labels has no objects
        first = data[0] if isinstance(data, list) and data else None
        root = data.get("root") if isinstance(data, dict) else None
        if isinstance(root, dict) or (isinstance(first, dict) and "fields" in first):
            raise ValueError(
                "the JSON is a list of documents or the response to a query; pass one document: an "
                "item of the list, or data['root']['children'][0] of the response"
            )
        if field is None:
            return data
        if isinstance(data, dict) and isinstance(data.get(field), dict | list):
            return data[field]
        raise ValueError(f"the JSON has no field {field!r} and no 'fields'; omit field=")
    if field not in fields:
        names = shorten(", ".join(map(repr, fields))) or "none"
        hint = "" if field is None else f", not {field!r}{did_you_mean(field, fields)}"
        raise ValueError(
            f"the JSON is a document with the fields {names}; pass one of them as field= to "
            f"xr_tensorfmt.vespa_from_json{hint}"
        )
    if "update" not in data:
        return fields[field]
    if not (isinstance(fields[field], dict) and fields[field].keys() == {"assign"}):
        raise ValueError(
            f"the document updates the field {field!r} without 'assign', so it has no complete "
            "tensor; open the stored document instead"
        )
    return fields[field]["assign"]


def parse_tensor(data: Any, type_: str | None) -> ParsedTensor:
    """Parse a tensor in any form; raise ValueError if its type is unknown or does not match."""
    if data is None:
        raise ValueError("the JSON is null, expected a tensor of Vespa; leave the field out")
    stated = data.get("type") if _find_content(data) else None
    if type_ is None and not isinstance(stated, str):
        raise ValueError(
            'the JSON states no type of the tensor; write {"type": "tensor<float>(x[3])", '
            '"values": ...} with the type of its field, or pass the type to '
            "xr_tensorfmt.vespa_from_json"
        )
    header = parse_type(str(stated) if type_ is None else type_)
    if type_ is not None and isinstance(stated, str) and parse_type(stated) != header:
        raise ValueError(
            f"the JSON states the type {stated!r}, expected type={type_!r}; omit type="
        )
    blocks = _parse_blocks(header, data)
    _check_encodable(blocks)
    columns = zip(*blocks, strict=True) if blocks else ((),) * len(header.mapped)
    cells = np.array(list(blocks.values()), dtype=float).reshape(len(blocks), *header.lengths)
    return ParsedTensor(
        replace(header, blocks=len(blocks)),
        tuple(np.fromiter(column, STRING_DTYPE, len(blocks)) for column in columns),
        _convert_cells(header, cells),
    )


def _find_content(data: Any) -> tuple[str, Any] | None:
    """Return ``(key, content)`` of a wrapper object, or None if `data` is no wrapper.

    A dict can also map labels to cells, and a label may be ``cells`` or ``values``, so the content
    is inspected too.
    """
    if not isinstance(data, dict) or not data.keys() <= _WRAPPER_KEYS:
        return None
    keys = [key for key in _CONTENT_KEYS if key in data]
    if not isinstance(data.get("type", ""), str) or len(keys) > 1:
        return None
    if not keys:
        return ("cells", None) if "type" in data else None
    key, content = keys[0], data[keys[0]]
    if key == "values":
        return (key, content) if isinstance(content, list | str) else None
    first = content[:1] if isinstance(content, list) else [content]
    return (key, content) if all(isinstance(item, dict) for item in first) else None


def _unwrap(header: VespaHeader, data: Any) -> tuple[str, Any]:
    """Return ``(key, content)`` of a tensor. Infer the key if `data` has no wrapper object."""
    member = _find_content(data)
    # A tensor with labels has no values, so "values" is a label.
    is_map = header.mapped and isinstance(data, dict) and set(data) == {"values"}
    if member and not is_map:
        return member
    if isinstance(data, dict):
        return "blocks" if header.indexed else "cells", data
    has_cells = isinstance(data, list) and data and isinstance(data[0], dict)
    if header.mapped or has_cells:
        return "cells", data
    return "values", data if header.indexed or isinstance(data, list) else [data]


def _parse_blocks(header: VespaHeader, data: Any) -> dict[Labels, Array]:
    """Return the cells of all blocks by their labels."""
    key, content = _unwrap(header, data)
    if key == "cells" and isinstance(content, list):
        return _parse_cells(header, content)
    blocks: dict[Labels, Array] = {}
    for labels, values in _split_blocks(header, key, content):
        if labels in blocks:
            raise ValueError(f"the labels {shorten(repr(labels))} occur twice; leave one out")
        blocks[labels] = _parse_values(header, values)
    return blocks


def _split_blocks(header: VespaHeader, key: str, content: Any) -> Iterable[tuple[Labels, Any]]:
    """Return the labels and the values of all blocks, in all forms but a list of cells."""
    mapped = header.mapped
    map_key = "blocks" if header.indexed else "cells"
    if key == "values" and not mapped and isinstance(content, list | str):
        return [((), content)]
    if key == "blocks" and mapped and isinstance(content, list):
        blocks = (_get_members(block, "address", "values") for block in content)
        return ((_parse_labels(header, address, ()), values) for address, values in blocks)
    if key == map_key and len(mapped) == 1 and isinstance(content, dict):
        return (((label,), values) for label, values in content.items())
    if content is None and mapped:
        return ()
    forms = "a list of 'cells' or 'blocks'" if mapped else "a list as 'cells' or 'values'"
    if len(mapped) == 1:
        forms += f", or a map of labels as {map_key!r}"
    raise ValueError(
        f"{shorten(repr(content))} as {key!r} is not a form of {format_type(header)}, "
        f"expected {forms}"
    )


def _parse_labels(
    header: VespaHeader, address: Mapping[str, Any], indexed: tuple[str, ...]
) -> Labels:
    """Return the labels in an address, which also contains the indexed dimensions or fewer."""
    mapped = header.mapped
    if not {*mapped} <= address.keys() <= {*mapped, *indexed}:
        raise ValueError(
            f"the address {shorten(repr(address))} does not fit {format_type(header)}, "
            f"expected the dimensions {[*mapped, *indexed]}"
        )
    labels = tuple(address[name] for name in mapped)
    if not all(isinstance(label, str | int) and not isinstance(label, bool) for label in labels):
        raise ValueError(f"the address {shorten(repr(address))} has labels that are not str")
    return tuple(map(str, labels))


def _parse_cells(header: VespaHeader, content: Iterable[Any]) -> dict[Labels, Array]:
    """Return the cells of all blocks from a list. Cells that are not listed are zero."""
    blocks: dict[Labels, Array] = {}
    seen = set()
    if not header.mapped:
        blocks[()] = _allocate_block(header, 1)
    for cell in content:
        address, value = _get_members(cell, "address", "value")
        labels = _parse_labels(header, address, header.indexed)
        index = _find_cell_index(header, address)
        if (labels, index) in seen:
            raise ValueError(f"the cell {shorten(repr(address))} occurs twice; leave one out")
        seen.add((labels, index))
        if labels not in blocks:
            blocks[labels] = _allocate_block(header, len(blocks) + 1)
        blocks[labels][index] = _parse_number(value)
    return blocks


def _allocate_block(header: VespaHeader, blocks: int) -> Array:
    """Return the cells of another block; raise ValueError if there are too many."""
    if header.cells * blocks > MAX_JSON_CELLS:
        raise ValueError(
            f"{format_type(header)} has more than {MAX_JSON_CELLS} cells, but lists "
            "only some of them; use blocks or values"
        )
    return np.zeros(header.cells)


def _find_cell_index(header: VespaHeader, address: Mapping[str, Any]) -> int:
    """Return the row-major index of a cell in its block."""
    flat = 0
    for name, length in zip(header.indexed, header.lengths, strict=True):
        index = str(address.get(name))
        if not re.fullmatch(r"\d{1,19}", index, re.ASCII) or int(index) >= length:
            raise ValueError(
                f"the address {shorten(repr(address))} has no index from 0 to {length - 1} "
                f"for {name!r} of {format_type(header)}"
            )
        flat = flat * length + int(index)
    return flat


def _get_members(item: Any, *keys: str) -> Iterator[Any]:
    """Return the members of an object with an address."""
    is_complete = isinstance(item, dict) and item.keys() >= set(keys)
    if not is_complete or not isinstance(item["address"], dict):
        raise ValueError(f"{shorten(repr(item))} has no {' and '.join(map(repr, keys))}")
    return (item[key] for key in keys)


def _parse_values(header: VespaHeader, values: Any) -> Array:
    """Return the cells of a block from numbers, nested or not, or from hexadecimal digits."""
    # A number of a sparse tensor may be a string.
    if isinstance(values, str) and (header.indexed or not header.mapped):
        return _parse_hex(header, values)
    array = np.array(values, dtype=object, ndmin=1)
    if array.shape not in (header.lengths, (header.cells,)):
        raise ValueError(
            f"{shorten(repr(values))} has the shape {array.shape}, expected {header.lengths} or "
            f"{header.cells} flat values for a block of {format_type(header)}"
        )
    flat = array.ravel().tolist()
    if {float}.issuperset(map(type, flat)):  # much faster
        return np.array(flat)
    return np.array([_parse_number(value) for value in flat])


def _parse_hex(header: VespaHeader, digits: str) -> Array:
    """Return the cells of a block. Floats may have another width than in the type."""
    digits_per_cell, rest = divmod(len(digits), header.cells)
    element = _ELEMENT_BY_DIGITS.get(digits_per_cell)
    is_valid = not rest and HEX.fullmatch(digits)
    if not element or not is_valid or element.dtype.kind != header.element.dtype.kind:
        raise ValueError(
            f"{shorten(repr(digits))} are not {2 * header.element.stored.itemsize} hexadecimal "
            f"digits per cell for the {header.cells} cells of a block of {format_type(header)}"
        )
    raw = np.frombuffer(bytes.fromhex(digits), dtype=element.stored)
    return element.decode(raw).astype(np.float64)


def _parse_number(value: Any) -> float:
    """Return a number. As in Vespa, it may be null or a string."""
    if value is None:
        return float("nan")
    is_string = isinstance(value, str) and _NUMBER.fullmatch(value)
    if is_string or (isinstance(value, int | float) and not isinstance(value, bool)):
        with suppress(OverflowError):
            return float(value)
    raise ValueError(f"{shorten(repr(value))} is not the value of a cell")


def _convert_cells(header: VespaHeader, cells: Array) -> Array:
    """Round cells to the cell type; raise ValueError if an int8 is out of bounds."""
    with np.errstate(all="ignore"):
        converted = cells.astype(header.element.dtype)
    if header.cell_type == "int8" and (cells != converted).any():
        wrong = cells[cells != converted][0]
        raise ValueError(
            f"{wrong} is not an integer from -128 to 127, expected one for {format_type(header)}"
        )
    return header.element.decode(header.element.encode(converted))


def _check_encodable(blocks: Iterable[Labels]) -> None:
    for labels in blocks:
        try:
            "".join(labels).encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the labels {shorten(ascii(labels))} have a lone surrogate ({error.reason}), "
                "expected text that UTF-8 can encode; correct the label"
            ) from None
