"""The typed binary encoding of the metadata of R1.

Source: PyCauset, ``documentation/dev/PyCauset Container Format.md``, and
``python/pycauset/_internal/persistence.py`` of 0.6.1.

"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, TypeVar
from zlib import crc32

from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.errors import TensorFormatError, shortened

MOST_NESTED = 32
"""Limit on maps and arrays within each other."""

_LENGTH = Struct("<I")
_KEY_LENGTH = Struct("<H")
_BOOL, _SIGNED, _UNSIGNED, _FLOAT, _TEXT, _BYTES, _ARRAY, _MAP = range(1, 9)
_NUMBERS = {
    _BOOL: Struct("<?"),
    _SIGNED: Struct("<q"),
    _UNSIGNED: Struct("<Q"),
    _FLOAT: Struct("<d"),
}


class _Decoder:
    """Takes one value after the other; each costs at least a byte, which bounds the work."""

    def __init__(self, encoded: bytes, path: str, start: int) -> None:
        self._encoded = encoded
        self._path = path
        self._start = start
        self.position = 0

    def error(self, found: object, expected: str) -> TensorFormatError:
        return TensorFormatError(
            self._path,
            "the metadata",
            found,
            expected,
            "the metadata block is damaged",
            offset=self._start + self.position,
        )

    def value(self, depth: int = 0) -> Any:
        if depth > MOST_NESTED:
            raise self.error(
                f"more than {MOST_NESTED} maps within each other", f"at most {MOST_NESTED}"
            )
        (tag,) = self._take(1)
        if tag in _NUMBERS:
            return self._number(_NUMBERS[tag])
        if tag == _TEXT:
            return self._text(_LENGTH)
        if tag == _BYTES:
            return self._take(self._number(_LENGTH))
        if tag == _ARRAY:
            return self._array(depth + 1)
        if tag == _MAP:
            return self._map(depth + 1)
        raise self.error(f"a value of type {tag}", "a type from 1 to 8")

    def _array(self, depth: int) -> list[Any]:
        return [self.value(depth) for _ in range(self._count())]

    def _map(self, depth: int) -> dict[str, Any]:
        return {self._text(_KEY_LENGTH): self.value(depth) for _ in range(self._count())}

    def _count(self) -> int:
        count = int(self._number(_LENGTH))
        if count > len(self._encoded) - self.position:
            raise self.error(f"{count} entries", "no more than there are bytes")
        return count

    def _text(self, length: Struct) -> str:
        raw = self._take(self._number(length))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(repr(raw[:20]), "a text in UTF-8") from error

    def _number(self, record: Struct) -> Any:
        return record.unpack(self._take(record.size))[0]

    def _take(self, length: int) -> bytes:
        taken = self._encoded[self.position : self.position + length]
        if len(taken) < length:
            raise self.error(f"{len(taken)} bytes up to its end", f"{length} more bytes")
        self.position += length
        return taken


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
        return bytes([_TEXT]) + _sized(value.encode(), _LENGTH)
    tag = _FLOAT if isinstance(value, float) else _BOOL
    if not isinstance(value, bool | float):
        tag = _SIGNED if value < 0 else _UNSIGNED
    return bytes([tag]) + _NUMBERS[tag].pack(value)


def _sized(raw: bytes, length: Struct) -> bytes:
    return length.pack(len(raw)) + raw


def decode_map(encoded: bytes, path: str, start: int) -> dict[str, Any]:
    """Decode the map that the metadata are."""
    decoder = _Decoder(encoded, path, start)
    value = decoder.value()
    if not isinstance(value, dict):
        raise decoder.error(f"a {type(value).__name__}", "a map")
    if decoder.position != len(encoded):
        raise decoder.error(f"{len(encoded) - decoder.position} more bytes", "its end")
    return value


Value = TypeVar("Value")


@dataclass(frozen=True)
class Metadata:
    """A map of a container, of the type that texts and binary encodings of it have in common."""

    values: Mapping[str, Any]
    path: str
    offset: int

    def error(self, key: str, found: object, expected: str, hint: str) -> TensorFormatError:
        """An error about one key."""
        field = f"the metadata key {key!r}"
        return TensorFormatError(self.path, field, found, expected, hint, offset=self.offset)

    def take(self, key: str, kind: type[Value], default: Value | None = None) -> Value:
        """What a key holds."""
        value = self.values.get(key, default)
        if value is None:
            raise self.error(
                key,
                "missing",
                f"a value of type {kind.__name__}",
                "without it the matrix cannot be read; save it again with a newer PyCauset",
            )
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(
                key, repr(value)[:60], f"a value of type {kind.__name__}", "the file is damaged"
            )
        return value

    def length(self, key: str) -> int:
        """A count, which is not negative."""
        value = self.take(key, int)
        if value < 0:
            raise self.error(key, value, "a count", "the file is damaged")
        return value

    def below(self, key: str) -> Metadata:
        """The map that a key holds; an empty one where it is missing."""
        return Metadata(self.take(key, dict, {}), self.path, self.offset)

    def scalar(self, key: str) -> complex:
        """A number, or a map of its real and imaginary parts; 1 where it is missing."""
        value = self.values.get(key, 1.0)
        parts = [value, 0.0]
        if isinstance(value, dict):
            parts = [value.get("real"), value.get("imag")]
        if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in parts):
            raise self.error(
                key, repr(value)[:60], "a number, or its real and imag", "the file is damaged"
            )
        try:
            return complex(*map(float, parts))
        except OverflowError:
            raise self.error(
                key, shortened(parts), "a number that fits double precision", "the file is damaged"
            ) from None


PREAMBLE = b"\x01\x00\x10\x00"
"""Little-endian, header of 4096 bytes, reserved: bytes 12 to 15 of every container."""

HEADER_BYTES = 4096

METADATA_ALIGNMENT = 16
"""Multiple of bytes at which metadata begin."""

SLOTS = {"A": 16, "B": 144}
"""Where the slots are."""

SLOT_BYTES = 128

POINTERS = Struct("<7Q")
CHECKSUM = Struct("<I")


@dataclass(frozen=True)
class Slot:
    """Pointers to one generation of the metadata."""

    name: str
    generation: int
    payload_offset: int
    payload_length: int
    metadata_offset: int
    metadata_length: int


def read_slots(reader: HeaderReader) -> tuple[tuple[Slot, ...], tuple[Finding, ...]]:
    """Read the header of a container."""
    reader.bytes_at(0, HEADER_BYTES, "the header")
    valid, faults = [], []
    for name, offset in SLOTS.items():
        slot, fault = check_slot(reader, name, offset)
        if fault is None:
            valid.append(slot)
        else:
            faults.append(slot_finding(reader, name, offset, fault))
    if not valid:
        raise TensorFormatError(
            reader.source.name,
            "the header slots",
            " and ".join(each.sentence for each in faults),
            "at least one valid slot",
            "the header is damaged, or the file is cut off; fetch it again",
            offset=SLOTS["A"],
        )
    # Of two alike, as in a file that was never updated, A comes first.
    return tuple(sorted(valid, key=lambda slot: -slot.generation)), tuple(faults)


def slot_finding(reader: HeaderReader, name: str, offset: int, fault: str) -> Finding:
    """What to say of a slot that is not valid."""
    message = f"{fault}; the file was damaged or not written to its end: save it again"
    return Finding(reader.source.name, offset, f"slot {name}", message)


def check_slot(reader: HeaderReader, name: str, offset: int) -> tuple[Slot, str | None]:
    """Read a slot."""
    raw = reader.bytes_at(offset, POINTERS.size, f"slot {name}")
    stored = CHECKSUM.unpack(
        reader.bytes_at(offset + POINTERS.size, CHECKSUM.size, f"the checksum of slot {name}")
    )[0]
    slot = Slot(name, *POINTERS.unpack(raw)[:5])
    if crc32(raw) != stored:
        return slot, f"checksum {stored:#010x} instead of {crc32(raw):#010x}"
    size = reader.source.size
    payload_end = slot.payload_offset + slot.payload_length
    metadata_end = slot.metadata_offset + slot.metadata_length
    if slot.payload_offset % HEADER_BYTES or slot.payload_offset < HEADER_BYTES:
        return slot, f"payload offset {slot.payload_offset}, which is no multiple of 4096"
    if slot.metadata_offset % METADATA_ALIGNMENT:
        return slot, f"metadata offset {slot.metadata_offset}, which is no multiple of 16"
    if max(payload_end, metadata_end) > size:
        return slot, f"ranges up to byte {max(payload_end, metadata_end)} in a file of {size} bytes"
    return slot, None


BIT = "BIT"
COMPLEX_FLOAT16 = "COMPLEX_FLOAT16"

DTYPES = {
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "FLOAT16": "<f2",
    "FLOAT32": "<f4",
    "FLOAT64": "<f8",
    "COMPLEX_FLOAT32": "<c8",
    "COMPLEX_FLOAT64": "<c16",
}
"""numpy's words for the data types that it knows."""

