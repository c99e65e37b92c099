"""Snapshots of version 300, written by magnetron 0.2.

A snapshot has a header of 44 bytes, a JSON document that describes the tensors, padding, and data.
Tensors begin at multiples of 4096 bytes. The container has no checksum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from json import dumps
from operator import itemgetter
from struct import Struct
from typing import Any, ClassVar, Self

from xr_tensorfmt.core.fields import Fields
from xr_tensorfmt.core.findings import Gap
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.json_text import read_json
from xr_tensorfmt.errors import TensorFormatError, shorten
from xr_tensorfmt.formats._shared.keyed import PlacedTensors, StoredTensor, is_count
from xr_tensorfmt.formats.mag import MAGIC, spec
from xr_tensorfmt.formats.mag.spec import CORRUPT, INCOMPLETE, MagFile

VERSION = 300
MAGIC_AND_VERSION = MAGIC + VERSION.to_bytes(4, "little")

DTYPES = spec.SNAPSHOT_200_DTYPES
_DTYPE_NAMES = tuple("boolean" if name == "bool" else name for name in DTYPES)

ALIGNMENT = 4096
# Limit on the JSON document. A document with a tokenizer has about 10 MB.
MAX_DOCUMENT_BYTES = 128 << 20

_entry_fields = itemgetter("shape", "dtype_id", "offset", "nbytes")


@dataclass(frozen=True)
class SnapshotHeader:
    """Offset and size of the document and of the data. `aux` is 1 if the data are big-endian."""

    aux: int
    document_start: int
    document_bytes: int
    data_start: int
    data_bytes: int

    struct: ClassVar[Struct] = Struct("<4sIIQQQQ")

    @classmethod
    def read(cls, reader: HeaderReader) -> Self:
        """Read and check the header."""
        raw = reader.read_field(0, cls.struct.size, "the MAG header")
        header = cls(*cls.struct.unpack(raw)[2:])
        if header.aux > 1:
            hint = f"{CORRUPT}, or a draft between magnetron 0.1.9 and 0.2.0 wrote the file"
            raise reader.error("aux", f"{header.aux:#x}", "0 or 1", hint, 8)
        document = header.document_start, header.document_start + header.document_bytes
        data = header.data_start, header.data_stop
        if [*document, *data] != sorted(document + data) or document[0] < cls.struct.size:
            field, actual = "the offsets of document and data", f"{document} and {data}"
            raise reader.error(field, actual, "ascending offsets", CORRUPT, 12)
        if header.data_stop > reader.source.size:
            actual = f"truncated by the end of the file at byte {reader.source.size}"
            expected = f"data up to byte {header.data_stop}"
            raise reader.error("the data", actual, expected, INCOMPLETE, header.data_start)
        return header

    def pack(self) -> bytes:
        """Encode the header."""
        return self.struct.pack(MAGIC, VERSION, *astuple(self))

    @property
    def data_stop(self) -> int:
        """Offset of the first byte after the data."""
        return self.data_start + self.data_bytes


_METADATA, _TENSORS = "usr_metadata", "tensor_map"
_FILE_INFO = ("manifest_ver", "timestamp", "magnetron_ver", "snapshot_ver")


def read_document_snapshot(reader: HeaderReader) -> MagFile:
    """Read a snapshot of version 300."""
    header = SnapshotHeader.read(reader)
    document = read_json(reader, header.document_start, header.document_bytes, MAX_DOCUMENT_BYTES)
    entries, metadata = document.get(_TENSORS, dict), document.get(_METADATA, dict)
    tensors = tuple(_unpack_entry(document, key, entry, header) for key, entry in entries.items())
    file_info = {name: document.values[name] for name in _FILE_INFO if name in document.values}
    file_info["byteorder"] = "big" if header.aux else "little"
    start, stop = header.data_start, header.data_stop
    document_stop = header.document_start + header.document_bytes
    gaps = (
        Gap(SnapshotHeader.struct.size, header.document_start, "the padding before the document"),
        Gap(document_stop, start, "the padding after the document"),
    )
    file = MagFile("snapshot", VERSION, tensors, start, stop, metadata, file_info, gaps=gaps)
    spec.check_placement(reader, file, ALIGNMENT, ALIGNMENT - 1)
    return file


def pack_document(placed: PlacedTensors, metadata: Mapping[str, Any], timestamp: str) -> bytes:
    """Encode the document. Offsets of tensors are relative to the data section."""
    file_info = (1, timestamp, "0.2.2", "0.3.0")  # like magnetron 0.2.2
    entries = {}
    for key, (shape, element, start, stop) in placed.items():
        dtype_id = DTYPES.index(element.name)
        entries[key] = {
            "shape": shape,
            "dtype": _DTYPE_NAMES[dtype_id],
            "dtype_id": dtype_id,
            "offset": start,
            "nbytes": stop - start,
        }
    content = {
        **dict(zip(_FILE_INFO, file_info, strict=True)),
        _METADATA: metadata,
        _TENSORS: entries,
    }
    return dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def _unpack_entry(document: Fields, key: str, entry: Any, header: SnapshotHeader) -> StoredTensor:
    def error(field: str, expected: str, actual: object = entry) -> TensorFormatError:
        return document.error(f"{field} of {key!r}", shorten(repr(actual)), expected)

    try:
        shape, dtype_id, offset, nbytes = _entry_fields(entry)
    except (KeyError, TypeError):
        raise error("the entry", "an object with shape, dtype_id, offset and nbytes") from None
    is_newer = is_count(dtype_id) and dtype_id >= len(DTYPES)
    name = entry.get("dtype")
    if not is_count(dtype_id) or (is_newer and name in (*_DTYPE_NAMES, None)):
        raise error("the dtype_id", f"a number below {len(DTYPES)}", dtype_id)
    if not is_count(offset):
        raise error("the offset", f"an offset within the {header.data_bytes} bytes of data", offset)
    if not is_count(nbytes):
        raise error("nbytes", "a number of bytes", nbytes)
    if is_newer:
        unsupported = error("the dtype", f"one of {', '.join(_DTYPE_NAMES)}", name)
        unsupported = replace(unsupported, hint="update xr_tensorfmt, or load it with magnetron")
        start = header.data_start + offset
        return StoredTensor.create_unsupported(key, start, nbytes, unsupported)
    element = (spec.BIG_ENDIAN if header.aux else spec.LITTLE_ENDIAN)[DTYPES[dtype_id]]
    tensor = StoredTensor.from_document(document, key, shape, element, header.data_start + offset)
    if nbytes != tensor.nbytes:
        raise error("nbytes", f"{tensor.nbytes} for {shape} of {element.name}", nbytes)
    return tensor
