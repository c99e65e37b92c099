"""MAG files before version 300: archives, streams, and snapshots 100 and 200. They are only read.

An archive of version 1 or 100, written until December 2025, has a header, metadata records, tensor
records, padding, and data. Other programs may write the tensor records of the specification.

A stream, written from April to July 2025, has the header of an archive, markers, a record per
tensor, and data without gaps. Source: ``magnetron_storage.c`` before commit 5a44451. It wrote
non-contiguous tensors in the order of memory; like magnetron, this module reads them as C order.

A snapshot of version 100 or 200, written by magnetron 0.1.5 to 0.1.9, has a header, a pool of keys,
a descriptor per tensor in any order, and data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from math import prod
from struct import Struct, unpack
from typing import Any

from google_crc32c import value as crc32c

from xr_tensorfmt.core.file_format import Container, OpenOptions
from xr_tensorfmt.core.header import Cursor, HeaderReader, check_size
from xr_tensorfmt.core.layout import Dense
from xr_tensorfmt.errors import Finding, TensorFormatError
from xr_tensorfmt.formats import mag

# dtypes of streams, of archive 1, and of archive 100 until November 2025, by number.
EARLY_ARCHIVE_DTYPES = ("float32", "float16", "bool", "int32")
# Archive 100 from November 2025 on.
LATE_ARCHIVE_DTYPES = ("float32", "float16", "bool", *mag.INTEGERS)
# dtypes and alignment of data of snapshots, by version.
SNAPSHOTS = {
    100: (("float32", "float16", "bfloat16", "bool", *mag.INTEGERS), 1),
    200: (mag.DTYPES, 16),
}
VERSIONS = (1, *SNAPSHOTS)

# Offsets of data in an archive are multiples of this.
ARCHIVE_ALIGNMENT = 64
# Unused bytes that magnetron reserves per metadata record.
RESERVED_METADATA_BYTES = 8
# Largest rank in an archive, and the number of lengths in streams and published records.
MAX_RANK, MAX_RANK_OF_VERSION_1 = 8, 6
# Limits on the bytes of a key and of the pool of keys.
MAX_KEY_BYTES, MAX_POOL_BYTES = 65535, 128 << 20
POOL = b"SRP!"

# Magic, version, checksum, counts of tensors and of metadata, aux.
_ARCHIVE_HEADER = Struct("<4sIIIII")
# Magic, version, seconds since 1970, checksum, aux, counts of metadata and of tensors.
_SNAPSHOT_HEADER = Struct("<4sIQIIII")
_COUNT = Struct("<I")
# Type tag and value of a metadata record. The key follows.
_METADATA = Struct("<I8s")
_VALUES = {1: Struct("<q"), 2: Struct("<d")}
# Rank and dtype in one number, length and offset. The shape and the key follow.
_RECORD = Struct("<IQQ")
# The record of the specification after the key: shape, dtype, length and offset of data, aux.
_PUBLISHED_RECORD = Struct(f"<{MAX_RANK_OF_VERSION_1}qBQQI")
# Length of the key, shape, rank and dtype, and an unused name. The key follows.
_STREAM_RECORD = Struct(f"<I{MAX_RANK_OF_VERSION_1}qI64s")
# Rank, dtype, zeros, index of the key in the pool, elements, offset. The shape follows.
_DESCRIPTOR = Struct("<BBHIQQ")


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """Description of a tensor, with its dtype as a number."""

    key: str
    shape: tuple[int, ...]
    dtype: int
    offset: int
    length: int | None = None
    record_offset: int = 0


def read_file(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of any container but a snapshot of version 300."""
    magic = reader.read_head(len(mag.MAGIC))
    if magic == mag.STREAM_MAGIC:
        return _read_stream(reader, options)
    version = reader.read_unsigned(len(mag.MAGIC), 4, "the version")
    if magic != mag.MAGIC or version not in VERSIONS:
        expected = f"{mag.MAGIC!r} and one of {', '.join(map(str, (*VERSIONS, mag.VERSION)))}"
        hint = "the file has another format, or is newer than this version of xr_tensorfmt"
        raise reader.error("magic and version", f"{magic!r} and {version}", expected, hint, 0)
    # Version 100 is an archive or a snapshot.
    has_pool = reader.head.startswith(POOL, _SNAPSHOT_HEADER.size)
    is_snapshot = version == 200 or (version == 100 and has_pool)
    return (_read_snapshot if is_snapshot else _read_archive)(reader, options)


