"""Tensors that are given as hexadecimal digits, or in one of the forms that Vespa has in JSON.

What is given is turned into the typed binary form, which is then opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from xr_tensorfmt.contract import (
    MAX_DIMENSIONS,
    Array,
    Container,
    HeaderReader,
    Memory,
    OpenOptions,
    TensorFormatError,
    is_addressable,
    parse_json,
    shorten,
)
from xr_tensorfmt.formats.vespa.read import read
from xr_tensorfmt.formats.vespa.spec import CELL_TYPES, Header, pack_string

if TYPE_CHECKING:
    from xarray import Dataset

_TYPE = re.compile(r"tensor(?:<(\w+)>)?\((.*)\)")
_DIMENSION = re.compile(r"([A-Za-z_]\w*)(?:\{\}|\[(\d{1,18})\])", re.ASCII)
_SCALARS = {"double": "tensor()"}

_CONTENT = ("cells", "values", "blocks")
_WRAPPER = {*_CONTENT, "type", "dimensions"}

_NUMBER = re.compile(
    r"[-+]?(inf(inity)?|nan|(\d+\.?\d*|\.\d+)(e[-+]?\d+)?)", re.IGNORECASE | re.ASCII
)

# What is true of the JSON too.
_FACTS = ("cell_type", "mapped", "indexed", "lengths", "blocks")

# What is a cell of so many hexadecimal digits.
_BY_DIGITS = {2 * element.stored.itemsize: element for element in CELL_TYPES.values()}

Address = Mapping[str, Any]

Blocks = dict[tuple[str, ...], Array]
"""The cells of blocks by their labels."""

MAX_JSON_BYTES = 128 << 20
"""Limit on the bytes of a file of JSON, all of which is read when it is opened."""

MAX_JSON_CELLS = 1 << 24
"""Limit on the cells of blocks of which JSON lists only some."""

# The value of a dense field with format.tensors=hex-value; a JSON number is no field of a tensor.
_IS_HEX = re.compile(r"(?:[0-9A-Fa-f]{2})+")


class RepeatedLabelError(ValueError):
    """A JSON object that states a label twice."""


def vespa_from_hex(digits: str, **keywords: Any) -> Dataset:
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
    >>> vespa_from_hex("0x0601010178023F80000040000000").tensor.values
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
    return _open(content, "<hexadecimal digits>", keywords)


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
    is_digits = isinstance(data, str) and _IS_HEX.fullmatch(data)
    content = {"values": data} if is_digits else loaded(data)
    return _open(packed_tensor(content, type), "<Vespa JSON>", keywords)


def _open(content: bytes, name: str, keywords: Mapping[str, Any]) -> Dataset:
    """Open the binary form of a tensor; errors give it a name."""
    from xarray import open_dataset  # noqa: PLC0415

    keywords = {"format": "vespa", **keywords}
    try:
        # xarray can name chunks of a memoryview, but not of bytes.
        return open_dataset(memoryview(content), engine="tensorfmt", **keywords)
    except TensorFormatError as error:
        raise replace(error, path=name) from None


def parsed_type(string: str) -> Header:
    """The header of a tensor without blocks; ValueError where sizes of its type are not known."""
    bare = re.sub(r"\s", "", string)
    found = _TYPE.fullmatch(_SCALARS.get(bare, bare))
    parts = found[2].split(",") if found and found[2] else []
    sizes = {dim[1]: dim[2] for part in parts if (dim := _DIMENSION.fullmatch(part))}
    cells = (found and found[1]) or "double"
    if not found or len(sizes) < len(parts) or cells not in CELL_TYPES:
        raise ValueError(
            f"{shorten(repr(string))} is not the type of a tensor such as "
            "'tensor<float>(user{},x[3])', with a size for each indexed dimension"
        )
    mapped = tuple(name for name in sorted(sizes) if sizes[name] is None)
    indexed = tuple(name for name in sorted(sizes) if sizes[name] is not None)
    lengths = tuple(int(sizes[name]) for name in indexed)
    if len(sizes) > MAX_DIMENSIONS or 0 in lengths or not is_addressable(lengths, 8):
        raise ValueError(
            f"{shorten(repr(string))} has a size of 0, more than {MAX_DIMENSIONS} "
            "dimensions, or more cells than can be addressed"
        )
    return Header.of(cells, mapped, indexed, lengths, 0)


def json_type(header: Header) -> str:
    """The type as JSON has it, in which a scalar is a tensor too."""
    return _SCALARS.get(header.type, header.type)


def loaded(content: Any) -> Any:
    """JSON text as Python's objects; others as they are."""
    if not isinstance(content, str | bytes | bytearray):
        return content
    string = content if isinstance(content, str) else content.decode()
    try:
        # Vespa ignores a comma at the end.
        return json.loads(string.strip().removesuffix(","), object_pairs_hook=_unique_members)
    except RepeatedLabelError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{shorten(repr(string))} is not JSON: {error}") from None


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object; raise RepeatedLabelError if a label is repeated."""
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        for label, _ in pairs:
            if label in seen:
                raise RepeatedLabelError(
                    f"the label {shorten(repr(label))} occurs twice in a JSON object; leave one out"
                )
            seen.add(label)
    return members


def packed_tensor(data: Any, type_: str | None) -> bytes:
    """The typed binary form of a tensor in any of its forms in JSON."""
    if data is None:
        raise ValueError("the JSON is null, expected a tensor of Vespa; leave the field out")
    stated = data.get("type") if _is_wrapper(data) else None
    if type_ is None and not isinstance(stated, str):
        raise ValueError(
            'the JSON states no type of the tensor; write {"type": "tensor<float>(x[3])", '
            '"values": ...} with that of its field, or pass it to xr_tensorfmt.vespa_from_json'
        )
    header = parsed_type(str(stated) if type_ is None else type_)
    if type_ is not None and isinstance(stated, str) and parsed_type(stated) != header:
        raise ValueError(f"the JSON states the type {stated!r}, and {type_!r} was asked for")
    return _packed(header, _blocks_of(header, data))


def read_json(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read a file with the JSON of one tensor, which states its type."""
    source, field = reader.source, "the JSON of a tensor"
    if source.size > MAX_JSON_BYTES:
        limit = f"at most {MAX_JSON_BYTES}"
        raise reader.error(field, f"{source.size} bytes", limit, "write it as .tbf", 0)
    try:
        text = source.read_bytes(0, source.size).decode()
        content = packed_tensor(parse_json(text, _unique_members), None)
    except ValueError as error:
        expected = "a tensor of Vespa with its type"
        hint = "mend it, or open what it describes if it is no tensor"
        raise reader.error(field, str(error), expected, hint, 0) from error
    packed = Memory(content, name=source.name)
    container = read(HeaderReader(packed), options)
    (tensor,) = container.tensors
    facts = {key: tensor.encoding["tensorfmt"][key] for key in _FACTS} | {"format": "vespa-json"}
    encoding = {**tensor.encoding, "tensorfmt": facts}
    return replace(
        container,
        tensors=(replace(tensor, source=packed, encoding=encoding),),
        coordinates=tuple(replace(each, source=packed) for each in container.coordinates),
        derived=("values in JSON",),
    )


