"""Headers of all versions: R1, versions 1 and 2, and the zip of the development version 0.3.0.

The container R1 has a preamble, two slots, the values, and blocks of metadata. A slot points to the
values and to a block of metadata. To update the metadata, PyCauset appends a block and writes the
unused slot, so that the other slot stays valid. The metadata are a map of typed values: a tag byte
precedes each value. Versions 1 and 2 have a header and the values.

Sources: PyCauset, ``documentation/dev/PyCauset Container Format.md``, and
``python/pycauset/_internal/persistence.py`` of 0.6.1; ``documentation/internals/File Format.md`` at
commit 35c934d (with the offsets of a packed struct), and files of PyCauset 0.1.0 to 0.2.8. In these
files the struct is not packed: 4 zero bytes precede ``rows``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from struct import Struct, pack
from typing import Any, ClassVar
from zipfile import ZIP_STORED, ZipInfo
from zlib import crc32

import numpy as np

from xr_tensorfmt.core.container import EMBEDDED_KEY
from xr_tensorfmt.core.embedded_metadata import to_json
from xr_tensorfmt.core.header import Fields, HeaderReader, read_json
from xr_tensorfmt.errors import Finding, TensorFormatError, shorten
from xr_tensorfmt.formats.pycauset import MAGIC
from xr_tensorfmt.formats.pycauset.matrices import (
    BLOCK,
    HEADER_BYTES,
    MIN_PAYLOAD_BYTES,
    R1_BIT_ROW_BYTES,
    WORD_BYTES,
    Matrix,
)
from xr_tensorfmt.formats.zip_members import ZIP_MAGIC, open_member, read_directory

RESAVE = "the file is corrupt; save it again with PyCauset"

# R1

# First bytes: magic number, version 1, little-endian, header size, 0.
PREAMBLE = MAGIC + pack("<IBHB", 1, 1, HEADER_BYTES, 0)
SLOT_OFFSETS = {"A": 16, "B": 144}
METADATA_ALIGNMENT = 16

BLOCK_MAGIC = b"PCMB"
# Magic number, version, version of the encoding, 0, size and checksum of the map, 0.
BLOCK_HEADER = Struct("<4s3IQ2I")
BLOCK_VERSIONS = (1, 1)

MAX_METADATA_BYTES = 64 << 20
MAX_METADATA_LEVELS = 32
MAX_METADATA_VALUES = 1 << 19

# Tags of values.
BOOL, SIGNED, UNSIGNED, FLOAT, STRING, BYTES, ARRAY, MAP = range(1, 9)
NUMBERS = {BOOL: Struct("<?"), SIGNED: Struct("<q"), UNSIGNED: Struct("<Q"), FLOAT: Struct("<d")}
# Length of a string in bytes, or of a map or array in entries.
LENGTH = Struct("<I")
KEY_LENGTH = Struct("<H")

OBJECT_TYPE = "object_type"
ARGUMENT_PREFIX = "spacetime_"

# Versions 1 and 2

# Names by number, from 1 on.
MATRIX_TYPES = ("CAUSAL", "INTEGER", "TRIANGULAR_FLOAT", "DENSE_FLOAT", "IDENTITY", "VECTOR")
DATA_TYPES = ("BIT", "INT32", "FLOAT64", "COMPLEX_FLOAT64")
# Matrix types are named after float64. With int32, two of them have other names.
_INT32_TYPES = {"TRIANGULAR_FLOAT": "TRIANGULAR_INTEGER", "DENSE_FLOAT": "INTEGER"}
# Magic number, version, matrix type, data type, and the gap before the number of rows.
_TYPES = Struct("<8s4I")
_GAP_BYTES = 4
# Rows, columns and seed. Version 2 adds scalar, is_temporary and is_transposed.
_FIELDS = {1: Struct("<3Q"), 2: Struct("<3Qd2B")}
# Offset of the matrix type. The data type follows.
TYPES_OFFSET = 12

# Members of the zip
METADATA, DATA = "metadata.json", "data.bin"
MAX_DIRECTORY_BYTES, MAX_JSON_BYTES = 1 << 17, 1 << 20


def read_header(reader: HeaderReader) -> Matrix:
    """Read the header of any version."""
    head = reader.head
    if head.startswith(ZIP_MAGIC):
        return _read_zip(reader)
    if head.startswith(PREAMBLE):
        return _read_container(reader)
    hint = "it is not a PyCauset file"
    reader.check(head.startswith(MAGIC), "the magic number", repr(head[:8]), repr(MAGIC), hint, 0)
    version = reader.read_unsigned(len(MAGIC), 4, "the version")
    matrix_type = reader.read_unsigned(TYPES_OFFSET, 4, "the matrix type")
    if version == 2 or (version == 1 and 1 <= matrix_type <= 4):
        return _read_numbers(reader)
    hint = "the header is corrupt, or of a newer version"
    if version == 1 and not any(head[TYPES_OFFSET:]):
        hint = "this is the backing store of a PyCauset session; open a file by pycauset.save"
    actual = f"{version}, then bytes {head[TYPES_OFFSET:][:4].hex(' ')}"
    preamble = PREAMBLE[TYPES_OFFSET:].hex(" ")
    expected = f"2, or 1 and then {preamble} (a container) or a matrix type from 1 to 4"
    raise reader.error("the version", actual, expected, hint, len(MAGIC))


@dataclass(frozen=True)
class Slot:
    """Pointers to the values and to a metadata block, with a checksum."""

    name: str
    generation: int
    payload_offset: int
    payload_length: int
    metadata_offset: int
    metadata_length: int
    hot_offset: int = 0
    hot_length: int = 0
    checksum: int = 0

    STRUCT: ClassVar = Struct("<7QI")
    """Encoding of a slot. Zeros follow."""

    @property
    def computed_checksum(self) -> int:
        """CRC-32 of the other fields."""
        return crc32(self.STRUCT.pack(*astuple(self)[1:])[:-4])

    @property
    def metadata_stop(self) -> int:
        """Offset of the end of the metadata block."""
        return self.metadata_offset + self.metadata_length

    def find_fault(self, file_size: int) -> str:
        """Return the reason why the slot is invalid, or an empty string."""
        if self.checksum != self.computed_checksum:
            return f"checksum {self.checksum:#010x} instead of {self.computed_checksum:#010x}"
        payload, metadata = self.payload_offset, self.metadata_offset
        if payload % HEADER_BYTES or payload < HEADER_BYTES:
            return f"payload offset {payload}, which is not a multiple of {HEADER_BYTES}"
        if metadata % METADATA_ALIGNMENT:
            return f"metadata offset {metadata}, which is not a multiple of {METADATA_ALIGNMENT}"
        stop = max(payload + self.payload_length, self.metadata_stop)
        fault = f"ranges up to byte {stop} in a file of {file_size} bytes"
        return fault if stop > file_size else ""


def _read_container(reader: HeaderReader) -> Matrix:
    """Read the newest slot that has readable metadata."""
    slots, findings = _read_slots(reader)
    errors: list[TensorFormatError] = []
    for slot in slots:
        try:
            metadata = _read_metadata(reader, slot)
        except TensorFormatError as error:
            errors.append(error)
            continue
        instead = f"slot {slot.name}, generation {slot.generation}, is read instead"
        faults = [*findings, *(error.to_finding() for error in errors)]
        faults = [replace(fault, hint=f"{fault.hint}; {instead}") for fault in faults]
        size = reader.source.size
        offsets = [s.metadata_offset for s in slots if s.metadata_offset >= slot.payload_offset]
        limit = min(offsets, default=size)
        # A damaged slot may point to the last block.
        stop = size if findings else max(valid_slot.metadata_stop for valid_slot in slots)
        return replace(_parse_matrix(slot, metadata, limit), findings=tuple(faults), min_stop=stop)
    raise errors[0]


def _read_slots(reader: HeaderReader) -> tuple[list[Slot], list[Finding]]:
    """Return the valid slots, newest first, and a finding for each invalid one."""
    header = reader.read_field(0, HEADER_BYTES, "the header")
    slots = [Slot(name, *Slot.STRUCT.unpack_from(header, i)) for name, i in SLOT_OFFSETS.items()]
    faults = {slot.name: slot.find_fault(reader.source.size) for slot in slots}
    valid = [slot for slot in slots if not faults[slot.name]]
    actual = " and ".join(f"slot {n} at byte {SLOT_OFFSETS[n]} has {faults[n]}" for n in faults)
    expected, offset = "at least one valid slot", SLOT_OFFSETS["A"]
    reader.check(bool(valid), "the header slots", actual, expected, offset=offset)
    hint = "the file is corrupt or was not written completely; save it again"
    findings = [
        Finding(reader.source.name, f"slot {name}", fault, hint=hint, offset=SLOT_OFFSETS[name])
        for name, fault in faults.items()
        if fault
    ]
    # If both have the same generation, A comes first.
    return sorted(valid, key=lambda slot: -slot.generation), findings


def check_slots(reader: HeaderReader) -> Iterator[Finding]:
    """Find faults of the metadata of both slots. The reader reports invalid slots."""
    for slot in _read_slots(reader)[0] if reader.head.startswith(PREAMBLE) else ():
        try:
            _read_metadata(reader, slot)
        except TensorFormatError as error:
            yield error.to_finding()


def _read_metadata(reader: HeaderReader, slot: Slot) -> Fields:
    """Read the metadata block of a slot."""
    start, length, skipped = slot.metadata_offset, slot.metadata_length, BLOCK_HEADER.size

    def check(holds: bool, actual: str, expected: str) -> None:
        field = f"the metadata block of slot {slot.name}"
        reader.check(holds, field, actual, expected, offset=start)

    expected = f"from {skipped} to {MAX_METADATA_BYTES} bytes"
    check(skipped <= length <= MAX_METADATA_BYTES, f"{length} bytes", expected)
    raw = reader.read_field(start, length, "the metadata block")
    magic, version, encoding, _, size, checksum, _ = BLOCK_HEADER.unpack_from(raw)
    encoded = raw[skipped : skipped + size]
    check(magic == BLOCK_MAGIC, repr(magic), repr(BLOCK_MAGIC))
    actual = f"version {version}, encoding {encoding}"
    check((version, encoding) == BLOCK_VERSIONS, actual, "version 1 of both")
    check(size <= length - skipped, f"a map of {size} bytes", f"at most {length - skipped} bytes")
    computed = crc32(encoded)
    check(checksum == computed, f"checksum {checksum:#010x}", f"{computed:#010x} as computed")
    values = decode_map(encoded, reader.source.name, start + skipped)
    return Fields(reader.source.name, values, start, "metadata", RESAVE)


def _parse_matrix(slot: Slot, metadata: Fields, limit: int) -> Matrix:
    """Return the matrix that the metadata describes."""
    view = metadata.get_fields("view", {})
    matrix = _build_matrix(metadata, "r1", view, slot.payload_offset, limit)
    is_dense = matrix.matrix_type == "DENSE_FLOAT"
    # Vectors have n rows and 1 column, transposed or not. Matrices state the transposed shape.
    is_swapped = matrix.is_transposed and not matrix.is_vector
    listed = {key: metadata.values[key] for key in (OBJECT_TYPE, "n") if key in metadata}
    listed["properties"] = metadata.get("properties", dict, {})
    is_block = matrix.matrix_type == BLOCK
    return replace(
        matrix,
        rows=matrix.columns if is_swapped else matrix.rows,
        columns=matrix.rows if is_swapped else matrix.columns,
        row_bytes=R1_BIT_ROW_BYTES if is_dense else WORD_BYTES,
        attrs=dict(_build_attrs(metadata)),
        encoding={
            "payload_uuid": metadata.get("payload_uuid", str),
            "slot": slot.name,
            "generation": slot.generation,
            **json.loads(json.dumps(listed, default=lambda x: to_json(np.frombuffer(x, "u1"), ""))),
        },
        embedded=metadata.values.get(EMBEDDED_KEY),
        derived=tuple(_describe_derived(metadata)),
        payload_length=slot.payload_length,
        manifest=metadata.get("block_manifest", dict, {}) if is_block else None,
    )


def _build_attrs(metadata: Fields) -> Iterator[tuple[str, Any]]:
    """Yield attributes of a causal set: numbers and strings, which netCDF can store."""
    spacetime = metadata.get_fields("spacetime", {})
    if spacetime.values:
        yield "spacetime", spacetime.get("type", str)
        for key, value in spacetime.get("args", dict, {}).items():
            is_plain = isinstance(value, int | float | str)
            plain = value if is_plain else json.dumps(value, default=repr)
            yield f"{ARGUMENT_PREFIX}{key}", int(plain) if isinstance(plain, bool) else plain


def _describe_derived(metadata: Fields) -> Iterator[str]:
    """Describe metadata that PyCauset trusts. It ignores false properties."""
    results, properties = (metadata.get(key, dict, {}) for key in ("cached", "properties"))
    true = [name for name, value in properties.items() if value not in (False, None)]
    for label, names in (("cached results", results), ("properties", true)):
        if names:
            yield f"the {label} {', '.join(map(repr, names))}"


def _build_matrix(metadata: Fields, version: str, view: Fields, offset: int, limit: int) -> Matrix:
    """Return the matrix. `view` holds scalar, transposition and conjugation."""
    return Matrix(
        version=version,
        matrix_type=metadata.get("matrix_type", str),
        data_type=metadata.get("data_type", str),
        rows=_get_length(metadata, "rows"),
        columns=_get_length(metadata, "cols"),
        offset=offset,
        limit=limit,
        types_offset=metadata.offset or 0,
        seed=metadata.get("seed", int, 0),
        scalar=_get_scalar(view),
        is_transposed=view.get("is_transposed", bool, False),
        is_conjugated=view.get("is_conjugated", bool, False),
    )


def _get_length(metadata: Fields, key: str) -> int:
    value = metadata.get(key, int)
    metadata.check(value >= 0, key, value, "a non-negative integer")
    return value


def _get_scalar(view: Fields) -> complex:
    """Return a number, stored as one or as a map of real and imaginary part; default 1."""
    value = view.values.get("scalar", 1.0)
    parts: list[Any] = [value, 0]
    if isinstance(value, dict):
        parts = [value.get("real"), value.get("imag")]
    try:
        return complex(*(part + 0.0 for part in parts))
    except (TypeError, OverflowError):
        expected = "a number, or its real and imaginary parts, in double precision"
        raise view.error("scalar", shorten(repr(value)), expected) from None


def decode_map(encoded: bytes, path: str, start: int) -> dict[str, Any]:
    """Decode a map that fills the encoded bytes. `start` is their offset in the file."""
    decoder = _Decoder(encoded, path, start)
    value = decoder.decode()
    if not isinstance(value, dict):
        raise decoder.error(f"a value of type {type(value).__name__}", "a map")
    if decoder.position != len(encoded):
        raise decoder.error(f"{len(encoded) - decoder.position} more bytes", "the end of the map")
    return value


@dataclass
class _Decoder:
    """Decoder of consecutive values. A value takes at least a byte, which bounds the work."""

    encoded: bytes
    path: str
    start: int
    position: int = 0
    values: int = 0

    def error(self, actual: str, expected: str) -> TensorFormatError:
        offset = self.start + self.position
        return TensorFormatError(self.path, "the metadata", actual, expected, RESAVE, offset)

    def decode(self, depth: int = 0) -> Any:
        self.values += 1
        for count, limit, things in (
            (depth, MAX_METADATA_LEVELS, "nested maps and arrays"),
            (self.values, MAX_METADATA_VALUES, "values"),
        ):
            if count > limit:
                raise self.error(f"more than {limit} {things}", f"at most {limit}")
        (tag,) = self._take(1)
        if tag in NUMBERS:
            return self._decode_number(NUMBERS[tag])
        if tag == STRING:
            return self._decode_string(LENGTH)
        if tag == BYTES:
            return self._take(self._decode_number(LENGTH))
        if tag == ARRAY:
            return [self.decode(depth + 1) for _ in range(self._decode_number(LENGTH))]
        if tag != MAP:
            raise self.error(f"a value of type {tag}", f"a type from {BOOL} to {MAP}")
        values: dict[str, Any] = {}
        for _ in range(self._decode_number(LENGTH)):
            key = self._decode_string(KEY_LENGTH)
            if key in values:
                raise self.error(f"the key {shorten(repr(key))} twice in a map", "unique keys")
            values[key] = self.decode(depth + 1)
        return values

    def _decode_string(self, length: Struct) -> str:
        raw = self._take(self._decode_number(length))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(repr(raw[:20]), "a string in UTF-8") from error

    def _decode_number(self, record: Struct) -> Any:
        return record.unpack(self._take(record.size))[0]

    def _take(self, length: int) -> bytes:
        taken = self.encoded[self.position : self.position + length]
        if len(taken) < length:
            raise self.error(f"{len(taken)} bytes up to the end of the map", f"{length} bytes")
        self.position += length
        return taken


def _read_numbers(reader: HeaderReader) -> Matrix:
    """Read the header of version 1 or 2, with numbers for types."""
    raw = reader.read_field(0, HEADER_BYTES, "the header")
    _, version, type_number, data_type_number, gap = _TYPES.unpack_from(raw)
    # The gap is zero. In a packed struct, its bytes are the low half of `rows`.
    fields_offset = _TYPES.size - _GAP_BYTES if gap else _TYPES.size
    rows, columns, seed, *view = _FIELDS[version].unpack_from(raw, fields_offset)
    scalar, is_temporary, is_transposed = view or (1.0, 0, 0)
    matrix_type = _get_name(reader, "the matrix type", type_number, MATRIX_TYPES, TYPES_OFFSET)
    data_type = _get_name(reader, "the data type", data_type_number, DATA_TYPES, TYPES_OFFSET + 4)
    row_bytes = WORD_BYTES
    if matrix_type == "INTEGER":
        # A triangle in version 1, without padding. The size decides in version 2.
        is_dense = version == 2 and reader.source.size == HEADER_BYTES + 4 * rows * columns
        matrix_type = "INTEGER" if is_dense else "TRIANGULAR_INTEGER"
        row_bytes = 4 if version == 1 else WORD_BYTES
    elif data_type == "INT32":
        matrix_type = _INT32_TYPES.get(matrix_type, matrix_type)
    return Matrix(
        version=f"v{version}",
        matrix_type=matrix_type,
        data_type=data_type,
        rows=rows,
        columns=columns,
        offset=HEADER_BYTES,
        limit=reader.source.size,
        types_offset=TYPES_OFFSET,
        seed=seed,
        scalar=scalar,
        is_transposed=bool(is_transposed),
        row_bytes=row_bytes,
        encoding={"fields_offset": fields_offset, "is_temporary": bool(is_temporary)},
        min_stop=HEADER_BYTES + MIN_PAYLOAD_BYTES,
    )


def _get_name(
    reader: HeaderReader, field: str, number: int, names: Sequence[str], offset: int
) -> str:
    expected = ", ".join(f"{code} ({name})" for code, name in enumerate(names, 1))
    reader.check(1 <= number <= len(names), field, number, expected, offset=offset)
    return names[number - 1]


def _read_zip(reader: HeaderReader) -> Matrix:
    """Read the metadata of a zip archive."""
    listed, end = read_directory(reader, MAX_DIRECTORY_BYTES)
    (info, start), (data, data_start) = _find_entries(reader, listed)
    metadata = read_json(reader, start, info.file_size, MAX_JSON_BYTES, METADATA)
    matrix = _build_matrix(metadata, "zip", metadata, data_start, data_start + data.file_size)
    derived = (f"the CRC-32 of {DATA!r}",)
    return replace(matrix, derived=derived, min_stop=end.stop, members=listed)


def _find_entries(reader: HeaderReader, listed: Sequence[ZipInfo]) -> Iterator[tuple[ZipInfo, int]]:
    """Yield the metadata and data members, and the offsets of their content."""
    members = {member.filename: member for member in listed}
    hint = "this zip is not a PyCauset matrix; of a '.causet' file, unzip 'matrix.bin' and open it"
    for name in (METADATA, DATA):
        field, expected = f"the entry {name!r}", "an entry stored without compression"
        actual = f"missing among {', '.join(map(repr, members))}"
        reader.check(name in members, field, actual, expected, hint, 0)
        start, _ = open_member(reader, members[name], field)
        is_stored, offset = members[name].compress_type == ZIP_STORED, members[name].header_offset
        reader.check(is_stored, field, "compressed", expected, hint, offset)
        yield members[name], start
