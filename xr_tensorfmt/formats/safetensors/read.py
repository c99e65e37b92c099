"""Read the header of a safetensors file, or an index and the headers of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.fields import Fields
from xr_tensorfmt.core.findings import End, Finding
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.json_text import read_json
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.core.source import Source, is_file_name, open_sibling
from xr_tensorfmt.errors import TensorFormatError, shorten
from xr_tensorfmt.formats._shared import keyed
from xr_tensorfmt.formats.safetensors.spec import (
    DTYPES,
    ELEMENTS,
    HEADER_CHECKSUMS,
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    METADATA,
    WEIGHT_MAP,
    compute_checksum,
)

_FILE_INFO = {"format": "safetensors"}
_entry_fields = itemgetter("dtype", "shape", "data_offsets")
_get_offsets = itemgetter("data_offsets")


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read a header, or an index and the headers of all its files."""
    # The length before the header of a file ends with zeros, and JSON does not contain them.
    if reader.head.lstrip().startswith(b"{") and 0 not in reader.head[:LENGTH_BYTES]:
        return _read_index(reader, options)
    header = SafetensorsHeader.read(reader)
    path, layouts = reader.source.name, header.layouts
    container = keyed.build_container(options, path, layouts, _FILE_INFO, header.metadata)
    return replace(container, ends=(header.end,))


@dataclass(frozen=True)
class SafetensorsHeader:
    """Parsed header of a file."""

    layouts: Mapping[str, Dense]
    metadata: Mapping[str, str]
    end: End
    checksum: str

    @classmethod
    def read(cls, reader: HeaderReader) -> SafetensorsHeader:
        """Read and check a header."""
        length = reader.read_unsigned(0, LENGTH_BYTES, "the length of the header")
        document = read_json(reader, LENGTH_BYTES, length, MAX_HEADER_BYTES, "the header")
        entries = dict(document.values)
        metadata = entries.pop(METADATA, {})
        values = metadata.values() if isinstance(metadata, dict) else [None]
        if not all(isinstance(value, str) for value in values):
            actual = shorten(repr(metadata))
            raise document.error(METADATA, actual, "an object whose values are strings")
        start = LENGTH_BYTES + length
        shapes: keyed.Shapes = {}
        layouts = {x: _parse(document, x, y, start, shapes) for x, y in entries.items()}
        checksum = compute_checksum(reader.read_field(0, start, "the header"))
        return cls(layouts, metadata, _check_consecutive(reader, entries, start), checksum)


def _parse(document: Fields, key: str, entry: Any, start: int, shapes: keyed.Shapes) -> Dense:
    """Parse the entry of a tensor. Its offsets are relative to `start`."""
    try:
        dtype, shape, (first, stop) = _entry_fields(entry)
    except (KeyError, TypeError, ValueError):  # ValueError if there are not two offsets
        expected = "an object with dtype, shape and two data_offsets"
        raise keyed.build_error(document, "the entry", key, entry, expected) from None
    if type(first) is not int or type(stop) is not int or not 0 <= first <= stop:
        expected = "two ascending numbers of bytes"
        raise keyed.build_error(document, "the data_offsets", key, [first, stop], expected)
    if not isinstance(dtype, str):
        raise keyed.build_error(document, "the dtype", key, dtype, "a str")
    if dtype not in DTYPES:
        error = keyed.build_error(document, "the dtype", key, dtype, f"one of {', '.join(DTYPES)}")
        error = replace(error, hint="load it with safetensors.torch.load_file")
        return keyed.Undecodable((stop - first,), keyed.BYTE, start + first, error)
    element = ELEMENTS[DTYPES[dtype]]
    lengths, nbytes = keyed.parse_shape(document, key, shape, element, shapes)
    if stop - first != nbytes:
        expected = f"{nbytes} bytes between them, for {dtype} of shape {shape}"
        raise keyed.build_error(document, "the data_offsets", key, [first, stop], expected)
    return Dense(lengths, element, start + first)