def _is_wrapper(data: Any) -> bool:
    """Whether an object has a tensor under a key, and is not a map of labels itself."""
    if not isinstance(data, dict) or not data.keys() <= _WRAPPER:
        return False
    content = [key for key in _CONTENT if key in data]
    if not isinstance(data.get("type", ""), str) or len(content) > 1:
        return False
    return _may_be(content[0], data[content[0]]) if content else "type" in data


def _may_be(key: str, content: Any) -> bool:
    """Whether the content of a key is of a type that it has if the key is not a label."""
    if key == "values":
        return isinstance(content, list | str)
    is_list = isinstance(content, list)
    return isinstance(content, dict) or (is_list and all(isinstance(c, dict) for c in content[:1]))


def _blocks_of(header: Header, data: Any) -> Blocks:
    """The cells of each block of a tensor in any form, by its labels."""
    key, content = _content(header, data)
    blocks: Blocks = {}
    if key == "cells" and isinstance(content, list):
        return _blocks_of_cells(header, content)
    for labels, values in _whole_blocks(header, key, content):
        if labels in blocks:
            raise ValueError(f"the labels {shorten(repr(labels))} occur twice; leave one out")
        blocks[labels] = _values(header, values)
    return blocks


def _whole_blocks(header: Header, key: str, content: Any) -> Iterable[tuple[tuple[str, ...], Any]]:
    """The labels and values of each block, in the forms that have these together."""
    mapped, map_key = header.mapped, "blocks" if header.indexed else "cells"
    if key == "values" and not mapped and isinstance(content, list | str):
        return [((), content)]
    if key == "blocks" and mapped and isinstance(content, list):
        blocks = (_members(block, "address", "values") for block in content)
        return ((_block_labels(header, address), values) for address, values in blocks)
    if key == map_key and len(mapped) == 1 and isinstance(content, dict):
        return (((label,), values) for label, values in content.items())
    if content is None and mapped:
        return ()
    forms = "a list of 'cells', or of 'blocks'" if mapped else "a list as 'cells' or 'values'"
    if len(mapped) == 1:
        forms += f", or a map of labels as {map_key!r}"
    found = f"{shorten(repr(content))} as {key!r}"
    raise ValueError(f"{found} is not a form of {json_type(header)}, which are {forms}")


