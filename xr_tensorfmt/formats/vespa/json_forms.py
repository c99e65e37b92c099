"""Parse and build the JSON forms of a tensor."""

from __future__ import annotations

import re
from binascii import unhexlify
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from math import isinf
from reprlib import Repr
from typing import Any, Literal, get_args

import numpy as np
import orjson

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.header import MAX_DIMENSIONS, is_addressable
from xr_tensorfmt.errors import build_choice_error, did_you_mean, redact, shorten, warn
from xr_tensorfmt.formats.vespa.spec import CELL_TYPES, VespaHeader

MAX_JSON_CELLS = 1 << 22
"""Limit on the cells of a tensor if JSON lists only some of them."""

_CONTENT_KEYS = ("cells", "values", "blocks")

_HEX = re.compile(r"[0-9A-Fa-f]+")
_NUMBER = re.compile(
    r"[-+]?(inf(inity)?|nan|(\d+\.?\d*|\.\d+)(e[-+]?\d+)?)", re.IGNORECASE | re.ASCII
)
_INDEX = re.compile(r"[0-9]{1,19}")
_ELEMENT_BY_DIGITS = {2 * element.stored.itemsize: element for element in CELL_TYPES.values()}

_TYPE = re.compile(r"tensor(?:<(\w+)>)?\((.*)\)")
_DIMENSION = re.compile(r"([A-Za-z_]\w*)(?:\{\}|\[(\d{1,18})\])", re.ASCII)
_SCALARS = {"double": "tensor()"}

MARGIN = "\ufeff \t\r\n"
"""White space and a byte order mark."""

# `show` formats a part of a value that may be large or deeply nested.
_repr = Repr()
_repr.maxstring = _repr.maxother = 200
show = _repr.repr

Labels = tuple[str, ...]
"""The labels of a block, one per mapped dimension."""

Cells = bytes | list[float]
"""The cells of a block, as stored or as numbers."""

Form = Literal["short", "long", "hex"]


@lru_cache
def parse_type(string: str) -> VespaHeader:
    """Parse a type; the header has no blocks. Raise ValueError if it is invalid."""
    bare = re.sub(r"\s", "", string)
    match = _TYPE.fullmatch(_SCALARS.get(bare, bare))
    parts = match[2].split(",") if match and match[2] else []
    sizes = {dim[1]: dim[2] for part in parts if (dim := _DIMENSION.fullmatch(part))}
    cell_type = (match and match[1]) or "double"
    mapped = tuple(name for name in sorted(sizes) if sizes[name] is None)
    indexed = tuple(name for name in sorted(sizes) if sizes[name] is not None)
    lengths = tuple(int(sizes[name]) for name in indexed)
    is_valid = match and cell_type in CELL_TYPES and len(sizes) == len(parts) <= MAX_DIMENSIONS
    if not is_valid or 0 in lengths or not is_addressable(lengths, 8):
        raise ValueError(
            f"{show(string)} is not the type of a tensor, expected a type such as "
            "'tensor<float>(user{},x[3])'; cells are double, float, bfloat16 or int8, and the "
            "sizes of indexed dimensions, from 1 on, can be addressed"
        )
    return VespaHeader.create(cell_type, mapped, indexed, lengths, 0)


def is_type(value: object) -> bool:
    """Return whether a value is the type of a tensor."""
    with suppress(ValueError):
        return isinstance(value, str) and bool(parse_type(value))
    return False


@lru_cache
def format_type(header: VespaHeader) -> str:
    """Format a type as in JSON, which writes ``tensor()`` for a scalar."""
    return _SCALARS.get(header.type, header.type)


def load_json(content: Any) -> Any:
    """Parse JSON text, and return other objects unchanged."""
    if isinstance(content, bytes | bytearray):
        content = content.decode()
    if not isinstance(content, str) or _HEX.fullmatch(content):
        return content  # digits are a field with format.tensors=hex-value
    text = content.strip(MARGIN).removesuffix(",")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        hint = "pass the text of one document, not several lines or a path"
        raise ValueError(f"{show(redact(text[:1000]))} is not JSON: {error}; {hint}") from None