_INTEGERS = frozenset(name for name in DTYPES if "INT" in name)
_REALS = frozenset({"FLOAT16", "FLOAT32", "FLOAT64"})
_ALL = frozenset({BIT, COMPLEX_FLOAT16, *DTYPES})
_DOUBLE = frozenset({"FLOAT64"})

DATA_TYPES: Mapping[str, frozenset[str]] = {
    "CAUSAL": frozenset({BIT}),
    "TRIANGULAR_INTEGER": _INTEGERS,
    "TRIANGULAR_FLOAT": _REALS,
    "DENSE_FLOAT": _ALL,
    "INTEGER": _INTEGERS,
    "VECTOR": _ALL,
    "UNIT_VECTOR": _DOUBLE,
    "IDENTITY": _DOUBLE,
    "DIAGONAL": _DOUBLE,
    "SYMMETRIC": _DOUBLE,
    "ANTISYMMETRIC": _DOUBLE,
}
"""Matrix types, and the data types that each can have."""

VECTORS = ("VECTOR", "UNIT_VECTOR")

TRIANGLES = ("TRIANGULAR_INTEGER", "TRIANGULAR_FLOAT")
"""Triangles of numbers, with or without a diagonal; that of bits never has one."""


@dataclass(frozen=True)
class Matrix:
    """A matrix, or a vector of one column."""

    generation: str
    matrix_type: str
    data_type: str
    rows: int
    columns: int
    offset: int
    limit: int
    fields: int
    seed: int = 0
    scalar: complex = 1.0
    transposed: bool = False
    conjugated: bool = False
    bit_row: int = 8
    triangle_row: int = 8
    has_diagonal: bool = False
    attrs: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    embedded: Any = None
    derived: tuple[str, ...] = ()

    @property
    def is_vector(self) -> bool:
        """Whether it has one axis, or would have if it were not transposed."""
        return self.matrix_type in VECTORS
