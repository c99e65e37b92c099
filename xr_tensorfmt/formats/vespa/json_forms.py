"""Parse and build the JSON forms of a tensor."""

from __future__ import annotations

import json
import re
from binascii import unhexlify
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice, product
from math import isinf
from reprlib import Repr
from typing import Any, Literal, get_args

import numpy as np
import orjson

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.header import MAX_DIMENSIONS, is_addressable
from xr_tensorfmt.core.layout import view_as_bytes
from xr_tensorfmt.errors import did_you_mean, redact, shorten, warn
from xr_tensorfmt.formats.vespa.spec import CELL_TYPES, VespaHeader

MAX_JSON_CELLS = 1 << 22
"""Limit on the cells of a tensor if JSON lists only some of them."""

_CONTENT_KEYS = ("cells", "values", "blocks")
_TYPE_KEYS = {"type", "dimensions"}

_HEX = re.compile(r"[0-9A-Fa-f]+")
_NUMBER = re.compile(
    r"[-+]?(inf(inity)?|nan|(\d+\.?\d*|\.\d+)(e[-+]?\d+)?)", re.IGNORECASE | re.ASCII
)
_CELL = re.compile(f"{_HEX.pattern}|{_NUMBER.pattern}", _NUMBER.flags)
format_json = json.JSONEncoder(allow_nan=False, check_circular=False).encode
_ELEMENT_BY_DIGITS = {2 * element.stored.itemsize: element for element in CELL_TYPES.values()}
_DIGITS = np.array([f"{byte:02X}" for byte in range(256)], "S2").view(np.uint16)
"""The hexadecimal digits of each byte."""

# Bytes of cells to format at a time, which fit into a cache.
_BATCH_BYTES = 1 << 17

_TYPE = re.compile(r"tensor(?:<(\w+)>)?\((.*)\)")
_DIMENSION = re.compile(r"([A-Za-z_]\w*)(?:\{\}|\[(\d{1,18})\])", re.ASCII)
_SCALARS = {"double": "tensor()"}

MARGIN = "\ufeff \t\r\n"
"""White space and a byte order mark."""

# Formats a part of a value that may be large or deeply nested.
_repr = Repr()
_repr.maxstring = _repr.maxother = 200

Labels = tuple[str, ...]
"""The labels of a block, one per mapped dimension."""

Cells = bytes | list[float]
"""The cells of a block, as stored or as numbers."""

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
            f"{show(string)} is not the type of a tensor, expected a type such as "
            "'tensor<float>(user{},x[3])'; cells are double, float, bfloat16 or int8, and all "
            "indexed dimensions have a size"
        )
    if len(sizes) > MAX_DIMENSIONS or 0 in lengths or not is_addressable(lengths, 8):
        raise ValueError(
            f"{show(string)} has a size of 0, more than {MAX_DIMENSIONS} "
            "dimensions, or more cells than can be addressed"
        )
    return VespaHeader.create(cell_type, mapped, indexed, lengths, 0)


def is_type(value: object) -> bool:
    """Return whether a value is the type of a tensor."""
    with suppress(ValueError):
        return isinstance(value, str) and bool(parse_type(value))
    return False


def format_type(header: VespaHeader) -> str:
    """Format a type as in JSON, which writes ``tensor()`` for a scalar."""
    return _SCALARS.get(header.type, header.type)


def load_json(content: Any) -> Any:
    """Parse JSON text, and return other objects unchanged."""
    if isinstance(content, bytes | bytearray):
        content = content.decode()
    if not isinstance(content, str):
        return content
    if _HEX.fullmatch(content):
        return {"values": content}  # a field with format.tensors=hex-value
    text = content.strip(MARGIN).removesuffix(",")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        hint = "pass the text of one document, not several lines or a path"
        raise ValueError(f"{show(redact(text[:1000]))} is not JSON: {error}; {hint}") from None


def show(value: object) -> str:
    """Return a short representation of a value."""
    return _repr.repr(value)


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
    return get_assigned(field, fields[field]) if "update" in mapping else fields[field]


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
    if data is None:
        raise ValueError("the JSON is null, expected a tensor of Vespa; leave the field out")
    stated = data.get("type") if isinstance(data, dict) else None
    requested = stated if type_ is None else type_
    if not isinstance(requested, str):
        raise ValueError(  # noqa: TRY004  # wrong JSON
            "the JSON states no type of the tensor; pass the type of its field, such as "
            "'tensor<float>(x[3])'"
        )
    header = parse_type(requested)
    key, content = _unwrap(header, data)
    is_other = content is not data and stated not in (None, requested)
    if is_other and not (isinstance(stated, str) and parse_type(stated) == header):
        raise ValueError(
            f"the JSON states the type {stated!r}, expected {type_!r}; pass the right type=, or "
            "tensors of one type"
        )
    return header, _parse_blocks(header, key, content)


