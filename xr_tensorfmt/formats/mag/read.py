"""Read a MAG file. This module parses version 300; `earlier` parses other versions.

A snapshot of version 300, written by magnetron 0.2, has a header of 44 bytes, a JSON document that
describes the tensors, padding, and data. Tensors begin at multiples of 4096 bytes. There is no
checksum.
"""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from typing import Any

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.fields import Fields
from xr_tensorfmt.core.findings import End, Gap
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.json_text import read_json
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.errors import TensorFormatError, shorten
from xr_tensorfmt.formats._shared.keyed import StoredTensors, build_container, is_count
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
    metadata, findings = file.metadata, file.findings
    container = build_container(options, file.tensors, tensor_info, metadata, findings)
    file_info = {**tensor_info, "container": file.container, **file.file_info}
    end = End(reader.source, file.end or file.data_stop, "the data")
    return replace(container, encoding={"tensorfmt": file_info}, ends=(end,), parsed=file)


def _read_document_snapshot(reader: HeaderReader) -> MagFile:
    """Read a snapshot of version 300."""
    header = SnapshotHeader.read(reader)
    document_start, length = header.document_start, header.document_bytes
    document = read_json(reader, document_start, length, spec.MAX_DOCUMENT_BYTES)
    entries, metadata = document.get(spec.TENSORS, dict), document.get(spec.METADATA, dict)
    tensors = StoredTensors(reader.source.name)
    for key, entry in entries.items():
        _unpack_entry(document, key, entry, header, tensors)
    file_info = {name: document.values[name] for name in spec.FILE_INFO if name in document.values}
    file_info["byteorder"] = "big" if header.aux else "little"
    start, stop = header.data_start, header.data_stop
    gaps = (
        Gap(SnapshotHeader.struct.size, document_start, "the padding before the document"),
        Gap(document_start + length, start, "the padding after the document"),
    )
    file = MagFile("snapshot", spec.VERSION, tensors, start, stop, metadata, file_info, gaps=gaps)
    spec.check_placement(reader, file, spec.ALIGNMENT, spec.ALIGNMENT - 1)
    return file


def _unpack_entry(
    document: Fields, key: str, entry: Any, header: SnapshotHeader, tensors: StoredTensors
) -> None:
    def error(field: str, expected: str, actual: object = entry) -> TensorFormatError:
        return document.error(f"{field} of {key!r}", shorten(repr(actual)), expected)

    try:
        shape, dtype_id, offset, nbytes = _entry_fields(entry)
    except (KeyError, TypeError):
        raise error("the entry", "an object with shape, dtype_id, offset and nbytes") from None
    is_newer = is_count(dtype_id) and dtype_id >= len(spec.DTYPE_NAMES)
    name = entry.get("dtype")
    if not is_count(dtype_id) or (is_newer and name in (*spec.DTYPE_NAMES, None)):
        raise error("the dtype_id", f"a number below {len(spec.DTYPE_NAMES)}", dtype_id)
    if not is_count(offset):
        raise error("the offset", f"an offset within the {header.data_bytes} bytes of data", offset)
    if not is_count(nbytes):
        raise error("nbytes", "a number of bytes", nbytes)
    start = header.data_start + offset
    if is_newer:
        unsupported = error("the dtype", f"one of {', '.join(spec.DTYPE_NAMES)}", name)
        unsupported = replace(unsupported, hint="update xr_tensorfmt, or load it with magnetron")
        tensors.add_unsupported(key, start, nbytes, unsupported)
        return
    elements = spec.BIG_ENDIAN if header.aux else spec.LITTLE_ENDIAN
    element = elements[spec.SNAPSHOT_200_DTYPES[dtype_id]]
    expected = tensors.parse(document, key, shape, element, start)
    if nbytes != expected:
        raise error("nbytes", f"{expected} for {shape} of {element.name}", nbytes)