def _build_layouts(
    reader: HeaderReader, records: Iterable[TensorRecord], dtypes: Sequence[str], base: int
) -> dict[str, Dense]:
    """Return the layouts of records, given the names of dtypes and the origin of offsets."""
    layouts = dict[str, Dense]()
    for record in records:
        key, shape, start = record.key, record.shape, record.record_offset
        is_known, expected = record.dtype < len(dtypes), f"a number below {len(dtypes)}"
        reader.check(is_known, f"the dtype of {key!r}", record.dtype, expected, offset=start)
        element, count = mag.LITTLE_ENDIAN[dtypes[record.dtype]], prod(shape)
        nbytes = count * element.stored.itemsize
        check_size(reader.source.name, shape, element.stored.itemsize, start, repr(key))
        # Elements in releases, padded bytes in earlier commits, bytes in the specification.
        lengths = None, count, mag.round_up(nbytes, ARCHIVE_ALIGNMENT), nbytes
        field, expected = f"the length of {key!r}", f"{count} elements or {nbytes} bytes"
        reader.check(record.length in lengths, field, record.length, expected, offset=start)
        reader.check(key not in layouts, "the key", f"{key!r} twice", "different keys")
        layouts[key] = Dense(shape, element, base + record.offset)
    return layouts


def _read_key(cursor: Cursor, record_name: str) -> str:
    field = f"the key length of {record_name}"
    (length,) = cursor.unpack(_COUNT, field)
    cursor.check(1 <= length <= MAX_KEY_BYTES, field, length, f"1 to {MAX_KEY_BYTES}")
    return cursor.take_text(length, f"the key of {record_name}")


def _check_checksum(
    cursor: Cursor, options: OpenOptions, stored: int, start: int
) -> tuple[Finding, ...]:
    """Compare a checksum with the CRC-32C of the bytes from `start` up to the cursor."""
    reader, stop = cursor.reader, cursor.offset
    computed = crc32c(reader.read_field(start, stop - start, "the header"))
    if computed == stored:
        return ()
    hint = "fetch the file again (verify=False or --open-option verify=false ignores the checksum)"
    expected = f"{computed:#010x}, the CRC-32C of bytes {start} to {stop}"
    error = reader.error("the checksum", f"{stored:#010x}", expected, hint, start - 4)
    if options["verify"]:
        raise error
    return (error.to_finding(),)


def _read_archive(reader: HeaderReader, options: OpenOptions) -> Container:
    cursor = Cursor(reader, 0)
    header = cursor.unpack(_ARCHIVE_HEADER, "the MAG header")
    _, version, checksum, tensor_count, metadata_count, aux = header
    cursor.check(not aux, "aux", aux, "0", "magnetron cannot read the file either", skip=20)
    metadata = _read_metadata(cursor, metadata_count)
    records = _read_records(cursor, tensor_count)
    # Version 100 has two numberings of dtypes.
    highest = max((record.dtype for record in records), default=0)
    is_late = version == 100 and highest >= len(EARLY_ARCHIVE_DTYPES)
    dtypes = LATE_ARCHIVE_DTYPES if is_late else EARLY_ARCHIVE_DTYPES
    findings = _check_checksum(cursor, options, checksum, 12)
    stop = cursor.offset
    # An offset of 0 cannot be relative to the start of the file.
    is_relative = bool(records) and records[0].offset == 0
    base = mag.round_up(stop, ARCHIVE_ALIGNMENT) if is_relative else 0
    layouts = _build_layouts(reader, records, dtypes, base)
    placed = {key: (layout.offset, layout.stop) for key, layout in layouts.items()}
    mag.check_placement(reader, placed, stop, reader.source.size)
    # magnetron reserves up to this size.
    reserved = sum(mag.round_up(last - first, ARCHIVE_ALIGNMENT) for first, last in placed.values())
    reserved += (len(layouts) + 1) * ARCHIVE_ALIGNMENT + len(metadata) * RESERVED_METADATA_BYTES
    file_info = {"version": version, "container": "archive", "checksum": checksum}
    stop += reserved
    return mag.build_container(reader, options, layouts, stop, file_info, metadata, findings)


