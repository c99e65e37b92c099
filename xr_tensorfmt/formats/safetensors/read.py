"""Reading of safetensors: the header of a file, or an index and the headers of its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from typing import Any

from xr_tensorfmt.contract import (
    Container,
    Document,
    End,
    Finding,
    HeaderReader,
    OpenOptions,
    Source,
    TensorFormatError,
    is_file_name,
    open_sibling,
    shorten,
)
from xr_tensorfmt.formats._shared.keyed import StoredTensor, is_count, keyed_container
from xr_tensorfmt.formats.safetensors.spec import (
    DTYPES,
    ELEMENTS,
    INDEX,
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    METADATA,
)

_FACTS = {"format": "safetensors"}
_entry_fields = itemgetter("dtype", "shape", "data_offsets")


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read a header, or an index and the headers of all its files."""
    path = reader.source.name
    if path.casefold().endswith(INDEX):
        return _read_index(reader, options)
    header = Header.read(reader)
    container = keyed_container(path, options, header.tensors, _FACTS, header.metadata)
    return replace(container, ends=(header.end,))


@dataclass(frozen=True)
class Header:
    """What the header of a file says; the tensors are in its order."""

    tensors: Sequence[StoredTensor]
    metadata: Mapping[str, str]
    end: End

    @classmethod
    def read(cls, reader: HeaderReader) -> Header:
        """Read it, and refuse what the format does not allow."""
        length = reader.read_unsigned(0, LENGTH_BYTES, "the length of the header")
        document = Document.read(reader, LENGTH_BYTES, length, MAX_HEADER_BYTES, "the header")
        entries = dict(document.content)
        metadata = entries.pop(METADATA, {})
        values = metadata.values() if isinstance(metadata, dict) else [None]
        if not all(isinstance(each, str) for each in values):
            found = shorten(repr(metadata))
            raise document.error(METADATA, found, "an object whose values are strings")
        start = LENGTH_BYTES + length
        tensors = [_unpack(document, *item, start) for item in entries.items()]
        document.check_repeated(document.content, metadata, *entries.values())
        return cls(tensors, metadata, _check_consecutive(reader, tensors, start))


def _unpack(document: Document, key: str, entry: Any, start: int) -> StoredTensor:
    """A tensor, whose offsets count from the end of the header."""

    def error(field: str, found: object, expected: str) -> TensorFormatError:
        return document.error(f"{field} of {key!r}", shorten(repr(found)), expected)

    try:
        dtype, shape, (first, stop) = _entry_fields(entry)
    except (KeyError, TypeError, ValueError):
        expected = "an object with dtype, shape and two data_offsets"
        raise error("the entry", entry, expected) from None
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise error("the dtype", dtype, f"one of {', '.join(DTYPES)}, as numpy has no others")
    if not is_count(first) or not is_count(stop):
        raise error("the data_offsets", [first, stop], "two numbers of bytes")
    element = ELEMENTS[DTYPES[dtype]]
    stored = StoredTensor.described(document, key, shape, element, start + first)
    if stored.stop != start + stop:
        expected = f"{stored.nbytes} bytes between them, for {dtype} of shape {shape}"
        raise error("the data_offsets", [first, stop], expected)
    return stored


def _check_consecutive(reader: HeaderReader, tensors: Sequence[StoredTensor], start: int) -> End:
    """Refuse data with holes between them, that overlap or are truncated; return their end."""
    position, size = start, reader.source.size
    for tensor in sorted(tensors, key=attrgetter("offset", "stop")):
        if tensor.offset != position:
            found, expected = f"data from byte {tensor.offset} on", f"byte {position}"
            hint = "data can neither overlap nor have holes between them; the header is damaged"
            field = f"the data_offsets of {tensor.key!r}"
            raise reader.error(field, found, expected, hint, tensor.offset)
        position = tensor.stop
    if position > size:
        found, expected = f"a file of {size} bytes", f"{position}, where the last tensor ends"
        raise reader.error(
            "the data", found, expected, "the file is incomplete; fetch it again", size
        )
    return End(reader.source, position, "the data")


def _read_index(reader: HeaderReader, options: OpenOptions) -> Container:
    path, size = reader.source.name, reader.source.size
    index = Document.read(reader, 0, size, MAX_HEADER_BYTES, "the index")
    files = index.get_object("weight_map")
    index.check_repeated(index.content, files)
    metadata = index.get_object("metadata") if "metadata" in index.content else {}
    headers = _opened(reader.source, index, files)
    left = {(file, each.key): each for file in headers for each in headers[file].tensors}
    tensors = []
    for key, file in files.items():
        if (file, key) not in left:
            raise index.error(f"the file of {key!r}", repr(file), "a file with that tensor")
        tensors.append(left.pop((file, key)))
    metadata = {**_common(list(headers.values())), **metadata}
    findings = [_left_out(path, *each) for each in left]
    container = keyed_container(path, options, tensors, _FACTS, metadata, findings)
    return replace(container, ends=tuple(header.end for header in headers.values()))


def _opened(source: Source, index: Document, files: Mapping[str, Any]) -> dict[str, Header]:
    """Open all files and read their headers, at once where that takes requests."""
    for each in files.values():
        if not is_file_name(each):
            raise index.error("weight_map", shorten(repr(each)), "names of files beside the index")
    names = list(dict.fromkeys(files.values()))
    headers: dict[str, Header] = {}

    def open_one(number: int) -> None:
        beside, head = open_sibling(source, names[number], f"it is named by {source.name}")
        header = Header.read(HeaderReader(beside, head))
        tensors = [replace(each, source=beside) for each in header.tensors]
        headers[names[number]] = replace(header, tensors=tensors)

    source.run(open_one, range(len(names)))
    return {file: headers[file] for file in names}


def _common(headers: Sequence[Header]) -> dict[str, str]:
    """The metadata that all files agree in."""
    common = dict(headers[0].metadata) if headers else {}
    for each in headers[1:]:
        common = {key: value for key, value in common.items() if each.metadata.get(key) == value}
    return common


def _left_out(path: str, file: str, key: str) -> Finding:
    message = (
        f"{file} has it and the index does not name it, so that it is left out; open {file} "
        "itself to read it"
    )
    return Finding(path, None, f"the tensor {shorten(repr(key))}", message, "warning")
