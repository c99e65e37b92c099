"""MAG files, written by magnetron: archives, snapshots and streams.

A snapshot of version 300, written by magnetron 0.2, has a header of 44 bytes, a JSON document that
describes the tensors, padding, and data. Tensors begin at multiples of 4096 bytes. There is no
checksum.

The number of a dtype depends on the container and its version: magnetron inserted bfloat16 at
number 2, and later float8_e4m3fn at number 3. Source: the history of magnetron, and files written
by its releases.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from struct import Struct
from types import MappingProxyType
from typing import Any

from xr_tensorfmt.core.elements import Element, build_elements
from xr_tensorfmt.core.extents import ceil_div
from xr_tensorfmt.core.file_format import (
    Container,
    End,
    Format,
    LazyFormat,
    OpenOptions,
    share_options,
)
from xr_tensorfmt.core.header import Cursor, Fields, HeaderReader, read_json
from xr_tensorfmt.errors import Finding
from xr_tensorfmt.formats import keyed

MAGIC, STREAM_MAGIC = b"MAG!", b"MAG&"
INCOMPLETE = "the file is truncated or its header corrupt; fetch it again"

INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
# dtypes of snapshots 200 and 300 by number.
DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "bool", *INTEGERS)
LITTLE_ENDIAN = build_elements(DTYPES)
_BIG_ENDIAN = build_elements(DTYPES, ">")

VERSION = 300
# Magic, version, aux (1 if data are big-endian), and offset and size of the document and the data.
HEADER = Struct("<4sIIQQQQ")
DTYPE_NAMES = tuple("boolean" if name == "bool" else name for name in DTYPES)
ALIGNMENT = 4096
# Limit on the JSON document. A document with a tokenizer has about 10 MB.
MAX_DOCUMENT_BYTES = 128 << 20
# Keys of the document: of a mapping of metadata, of a mapping of tensors, and of strings.
METADATA, TENSORS = "usr_metadata", "tensor_map"
FILE_INFO = ("manifest_ver", "timestamp", "magnetron_ver", "snapshot_ver")

_entry_fields = itemgetter("shape", "dtype_id", "offset", "nbytes")


class MagFormat(LazyFormat):
    """MAG files. A file has tensors under keys, and metadata."""

    name = "mag"
    title = "MAG"
    suffixes = (".mag",)
    directory_patterns = ("*.mag",)
    magics = (MAGIC, STREAM_MAGIC)
    open_options = share_options("verify", "decode_floats")
    check = Format.check

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Read the header of a file of any version."""
        if reader.read_head(8) == MAGIC + VERSION.to_bytes(4, "little"):
            return _read_snapshot(reader, options)
        from xr_tensorfmt.formats.mag import earlier  # noqa: PLC0415  # rare, and slow to import

        return earlier.read_file(reader, options)


