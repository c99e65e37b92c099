"""The keys of metadata in R1 and in the zip of 0.3.0."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from xr_tensorfmt.errors import TensorFormatError, shorten
from xr_tensorfmt.formats.pycauset.spec import MATRIX_TYPES, Matrix

OBJECT_TYPE = "object_type"
_CAUSAL_SET = "CausalSet"
_ARGUMENT_PREFIX = "spacetime_"

Value = TypeVar("Value")


@dataclass(frozen=True)
class Metadata:
    """Metadata of a file: values by key, decoded from JSON or from the binary encoding."""

    values: Mapping[str, Any]
    path: str
    offset: int

    def error(
        self,
        key: str,
        actual: object,
        expected: str,
        hint: str = "the file is corrupt; save it again",
    ) -> TensorFormatError:
        """Return an error about the value of a key."""
        field = f"the metadata key {key!r}"
        return TensorFormatError(self.path, field, actual, expected, hint, offset=self.offset)

    def get(self, key: str, expected: type[Value], default: Value | None = None) -> Value:
        """Return the value of a key, or raise TensorFormatError if it has another type."""
        value = self.values.get(key, default)
        type_name = f"a value of type {expected.__name__}"
        if value is None:
            hint = "the matrix cannot be read without this key; save it again with a newer PyCauset"
            raise self.error(key, "missing", type_name, hint)
        if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
            raise self.error(key, shorten(repr(value)), type_name)
        return value

    def get_length(self, key: str) -> int:
        """Return a number of rows or columns."""
        value = self.get(key, int)
        if value < 0:
            raise self.error(key, value, "a non-negative integer")
        return value

    def get_map(self, key: str) -> Metadata:
        """Return the map of a key, empty if the key is missing."""
        return Metadata(self.get(key, dict, {}), self.path, self.offset)

    def get_scalar(self, key: str) -> complex:
        """Return a number, stored as one or as a map of real and imaginary part; default 1."""
        value = self.values.get(key, 1.0)
        parts: list[Any] = [value, 0]
        if isinstance(value, dict):
            parts = [value.get("real"), value.get("imag")]
        try:
            return complex(*(part + 0.0 for part in parts))
        except (TypeError, OverflowError):
            expected = "a number, or its real and imaginary parts, in double precision"
            raise self.error(key, shorten(repr(value)), expected) from None

    def build_matrix(self, version: str, view: Metadata, offset: int, limit: int) -> Matrix:
        """Return the matrix. `view` holds scalar, transposition and conjugation."""
        return Matrix(
            version=version,
            matrix_type=self.get("matrix_type", str),
            data_type=self.get("data_type", str),
            rows=self.get_length("rows"),
            columns=self.get_length("cols"),
            offset=offset,
            limit=limit,
            types_offset=self.offset,
            seed=self.get("seed", int, 0),
            scalar=view.get_scalar("scalar"),
            is_transposed=view.get("is_transposed", bool, False),
            is_conjugated=view.get("is_conjugated", bool, False),
        )


def build_metadata(
    matrix: Matrix, uuid: str, object_type: str, attrs: Mapping[Any, Any]
) -> dict[str, Any]:
    """Return the metadata that PyCauset needs to load a matrix, or a causal set."""
    is_triangle = MATRIX_TYPES[matrix.matrix_type].stored == "triangle"
    layout = "raw_triangular" if is_triangle else "raw_dense"
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
        **_build_causal_set(matrix, object_type, attrs),
    }


def build_attrs(metadata: Metadata) -> Iterator[tuple[str, Any]]:
    """Yield attributes of a causal set: numbers and strings, which netCDF can store."""
    spacetime = metadata.get_map("spacetime")
    if spacetime.values:
        yield "spacetime", spacetime.get("type", str)
        for key, value in spacetime.get("args", dict, {}).items():
            yield f"{_ARGUMENT_PREFIX}{key}", _format_value(value)


def get_object(metadata: Metadata) -> dict[str, Any]:
    """Return what the whole matrix is, such as a causal set of `n` elements."""
    return {key: metadata.values[key] for key in (OBJECT_TYPE, "n") if key in metadata.values}


def find_cached(metadata: Metadata, view: Metadata) -> Iterator[tuple[str, Any]]:
    """Yield the cached results that are up to date, without those in other files."""
    signature = _build_signature(metadata, view)
    for key, entry in metadata.get_map("cached").values.items():
        value = entry.get("value") if isinstance(entry, dict) else None
        is_here = value is not None and not isinstance(value, dict)  # a map refers to a file
        if is_here and entry.get("signature") == signature:
            yield key, value


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


def describe_derived(metadata: Metadata) -> Iterator[str]:
    """Describe metadata that PyCauset trusts. It ignores false properties."""
    results, properties = (metadata.get_map(key).values for key in ("cached", "properties"))
    true = [name for name, value in properties.items() if value not in (False, None)]
    for label, names in (("cached results", results), ("properties", true)):
        if names:
            yield f"the {label} {', '.join(map(repr, names))}"


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