def _content(header: Header, data: Any) -> tuple[str, Any]:
    """Which content a tensor has, with or without the object around it."""
    # Values are no form of tensors with labels, so that there it is one of these.
    is_map = header.mapped and isinstance(data, dict) and set(data) == {"values"}
    if _is_wrapper(data) and not is_map:
        return next(((key, data[key]) for key in _CONTENT if key in data), ("cells", None))
    if isinstance(data, dict):
        return "blocks" if header.indexed else "cells", data
    has_cells = isinstance(data, list) and data and isinstance(data[0], dict)
    if header.mapped or has_cells:
        return "cells", data
    return "values", data if header.indexed or isinstance(data, list) else [data]


def _block_labels(header: Header, address: Address) -> tuple[str, ...]:
    """Return the labels of a whole block; its address has no index."""
    if address.keys() != {*header.mapped}:
        raise ValueError(
            f"the address {shorten(repr(address))} of a block does not fit "
            f"{json_type(header)}, expected a label for each of {list(header.mapped)}"
        )
    return _labels(header, address)


def _labels(header: Header, address: Address) -> tuple[str, ...]:
    mapped = header.mapped
    if not {*mapped} <= address.keys() <= {*mapped, *header.indexed}:
        raise ValueError(f"the address {shorten(repr(address))} does not fit {json_type(header)}")
    labels = tuple(address[name] for name in mapped)
    if not all(isinstance(label, str | int) and not isinstance(label, bool) for label in labels):
        raise ValueError(f"the address {shorten(repr(address))} has labels that are not str")
    return tuple(map(str, labels))


def _blocks_of_cells(header: Header, content: Iterable[Any]) -> Blocks:
    """The cells of each block, of which those that are not listed are zero."""
    blocks: Blocks = {}
    seen = set()
    if not header.mapped:
        blocks[()] = _zeros(header, 1)
    for cell in content:
        address, value = _members(cell, "address", "value")
        labels = _labels(header, address)
        place = (labels, _place(header, address))
        if place in seen:
            raise ValueError(f"the cell {shorten(repr(address))} occurs twice; leave one out")
        seen.add(place)
        if labels not in blocks:
            blocks[labels] = _zeros(header, len(blocks) + 1)
        blocks[labels][place[1]] = _number(value)
    return blocks


def _zeros(header: Header, blocks: int) -> Array:
    """Return the cells of another block; raise ValueError if so many blocks exceed the limit."""
    if header.cells * blocks > MAX_JSON_CELLS:
        raise ValueError(
            f"{json_type(header)} has more than {MAX_JSON_CELLS} cells, most of which "
            "are not listed; give blocks or values"
        )
    return np.zeros(header.cells)


