"""The header of a safetensors file: its length, and a JSON object of tensors and metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps
from operator import attrgetter, itemgetter
from typing import Any, TypeGuard

import numpy as np

from xr_tensorfmt.core.elements import (
    BFloat16,
    Boolean,
    Element,
    Float8E4M3FN,
    Float8E5M2,
    Plain,
)
from xr_tensorfmt.core.header import HeaderReader, check_rank
from xr_tensorfmt.core.json_document import Document
from xr_tensorfmt.core.keyed import StoredTensor, check_keys
from xr_tensorfmt.errors import shorten

LENGTH_BYTES = 8
"""Bytes of the length of the header; the header is padded to a multiple of as many."""

MOST_HEADER_BYTES = 100_000_000
"""Limit of the format on the length of the header."""

METADATA = "__metadata__"

_MOST_COUNT = (1 << 63) - 1

ELEMENTS: Mapping[str, Element] = {
    "BOOL": Boolean(),
    "U8": Plain(np.dtype("u1")),
    "I8": Plain(np.dtype("i1")),
    "F8_E4M3": Float8E4M3FN(),
    "F8_E5M2": Float8E5M2(),
    "U16": Plain(np.dtype("<u2")),
    "I16": Plain(np.dtype("<i2")),
    "F16": Plain(np.dtype("<f2")),
    "BF16": BFloat16(),
    "U32": Plain(np.dtype("<u4")),
    "I32": Plain(np.dtype("<i4")),
    "F32": Plain(np.dtype("<f4")),
    "U64": Plain(np.dtype("<u8")),
    "I64": Plain(np.dtype("<i8")),
    "F64": Plain(np.dtype("<f8")),
    "C64": Plain(np.dtype("<c8")),
}
"""How the elements of each dtype are stored."""

_NAMES = {element.name: name for name, element in ELEMENTS.items()}
_entry_fields = itemgetter("dtype", "shape", "data_offsets")


@dataclass(frozen=True)
class Header:
    """What the header of a file says; the tensors are in its order."""

    tensors: tuple[StoredTensor, ...]
    metadata: Mapping[str, str]

    @classmethod
    def read(cls, reader: HeaderReader) -> Header:
        """Read it, and refuse what the format does not allow."""
        length = reader.unsigned(0, LENGTH_BYTES, "the length of the header")
        if length > MOST_HEADER_BYTES:
            hint = "the file is damaged, or of another format"
            expected = f"at most {MOST_HEADER_BYTES} bytes"
            raise reader.error("the length of the header", length, expected, hint, 0)
        document = Document.read(reader, LENGTH_BYTES, length, "the header")
        entries = {key: each for key, each in document.content.items() if key != METADATA}
        start, size = LENGTH_BYTES + length, reader.source.size
        tensors = tuple(_unpack(document, *item, start) for item in entries.items())
        metadata = _metadata(document)
        document.check_repeated(document.content, metadata, *entries.values())
        check_keys(document.path, tensors)
        _check_consecutive(reader, tensors, start, size)
        return cls(tensors, metadata)


def _unpack(document: Document, key: str, entry: Any, start: int) -> StoredTensor:
    """A tensor, whose offsets count from the end of the header."""
    try:
        dtype, shape, (first, stop) = _entry_fields(entry)
    except (KeyError, TypeError, ValueError):
        expected = "an object with dtype, shape and two data_offsets"
        raise document.error(f"the entry of {key!r}", shorten(repr(entry)), expected) from None
    element = ELEMENTS.get(dtype) if isinstance(dtype, str) else None
    if element is None:
        expected = f"one of {', '.join(ELEMENTS)}, as numpy has no others"
        raise document.error(f"the dtype of {key!r}", shorten(repr(dtype)), expected)
    if type(shape) is not list or not all(map(_is_count, shape)):
        raise document.error(f"the shape of {key!r}", shorten(repr(shape)), "a list of lengths")
    check_rank(document.path, repr(key), len(shape), document.offset)
    stored = StoredTensor.of(document.path, key, shape, element, start, document.offset)
    if not _is_count(first) or not _is_count(stop) or stop - first != stored.nbytes:
        found = shorten(repr([first, stop]))
        expected = (
            f"two offsets with {stored.nbytes} bytes between them, for {dtype} of shape {shape}"
        )
        raise document.error(f"the data_offsets of {key!r}", found, expected)
    return replace(stored, offset=start + first)


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MOST_COUNT


def _metadata(document: Document) -> Mapping[str, str]:
    metadata = document.content.get(METADATA, {})
    if not isinstance(metadata, dict) or not all(type(each) is str for each in metadata.values()):
        found = shorten(repr(metadata))
        raise document.error(METADATA, found, "an object whose values are strings")
    return metadata


def _check_consecutive(
    reader: HeaderReader, tensors: Sequence[StoredTensor], start: int, size: int
) -> None:
    """Refuse data with holes between them, that overlap, or that do not fill the file."""
    position = start
    for tensor in sorted(tensors, key=attrgetter("offset", "stop")):
        if tensor.offset != position:
            found, expected = f"data from byte {tensor.offset} on", f"byte {position}"
            hint = "data can neither overlap nor have holes between them; the header is damaged"
            field = f"the data_offsets of {tensor.key!r}"
            raise reader.error(field, found, expected, hint, tensor.offset)
        position = tensor.stop
    if position != size:
        found, expected = f"a file of {size} bytes", f"{position}, where the last tensor ends"
        hint = "the file is incomplete, or something was added to it; fetch it again"
        raise reader.error("the data", found, expected, hint, min(size, position))


def pack_header(tensors: Sequence[StoredTensor], metadata: Mapping[str, str]) -> bytes:
    """The header of tensors whose offsets count from its end."""
    content: dict[str, Any] = {METADATA: metadata} if metadata else {}
    for each in tensors:
        content[each.key] = {
            "dtype": _NAMES[each.element.name],
            "shape": each.shape,
            "data_offsets": [each.offset, each.stop],
        }
    text = dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text
