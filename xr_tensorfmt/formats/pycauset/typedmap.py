"""The typed binary encoding of the metadata of R1.

Source: PyCauset, ``documentation/dev/PyCauset Container Format.md``, and
``python/pycauset/_internal/persistence.py`` of 0.6.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any

from xr_tensorfmt.errors import TensorFormatError

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
    """Encode a map, keys in ascending order, as PyCauset does.

    Parameters
    ----------
    values : mapping of str to object
        Values are bool, int from -2⁶³ to 2⁶⁴ - 1, float, str, bytes, list and mappings of such.

    Returns
    -------
    bytes
    """
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
    """Decode the map that the metadata are.

    Parameters
    ----------
    encoded : bytes
        The encoded map, and nothing after it.
    path : str
        The file, for errors.
    start : int
        Where in the file the map begins, for errors.

    Returns
    -------
    dict of str to object
        Values are bool, int, float, str, bytes, list and dict.

    Raises
    ------
    TensorFormatError
        It is no map, is cut off, has values of unknown types, or something follows it.
    """
    decoder = _Decoder(encoded, path, start)
    value = decoder.value()
    if not isinstance(value, dict):
        raise decoder.error(f"a {type(value).__name__}", "a map")
    if decoder.position != len(encoded):
        raise decoder.error(f"{len(encoded) - decoder.position} more bytes", "its end")
    return value