def _read_snapshot(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read a snapshot of version 300."""
    cursor = Cursor(reader, 0)
    _, _, aux, *bounds = cursor.unpack(HEADER, "the MAG header")
    hint = "the header is corrupt, or a draft between magnetron 0.1.9 and 0.2.0 wrote the file"
    cursor.check(aux <= 1, "aux", f"{aux:#x}", "0 or 1", hint, skip=8)
    first, length, start, data_bytes = bounds
    stop, size = start + data_bytes, reader.source.size
    offsets = [HEADER.size, first, first + length, start, stop]
    field, is_sorted = "the offsets of document and data", offsets == sorted(offsets)
    cursor.check(is_sorted, field, str(offsets[1:]), "ascending offsets", skip=12)
    actual, expected = f"truncated by the end of the file at byte {size}", f"data up to byte {stop}"
    reader.check(stop <= size, "the data", actual, expected, INCOMPLETE, start)
    document = read_json(reader, first, length, MAX_DOCUMENT_BYTES)
    entries, metadata = document.get(TENSORS, dict), document.get(METADATA, dict)
    elements, shapes = _BIG_ENDIAN if aux else LITTLE_ENDIAN, keyed.Shapes()
    parsed = {x: _parse(document, x, y, start, elements, shapes) for x, y in entries.items()}
    placed = {x: (first := start + y["offset"], first + y["nbytes"]) for x, y in entries.items()}
    check_placement(reader, placed, start, stop, ALIGNMENT, ALIGNMENT - 1)
    file_info = {"version": VERSION, "container": "snapshot"}
    file_info |= {name: document.values[name] for name in FILE_INFO if name in document.values}
    file_info["byteorder"] = "big" if aux else "little"
    return build_container(reader, options, parsed, stop, file_info, metadata)


def _parse(
    document: Fields,
    key: str,
    entry: Any,
    start: int,
    elements: Mapping[str, Element],
    shapes: keyed.Shapes,
) -> keyed.Parsed:
    """Parse an entry with an offset relative to `start`. Return the reason not to support it."""
    error = partial(keyed.build_error, document)  # texts for each of 10^5 entries are slow
    try:
        shape, dtype_id, offset, nbytes = _entry_fields(entry)
    except (KeyError, TypeError):
        expected = "an object with shape, dtype_id, offset and nbytes"
        raise error("the entry", key, entry, expected) from None
    name, is_known = entry.get("dtype"), keyed.is_count(dtype_id) and dtype_id < len(DTYPES)
    is_newer = keyed.is_count(dtype_id) and not is_known and name not in (*DTYPE_NAMES, None)
    if not (is_known or is_newer):
        raise error("the dtype_id", key, dtype_id, f"a number below {len(DTYPES)}")
    for member, number in (("the offset", offset), ("nbytes", nbytes)):
        if not keyed.is_count(number):
            raise error(member, key, number, "a number of bytes")
    if is_newer:
        expected = f"one of {', '.join(DTYPE_NAMES)}"
        hint = "update xr_tensorfmt, or load it with magnetron"
        return error("the dtype", key, name, expected, hint)
    if name not in (DTYPE_NAMES[dtype_id], DTYPES[dtype_id], None):
        # magnetron has inserted dtypes twice, so either may be right.
        expected = f"{DTYPE_NAMES[dtype_id]!r}, the dtype with this dtype_id"
        raise error("the dtype and dtype_id", key, (name, dtype_id), expected)
    element = elements[DTYPES[dtype_id]]
    lengths, size = keyed.parse_shape(document, key, shape, element, shapes)
    if nbytes != size:
        raise error("nbytes", key, nbytes, f"{size} for {shape} of {element.name}")
    return lengths, element, start + offset


def build_container(
    reader: HeaderReader,
    options: OpenOptions,
    parsed: Mapping[str, keyed.Parsed],
    stop: int,
    file_info: Mapping[str, Any],
    metadata: Mapping[str, Any] = MappingProxyType({}),
    findings: tuple[Finding, ...] = (),
) -> Container:
    """Build the container of a file of any version. The data end at `stop`."""
    tensor_info = {"format": "mag", "version": file_info["version"]}
    return keyed.build_container(
        *(options, reader.source.name, parsed, tensor_info, metadata),
        encoding={"tensorfmt": tensor_info | dict(file_info)},
        findings=findings,
        ends=(End(reader.source, stop, "the data"),),
    )


def round_up(offset: int, multiple: int) -> int:
    """Round up to a multiple."""
    return ceil_div(offset, multiple) * multiple


def check_placement(
    reader: HeaderReader,
    placed: Mapping[str, tuple[int, int]],
    start: int,
    stop: int,
    alignment: int = 0,
    max_spare: int = 0,
) -> None:
    """Raise an error if data are out of bounds or overlap, or have other gaps than an alignment."""
    end, hint = start, f"{INCOMPLETE}, unless an unreleased version of magnetron wrote it"
    for key, (first, last) in sorted(placed.items(), key=lambda item: item[1][0]):
        if first == last and start <= first <= stop:
            continue
        lowest = start + round_up(end - start, alignment or 1)
        if not lowest <= first <= (lowest if alignment else stop) or last > stop:
            field, actual = f"the data of {key!r}", f"bytes {first} to {last}"
            expected = f"data from byte {lowest} on, after other data, up to the end at byte {stop}"
            raise reader.error(field, actual, expected, hint, first)
        end = last
    actual = f"{stop - end} bytes more than its tensors need"
    fits = not alignment or stop - end <= max_spare
    reader.check(fits, "the data section", actual, f"up to {max_spare}", hint, end)
