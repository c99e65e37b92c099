"""Read a MAG file. This module parses version 300; `earlier` parses other versions.

A snapshot of version 300, written by magnetron 0.2, has a header of 44 bytes, a JSON document that
describes the tensors, padding, and data. Tensors begin at multiples of 4096 bytes. There is no
checksum.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.findings import End, Gap
from xr_tensorfmt.core.header import Fields, HeaderReader, read_json
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats import keyed
from xr_tensorfmt.formats.mag import MAGIC, spec
from xr_tensorfmt.formats.mag.spec import MagFile, SnapshotHeader

_MAGIC_AND_VERSION = MAGIC + spec.VERSION.to_bytes(4, "little")
_entry_fields = itemgetter("shape", "dtype_id", "offset", "nbytes")


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a MAG file."""
    if reader.read_head(8) == _MAGIC_AND_VERSION:
        file = _read_document_snapshot(reader)
    else:
        from xr_tensorfmt.formats.mag import earlier  # noqa: PLC0415  # rare, and slow to import

        file = earlier.read_file(reader, options)
    tensor_info = {"format": "mag", "version": file.version}
    layouts = {key: x for key, x in file.layouts.items() if key not in file.omitted}
    container = keyed.build_container(
        options,
        reader.source.name,
        layouts,
        tensor_info,
        file.metadata,
        file.findings,
        omitted=file.omitted,
    )
    file_info = {**tensor_info, "container": file.container, **file.file_info}
    end = End(reader.source, file.end or file.data_stop, "the data")
    return replace(container, encoding={"tensorfmt": file_info}, ends=(end,), parsed=file)


def _read_document_snapshot(reader: HeaderReader) -> MagFile:
    """Read a snapshot of version 300."""
    header = SnapshotHeader.read(reader)
    document_start, length = header.document_start, header.document_bytes
    document = read_json(reader, document_start, length, spec.MAX_DOCUMENT_BYTES)
    entries, metadata = document.get(spec.TENSORS, dict), document.get(spec.METADATA, dict)
    shapes: keyed.Shapes = {}
    layouts, omitted = dict[str, Dense](), dict[str, TensorFormatError]()
    for key, entry in entries.items():
        layouts[key], unsupported = _parse_entry(document, key, entry, header, shapes)
        if unsupported is not None:
            omitted[key] = unsupported
    file_info = {name: document.values[name] for name in spec.FILE_INFO if name in document.values}
    file_info["byteorder"] = "big" if header.aux else "little"
    start, stop = header.data_start, header.data_stop
    gaps = (
        Gap(SnapshotHeader.struct.size, document_start, "the padding before the document"),
        Gap(document_start + length, start, "the padding after the document"),
    )
    file = MagFile(
        *("snapshot", spec.VERSION, layouts, start, stop, metadata, file_info),
        gaps=gaps,
        omitted=omitted,
    )
    spec.check_placement(reader, file, spec.ALIGNMENT, spec.ALIGNMENT - 1)
    return file


def _parse_entry(
    document: Fields, key: str, entry: Any, header: SnapshotHeader, shapes: keyed.Shapes
) -> tuple[Dense, TensorFormatError | None]:
    """Return the layout of an entry, or its bytes and the reason if the dtype is not supported."""
    error = partial(keyed.build_error, document)
    try:
        shape, dtype_id, offset, nbytes = _entry_fields(entry)
    except (KeyError, TypeError):
        expected = "an object with shape, dtype_id, offset and nbytes"
        raise error("the entry", key, entry, expected) from None
    is_number, name = keyed.is_count(dtype_id), entry.get("dtype")
    is_newer = is_number and dtype_id >= len(spec.DTYPE_NAMES)
    if not is_number or (is_newer and name in (*spec.DTYPE_NAMES, None)):
        raise error("the dtype_id", key, dtype_id, f"a number below {len(spec.DTYPE_NAMES)}")
    if not is_newer and name not in (spec.DTYPE_NAMES[dtype_id], spec.DTYPES[dtype_id], None):
        # magnetron has inserted dtypes twice, so it is not known which of them is right.
        expected = f"{spec.DTYPE_NAMES[dtype_id]!r}, the dtype with this dtype_id"
        raise error("the dtype and dtype_id", key, (name, dtype_id), expected)
    if not keyed.is_count(offset):
        expected = f"an offset within the {header.data_bytes} bytes of data"
        raise error("the offset", key, offset, expected)
    if not keyed.is_count(nbytes):
        raise error("nbytes", key, nbytes, "a number of bytes")
    start = header.data_start + offset
    if is_newer:
        unsupported = error("the dtype", key, name, f"one of {', '.join(spec.DTYPE_NAMES)}")
        unsupported = replace(unsupported, hint="update xr_tensorfmt, or load it with magnetron")
        return Dense((nbytes,), spec.BYTE, start), unsupported
    elements = spec.BIG_ENDIAN if header.aux else spec.LITTLE_ENDIAN
    element = elements[spec.DTYPES[dtype_id]]
    lengths, size = keyed.parse_shape(document, key, shape, element, shapes)
    if nbytes != size:
        raise error("nbytes", key, nbytes, f"{size} for {shape} of {element.name}")
    return Dense(lengths, element, start), None