def _check_consecutive(reader: HeaderReader, entries: Mapping[str, Any], start: int) -> End:
    """Return the end of the data. Raise an error if they overlap, have gaps or are truncated."""
    previous, size = 0, reader.source.size
    for first, stop in sorted(map(_get_offsets, entries.values())):
        if first != previous:
            key = next(x for x, entry in entries.items() if entry["data_offsets"] == [first, stop])
            actual, expected = f"data from byte {start + first} on", f"byte {start + previous}"
            hint = "data cannot overlap or have gaps; the header is corrupt"
            raise reader.error(
                f"the data_offsets of {key!r}", actual, expected, hint, start + first
            )
        previous = stop
    if start + previous > size:
        actual, expected = f"a file of {size} bytes", f"{start + previous} bytes for all tensors"
        hint = "the file is truncated; fetch it again"
        raise reader.error("the data", actual, expected, hint, size)
    return End(reader.source, start + previous, "the data")


def _read_index(reader: HeaderReader, options: OpenOptions) -> Container:
    path, size = reader.source.name, reader.source.size
    index = read_json(reader, 0, size, MAX_HEADER_BYTES, "the index")
    files = index.get(WEIGHT_MAP, dict)
    metadata = dict(index.get("metadata", dict, {}))
    files = {key: _normalize_path(index, file) for key, file in files.items()}
    headers = _open_files(reader.source, files)
    # A writer replaces the files, then the index. Raise an error if it has done so meanwhile.
    reader.source.check_unchanged()
    _check_headers(index, headers, metadata)
    layouts, sources = {}, {}
    for key, file in files.items():
        header = headers[file]
        if key not in header.layouts:
            raise index.error(f"the file of {key!r}", repr(file), "a file with that tensor")
        layouts[key], sources[key] = header.layouts[key], header.end.source
    for name, value in next(iter(headers.values())).metadata.items() if headers else ():
        if all(header.metadata.get(name) == value for header in headers.values()):
            metadata.setdefault(name, value)
    metadata.pop(HEADER_CHECKSUMS, None)
    message = "it is in {0} but not in the index, and is omitted; open {0} to read it"
    findings = [
        Finding(path, None, f"the tensor {shorten(repr(key))}", message.format(file), "warning")
        for file, header in headers.items()
        for key in header.layouts
        if files.get(key) != file
    ]
    container = keyed.build_container(
        options, path, layouts, _FILE_INFO, metadata, findings, sources
    )
    return replace(container, ends=tuple(header.end for header in headers.values()))


def _normalize_path(index: Fields, file: Any) -> str:
    """Return the path of a file without ``./``. Raise an error if it leaves the directory."""
    parts = [part for part in file.split("/") if part != "."] if isinstance(file, str) else []
    if not parts or not all(map(is_file_name, parts)):
        expected = "paths of files in the directory of the index or below"
        raise index.error(WEIGHT_MAP, shorten(repr(file)), expected)
    return "/".join(parts)


def _open_files(source: Source, files: Mapping[str, str]) -> dict[str, SafetensorsHeader]:
    """Read the headers of all files. Remote files are read concurrently."""
    names = list(dict.fromkeys(files.values()))

    def open_one(name: str) -> SafetensorsHeader:
        sibling, head = open_sibling(source, name, f"it is named by {source.name}")
        return SafetensorsHeader.read(HeaderReader(sibling, head))

    return dict(zip(names, source.run(open_one, names), strict=True))


def _check_headers(
    index: Fields, headers: Mapping[str, SafetensorsHeader], metadata: Mapping[str, Any]
) -> None:
    """Raise an error if a file is not the one that was written with the index."""
    checksums = metadata.get(HEADER_CHECKSUMS)
    if not isinstance(checksums, Mapping):
        return
    for file, header in headers.items():
        expected = checksums.get(file, header.checksum)
        if header.checksum != expected:
            field, actual = f"the header of {shorten(repr(file))}", f"checksum {header.checksum}"
            hint = (
                "the files are from different writes; write them again, or remove "
                f"{HEADER_CHECKSUMS!r} from the index if the file was changed on purpose"
            )
            raise TensorFormatError(index.path, field, actual, shorten(str(expected)), hint)
