"""Metadata: their keys in R1 and in the zip of 0.3.0, and their encoding in R1.

R1 encodes a map of typed values. A tag byte precedes each value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any
from uuid import uuid4

from xr_tensorfmt.core.header import Fields
from xr_tensorfmt.errors import TensorFormatError, shorten
from xr_tensorfmt.formats.pycauset.spec import MATRIX_TYPES, Matrix

OBJECT_TYPE = "object_type"
_CAUSAL_SET = "CausalSet"
_ARGUMENT_PREFIX = "spacetime_"

CORRUPT = "the file is corrupt; save it again with PyCauset"


def build_matrix(metadata: Fields, version: str, view: Fields, offset: int, limit: int) -> Matrix:
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
    if value < 0:
        raise metadata.error(key, value, "a non-negative integer")
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


def build_metadata(matrix: Matrix, object_type: str, attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the metadata that PyCauset needs to load a matrix, or a causal set."""
    is_triangle = MATRIX_TYPES[matrix.matrix_type].stored == "triangle"
    layout = "raw_triangular" if is_triangle else "raw_dense"
    return {
        "rows": matrix.rows,
        "cols": matrix.columns,
        "seed": matrix.seed,
        "matrix_type": matrix.matrix_type,
        "data_type": matrix.data_type,
        "payload_uuid": uuid4().hex,
        "payload_layout": {"kind": layout, "params": {}},
        "view": {
            "is_transposed": False,
            "is_conjugated": False,
            "scalar": {"real": 1.0, "imag": 0.0},
        },
        **_build_causal_set(matrix, object_type, attrs),
    }


def build_attrs(metadata: Fields) -> Iterator[tuple[str, Any]]:
    """Yield attributes of a causal set: numbers and strings, which netCDF can store."""
    spacetime = metadata.get_fields("spacetime", {})
    if spacetime.values:
        yield "spacetime", spacetime.get("type", str)
        for key, value in spacetime.get("args", dict, {}).items():
            is_plain = isinstance(value, int | float | str)
            plain = value if is_plain else json.dumps(value, default=repr)
            yield f"{_ARGUMENT_PREFIX}{key}", int(plain) if isinstance(plain, bool) else plain


def _build_causal_set(matrix: Matrix, object_type: str, attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the metadata of a causal set, empty for other matrices."""
    if (matrix.matrix_type, object_type) != ("CAUSAL", _CAUSAL_SET):
        return {}
    keys: dict[str, Any] = {OBJECT_TYPE: _CAUSAL_SET, "n": matrix.rows}
    if isinstance(attrs.get("spacetime"), str):
        arguments = {
            name.removeprefix(_ARGUMENT_PREFIX): value
            for name, value in attrs.items()
            if name.startswith(_ARGUMENT_PREFIX) and isinstance(value, int | float | str)
        }
        keys["spacetime"] = {"type": attrs["spacetime"], "args": arguments}
    return keys


def describe_derived(metadata: Fields) -> Iterator[str]:
    """Describe metadata that PyCauset trusts. It ignores false properties."""
    results, properties = (metadata.get(key, dict, {}) for key in ("cached", "properties"))
    true = [name for name, value in properties.items() if value not in (False, None)]
    for label, names in (("cached results", results), ("properties", true)):
        if names:
            yield f"the {label} {', '.join(map(repr, names))}"


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