def _unwrap(header: VespaHeader, data: Any) -> tuple[str, Any]:
    """Return ``(key, content)`` of a tensor. Infer the key if `data` has no wrapper object."""
    if isinstance(data, dict):
        if header.mapped and _is_map(data):
            return "blocks" if header.indexed else "cells", data
        keys = data.keys() - _TYPE_KEYS
        if not keys:
            return "cells", []
        key = keys.pop()
        return key, data if keys else data[key]
    first = data[0] if isinstance(data, list) and data else None
    if header.mapped or isinstance(first, dict):
        return "blocks" if isinstance(first, dict) and "values" in first else "cells", data
    is_value = header.indexed or isinstance(data, list | str)
    return "values", data if is_value else [data]


def _is_map(data: dict[str, Any]) -> bool:
    """Return whether an object maps labels, which may be "type", "cells" or "values"."""
    type_, keys = data.get("type", ""), data.keys() - _TYPE_KEYS
    if not isinstance(type_, str) or _CELL.fullmatch(type_) or len(keys) > 1:
        return True
    if not keys:
        return bool(data) and "type" not in data
    key = keys.pop()
    content = data[key]
    if key == "values":
        return len(data) == 1 or not isinstance(content, list | str)
    first = content[:1] if isinstance(content, list) else [content]
    return key not in _CONTENT_KEYS or not all(isinstance(item, dict) for item in first)


def _parse_blocks(header: VespaHeader, key: str, content: Any) -> Mapping[Labels, bytes]:
    """Return the cells of all blocks by their labels."""
    mapped, map_key = header.mapped, "blocks" if header.indexed else "cells"
    items: Iterable[tuple[Labels, Any]]
    if key == "values" and not mapped and isinstance(content, list | str):
        cells = _parse_values(header, content)
        return {(): cells} if isinstance(cells, bytes) else _pack_blocks(header, {(): cells})
    if key == "cells" and (isinstance(content, list) or content == {}):
        return _parse_cells(header, content)
    if key == "blocks" and mapped and isinstance(content, list):
        members = (_get_members(block, "values") for block in content)
        items = ((_parse_labels(header, address, ()), values) for address, values in members)
    elif key == map_key and isinstance(content, dict) and (len(mapped) == 1 or not content):
        items = (((label,), values) for label, values in content.items())
    else:
        forms = "a list of 'cells' or 'blocks'" if mapped else "a list as 'cells' or 'values'"
        if len(mapped) == 1:
            forms += f", or a map of labels as {map_key!r}"
        raise ValueError(
            f"{show(content)} as {key!r} is not a form of {format_type(header)}, expected {forms}"
        )
    return _pack_blocks(header, {labels: _parse_values(header, values) for labels, values in items})


def _parse_labels(
    header: VespaHeader, address: Mapping[str, Any], indexed: tuple[str, ...]
) -> Labels:
    """Return the labels in an address, which also contains the indexed dimensions or fewer."""
    mapped = header.mapped
    if not {*mapped} <= address.keys() <= {*mapped, *indexed}:
        raise ValueError(
            f"the address {show(address)} does not fit {format_type(header)}, "
            f"expected the dimensions {[*mapped, *indexed]}"
        )
    labels = tuple(address[name] for name in mapped)
    if not all(isinstance(label, str | int) and not isinstance(label, bool) for label in labels):
        raise ValueError(f"the address {show(address)} has labels that are not str")
    return tuple(map(str, labels))


def _parse_cells(header: VespaHeader, content: Iterable[Any]) -> Mapping[Labels, bytes]:
    """Return the cells of all blocks from a list. Cells that are not listed are zero."""
    found: dict[Labels, dict[int, float]] = {} if header.mapped else {(): {}}
    for cell in content:
        address, value = _get_members(cell, "value")
        cells = found.setdefault(_parse_labels(header, address, header.indexed), {})
        cells[_find_cell_index(header, address)] = _parse_number(value)
    if header.cells * len(found) > MAX_JSON_CELLS:
        raise ValueError(
            f"{format_type(header)} has more than {MAX_JSON_CELLS} cells, but lists "
            "only some of them; use blocks or values"
        )
    indices = range(header.cells)
    blocks = {labels: [cells.get(i, 0.0) for i in indices] for labels, cells in found.items()}
    return _pack_blocks(header, blocks)


def _find_cell_index(header: VespaHeader, address: Mapping[str, Any]) -> int:
    """Return the row-major index of a cell in its block."""
    flat = 0
    for name, length in zip(header.indexed, header.lengths, strict=True):
        index = str(address.get(name))
        if not re.fullmatch(r"\d{1,19}", index, re.ASCII) or int(index) >= length:
            raise ValueError(
                f"the address {show(address)} has no index from 0 to {length - 1} "
                f"for {name!r} of {format_type(header)}"
            )
        flat = flat * length + int(index)
    return flat