def select_field(data: Any, field: str | None) -> Any:
    """Return a field of a document or mapping, or `data` itself if it is a tensor."""
    mapping = data if isinstance(data, dict) else {}
    fields = get_fields(mapping)
    if not isinstance(mapping.get("fields"), dict):  # a map of labels has no objects
        if field is None:
            return data
        fields = {key: value for key, value in mapping.items() if isinstance(value, dict | list)}
    if field not in fields:
        names = shorten(", ".join(map(repr, fields))) or "no name"
        hint = "" if field is None else f", not {field!r}{did_you_mean(field, fields)}"
        raise ValueError(
            f"the JSON has the fields {names}; pass one of them as field={hint}, and lists of "
            "documents and responses to from_jsonl"
        )
    return get_assigned(field, fields[field]) if "update" in mapping else fields[field]


def get_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a document, and the features in the hit of a query."""
    fields = document.get("fields")
    stored: dict[str, Any] = fields if isinstance(fields, dict) else {}
    for name in ("matchfeatures", "summaryfeatures"):
        if isinstance(features := stored.get(name), dict):
            stored = features | stored
    return stored


def get_assigned(field: str | None, update: Any) -> Any:
    """Return the value that an update assigns to a field, or None if it does not update it."""
    if update is None:
        return None
    if not (isinstance(update, dict) and update.keys() == {"assign"}):
        raise ValueError(
            f"the document updates the field {field!r} without 'assign', so it has no complete "
            "tensor; open the stored document instead"
        )
    return update["assign"]


def parse_tensor(data: Any, type_: str | None) -> tuple[VespaHeader, Mapping[Labels, bytes]]:
    """Parse a tensor in any form. Return a header without blocks, and the cells of all blocks."""
    stated = data.get("type") if isinstance(data, dict) else None
    requested = stated if type_ is None else type_
    if not isinstance(requested, str):
        raise ValueError(  # noqa: TRY004  # wrong JSON
            "the JSON states no type of the tensor; pass the type of its field, such as "
            "'tensor<float>(x[3])'"
        )
    header = parse_type(requested)
    content = _unwrap(header, data)
    is_other = content is not data and stated not in (None, requested)
    if is_other and parse_type(str(stated)) != header:
        raise ValueError(
            f"the JSON states the type {stated!r}, expected {type_!r}; pass the right type=, or "
            "tensors of one type"
        )
    return header, _pack_blocks(header, _parse_blocks(header, content))


def _unwrap(header: VespaHeader, data: Any) -> Any:
    """Return the content of the object around a tensor, or `data` itself if there is none."""
    if not isinstance(data, dict):
        return data
    type_ = data.get("type")
    is_typed = isinstance(type_, str) and type_.lstrip().startswith(("tensor", "double"))
    is_map = bool(header.mapped) and not is_typed  # unless its values are objects
    ignored = ("dimensions",) if is_map else ("dimensions", "type")
    keys = [key for key in data if key not in ignored]
    if not keys and not (is_map and data):
        return {}
    content = data[keys[0]] if keys else None
    first = content[:1] if isinstance(content, list) else [content]
    is_map = is_map and not all(isinstance(item, dict) for item in first)
    if is_map or len(keys) != 1 or keys[0] not in _CONTENT_KEYS:
        return data
    return {} if keys[0] == "cells" and not content else content


def _parse_blocks(header: VespaHeader, content: Any) -> Mapping[Labels, Cells]:
    """Return the cells of all blocks by their labels."""
    mapped, is_list = header.mapped, isinstance(content, list)
    first = content[0] if is_list and content else None
    if isinstance(first, dict) or content == {} or (mapped and content == []):
        return _parse_entries(header, content)
    if isinstance(content, dict) and len(mapped) == 1:
        return {(label,): _parse_values(header, values) for label, values in content.items()}
    is_scalar = isinstance(content, int | float) and not header.indexed
    if not mapped and (is_list or is_scalar or isinstance(content, str)):
        return {(): _parse_values(header, content)}
    forms = "a list of 'cells' or 'blocks'" if mapped else "a list of 'cells' or 'values'"
    forms += " or a map of labels" if len(mapped) == 1 else ""
    raise ValueError(
        f"{show(content)} is not a form of the type {format_type(header)}, expected {forms}"
    )


def _parse_entries(header: VespaHeader, entries: Sequence[Any]) -> Mapping[Labels, Cells]:
    """Return the cells of all blocks from a list of blocks, or of cells. Others are zero."""
    blocks: dict[Labels, Cells] = {}
    is_block = bool(entries) and "values" in entries[0]
    found: dict[Labels, dict[int, float]] = {} if header.mapped or is_block else {(): {}}
    key = "values" if is_block else "value"
    sizes = {} if is_block else dict(zip(header.indexed, header.lengths, strict=True))
    for entry in entries:
        address = entry.get("address") if isinstance(entry, dict) else None
        if not isinstance(address, dict) or key not in entry:
            raise ValueError(f"{show(entry)} has no 'address' and {key!r}")
        labels, index = _parse_address(header, address, sizes)
        if labels in blocks or index in found.get(labels, ()):
            raise ValueError(f"the address {show(address)} is repeated; remove one of its entries")
        if is_block:
            blocks[labels] = _parse_values(header, entry[key])
        else:
            found.setdefault(labels, {})[index] = _parse_number(entry[key])
    if header.cells * len(found) > MAX_JSON_CELLS:
        raise ValueError(
            f"{format_type(header)} has more than {MAX_JSON_CELLS} cells, but lists "
            "only some of them; use blocks or values"
        )
    for labels, cells in found.items():
        blocks[labels] = [cells.get(index, 0.0) for index in range(header.cells)]
    return blocks


def _parse_address(
    header: VespaHeader, address: Mapping[str, Any], sizes: Mapping[str, int]
) -> tuple[Labels, int]:
    """Return the labels of a block, and the row-major index of a cell."""
    labels = [address.get(name) for name in header.mapped]
    indices = [str(address.get(name)) for name in sizes]
    is_valid = address.keys() == {*header.mapped, *sizes} and all(map(_INDEX.fullmatch, indices))
    number = 0
    for index, size in zip(indices, sizes.values(), strict=True):
        is_valid = is_valid and int(index) < size
        number = number * size + int(index) if is_valid else 0
    if not is_valid or not {str, int}.issuperset(map(type, labels)):
        raise ValueError(
            f"the address {show(address)} does not fit {format_type(header)}, expected a label or "
            f"an index for each of {[*header.mapped, *sizes]}"
        )
    return tuple(map(str, labels)), number


def _parse_values(header: VespaHeader, values: Any) -> Cells:
    """Return the cells of a block from numbers, nested or not, or hexadecimal digits."""
    if isinstance(values, str):
        # A scalar may have the digits of the right cell type or not.
        is_scalar = not header.mapped and len(values) in _ELEMENT_BY_DIGITS
        if header.indexed or (is_scalar and _HEX.fullmatch(values)):
            return _parse_digits(header, values)
    is_flat = isinstance(values, list) and len(values) == header.cells
    if not is_flat or isinstance(values[0], list):
        array = np.array(values, dtype=object, ndmin=1)
        if array.shape not in (header.lengths, (header.cells,)):
            raise ValueError(
                f"{show(values)} has the shape {array.shape}, expected {header.lengths} "
                f"or {header.cells} flat values for a block of {format_type(header)}"
            )
        values = array.ravel().tolist()
    is_numeric = {int, float}.issuperset(map(type, values))
    return values if is_numeric else list(map(_parse_number, values))


def _parse_digits(header: VespaHeader, digits: str) -> Cells:
    """Return the cells of a block. Those of indexed dimensions may be of another cell type."""
    try:
        content = unhexlify(digits)
    except ValueError:
        content = b""
    if len(content) == header.block_bytes:
        return content
    digits_per_cell, rest = divmod(len(digits), header.cells)
    element = _ELEMENT_BY_DIGITS.get(digits_per_cell)
    # Only int8 does not accept the digits of another cell type.
    if rest or not element or not content or not header.indexed or header.cell_type == "int8":
        raise ValueError(
            f"{show(digits)} are not {2 * header.element.stored.itemsize} hexadecimal digits per "
            f"cell for the {header.cells} cells of a block of {format_type(header)}; pass these, "
            "or a list of numbers"
        )
    message = (
        f"hexadecimal digits of {element.name} are converted to the cells of "
        f"{format_type(header)}; correct the type if its cells or sizes are others"
    )
    warn(message)
    return list(element.decode(np.frombuffer(content, element.stored)).tolist())


def _pack_blocks(header: VespaHeader, blocks: Mapping[Labels, Cells]) -> Mapping[Labels, bytes]:
    """Pack all numbers at once. Raise ValueError if the cell type cannot represent one."""
    stored = {labels: cells for labels, cells in blocks.items() if isinstance(cells, bytes)}
    if len(stored) == len(blocks):
        return stored
    lists = [cells for cells in blocks.values() if isinstance(cells, list)]
    try:
        numbers = np.array(lists, np.float64)
    except OverflowError as error:
        raise ValueError(f"a number is not the value of a cell: {error}") from error
    with np.errstate(all="ignore"):
        cells = numbers.astype(header.element.dtype)
    is_wrong, expected = np.isinf(cells) & np.isfinite(numbers), "a number up to 3.4e38"
    if header.cell_type == "int8":
        is_wrong, expected = numbers != cells, "an integer from -128 to 127"
    if is_wrong.any():
        raise ValueError(
            f"{numbers[is_wrong][0]} is not {expected}, expected one for {format_type(header)}"
        )
    packed = map(bytes, header.element.encode(cells))
    return {labels: stored.get(labels) or next(packed) for labels in blocks}


def _parse_number(value: Any) -> float:
    """Return a number. As in Vespa, it may be null or a string."""
    if value is None:
        return float("nan")
    is_string = isinstance(value, str) and _NUMBER.fullmatch(value)
    if is_string or (isinstance(value, int | float) and not isinstance(value, bool)):
        with suppress(OverflowError):
            number = float(value)
            # A string of digits may also be too large.
            if not (is_string and isinf(number)) or "inf" in value.lower():
                return number
    raise ValueError(f"{show(value)} is not the value of a cell")


def build_tensor(
    header: VespaHeader, rows: Sequence[Labels], blocks: Array, form: Form
) -> dict[str, Any]:
    """Return a tensor in JSON without its type, from the labels and the encoded cells of blocks."""
    if form not in get_args(Form):
        raise build_choice_error("form", form, get_args(Form))
    mapped, indexed = header.mapped, header.indexed
    if form == "long" or (len(mapped) > 1 and not indexed):
        indices = [tuple(map(str, index)) for index in np.ndindex(header.lengths)]
        rows = [row + index for row in rows for index in indices]
        cells = _list_values(blocks.reshape(-1), header.element)
        return {"cells": _add_addresses(mapped + indexed, rows, "value", cells)}
    if form == "hex" and indexed:
        values = [block.tobytes().hex().upper() for block in blocks]
    else:
        values = _list_values(blocks, header.element)
    if len(mapped) > 1:
        return {"blocks": _add_addresses(mapped, rows, "values", values)}
    if mapped:
        labels = (row[0] for row in rows)
        return {"blocks" if indexed else "cells": dict(zip(labels, values, strict=True))}
    return {"values": values[0] if indexed else values}


def _add_addresses(
    dims: tuple[str, ...], rows: Iterable[Labels], key: str, values: Iterable[Any]
) -> list[dict[str, Any]]:
    """Return objects with a value and an address, whose dimensions are sorted by name."""
    return [
        {"address": dict(sorted(zip(dims, row, strict=True))), key: value}
        for row, value in zip(rows, values, strict=True)
    ]


def _list_values(encoded: Array, element: Element) -> list[Any]:
    """Return nested lists of numbers. NaN is None, and an infinity is a str."""
    values = element.decode(encoded)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        plain = values.astype(object)
        plain[np.isnan(values)] = None
        plain[np.isposinf(values)] = "Infinity"
        plain[np.isneginf(values)] = "-Infinity"
        values = plain
    return list(values.tolist())
