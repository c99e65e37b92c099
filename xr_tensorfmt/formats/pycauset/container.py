"""The container R1: a preamble, two slots, the values, and blocks of metadata.

A slot points to the values and to a block of metadata. To update the metadata, PyCauset appends a
block and writes the unused slot, so that the other slot stays valid. The metadata are encoded
as a map of typed values. A tag byte precedes each value.

Sources: PyCauset, ``documentation/dev/PyCauset Container Format.md``, and
``python/pycauset/_internal/persistence.py`` of 0.6.1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from struct import Struct, pack
from typing import Any, ClassVar
from zlib import crc32

from xr_tensorfmt.contract import (
    EMBEDDED_KEY,
    Finding,
    HeaderReader,
    TensorFormatError,
    finding_from_error,
    shorten,
)
from xr_tensorfmt.formats.pycauset.spec import (
    BLOCK,
    HEADER_BYTES,
    MAGIC,
    R1_BIT_ROW_BYTES,
    TRIANGLES,
    WORD_BYTES,
    Matrix,
    Metadata,
)

PREAMBLE = MAGIC + pack("<IBHB", 1, 1, HEADER_BYTES, 0)
"""First bytes: magic number, version 1, little-endian, header size, 0."""

SLOT_OFFSETS = {"A": 16, "B": 144}
"""Offsets of the slots."""

METADATA_ALIGNMENT = 16
"""Alignment of metadata blocks."""

BLOCK_MAGIC = b"PCMB"

# Magic number, version, version of the encoding, 0, size and checksum of the map, 0.
_BLOCK_HEADER = Struct("<4s3IQ2I")
_BLOCK_VERSIONS = (1, 1)

MAX_METADATA_BYTES = 64 << 20
"""Limit on the size of a metadata block."""

MAX_METADATA_LEVELS = 32
"""Limit on the nesting of maps and arrays in the metadata."""

MAX_METADATA_VALUES = 1 << 19
"""Limit on the number of values in the metadata."""

_CAUSAL_SET = "CausalSet"
_ARGUMENT_PREFIX = "spacetime_"

_BOOL, _SIGNED, _UNSIGNED, _FLOAT, _STRING, _BYTES, _ARRAY, _MAP = range(1, 9)
_NUMBERS = {
    _BOOL: Struct("<?"),
    _SIGNED: Struct("<q"),
    _UNSIGNED: Struct("<Q"),
    _FLOAT: Struct("<d"),
}
# Length of a string in bytes, or of a map or array in entries.
_LENGTH = Struct("<I")
_KEY_LENGTH = Struct("<H")


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


def pack_container(metadata: Mapping[str, Any], payload_bytes: int) -> dict[int, bytes]:
    """Return header and metadata block by offset."""
    encoded = encode_map(metadata)
    size_and_checksum = (len(encoded), crc32(encoded))
    block = _BLOCK_HEADER.pack(BLOCK_MAGIC, *_BLOCK_VERSIONS, 0, *size_and_checksum, 0) + encoded
    payload_stop = HEADER_BYTES + payload_bytes
    start = payload_stop + -payload_stop % METADATA_ALIGNMENT
    header = bytearray(PREAMBLE.ljust(HEADER_BYTES, b"\0"))
    # PyCauset writes both slots with the same pointers.
    for generation, (name, offset) in zip((1, 0), SLOT_OFFSETS.items(), strict=True):
        slot = Slot(name, generation, HEADER_BYTES, payload_bytes, start, len(block))
        _, *pointers, _ = astuple(slot)
        Slot.STRUCT.pack_into(header, offset, *pointers, slot.computed_checksum)
    return {0: bytes(header), start: block}


def read_container(reader: HeaderReader) -> Matrix:
    """Read the newest slot that has readable metadata."""
    slots, findings = read_slots(reader)
    errors: list[TensorFormatError] = []
    for slot in slots:
        try:
            metadata = read_metadata(reader, slot)
        except TensorFormatError as error:
            errors.append(error)
            continue
        instead = f"slot {slot.name}, generation {slot.generation}, is read instead"
        faults = [*findings, *map(finding_from_error, errors)]
        faults = [replace(fault, message=f"{fault.message}; {instead}") for fault in faults]
        offsets = [valid_slot.metadata_offset for valid_slot in slots]
        size = reader.source.size
        limit = min((offset for offset in offsets if offset >= slot.payload_offset), default=size)
        # A damaged slot may point to the last block.
        stop = size if findings else max(valid_slot.metadata_stop for valid_slot in slots)
        return replace(_parse_matrix(slot, metadata, limit), findings=tuple(faults), min_stop=stop)
    raise errors[0]


def read_slots(reader: HeaderReader) -> tuple[list[Slot], list[Finding]]:
    """Return the valid slots, newest first, and a finding for each invalid one."""
    header = reader.read_field(0, HEADER_BYTES, "the header")
    slots = [Slot(name, *Slot.STRUCT.unpack_from(header, i)) for name, i in SLOT_OFFSETS.items()]
    faults = {slot.name: slot.find_fault(reader.source.size) for slot in slots}
    valid = [slot for slot in slots if not faults[slot.name]]
    if not valid:
        raise reader.error(
            "the header slots",
            " and ".join(f"slot {n} at byte {SLOT_OFFSETS[n]} has {faults[n]}" for n in faults),
            "at least one valid slot",
            "the header is corrupt or the file is truncated; download it again",
            SLOT_OFFSETS["A"],
        )
    hint = "the file is corrupt or was not written completely; save it again"
    findings = [
        Finding(reader.source.name, SLOT_OFFSETS[name], f"slot {name}", f"{fault}; {hint}")
        for name, fault in faults.items()
        if fault
    ]
    # If both have the same generation, A comes first.
    return sorted(valid, key=lambda slot: -slot.generation), findings


def read_metadata(reader: HeaderReader, slot: Slot) -> Metadata:
    """Read the metadata block of a slot."""
    start, length, skipped = slot.metadata_offset, slot.metadata_length, _BLOCK_HEADER.size

    def check(holds: bool, actual: str, expected: str) -> None:
        if not holds:
            field = f"the metadata block of slot {slot.name}"
            hint = "the file is corrupt, or was written by a newer version"
            raise reader.error(field, actual, expected, hint, start)

    expected = f"from {skipped} to {MAX_METADATA_BYTES} bytes"
    check(skipped <= length <= MAX_METADATA_BYTES, f"{length} bytes", expected)
    raw = reader.read_field(start, length, "the metadata block")
    magic, version, encoding, _, size, checksum, _ = _BLOCK_HEADER.unpack_from(raw)
    encoded = raw[skipped : skipped + size]
    check(magic == BLOCK_MAGIC, repr(magic), repr(BLOCK_MAGIC))
    actual = f"version {version}, encoding {encoding}"
    check((version, encoding) == _BLOCK_VERSIONS, actual, "version 1 of both")
    check(size <= length - skipped, f"a map of {size} bytes", f"at most {length - skipped} bytes")
    computed = crc32(encoded)
    check(checksum == computed, f"checksum {checksum:#010x}", f"{computed:#010x} as computed")
    values = decode_map(encoded, reader.source.name, start + skipped)
    return Metadata(values, reader.source.name, start)


def encode_map(values: Mapping[str, Any]) -> bytes:
    """Encode a map. The keys ascend, as in files written by PyCauset."""
    entries = [
        _prefix_length(key.encode(), _KEY_LENGTH) + _encode(value)
        for key, value in sorted(values.items())
    ]
    return bytes([_MAP]) + _LENGTH.pack(len(entries)) + b"".join(entries)


def _encode(value: Any) -> bytes:
    if isinstance(value, Mapping):
        return encode_map(value)
    if isinstance(value, list):
        return bytes([_ARRAY]) + _LENGTH.pack(len(value)) + b"".join(map(_encode, value))
    if isinstance(value, bytes):
        return bytes([_BYTES]) + _prefix_length(value, _LENGTH)
    if isinstance(value, str):
        return bytes([_STRING]) + _prefix_length(value.encode(), _LENGTH)
    tag = _FLOAT if isinstance(value, float) else _BOOL
    if not isinstance(value, bool | float):
        tag = _SIGNED if value < 0 else _UNSIGNED
    return bytes([tag]) + _NUMBERS[tag].pack(value)


def _prefix_length(raw: bytes, length: Struct) -> bytes:
    return length.pack(len(raw)) + raw


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
        offset, hint = (
            self.start + self.position,
            "the metadata block is corrupt; save the file again",
        )
        return TensorFormatError(self.path, "the metadata", actual, expected, hint, offset=offset)

    def decode(self, depth: int = 0) -> Any:
        if depth > MAX_METADATA_LEVELS:
            actual = f"more than {MAX_METADATA_LEVELS} nested maps and arrays"
            raise self.error(actual, f"at most {MAX_METADATA_LEVELS}")
        self.values += 1
        if self.values > MAX_METADATA_VALUES:
            raise self.error(
                f"more than {MAX_METADATA_VALUES} values", f"at most {MAX_METADATA_VALUES}"
            )
        (tag,) = self._take(1)
        if tag in _NUMBERS:
            return self._decode_number(_NUMBERS[tag])
        if tag == _STRING:
            return self._decode_string(_LENGTH)
        if tag == _BYTES:
            return self._take(self._decode_number(_LENGTH))
        if tag == _ARRAY:
            return [self.decode(depth + 1) for _ in range(self._decode_number(_LENGTH))]
        if tag == _MAP:
            return self._decode_map(depth)
        raise self.error(f"a value of type {tag}", f"a type from {_BOOL} to {_MAP}")

    def _decode_map(self, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for _ in range(self._decode_number(_LENGTH)):
            key = self._decode_string(_KEY_LENGTH)
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


def _parse_matrix(slot: Slot, metadata: Metadata, limit: int) -> Matrix:
    """Return the matrix that the metadata describe."""
    view = metadata.get_map("view")
    matrix = metadata.build_matrix("r1", view, slot.payload_offset, limit)
    is_dense = matrix.matrix_type == "DENSE_FLOAT"
    # Vectors have n rows and 1 column, transposed or not. Matrices state the transposed shape.
    is_swapped = matrix.is_transposed and not matrix.is_vector
    return replace(
        matrix,
        rows=matrix.columns if is_swapped else matrix.rows,
        columns=matrix.rows if is_swapped else matrix.columns,
        row_bytes=R1_BIT_ROW_BYTES if is_dense else WORD_BYTES,
        attrs=dict(_flatten_attrs(metadata, view)),
        encoding={
            "payload_uuid": metadata.get("payload_uuid", str),
            "slot": slot.name,
            "generation": slot.generation,
        },
        embedded=metadata.values.get(EMBEDDED_KEY),
        derived=tuple(_describe_derived(metadata)),
        payload_length=slot.payload_length,
        manifest=metadata.get_map("block_manifest") if matrix.matrix_type == BLOCK else None,
    )


def build_metadata(matrix: Matrix, uuid: str, attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the metadata that PyCauset needs to load a matrix, or a causal set."""
    layouts = {"DIAGONAL": "raw_diagonal", **dict.fromkeys(TRIANGLES, "raw_triangular")}
    layout = layouts.get(matrix.matrix_type, "raw_dense")
    return {
        "rows": matrix.rows,
        "cols": matrix.columns,
        "seed": matrix.seed,
        "matrix_type": matrix.matrix_type,
        "data_type": matrix.data_type,
        "payload_uuid": uuid,
        "payload_layout": {"kind": layout, "params": {}},
        "view": {
            "is_transposed": False,
            "is_conjugated": False,
            "scalar": {"real": 1.0, "imag": 0.0},
        },
        **_build_causal_set(matrix, attrs),
    }


