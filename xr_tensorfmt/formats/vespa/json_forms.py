"""Parse and build the JSON forms of a tensor."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import product
from typing import Any, Literal

import numpy as np

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.header import MAX_DIMENSIONS, is_addressable
from xr_tensorfmt.core.json_text import reject_repeated
from xr_tensorfmt.errors import did_you_mean, shorten
from xr_tensorfmt.formats.vespa.spec import CELL_TYPES, VespaHeader, pack_string

MAX_JSON_CELLS = 1 << 22
"""Limit on the cells of a tensor if JSON lists only some of them."""

_CONTENT_KEYS = ("cells", "values", "blocks")
_WRAPPER_KEYS = {*_CONTENT_KEYS, "type", "dimensions"}

HEX = re.compile(r"[0-9A-Fa-f]+")
_NUMBER = re.compile(
    r"[-+]?(inf(inity)?|nan|(\d+\.?\d*|\.\d+)(e[-+]?\d+)?)", re.IGNORECASE | re.ASCII
)
_CELL = re.compile(f"{HEX.pattern}|{_NUMBER.pattern}", _NUMBER.flags)
format_json = json.JSONEncoder(allow_nan=False, check_circular=False).encode
_DECODER = json.JSONDecoder(object_pairs_hook=reject_repeated)
_ELEMENT_BY_DIGITS = {2 * element.stored.itemsize: element for element in CELL_TYPES.values()}

_TYPE = re.compile(r"tensor(?:<(\w+)>)?\((.*)\)")
_DIMENSION = re.compile(r"([A-Za-z_]\w*)(?:\{\}|\[(\d{1,18})\])", re.ASCII)
_SCALARS = {"double": "tensor()"}

Labels = tuple[str, ...]
"""The labels of a block, one per mapped dimension."""

Cells = Array | str
"""The cells of a block: numbers, or hexadecimal digits that are not checked yet."""

Form = Literal["short", "long", "hex"]


@lru_cache
def parse_type(string: str) -> VespaHeader:
    """Parse a type; the header has no blocks. Raise ValueError if a size is missing."""
    bare = re.sub(r"\s", "", string)
    match = _TYPE.fullmatch(_SCALARS.get(bare, bare))
    parts = match[2].split(",") if match and match[2] else []
    sizes = {dim[1]: dim[2] for part in parts if (dim := _DIMENSION.fullmatch(part))}
    cell_type = (match and match[1]) or "double"
    mapped = tuple(name for name in sorted(sizes) if sizes[name] is None)
    indexed = tuple(name for name in sorted(sizes) if sizes[name] is not None)
    lengths = tuple(int(sizes[name]) for name in indexed)
    if not match or len(sizes) < len(parts) or cell_type not in CELL_TYPES:
        raise ValueError(
            f"{shorten(repr(string))} is not the type of a tensor, expected a type such as "
            "'tensor<float>(user{},x[3])'; state the size of all indexed dimensions"
        )
    if len(sizes) > MAX_DIMENSIONS or 0 in lengths or not is_addressable(lengths, 8):
        raise ValueError(
            f"{shorten(repr(string))} has a size of 0, more than {MAX_DIMENSIONS} "
            "dimensions, or more cells than can be addressed"
        )
    return VespaHeader.create(cell_type, mapped, indexed, lengths, 0)


def format_type(header: VespaHeader) -> str:
    """Format a type as in JSON, which writes ``tensor()`` for a scalar."""
    return _SCALARS.get(header.type, header.type)


def load_json(content: Any) -> Any:
    """Parse JSON text, and return other objects unchanged."""
    if not isinstance(content, str | bytes | bytearray):
        return content
    string = content if isinstance(content, str) else content.decode()
    if isinstance(content, str) and HEX.fullmatch(string):
        return {"values": string}  # a field with format.tensors=hex-value
    try:
        # A line of a feed may end with a comma.
        return _DECODER.decode(string.strip().removesuffix(","))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(
            f"{shorten(repr(string))} is not JSON: {error}; pass the text of one document, such as "
            "a single line of a feed, not several lines or a path"
        ) from None


def select_field(data: Any, field: str | None) -> Any:
    """Return a field of a document or mapping, or `data` itself if it is a tensor."""
    mapping = data if isinstance(data, dict) else {}
    fields = mapping.get("fields")
    if not isinstance(fields, dict):  # a map of labels has no objects
        first = data[0] if isinstance(data, list) and data else None
        if isinstance(mapping.get("root"), dict) or (isinstance(first, dict) and "fields" in first):
            raise ValueError(
                "the JSON is a list of documents or the response to a query; pass one document: an "
                "item of the list, or data['root']['children'][0] of the response"
            )
        if field is None:
            return data
        fields = {key: value for key, value in mapping.items() if isinstance(value, dict | list)}
    if field not in fields:
        names = shorten(", ".join(map(repr, fields))) or "no name"
        hint = "" if field is None else f", not {field!r}{did_you_mean(field, fields)}"
        raise ValueError(f"the JSON has the fields {names}; pass one of them as field={hint}")
    value = fields[field]
    if "update" not in mapping:
        return value
    if not (isinstance(value, dict) and value.keys() == {"assign"}):
        raise ValueError(
            f"the document updates the field {field!r} without 'assign', so it has no complete "
            "tensor; open the stored document instead"
        )
    return value["assign"]


def parse_tensor(data: Any, type_: str | None) -> tuple[VespaHeader, dict[Labels, Cells]]:
    """Parse a tensor in any form. Return a header without blocks, and the cells of all blocks."""
    if data is None:
        raise ValueError("the JSON is null, expected a tensor of Vespa; leave the field out")
    member = _find_content(data)
    stated = data.get("type") if member else None
    requested = stated if type_ is None else type_
    if requested is None:
        raise ValueError(
            "the JSON states no type of the tensor; pass the type of its field, such as "
            "'tensor<float>(x[3])'"
        )
    header = parse_type(requested)
    if stated not in (None, requested) and parse_type(stated) != header:
        raise ValueError(
            f"the JSON states the type {stated!r}, expected type={type_!r}; omit type="
        )
    return header, _parse_blocks(header, *_unwrap(header, data, member))


def pack_blocks(header: VespaHeader, labels: Iterable[Labels], cells: Collection[Cells]) -> bytes:
    """Pack blocks as in a file. Raise ValueError for wrong digits, or an int8 out of bounds."""
    stored, size = _join_digits(header, cells), header.block_bytes
    if stored is None:
        stored = _encode_cells(header, cells)
    parts: list[bytes] = []
    for names, stop in zip(labels, range(size, len(stored) + 1, size), strict=True):
        parts += map(pack_string, names)
        parts.append(stored[stop - size : stop])
    return b"".join(parts)


def _join_digits(header: VespaHeader, cells: Collection[Cells]) -> bytes | None:
    """Return all cells if each block has valid digits of the cell type, otherwise None."""
    if not {str}.issuperset(map(type, cells)) or {*map(len, cells)} != {2 * header.block_bytes}:
        return None
    with suppress(ValueError):
        stored = bytes.fromhex("".join(cells))  # type: ignore[arg-type]
        if len(stored) == len(cells) * header.block_bytes:  # `fromhex` also accepts spaces
            return stored
    return None


def _encode_cells(header: VespaHeader, cells: Iterable[Cells]) -> bytes:
    values = np.array([_parse_hex(header, c) if isinstance(c, str) else c for c in cells])
    with np.errstate(all="ignore"):
        converted = values.astype(header.element.dtype)
    if header.cell_type == "int8" and (values != converted).any():
        wrong = values[values != converted][0]
        raise ValueError(
            f"{wrong} is not an integer from -128 to 127, expected one for {format_type(header)}"
        )
    return header.element.encode(converted).tobytes()


def _find_content(data: Any) -> tuple[str, Any] | None:
    """Return ``(key, content)`` of a wrapper object, or None if `data` maps labels to cells."""
    if not isinstance(data, dict) or not data.keys() <= _WRAPPER_KEYS:
        return None
    keys = [key for key in _CONTENT_KEYS if key in data]
    # A label may be "type", "cells" or "values".
    type_ = data.get("type", "")
    is_cell = not isinstance(type_, str) or _CELL.fullmatch(type_)
    if is_cell or len(keys) > 1:
        return None
    if not keys:
        return ("cells", []) if "type" in data or not data else None
    key, content = keys[0], data[keys[0]]
    if key == "values":
        return (key, content) if isinstance(content, list | str) else None
    first = content[:1] if isinstance(content, list) else [content]
    return (key, content) if all(isinstance(item, dict) for item in first) else None


def _unwrap(header: VespaHeader, data: Any, member: tuple[str, Any] | None) -> tuple[str, Any]:
    """Return ``(key, content)`` of a tensor. Infer the key if `data` has no wrapper object."""
    # A tensor with labels has no values, so "values" is a label.
    is_map = header.mapped and isinstance(data, dict) and set(data) == {"values"}
    if member and not is_map:
        return member
    if isinstance(data, dict):
        return "blocks" if header.indexed else "cells", data
    first = data[0] if isinstance(data, list) and data else None
    if header.mapped or isinstance(first, dict):
        return "blocks" if isinstance(first, dict) and "values" in first else "cells", data
    is_value = header.indexed or isinstance(data, list | str)
    return "values", data if is_value else [data]


def _parse_blocks(header: VespaHeader, key: str, content: Any) -> dict[Labels, Cells]:
    """Return the cells of all blocks by their labels."""
    mapped, map_key = header.mapped, "blocks" if header.indexed else "cells"
    items: Iterable[tuple[Labels, Any]]
    if key == "cells" and (isinstance(content, list) or content == {}):
        return _parse_cells(header, content)
    if key == "values" and not mapped and isinstance(content, list | str):
        items = [((), content)]
    elif key == "blocks" and mapped and isinstance(content, list):
        members = (_get_members(block, "values") for block in content)
        items = ((_parse_labels(header, address, ()), values) for address, values in members)
    elif key == map_key and isinstance(content, dict) and (len(mapped) == 1 or not content):
        items = (((label,), values) for label, values in content.items())
    else:
        forms = "a list of 'cells' or 'blocks'" if mapped else "a list as 'cells' or 'values'"
        if len(mapped) == 1:
            forms += f", or a map of labels as {map_key!r}"
        raise ValueError(
            f"{shorten(repr(content))} as {key!r} is not a form of {format_type(header)}, "
            f"expected {forms}"
        )
    blocks: dict[Labels, Cells] = {}
    for labels, values in items:
        if labels in blocks:
            raise ValueError(f"the labels {shorten(repr(labels))} occur twice; leave one out")
        blocks[labels] = _parse_values(header, values)
    return blocks


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


def _parse_cells(header: VespaHeader, content: Iterable[Any]) -> dict[Labels, Cells]:
    """Return the cells of all blocks from a list. Cells that are not listed are zero."""
    found: dict[Labels, dict[int, float]] = {} if header.mapped else {(): {}}
    for cell in content:
        address, value = _get_members(cell, "value")
        cells = found.setdefault(_parse_labels(header, address, header.indexed), {})
        index = _find_cell_index(header, address)
        if index in cells:
            raise ValueError(f"the cell {shorten(repr(address))} occurs twice; leave one out")
        cells[index] = _parse_number(value)
    if header.cells * len(found) > MAX_JSON_CELLS:
        raise ValueError(
            f"{format_type(header)} has more than {MAX_JSON_CELLS} cells, but lists "
            "only some of them; use blocks or values"
        )
    blocks: dict[Labels, Cells] = {}
    for labels, cells in found.items():
        blocks[labels] = block = np.zeros(header.cells)
        block[list(cells)] = list(cells.values())
    return blocks


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


def _get_members(item: Any, key: str) -> tuple[Mapping[str, Any], Any]:
    """Return the address of an object, and another member."""
    if not isinstance(item, dict) or key not in item or not isinstance(item.get("address"), dict):
        raise ValueError(f"{shorten(repr(item))} has no 'address' and {key!r}")
    return item["address"], item[key]


def _parse_values(header: VespaHeader, values: Any) -> Cells:
    """Return the cells of a block from numbers, nested or not, or hexadecimal digits."""
    is_scalar = not header.mapped and not header.indexed
    if isinstance(values, str) and (
        # A string is a number unless it has the digits of the cell of a scalar.
        header.indexed
        or (is_scalar and len(values) == 2 * header.block_bytes and HEX.fullmatch(values))
    ):
        return values
    is_flat = isinstance(values, list) and len(values) == header.cells
    if is_flat and {float}.issuperset(map(type, values)):  # much faster
        return np.array(values)
    array = np.array(values, dtype=object, ndmin=1)
    if array.shape not in (header.lengths, (header.cells,)):
        raise ValueError(
            f"{shorten(repr(values))} has the shape {array.shape}, expected {header.lengths} or "
            f"{header.cells} flat values for a block of {format_type(header)}"
        )
    return np.array([_parse_number(value) for value in array.ravel().tolist()])


def _parse_hex(header: VespaHeader, digits: str) -> Array:
    """Return the cells of a block. The digits may be of another cell type."""
    digits_per_cell, rest = divmod(len(digits), header.cells)
    element = None if rest else _ELEMENT_BY_DIGITS.get(digits_per_cell)
    content = b""
    with suppress(ValueError):
        content = bytes.fromhex(digits)
    is_valid = 2 * len(content) == len(digits)  # `fromhex` also accepts spaces
    # Only int8 does not accept the digits of another cell type.
    if not element or not is_valid or header.cell_type == "int8" != element.name:
        raise ValueError(
            f"{shorten(repr(digits))} are not {2 * header.element.stored.itemsize} hexadecimal "
            f"digits per cell for the {header.cells} cells of a block of {format_type(header)}"
        )
    return element.decode(np.frombuffer(content, dtype=element.stored))


def _parse_number(value: Any) -> float:
    """Return a number. As in Vespa, it may be null or a string."""
    if value is None:
        return float("nan")
    is_string = isinstance(value, str) and _NUMBER.fullmatch(value)
    if is_string or (isinstance(value, int | float) and not isinstance(value, bool)):
        with suppress(OverflowError):
            return float(value)
    raise ValueError(f"{shorten(repr(value))} is not the value of a cell")


def build_json(
    header: VespaHeader, labels: Sequence[Labels], blocks: Array, form: Form
) -> dict[str, Any]:
    """Build the JSON of a tensor from the labels and the encoded cells of its blocks."""
    element, mapped, indexed = header.element, header.mapped, header.indexed
    data: dict[str, Any] = {"type": format_type(header)}
    if form == "long" or (len(mapped) > 1 and not indexed):
        return data | {"cells": list(_build_cells(header, labels, blocks))}
    is_hex = form == "hex" and bool(indexed)
    values = [
        block.tobytes().hex().upper() if is_hex else _list_values(block, element)
        for block in blocks
    ]
    if not mapped:
        return data | {"values": values[0] if indexed else values}
    if len(mapped) == 1:
        by_label = {label: block for (label,), block in zip(labels, values, strict=True)}
        return data | {"blocks" if indexed else "cells": by_label}
    addresses = [dict(zip(mapped, row, strict=True)) for row in labels]
    listed = [{"address": a, "values": v} for a, v in zip(addresses, values, strict=True)]
    return data | {"blocks": listed}


def format_tensors(
    header: VespaHeader, tensors: Iterable[Sequence[Labels]], blocks: Array, form: Form
) -> Iterator[str]:
    """Yield the JSON text of tensors from the labels of their blocks, and all encoded cells."""
    if form == "hex" and not header.mapped and header.indexed:  # digits need no escapes
        digits, size = blocks.tobytes().hex().upper(), 2 * header.block_bytes
        start = format_json({"type": format_type(header), "values": ""}).removesuffix('"}')
        for stop in range(size, len(digits) + 1, size):
            yield f'{start}{digits[stop - size : stop]}"}}'
        return
    first = 0
    for labels in tensors:
        stop = first + len(labels)
        yield format_json(build_json(header, labels, blocks[first:stop], form))
        first = stop


def _build_cells(
    header: VespaHeader, labels: Sequence[Labels], blocks: Array
) -> Iterator[dict[str, Any]]:
    """Yield all cells with their addresses. The dimensions are sorted by name."""
    names = header.mapped + header.indexed
    indices = [tuple(map(str, index)) for index in product(*map(range, header.lengths))]
    rows = _list_values(blocks.reshape(len(labels), header.cells), header.element)
    for label, values in zip(labels, rows, strict=True):
        for index, value in zip(indices, values, strict=True):
            yield {"address": dict(sorted(zip(names, label + index, strict=True))), "value": value}


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
