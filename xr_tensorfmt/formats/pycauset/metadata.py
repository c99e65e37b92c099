"""The keys of metadata in R1 and in the zip of 0.3.0."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from xr_tensorfmt.core.fields import Fields
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.formats.pycauset.spec import MATRIX_TYPES, Matrix

OBJECT_TYPE = "object_type"
_CAUSAL_SET = "CausalSet"
_ARGUMENT_PREFIX = "spacetime_"

CORRUPT = "the file is corrupt; save it again with PyCauset"
"""Hint of errors about metadata."""


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