def _flatten_attrs(metadata: Metadata, view: Metadata) -> Iterator[tuple[str, Any]]:
    """Yield attributes: numbers and strings, which netCDF can store."""
    for key in ("object_type", "n"):
        if key in metadata.values:
            yield key, _format_value(metadata.values[key])
    spacetime = metadata.get_map("spacetime")
    if spacetime.values:
        yield "spacetime", spacetime.get("type", str)
        for key, value in spacetime.get("args", dict, {}).items():
            yield f"{_ARGUMENT_PREFIX}{key}", _format_value(value)
    for key, value in metadata.get_map("properties").values.items():
        yield f"property_{key}", _format_value(value)
    signature = _build_signature(metadata, view)
    for key, entry in metadata.get_map("cached").values.items():
        value = entry.get("value") if isinstance(entry, dict) else None
        # A map refers to a result in another file.
        is_here = value is not None and not isinstance(value, dict)
        if is_here and entry.get("signature") == signature:
            yield f"cached_{key}", _format_cached(key, value)


def _build_causal_set(matrix: Matrix, attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the metadata of a causal set, empty unless the attributes describe one."""
    actual = (matrix.matrix_type, attrs.get("object_type"), attrs.get("n"))
    if actual != ("CAUSAL", _CAUSAL_SET, matrix.rows):
        return {}
    keys: dict[str, Any] = {"object_type": _CAUSAL_SET, "n": matrix.rows}
    if isinstance(attrs.get("spacetime"), str):
        arguments = {
            name.removeprefix(_ARGUMENT_PREFIX): value
            for name, value in attrs.items()
            if name.startswith(_ARGUMENT_PREFIX) and isinstance(value, int | float | str)
        }
        keys["spacetime"] = {"type": attrs["spacetime"], "args": arguments}
    return keys


def _describe_derived(metadata: Metadata) -> Iterator[str]:
    """Describe metadata that PyCauset trusts. It ignores false properties."""
    results, properties = (metadata.get_map(key).values for key in ("cached", "properties"))
    true = [name for name, value in properties.items() if value not in (False, None)]
    for label, names in (("cached results", results), ("properties", true)):
        if names:
            yield f"the {label} {', '.join(map(repr, names))}"


def _format_cached(key: str, value: Any) -> Any:
    """Return a cached result as an attribute. Sums and eigenvalues have an imaginary part."""
    try:
        if key == "sum":
            return format_attribute(complex(*value))
        if key == "eigenvalues":
            numbers = [complex(*pair) for pair in value]
            is_real = not any(number.imag for number in numbers)
            return [number.real if is_real else str(number) for number in numbers]
    except (TypeError, ValueError):
        pass
    return _format_value(value)


def format_attribute(number: complex) -> float | str:
    """Return a number as an attribute. netCDF has no complex type, so use a string."""
    number = complex(number)
    return str(number) if number.imag else number.real


def _format_value(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float | str):
        return value
    return json.dumps(value, default=repr)


def _build_signature(metadata: Metadata, view: Metadata) -> dict[str, str]:
    """Return the signature of results that are up to date."""
    flags = (view.get(key, bool, False) for key in ("is_transposed", "is_conjugated"))
    transposed, conjugated = map(int, flags)
    scalar = view.get_scalar("scalar")
    signature = f"t={transposed};c={conjugated};sr={scalar.real:g};si={scalar.imag:g}"
    return {"payload_uuid": metadata.get("payload_uuid", str), "view_signature": signature}
