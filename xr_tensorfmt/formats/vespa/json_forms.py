"""Parse and build the JSON forms of a tensor."""

from __future__ import annotations

import re
import struct
from binascii import unhexlify
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from json import JSONDecodeError
from math import isinf
from reprlib import Repr
from typing import Any, Literal

import numpy as np
import orjson

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.header import MAX_DIMENSIONS, is_addressable
from xr_tensorfmt.errors import did_you_mean, redact, shorten, warn
from xr_tensorfmt.formats.vespa.spec import CELL_TYPES, Names, VespaHeader

MAX_JSON_CELLS = 1 << 22
"""Limit on the cells of a tensor if JSON lists only some of them."""

_CONTENT_KEYS = ("cells", "values", "blocks")
_FEATURES = ("matchfeatures", "summaryfeatures")
_TYPE_STARTS = ("tensor", "double")

_HEX = re.compile(r"[0-9A-Fa-f]+")
_INDEX = re.compile(r"[0-9]+")
_NUMBER = re.compile(
    r"[-+]?(inf(inity)?|nan|(\d+\.?\d*|\.\d+)(e[-+]?\d+)?)", re.IGNORECASE | re.ASCII
)
_NUMBER_TYPES, _LABEL_TYPES = {int, float}, {int, str}
# Codes of struct for the cells.
_CODES = {"double": "d", "float": "f", "bfloat16": "f", "int8": "b"}
_ELEMENT_BY_DIGITS = {2 * element.stored.itemsize: element for element in CELL_TYPES.values()}

