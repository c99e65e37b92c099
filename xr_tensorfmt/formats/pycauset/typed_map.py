"""The typed binary encoding of the metadata of R1: a tag byte, then the value.

Sources: PyCauset, ``documentation/dev/PyCauset Container Format.md``, and
``python/pycauset/_internal/persistence.py`` of 0.6.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any

from xr_tensorfmt.errors import TensorFormatError

MOST_NESTED = 32
"""Limit on maps and arrays within each other."""

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


class _Decoder:
    """Decodes one value after the other; each takes at least a byte, which bounds the work."""

    def __init__(self, encoded: bytes, path: str, start: int) -> None:
        self._encoded = encoded
        self._path = path
        self._start = start
        self.position = 0

    def error(self, found: str, expected: str) -> TensorFormatError:
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
                f"more than {MOST_NESTED} maps and arrays within each other",
                f"at most {MOST_NESTED}",
            )
        (tag,) = self._take(1)
        if tag in _NUMBERS:
            return self._number(_NUMBERS[tag])
        if tag == _STRING:
            return self._string(_LENGTH)
        if tag == _BYTES:
            return self._take(self._number(_LENGTH))
        if tag == _ARRAY:
            return [self.value(depth + 1) for _ in range(self._count())]
        if tag == _MAP:
            return {self._string(_KEY_LENGTH): self.value(depth + 1) for _ in range(self._count())}
        raise self.error(f"a value of type {tag}", f"a type from {_BOOL} to {_MAP}")

    def _count(self) -> int:
        count = int(self._number(_LENGTH))
        left = len(self._encoded) - self.position
        if count > left:
            raise self.error(f"{count} entries", f"at most {left}, one for each byte that is left")
        return count

    def _string(self, length: Struct) -> str:
        raw = self._take(self._number(length))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(repr(raw[:20]), "a string in UTF-8") from error

    def _number(self, record: Struct) -> Any:
        return record.unpack(self._take(record.size))[0]

    def _take(self, length: int) -> bytes:
        taken = self._encoded[self.position : self.position + length]
        if len(taken) < length:
            raise self.error(f"{len(taken)} bytes up to the end of the map", f"{length} bytes")
        self.position += length
        return taken