def _read_metadata(cursor: Cursor, count: int) -> dict[str, int | float]:
    metadata: dict[str, int | float] = {}
    for index in range(count):
        name, expected = f"metadata record {index}", "1 for int64 or 2 for float64"
        tag, raw = cursor.unpack(_METADATA, name)
        cursor.check(tag in _VALUES, f"the type tag of {name}", tag, expected)
        key = _read_key(cursor, name)
        cursor.check(key not in metadata, "the key", f"{key!r} twice", "different keys")
        (metadata[key],) = _VALUES[tag].unpack(raw)
    return metadata


def _read_records(cursor: Cursor, count: int) -> list[TensorRecord]:
    """Read tensor records as magnetron writes them, or as the specification describes them."""
    # The latter begin with the length of the key, which is not a valid rank and dtype below 256.
    start = cursor.offset
    try:
        return [_read_record(cursor, index) for index in range(count)]
    except TensorFormatError as error:
        cursor.offset = start
        with suppress(TensorFormatError):
            return [_read_published_record(cursor, index) for index in range(count)]
        raise error from None


def _read_record(cursor: Cursor, index: int) -> TensorRecord:
    record_offset, record_name = cursor.offset, f"tensor record {index}"
    aux, length, offset = cursor.unpack(_RECORD, record_name)
    dtype, rank = aux & 0xFF, aux >> 8
    holds = 1 <= rank <= MAX_RANK and dtype < len(LATE_ARCHIVE_DTYPES)
    expected = f"a rank of 1 to {MAX_RANK} and a dtype below {len(LATE_ARCHIVE_DTYPES)}"
    cursor.check(holds, f"rank and dtype of {record_name}", f"{aux:#x}", expected)
    shape = unpack(f"<{rank}q", cursor.take(8 * rank, f"the shape of {record_name}"))
    cursor.check(min(shape) >= 1, f"the shape of {record_name}", shape, "lengths of 1 and more")
    return TensorRecord(_read_key(cursor, record_name), shape, dtype, offset, length, record_offset)


def _read_published_record(cursor: Cursor, index: int) -> TensorRecord:
    """Read a tensor record of the specification, which does not define the rank.

    As in streams, aux contains the rank. If it contains 0, the rank is inferred: the shape stops
    before the first 0, or, if there is none, without its trailing 1s.
    """
    record_offset, record_name = cursor.offset, f"tensor record {index}"
    key = _read_key(cursor, record_name)
    *lengths, dtype, length, offset, aux = cursor.unpack(_PUBLISHED_RECORD, record_name)
    inferred = len(list(takewhile(lambda length: length > 0, lengths)))
    if inferred == len(lengths):
        inferred = max((n for n, length in enumerate(lengths, 1) if length > 1), default=0)
    rank = (aux >> 8 & 0xFF) or inferred
    shape = tuple(lengths[:rank])
    holds = rank <= len(lengths) and min(shape, default=1) >= 1
    actual, expected = f"{lengths} with aux {aux:#x}", f"up to {len(lengths)} lengths from 1 on"
    cursor.check(holds, f"the shape of {record_name}", actual, expected)
    return TensorRecord(key, shape, dtype, offset, length, record_offset)


def _read_stream(reader: HeaderReader, options: OpenOptions) -> Container:
    cursor = Cursor(reader, 0)
    _, version, _, count, *rest = cursor.unpack(_ARCHIVE_HEADER, "the MAG header")
    field, actual = "version, count of metadata and aux", (version, *rest)
    cursor.check(actual == (1, 0, 0), field, actual, "1, 0 and 0", skip=4)
    cursor.expect(b"KVDT")
    cursor.expect(b"THDR")
    records = [_read_stream_record(cursor, index) for index in range(count)]
    cursor.expect(b"TDAT")
    start, size = cursor.offset, reader.source.size
    layouts, stop = _build_layouts(reader, records, EARLY_ARCHIVE_DTYPES, 0), start
    for key, layout in layouts.items():
        layouts[key] = replace(layout, offset=stop)
        stop = layouts[key].stop
    expected = f"{stop - start} bytes for all tensors"
    reader.check(stop == size, "the data", f"{size - start} bytes", expected, mag.INCOMPLETE, start)
    file_info = {"version": version, "container": "stream"}
    return mag.build_container(reader, options, layouts, size, file_info)


