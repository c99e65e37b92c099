"""Encoding of metadata in R1: a map of typed values. A tag byte precedes each value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any

from xr_tensorfmt.errors import TensorFormatError, shorten

# Limits on the nesting of maps and arrays, and on the number of values.
MAX_METADATA_LEVELS = 32
MAX_METADATA_VALUES = 1 << 19

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


def encode_map(values: Mapping[str, Any]) -> bytes:
    """Encode a map. The keys ascend, as in files written by PyCauset."""
    encoded = bytes([_MAP]) + _LENGTH.pack(len(values))
    for key, value in sorted(values.items()):
        raw = key.encode()
        encoded += _KEY_LENGTH.pack(len(raw)) + raw + _encode(value)
    return encoded


def _encode(value: Any) -> bytes:
    if isinstance(value, Mapping):
        return encode_map(value)
    if isinstance(value, str):
        raw = value.encode()
        return bytes([_STRING]) + _LENGTH.pack(len(raw)) + raw
    tag = _FLOAT if isinstance(value, float) else _BOOL
    if not isinstance(value, bool | float):
        tag = _SIGNED if value < 0 else _UNSIGNED
    return bytes([tag]) + _NUMBERS[tag].pack(value)


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
        hint = "the metadata block is corrupt; save the file again"
        return TensorFormatError(self.path, "the metadata", actual, expected, hint, offset)

    def decode(self, depth: int = 0) -> Any:
        self.values += 1
        for count, limit, things in (
            (depth, MAX_METADATA_LEVELS, "nested maps and arrays"),
            (self.values, MAX_METADATA_VALUES, "values"),
        ):
            if count > limit:
                raise self.error(f"more than {limit} {things}", f"at most {limit}")
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