_TYPE = re.compile(r"tensor(?:<(\w+)>)?\((.*)\)")
_DIMENSION = re.compile(r"([A-Za-z_]\w*)(?:\{\}|\[0*([1-9]\d{0,17})\])", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
_SCALARS = {"double": "tensor()"}

MARGIN = "\ufeff \t\r\n"
"""White space and a byte order mark."""

# `show` formats a part of a value that may be large or deeply nested.
_repr = Repr()
_repr.maxstring = _repr.maxother = 200
show = _repr.repr

Form = Literal["short", "long", "hex"]
Packed = Mapping[Names, bytes]
"""The cells of blocks by their labels."""


@lru_cache
def parse_type(string: str) -> VespaHeader:
    """Parse a type; the header has no blocks. Raise ValueError if it is invalid."""
    bare = re.sub(r"\s", "", string)
    match = _TYPE.fullmatch(_SCALARS.get(bare, bare))
    parts = match[2].split(",") if match and match[2] else []
    dims = {dim[1]: dim for part in parts if (dim := _DIMENSION.fullmatch(part))}
    sizes, valid = {name: dims[name][2] for name in dims}, [dim[0] for dim in dims.values()]
    cell_type = (match and match[1]) or "double"
    mapped = tuple(name for name in sorted(sizes) if sizes[name] is None)
    indexed = tuple(name for name in sorted(sizes) if sizes[name] is not None)
    lengths = tuple(int(sizes[name]) for name in indexed)
    wrong = [x for x in [cell_type] if x not in CELL_TYPES] + [x for x in parts if x not in valid]
    is_valid = match and not wrong and len(sizes) == len(parts) <= MAX_DIMENSIONS
    if not is_valid or not is_addressable(lengths, 8):
        reason = f" because of {show(wrong[0])}" if wrong else ""
        raise ValueError(
            f"{show(string)} is not the type of a tensor{reason}, expected a type such as "
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


def build_json_error(text: str, error: BaseException, hint: str) -> ValueError:
    """Return the error for text that is not JSON, with another hint if the cause is known."""
    if text.startswith("\x1f"):  # the magic number of gzip
        return ValueError("it is compressed by gzip; pass a path ending in .gz, or decompress it")
    if text.startswith(("\udcff\udcfe", "\udcfe\udcff")):
        return ValueError("it is UTF-16, expected UTF-8; pass open(path, encoding='utf-16')")
    if not text[:1].isprintable():
        return ValueError("it is binary; open tensors by xarray.open_dataset, and decompress JSON")
    start, message = show(redact(text[:1000].partition("\n")[0])), str(error)
    if found := _SURROGATE.search(text):
        offset = len(text[: found.start()].encode())
        return ValueError(f"{start} is not JSON: byte {offset} is not UTF-8; write it as UTF-8")
    if isinstance(error, JSONDecodeError):
        before, rest = error.doc[: error.pos].rstrip(), error.doc[error.pos :].lstrip()
        message = f"{error.msg.removesuffix(' at')} before {redact(rest[:1000])[:20]!r}"
        if rest[:3].lower() in ("nan", "inf") or "infinity" in error.msg:
            hint = "write a finite number, null for NaN, or 'Infinity' as a string"
        elif not rest or (rest.startswith("{") and not before.endswith("}")):
            hint = "it is truncated; fetch it again"
    return ValueError(f"{start} is not JSON: {message}; {hint}")


def parse_json(data: Any, field: str | None, type_: str | None) -> tuple[VespaHeader, Packed]:
    """Parse a tensor, or a field of a document, that may be text."""
    if isinstance(data, bytes | bytearray):
        data = data.decode(errors="surrogateescape")
    # Digits are a field with format.tensors=hex-value.
    if isinstance(data, str) and not _HEX.fullmatch(data):
        text = data.strip(MARGIN).removesuffix(",")
        try:
            data = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            hint = "pass the text of one document, or the pathlib.Path of a file"
            raise build_json_error(text, error, f"{hint}; feeds are for from_jsonl") from None
    return parse_tensor(_select_field(data, field), type_)


def _select_field(data: Any, field: str | None) -> Any:
    """Return a field of a document or mapping, or `data` itself if it is a tensor."""
    mapping = data if isinstance(data, dict) else {}
    fields = get_fields(mapping)
    if not isinstance(mapping.get("fields"), dict):  # a map of labels has no objects
        if field is None:
            return data
        fields = {k: v for k, v in mapping.items() if isinstance(v, dict | list | np.ndarray)}
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
    for name in filter(stored.__contains__, _FEATURES):
        if isinstance(features := stored[name], dict):
            stored = features | stored
    return stored


def get_assigned(field: str | None, update: Any) -> Any:
    """Return the value that an update assigns to a field, or None if it does not update it."""
    if update is not None and not (isinstance(update, dict) and update.keys() == {"assign"}):
        reason = "so it has no complete tensor; open the stored document instead"
        raise ValueError(f"the document updates the field {field!r} without 'assign', {reason}")
    return update and update["assign"]


def parse_tensor(data: Any, type_: str | None) -> tuple[VespaHeader, Packed]:
    """Parse a tensor in any form. Return a header without blocks, and the cells of all blocks."""
    stated = data.get("type") if isinstance(data, dict) else None
    requested = stated if type_ is None else type_
    if not isinstance(requested, str):
        hint = "pass the type of its field, such as 'tensor<float>(x[3])'"
        raise ValueError(f"the JSON states no type of the tensor; {hint}")  # noqa: TRY004
    header = parse_type(requested)
    content = _unwrap(header, data)
    is_other = content is not data and stated not in (None, requested)
    if is_other and parse_type(str(stated)) != header:
        raise ValueError(
            f"the JSON states the type {stated!r}, expected {type_!r}; pass the right type=, or "
            "tensors of one type"
        )
    return header, _parse_blocks(header, content)


def _unwrap(header: VespaHeader, data: Any) -> Any:
    """Return the content of the object around a tensor, or `data` itself if there is none."""
    if not isinstance(data, dict):
        return data.tolist() if isinstance(data, np.ndarray) else data
    # A mapped dimension may have the labels of these keys.
    is_map = bool(header.mapped) and not str(data.get("type")).lstrip().startswith(_TYPE_STARTS)
    keys = data.keys() - ("dimensions",) if is_map else data.keys() - ("dimensions", "type")
    if len(keys) != 1:
        return data if keys or is_map else {}
    (key,) = keys
    content = data[key]
    if isinstance(content, np.ndarray):
        content = content.tolist()
    if is_map:  # objects are no cells
        first = content[:1] if isinstance(content, list) else [content]
        is_map = not all(isinstance(item, dict) for item in first)
    if is_map or key not in _CONTENT_KEYS:
        return data
    return {} if key == "cells" and not content else content


def _parse_blocks(header: VespaHeader, content: Any) -> Packed:
    """Return the cells of all blocks by their labels."""
    mapped, is_list = header.mapped, isinstance(content, list)
    first = content[0] if is_list and content else None
    if isinstance(first, dict) or content == {} or (mapped and content == []):
        return _parse_entries(header, content)
    is_scalar = not header.indexed and isinstance(content, (int, float))
    if not mapped and (is_list or is_scalar or isinstance(content, str)):
        return {(): _parse_values(header, content)}
    if isinstance(content, dict) and len(mapped) == 1:
        if header.indexed or not _NUMBER_TYPES.issuperset(map(type, content.values())):
            return {(label,): _parse_values(header, values) for label, values in content.items()}
        return _pack_blocks(header, zip(content), [*content.values()])
    forms = "a list of 'cells' or 'blocks'" if mapped else "a list of 'cells' or 'values'"
    forms += " or a map of labels" if len(mapped) == 1 else ""
    raise ValueError(
        f"{show(content)} is not a form of the type {format_type(header)}, expected {forms}"
    )


def _parse_entries(header: VespaHeader, entries: Sequence[Any]) -> Packed:
    """Return the cells of all blocks from a list of blocks, or of cells. Others are zero."""
    is_block = bool(entries) and "values" in entries[0]
    sizes = {} if is_block else dict(zip(header.indexed, header.lengths, strict=True))
    key, rank = "values" if is_block else "value", len(header.mapped) + len(sizes)
    blocks: dict[Names, dict[int, Any]] = {} if header.mapped else {(): {}}
    for entry in entries:
        row, number, value = _parse_entry(header, entry, key, sizes, rank)
        if row not in blocks:
            blocks[row] = {}
        if number in (cells := blocks[row]):
            address = show(entry["address"])
            raise ValueError(f"the address {address} is repeated; remove one of its entries")
        cells[number] = value
    if is_block:
        return {row: _parse_values(header, cells[0]) for row, cells in blocks.items()}
    if header.cells * len(blocks) > MAX_JSON_CELLS:
        limit = f"{MAX_JSON_CELLS} cells, but lists only some of them"
        raise ValueError(f"{format_type(header)} has more than {limit}; use blocks or values")
    numbers: list[Any] = [0.0] * (header.cells * len(blocks))
    for start, cells in zip(range(0, len(numbers), header.cells), blocks.values(), strict=True):
        for number, value in cells.items():
            numbers[start + number] = value
    return _pack_blocks(header, blocks, numbers)


def _parse_entry(
    header: VespaHeader, entry: Any, key: str, sizes: Mapping[str, int], rank: int
) -> tuple[Names, int, Any]:
    """Return the labels of a block, a row-major index in it, and the value."""
    try:
        address, value, number = entry["address"], entry[key], 0
        labels = [address[name] for name in header.mapped]
        is_valid = len(address) == rank
        for name in sizes:
            index, is_index = int(address[name]), _INDEX.fullmatch(str(address[name]))
            is_valid = is_valid and is_index is not None and index < sizes[name]
            number = sizes[name] * number + index
    except (KeyError, TypeError, ValueError):
        is_valid = False
    if not is_valid or not _LABEL_TYPES.issuperset(map(type, labels)):
        raise ValueError(
            f"{show(entry)} does not fit {format_type(header)}, expected {key!r} and an 'address' "
            f"with a label or an index for each of {[*header.mapped, *sizes]}"
        )
    return tuple(map(str, labels)), number, value


def _parse_values(header: VespaHeader, values: Any) -> bytes:
    """Return the cells of a block from numbers, nested or not, or hexadecimal digits."""
    if isinstance(values, str):
        # A scalar may have the digits of the right cell type or not.
        is_scalar = not header.mapped and len(values) in _ELEMENT_BY_DIGITS
        if header.indexed or (is_scalar and _HEX.fullmatch(values)):
            return _parse_digits(header, values)
    count = header.cells
    if not isinstance(values, list):
        values = values.tolist() if isinstance(values, np.ndarray) else values
        values = values if isinstance(values, list) or count > 1 else [values]
    if not isinstance(values, list) or len(values) != count or isinstance(values[0], list):
        array = np.array(values, dtype=object, ndmin=1)
        if array.shape not in (header.lengths, (count,)):
            raise ValueError(
                f"{show(values)} has the shape {array.shape}, expected {header.lengths} "
                f"or {count} flat values for a block of {format_type(header)}"
            )
        values = array.ravel().tolist()
    return _pack_numbers(header, values)


def _parse_digits(header: VespaHeader, digits: str) -> bytes:
    """Return the cells of a block. Those of indexed dimensions may be of another cell type."""
    content = b""
    with suppress(ValueError):
        content = unhexlify(digits)
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
    warn(
        f"hexadecimal digits of {element.name} are converted to the cells of "
        f"{format_type(header)}; correct the type if its cells or sizes are others"
    )
    return _pack_numbers(header, element.decode(np.frombuffer(content, element.stored)).tolist())


def _pack_blocks(header: VespaHeader, rows: Iterable[Names], numbers: list[Any]) -> Packed:
    """Pack the cells of all blocks at once, which is faster."""
    packed, size = _pack_numbers(header, numbers), header.block_bytes
    return {row: packed[n * size : (n + 1) * size] for n, row in enumerate(rows)}


def _pack_numbers(header: VespaHeader, numbers: list[Any]) -> bytes:
    """Pack the cells of a block. Raise ValueError if the cell type cannot represent one."""
    if not _NUMBER_TYPES.issuperset(map(type, numbers)):
        numbers = list(map(_parse_number, numbers))
    code = _CODES[header.cell_type]
    if code == "b":
        numbers = [int(number) if number % 1 == 0 else number for number in numbers]
    try:
        packed = struct.pack(f">{len(numbers)}{code}", *numbers)
    except (OverflowError, struct.error):
        for number in numbers if len(numbers) > 1 else ():
            _pack_numbers(header, [number])
        valid = {"d": "a number", "f": "a number up to 3.4e38", "b": "an integer from -128 to 127"}
        expected = f"{valid[code]}, expected one for {format_type(header)}"
        raise ValueError(f"{show(numbers[0])} is not {expected}") from None
    if header.cell_type == "bfloat16":
        packed = header.element.encode(np.frombuffer(packed, ">f4").astype(np.float32)).tobytes()
    return packed


def _parse_number(value: Any) -> float:
    """Return a number. As in Vespa, it may be null or a string."""
    if isinstance(value, np.number):
        value = value.item()
    if value is None:
        return float("nan")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        number = float(value)
        if not isinf(number) or "inf" in value.lower():  # not too large
            return number
    raise ValueError(f"{show(value)} is not the value of a cell")


def build_tensor(
    header: VespaHeader, rows: Sequence[Names], blocks: Array, form: Form
) -> dict[str, Any]:
    """Return a tensor in JSON from the labels and the encoded cells of blocks."""
    mapped, indexed, type_ = header.mapped, header.indexed, format_type(header)
    if form == "long" or (len(mapped) > 1 and not indexed):
        indices = [tuple(map(str, index)) for index in np.ndindex(header.lengths)]
        rows = [row + index for row in rows for index in indices]
        cells = _list_values(blocks.reshape(-1), header.element)
        return {"type": type_, "cells": _add_addresses(mapped + indexed, rows, "value", cells)}
    if form == "hex" and indexed:
        values = [block.tobytes().hex().upper() for block in blocks]
    else:
        values = _list_values(blocks, header.element)
    if len(mapped) > 1:
        return {"type": type_, "blocks": _add_addresses(mapped, rows, "values", values)}
    if mapped:
        key, labels = "blocks" if indexed else "cells", (row[0] for row in rows)
        return {"type": type_, key: dict(zip(labels, values, strict=True))}
    return {"type": type_, "values": values[0] if indexed else values}


def _add_addresses(
    dims: tuple[str, ...], rows: Iterable[Names], key: str, values: Iterable[Any]
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
