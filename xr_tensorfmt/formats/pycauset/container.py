"""The container R1: a preamble, two slots, the values, and blocks of metadata.

A slot points to the values and to a block of metadata. An update of the metadata appends a block
and writes the slot that is not in use, so that the other one stays valid. The metadata are encoded
as a map of typed values: a tag byte, then the value.

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
"""First bytes: magic, version 1, little-endian, bytes of the header, 0."""

SLOT_OFFSETS = {"A": 16, "B": 144}
"""Bytes of the file at which the slots begin."""

METADATA_ALIGNMENT = 16
"""Blocks of metadata begin at multiples of these bytes."""

BLOCK_MAGIC = b"PCMB"

# Magic, version, version of the encoding, 0, bytes of the map, its checksum, 0.
_BLOCK_HEADER = Struct("<4s3IQ2I")
_BLOCK_VERSIONS = (1, 1)

MAX_METADATA = 64 << 20
"""Limit on the bytes of a block of metadata."""

MAX_NESTED = 32
"""Limit on maps and arrays within each other in the metadata."""

MAX_VALUES = 1 << 19
"""Limit on the values in the metadata, each of which takes time and memory."""

_CAUSAL_SET = "CausalSet"
_ARGUMENT = "spacetime_"

_BOOL, _SIGNED, _UNSIGNED, _FLOAT, _STRING, _BYTES, _ARRAY, _MAP = range(1, 9)
_NUMBERS = {
    _BOOL: Struct("<?"),
    _SIGNED: Struct("<q"),
    _UNSIGNED: Struct("<Q"),
    _FLOAT: Struct("<d"),
}
# Bytes of a string, entries of a map or an array.
_LENGTH = Struct("<I")
_KEY_LENGTH = Struct("<H")


@dataclass(frozen=True)
class Slot:
    """Pointers to the values and to one generation of the metadata, with a checksum."""

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
    """The bytes that are used; zeros follow."""

    @property
    def computed_checksum(self) -> int:
        """The checksum of the fields before it."""
        return crc32(self.STRUCT.pack(*astuple(self)[1:])[:-4])

    @property
    def metadata_stop(self) -> int:
        """Byte of the file after the block of metadata."""
        return self.metadata_offset + self.metadata_length

    def fault(self, file_size: int) -> str:
        """Why the slot is not valid in a file of so many bytes; an empty string where it is."""
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
    """A container without its values: its header and its metadata, by their offsets."""
    encoded = encode_map(metadata)
    sums = (len(encoded), crc32(encoded))
    block = _BLOCK_HEADER.pack(BLOCK_MAGIC, *_BLOCK_VERSIONS, 0, *sums, 0) + encoded
    payload_stop = HEADER_BYTES + payload_bytes
    start = payload_stop + -payload_stop % METADATA_ALIGNMENT
    header = bytearray(PREAMBLE.ljust(HEADER_BYTES, b"\0"))
    # Both slots point to the same, as PyCauset writes them.
    for generation, (name, at) in zip((1, 0), SLOT_OFFSETS.items(), strict=True):
        slot = Slot(name, generation, HEADER_BYTES, payload_bytes, start, len(block))
        _, *pointers, _ = astuple(slot)
        Slot.STRUCT.pack_into(header, at, *pointers, slot.computed_checksum)
    return {0: bytes(header), start: block}


def read_container(reader: HeaderReader) -> Matrix:
    """What the newest slot says whose metadata can be read."""
    slots, findings = read_slots(reader)
    errors: list[TensorFormatError] = []
    for slot in slots:
        try:
            metadata = read_metadata(reader, slot)
        except TensorFormatError as error:
            errors.append(error)
            continue
        instead = f"slot {slot.name}, generation {slot.generation}, is read instead"
        found = [*findings, *map(finding_from_error, errors)]
        found = [replace(each, message=f"{each.message}; {instead}") for each in found]
        blocks = [each.metadata_offset for each in slots]
        after = [offset for offset in blocks if offset >= slot.payload_offset]
        limit = min(after, default=reader.source.size)
        # A damaged slot may be the one of the last block.
        stop = max(each.metadata_stop for each in slots) if not findings else reader.source.size
        return replace(_matrix(slot, metadata, limit), findings=tuple(found), least_stop=stop)
    raise errors[0]


def read_slots(reader: HeaderReader) -> tuple[list[Slot], list[Finding]]:
    """Read the valid slots, newest first, and what is wrong with the others."""
    header = reader.read_field(0, HEADER_BYTES, "the header")
    slots = [Slot(name, *Slot.STRUCT.unpack_from(header, at)) for name, at in SLOT_OFFSETS.items()]
    faults = {each.name: each.fault(reader.source.size) for each in slots}
    valid = [each for each in slots if not faults[each.name]]
    if not valid:
        raise reader.error(
            "the header slots",
            " and ".join(f"slot {n} at byte {SLOT_OFFSETS[n]} has {faults[n]}" for n in faults),
            "at least one valid slot",
            "the header is damaged, or the file is cut off; fetch it again",
            SLOT_OFFSETS["A"],
        )
    hint = "the file was damaged or not written to its end: save it again"
    findings = [
        Finding(reader.source.name, SLOT_OFFSETS[name], f"slot {name}", f"{fault}; {hint}")
        for name, fault in faults.items()
        if fault
    ]
    # Where both are of one generation, A comes first.
    return sorted(valid, key=lambda slot: -slot.generation), findings


def read_metadata(reader: HeaderReader, slot: Slot) -> Metadata:
    """Read the metadata that a slot points to."""
    start, length, least = slot.metadata_offset, slot.metadata_length, _BLOCK_HEADER.size

    def check(holds: bool, found: str, expected: str) -> None:
        if not holds:
            field = f"the metadata block of slot {slot.name}"
            hint = "the file is damaged, or of a newer version"
            raise reader.error(field, found, expected, hint, start)

    expected = f"from {least} to {MAX_METADATA} bytes"
    check(least <= length <= MAX_METADATA, f"{length} bytes", expected)
    raw = reader.read_field(start, length, "the metadata block")
    magic, version, encoding, _, size, checksum, _ = _BLOCK_HEADER.unpack_from(raw)
    encoded = raw[least : least + size]
    check(magic == BLOCK_MAGIC, repr(magic), repr(BLOCK_MAGIC))
    found = f"version {version}, encoding {encoding}"
    check((version, encoding) == _BLOCK_VERSIONS, found, "version 1 of both")
    check(size <= length - least, f"a map of {size} bytes", f"at most {length - least} bytes")
    computed = crc32(encoded)
    check(checksum == computed, f"checksum {checksum:#010x}", f"{computed:#010x} as computed")
    values = decode_map(encoded, reader.source.name, start + least)
    return Metadata(values, reader.source.name, start)


def encode_map(values: Mapping[str, Any]) -> bytes:
    """Encode a map, keys in ascending order, as PyCauset does."""
    entries = [
        _sized(key.encode(), _KEY_LENGTH) + _encoded(value) for key, value in sorted(values.items())
    ]
    return bytes([_MAP]) + _LENGTH.pack(len(entries)) + b"".join(entries)


def _encoded(value: Any) -> bytes:
    if isinstance(value, Mapping):
        return encode_map(value)
    if isinstance(value, list):
        return bytes([_ARRAY]) + _LENGTH.pack(len(value)) + b"".join(map(_encoded, value))
    if isinstance(value, bytes):
        return bytes([_BYTES]) + _sized(value, _LENGTH)
    if isinstance(value, str):
        return bytes([_STRING]) + _sized(value.encode(), _LENGTH)
    tag = _FLOAT if isinstance(value, float) else _BOOL
    if not isinstance(value, bool | float):
        tag = _SIGNED if value < 0 else _UNSIGNED
    return bytes([tag]) + _NUMBERS[tag].pack(value)


def _sized(raw: bytes, length: Struct) -> bytes:
    return length.pack(len(raw)) + raw


def decode_map(encoded: bytes, path: str, start: int) -> dict[str, Any]:
    """Decode a map that begins at a byte of a file and takes all of the encoded bytes."""
    decoder = _Decoder(encoded, path, start)
    value = decoder.value()
    if not isinstance(value, dict):
        raise decoder.error(f"a value of type {type(value).__name__}", "a map")
    if decoder.position != len(encoded):
        raise decoder.error(f"{len(encoded) - decoder.position} more bytes", "the end of the map")
    return value


@dataclass
class _Decoder:
    """Decodes one value after the other; each takes at least a byte, which bounds the work."""

    encoded: bytes
    path: str
    start: int
    position: int = 0
    values: int = 0

    def error(self, found: str, expected: str) -> TensorFormatError:
        at, hint = self.start + self.position, "the metadata block is damaged"
        return TensorFormatError(self.path, "the metadata", found, expected, hint, offset=at)

    def value(self, depth: int = 0) -> Any:
        if depth > MAX_NESTED:
            found = f"more than {MAX_NESTED} maps and arrays within each other"
            raise self.error(found, f"at most {MAX_NESTED}")
        self.values += 1
        if self.values > MAX_VALUES:
            raise self.error(f"more than {MAX_VALUES} values", f"at most {MAX_VALUES}")
        (tag,) = self._take(1)
        if tag in _NUMBERS:
            return self._number(_NUMBERS[tag])
        if tag == _STRING:
            return self._string(_LENGTH)
        if tag == _BYTES:
            return self._take(self._number(_LENGTH))
        if tag == _ARRAY:
            return [self.value(depth + 1) for _ in range(self._number(_LENGTH))]
        if tag == _MAP:
            return self._map(depth)
        raise self.error(f"a value of type {tag}", f"a type from {_BOOL} to {_MAP}")

    def _map(self, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for _ in range(self._number(_LENGTH)):
            key = self._string(_KEY_LENGTH)
            if key in values:
                raise self.error(f"the key {shorten(repr(key))} twice in a map", "each key once")
            values[key] = self.value(depth + 1)
        return values

    def _string(self, length: Struct) -> str:
        raw = self._take(self._number(length))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(repr(raw[:20]), "a string in UTF-8") from error

    def _number(self, record: Struct) -> Any:
        return record.unpack(self._take(record.size))[0]

    def _take(self, length: int) -> bytes:
        taken = self.encoded[self.position : self.position + length]
        if len(taken) < length:
            raise self.error(f"{len(taken)} bytes up to the end of the map", f"{length} bytes")
        self.position += length
        return taken


def _matrix(slot: Slot, metadata: Metadata, limit: int) -> Matrix:
    """What the metadata of a container say about the matrix."""
    view = metadata.nested("view")
    matrix = metadata.matrix("r1", view, slot.payload_offset, limit)
    is_dense = matrix.matrix_type == "DENSE_FLOAT"
    # Vectors have n rows and 1 column, transposed or not; the shape of others is the one shown.
    is_turned = matrix.is_transposed and not matrix.is_vector
    return replace(
        matrix,
        rows=matrix.columns if is_turned else matrix.rows,
        columns=matrix.rows if is_turned else matrix.columns,
        row_bytes=R1_BIT_ROW_BYTES if is_dense else WORD_BYTES,
        attrs=dict(_attrs(metadata, view)),
        facts={
            "payload_uuid": metadata.get("payload_uuid", str),
            "slot": slot.name,
            "generation": slot.generation,
        },
        embedded=metadata.values.get(EMBEDDED_KEY),
        derived=tuple(_derived(metadata)),
        stated_bytes=slot.payload_length,
        manifest=metadata.nested("block_manifest") if matrix.matrix_type == BLOCK else None,
    )


def metadata_of(matrix: Matrix, uuid: str, attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """The metadata that PyCauset needs to load a matrix; `attrs` may make it a causal set."""
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
        **_causal_set(matrix, attrs),
    }


def _attrs(metadata: Metadata, view: Metadata) -> Iterator[tuple[str, Any]]:
    """Attributes, flat and of types that netCDF knows."""
    for key in ("object_type", "n"):
        if key in metadata.values:
            yield key, _plain(metadata.values[key])
    spacetime = metadata.nested("spacetime")
    if spacetime.values:
        yield "spacetime", spacetime.get("type", str)
        for key, value in spacetime.get("args", dict, {}).items():
            yield f"{_ARGUMENT}{key}", _plain(value)
    for key, value in metadata.nested("properties").values.items():
        yield f"property_{key}", _plain(value)
    signature = _signature(metadata, view)
    for key, entry in metadata.nested("cached").values.items():
        value = entry.get("value") if isinstance(entry, dict) else None
        # Results in other files are maps that refer to these.
        is_here = value is not None and not isinstance(value, dict)
        if is_here and entry.get("signature") == signature:
            yield f"cached_{key}", _cached(key, value)


def _causal_set(matrix: Matrix, attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """What makes a matrix a causal set for PyCauset, where the attributes say so."""
    found = (matrix.matrix_type, attrs.get("object_type"), attrs.get("n"))
    if found != ("CAUSAL", _CAUSAL_SET, matrix.rows):
        return {}
    keys: dict[str, Any] = {"object_type": _CAUSAL_SET, "n": matrix.rows}
    if isinstance(attrs.get("spacetime"), str):
        arguments = {
            name.removeprefix(_ARGUMENT): value
            for name, value in attrs.items()
            if name.startswith(_ARGUMENT) and isinstance(value, int | float | str)
        }
        keys["spacetime"] = {"type": attrs["spacetime"], "args": arguments}
    return keys


def _derived(metadata: Metadata) -> Iterator[str]:
    """What PyCauset takes for true of the values; a property that is false changes no result."""
    results, properties = (metadata.nested(key).values for key in ("cached", "properties"))
    true = [name for name, value in properties.items() if value not in (False, None)]
    for what, names in (("cached results", results), ("properties", true)):
        if names:
            yield f"the {what} {', '.join(map(repr, names))}"


def _cached(key: str, value: Any) -> Any:
    """A cached result as an attribute: numbers of which PyCauset stores both parts, and others."""
    try:
        if key == "sum":
            return format_attribute(complex(*value))
        if key == "eigenvalues":
            numbers = [complex(*pair) for pair in value]
            is_real = not any(number.imag for number in numbers)
            return [number.real if is_real else str(number) for number in numbers]
    except (TypeError, ValueError):
        pass
    return _plain(value)


def format_attribute(number: complex) -> float | str:
    """A number as an attribute: a string where it is complex, for which netCDF has no type."""
    number = complex(number)
    return str(number) if number.imag else number.real


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float | str):
        return value
    return json.dumps(value, default=repr)


def _signature(metadata: Metadata, view: Metadata) -> dict[str, str]:
    """What PyCauset notes of a result that it has computed of this payload under this view."""
    flags = (view.get(key, bool, False) for key in ("is_transposed", "is_conjugated"))
    transposed, conjugated = map(int, flags)
    scalar = view.scalar("scalar")
    signature = f"t={transposed};c={conjugated};sr={scalar.real:g};si={scalar.imag:g}"
    return {"payload_uuid": metadata.get("payload_uuid", str), "view_signature": signature}