def _read_stream_record(cursor: Cursor, index: int) -> TensorRecord:
    """Read a record. It has no offset, because data are consecutive."""
    record_offset, record_name = cursor.offset, f"tensor record {index}"
    length, *lengths, aux, _ = cursor.unpack(_STREAM_RECORD, record_name)
    dtype, rank = aux & 0xFF, aux >> 8
    holds = 1 <= length <= MAX_KEY_BYTES and rank <= len(lengths) and min(lengths) >= 1
    actual = f"a key of {length} bytes, lengths {lengths}, rank {rank} and dtype {dtype}"
    expected = f"1 to {MAX_KEY_BYTES} bytes, `rank` lengths of 1 and more, then ones, and 0 to 3"
    holds = holds and max(lengths[rank:], default=1) == 1 and dtype < len(EARLY_ARCHIVE_DTYPES)
    cursor.check(holds, record_name, actual, expected)
    key = cursor.take_text(length, f"the key of {record_name}")
    return TensorRecord(key, tuple(lengths[:rank]), dtype, 0, record_offset=record_offset)


def _read_snapshot(reader: HeaderReader, options: OpenOptions) -> Container:
    cursor = Cursor(reader, 0)
    header = cursor.unpack(_SNAPSHOT_HEADER, "the MAG header")
    _, version, seconds, checksum, *zeros, tensor_count = header
    field, actual = "aux and the count of metadata", tuple(zeros)
    cursor.check(actual == (0, 0), field, actual, "zeros", skip=20)
    keys = _read_pool(cursor)
    field, expected = "the count of tensors", f"at most the {len(keys)} keys"
    reader.check(tensor_count <= len(keys), field, tensor_count, expected, offset=28)
    cursor.expect(b"MDT!")
    cursor.expect(b"DSC!")
    records = [_read_descriptor(cursor, keys, index) for index in range(tensor_count)]
    findings = _check_checksum(cursor, options, checksum, 20)
    cursor.expect(b"BUF!")
    dtypes, alignment = SNAPSHOTS[version]
    start, stop = mag.round_up(cursor.offset, alignment), reader.source.size
    layouts = _build_layouts(reader, records, dtypes, start)
    layouts = {key: layouts[key] for key in keys if key in layouts}
    placed = {key: (layout.offset, layout.stop) for key, layout in layouts.items()}
    mag.check_placement(reader, placed, start, stop, alignment)
    file_info: dict[str, Any] = {"version": version, "container": "snapshot"}
    file_info |= {"checksum": checksum, "seconds_since_1970": seconds}
    return mag.build_container(reader, options, layouts, stop, file_info, findings=findings)


def _read_pool(cursor: Cursor) -> list[str]:
    cursor.expect(POOL)
    (count,) = cursor.unpack(_COUNT, "the count of strings")
    field, expected = "the offsets of strings", f"up to {MAX_POOL_BYTES} bytes"
    cursor.check(4 * count <= MAX_POOL_BYTES, field, f"{count} strings", expected)
    offsets = unpack(f"<{count + 1}I", cursor.take(4 * (count + 1), field))
    ascend = not offsets[0] and all(start < stop for start, stop in pairwise(offsets))
    cursor.check(ascend, field, offsets[:8], "0 and then ascending offsets")
    cursor.check(offsets[-1] <= MAX_POOL_BYTES, field, offsets[-1], expected)
    cursor.reader.read_field(cursor.offset, offsets[-1], "the strings")
    return [cursor.take_text(stop - start, "a key") for start, stop in pairwise(offsets)]


def _read_descriptor(cursor: Cursor, keys: list[str], index: int) -> TensorRecord:
    start, record_name = cursor.offset, f"tensor descriptor {index}"
    rank, dtype, reserved, key, count, offset = cursor.unpack(_DESCRIPTOR, record_name)
    shape = unpack(f"<{rank}Q", cursor.take(8 * rank, f"the shape of {record_name}"))
    if reserved or prod(shape) != count or key >= len(keys):
        actual = f"{count} elements of shape {shape}, reserved bytes {reserved:#x}, key {key}"
        expected = f"the product of the lengths, zeros, and a key below {len(keys)}"
        raise cursor.reader.error(record_name, actual, expected, offset=start)
    return TensorRecord(keys[key], shape, dtype, offset, record_offset=start)