def _place(header: Header, address: Address) -> int:
    """The number of a cell in its block."""
    place = 0
    for name, length in zip(header.indexed, header.lengths, strict=True):
        index = str(address.get(name))
        if not re.fullmatch(r"\d+", index, re.ASCII) or int(index) >= length:
            raise ValueError(
                f"the address {shorten(repr(address))} has no index from 0 to {length - 1} "
                f"for {name!r} of {json_type(header)}"
            )
        place = place * length + int(index)
    return place


def _values(header: Header, values: Any) -> Array:
    """The cells of a block: numbers, nested or not, or hexadecimal digits."""
    # A label of a sparse tensor may have a number as a string.
    if isinstance(values, str) and (header.indexed or not header.mapped):
        return _from_hex(header, values)
    flat = _flattened(header, values)
    if len(flat) != header.cells:
        raise ValueError(
            f"{shorten(repr(values))} has {len(flat)} values, and a block of {json_type(header)} "
            f"has {header.cells}"
        )
    if {float}.issuperset(map(type, flat)):  # which is faster
        return np.array(flat)
    return np.array([_number(value) for value in flat])


def _from_hex(header: Header, digits: str) -> Array:
    """The cells of a block; floats may have another width than that of the type."""
    element, rest = _BY_DIGITS.get(len(digits) // header.cells), len(digits) % header.cells
    if (
        not element
        or rest
        or not _IS_HEX.fullmatch(digits)
        or element.dtype.kind != header.element.dtype.kind
    ):
        raise ValueError(
            f"{shorten(repr(digits))} are not {2 * header.element.stored.itemsize} hexadecimal "
            f"digits for each of the {header.cells} cells of a block of {json_type(header)}"
        )
    raw = np.frombuffer(bytes.fromhex(digits), dtype=element.stored)
    return element.decode(raw).astype(np.float64)


def _packed(header: Header, blocks: Blocks) -> bytes:
    """The typed binary form, with the blocks in the order of the JSON."""
    element = header.element
    packed = [replace(header, blocks=len(blocks)).pack()]
    for labels, values in blocks.items():
        with np.errstate(all="ignore"):
            converted = values.astype(element.dtype)
        if header.cell_type == "int8" and (values != converted).any():
            wrong = values[values != converted][0]
            raise ValueError(
                f"{wrong} is not an integer from -128 to 127, as {json_type(header)} has"
            )
        try:
            packed += map(pack_string, labels)
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the labels {shorten(ascii(labels))} have a lone surrogate ({error.reason}), "
                "expected text that UTF-8 can encode; correct the label"
            ) from None
        packed.append(element.encode(converted).tobytes())
    return b"".join(packed)


def _members(item: Any, *keys: str) -> Iterator[Any]:
    """The members of an object that has to have them, of which one is an address."""
    is_complete = isinstance(item, dict) and item.keys() >= set(keys)
    if not is_complete or not isinstance(item["address"], dict):
        raise ValueError(f"{shorten(repr(item))} has no {' and '.join(map(repr, keys))}")
    return (item[key] for key in keys)


def _flattened(header: Header, values: Any) -> list[Any]:
    """Return the numbers of a block, which are flat or nested as the type says."""
    numbers = values if isinstance(values, list) else [values]
    if not any(isinstance(number, list) for number in numbers):
        return numbers
    rows = [values]
    for length in header.lengths:
        for row in rows:
            if not isinstance(row, list) or len(row) != length:
                raise _nesting_error(header, row, f"a list of {length}")
        rows = list(chain.from_iterable(rows))
    for row in rows:
        if isinstance(row, list):
            raise _nesting_error(header, row, "a number")
    return rows


def _nesting_error(header: Header, row: Any, expected: str) -> ValueError:
    return ValueError(
        f"the row {shorten(repr(row))} is not evenly nested, expected {expected} for "
        f"{json_type(header)}; nest the values as its sizes, or give them flat"
    )


def _number(value: Any) -> float:
    """Return a number, which may be null or a string, as in Vespa."""
    if value is None:
        return float("nan")
    is_string = isinstance(value, str) and _NUMBER.fullmatch(value)
    if is_string or (isinstance(value, int | float) and not isinstance(value, bool)):
        with suppress(OverflowError):
            return float(value)
    raise ValueError(f"{shorten(repr(value))} is not the value of a cell")