def _get_members(item: Any, key: str) -> tuple[Mapping[str, Any], Any]:
    """Return the address of an object, and another member."""
    if not isinstance(item, dict) or key not in item or not isinstance(item.get("address"), dict):
        raise ValueError(f"{show(item)} has no 'address' and {key!r}")
    return item["address"], item[key]


def _parse_values(header: VespaHeader, values: Any) -> Cells:
    """Return the cells of a block from numbers, nested or not, or hexadecimal digits."""
    if isinstance(values, str) and (header.indexed or _is_scalar_digits(header, values)):
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


def _is_scalar_digits(header: VespaHeader, string: str) -> bool:
    """Return whether a string has the digits of a scalar. Raise ValueError for other digits."""
    element = _ELEMENT_BY_DIGITS.get(len(string))
    if header.mapped or not element or not _HEX.fullmatch(string):
        return False  # a number
    if len(string) != 2 * header.block_bytes:
        raise ValueError(
            f"{string!r} may be a number or the hexadecimal digits of {element.name}, expected a "
            f"cell of {format_type(header)}; pass {2 * header.block_bytes} digits or a float"
        )
    return True


def _parse_digits(header: VespaHeader, digits: str) -> Cells:
    """Return the cells of a block. The digits may be of another cell type."""
    try:
        content = unhexlify(digits)
    except ValueError:
        content = b""
    if len(content) == header.block_bytes:
        return content
    digits_per_cell, rest = divmod(len(digits), header.cells)
    element = None if rest else _ELEMENT_BY_DIGITS.get(digits_per_cell)
    # Only int8 does not accept the digits of another cell type.
    if not element or not content or header.cell_type == "int8":
        raise ValueError(
            f"{show(digits)} are not {2 * header.element.stored.itemsize} hexadecimal "
            f"digits per cell for the {header.cells} cells of a block of {format_type(header)}"
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


def format_tensors(
    header: VespaHeader, tensors: Iterable[Sequence[Labels]], blocks: Array, form: Form
) -> Iterator[str]:
    """Yield the JSON text of tensors from the labels of their blocks, and all encoded cells."""
    if form not in get_args(Form):
        raise ValueError(f"form={form!r} is not one of {', '.join(map(repr, get_args(Form)))}")
    mapped, indexed, indices = header.mapped, header.indexed, list[Labels]([()])
    is_long = form == "long" or (len(mapped) > 1 and not indexed)
    if is_long:
        indices = [tuple(map(str, index)) for index in product(*map(range, header.lengths))]
        blocks = blocks.reshape(-1)
    values = _format_blocks(header, blocks, is_hex=form == "hex" and bool(indexed))
    start = format_json({"type": format_type(header)}).removesuffix("}")
    if not mapped and not is_long:
        opening, closing = ("", "") if indexed else ("[", "]")
        yield from (f'{start}, "values": {opening}{value}{closing}}}' for value in values)
        return
    for labels in tensors:
        rows = [row + index for row in labels for index in indices]
        own = list(islice(values, len(rows)))
        if is_long:
            content = _format_list("cells", mapped + indexed, "value", rows, own)
        elif len(mapped) == 1:
            pairs = (f"{format_json(row[0])}: {v}" for row, v in zip(rows, own, strict=True))
            content = f'"{"blocks" if indexed else "cells"}": {{{", ".join(pairs)}}}'
        else:
            content = _format_list("blocks", mapped, "values", rows, own)
        yield f"{start}, {content}}}"


def _format_blocks(header: VespaHeader, blocks: Array, *, is_hex: bool) -> Iterator[str]:
    """Yield the JSON text of the values of each block."""
    if not is_hex:
        yield from map(format_json, _list_values(blocks, header.element))
        return
    size, step = 2 * header.block_bytes, max(1, _BATCH_BYTES // header.block_bytes)
    for first in range(0, len(blocks), step):
        # Three times as fast as `bytes.hex` and `str.upper`.
        pairs = _DIGITS.take(view_as_bytes(blocks[first : first + step]), mode="clip")
        digits = str(pairs.data, "ascii")
        for start in range(0, len(digits), size):
            yield f'"{digits[start : start + size]}"'


def _format_list(
    name: str, dims: tuple[str, ...], key: str, rows: Sequence[Labels], values: Sequence[str]
) -> str:
    """Format a list of objects with an address, whose dimensions are sorted by name."""
    addresses = (format_json(dict(sorted(zip(dims, row, strict=True)))) for row in rows)
    pairs = zip(addresses, values, strict=True)
    items = ", ".join(f'{{"address": {address}, "{key}": {value}}}' for address, value in pairs)
    return f'"{name}": [{items}]'


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
