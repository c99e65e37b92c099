"""The keys of the metadata of R1: what a container says of its matrix, and what is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from xr_tensorfmt.core.embedded_metadata import KEY as EMBEDDED_KEY
from xr_tensorfmt.errors import TensorFormatError, shortened
from xr_tensorfmt.formats.pycauset.container import Content
from xr_tensorfmt.formats.pycauset.spec import R1_BIT_ROW_BYTES, TRIANGLES, VECTORS, Matrix

Value = TypeVar("Value")

_CAUSAL_SET = "CausalSet"
_ARGUMENT = "spacetime_"


@dataclass(frozen=True)
class Metadata:
    """The map of a container, of types that JSON and the binary encoding have in common."""

    values: Mapping[str, Any]
    path: str
    offset: int

    def error(self, key: str, found: object, expected: str, hint: str) -> TensorFormatError:
        """An error about one key."""
        field = f"the metadata key {key!r}"
        return TensorFormatError(self.path, field, found, expected, hint, offset=self.offset)

    def get(self, key: str, expected: type[Value], default: Value | None = None) -> Value:
        """The value of a key, which must be of a type."""
        value = self.values.get(key, default)
        type_name = f"a value of type {expected.__name__}"
        if value is None:
            hint = "without it the matrix cannot be read; save it again with a newer PyCauset"
            raise self.error(key, "missing", type_name, hint)
        if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
            raise self.error(key, shortened(repr(value)), type_name, "the file is damaged")
        return value

    def length(self, key: str) -> int:
        """The value of a key that is a number of rows or columns."""
        value = self.get(key, int)
        if value < 0:
            raise self.error(key, value, "an integer of at least 0", "the file is damaged")
        return value

    def nested(self, key: str) -> Metadata:
        """The map under a key; an empty one where it is missing."""
        return Metadata(self.get(key, dict, {}), self.path, self.offset)

    def scalar(self, key: str) -> complex:
        """A number, or a map of its real and imaginary parts; 1 where it is missing."""
        value = self.values.get(key, 1.0)
        parts = [value, 0.0]
        if isinstance(value, dict):
            parts = [value.get("real"), value.get("imag")]
        if not all(isinstance(part, int | float) and not isinstance(part, bool) for part in parts):
            expected = "a number, or its real and imaginary parts"
            raise self.error(key, shortened(repr(value)), expected, "the file is damaged")
        try:
            return complex(*map(float, parts))
        except OverflowError:
            expected = "a number that fits double precision"
            raise self.error(key, shortened(parts), expected, "the file is damaged") from None


def matrix_of(content: Content, metadata: Metadata) -> Matrix:
    """What the metadata of a container say about the matrix."""
    matrix_type = metadata.get("matrix_type", str)
    view = metadata.nested("view")
    is_transposed = view.get("is_transposed", bool, False)
    shape = (metadata.length("rows"), metadata.length("cols"))
    # Vectors have n rows and 1 column, transposed or not.
    if is_transposed and matrix_type not in VECTORS:
        shape = (shape[1], shape[0])
    return Matrix(
        version="r1",
        matrix_type=matrix_type,
        data_type=metadata.get("data_type", str),
        rows=shape[0],
        columns=shape[1],
        offset=content.slot.payload_offset,
        limit=content.payload_limit,
        stated_at=metadata.offset,
        seed=metadata.get("seed", int, 0),
        scalar=view.scalar("scalar"),
        is_transposed=is_transposed,
        is_conjugated=view.get("is_conjugated", bool, False),
        bit_row_bytes=R1_BIT_ROW_BYTES,
        attrs=dict(_attrs(metadata, view)),
        facts={
            "payload_uuid": metadata.get("payload_uuid", str),
            "slot": content.slot.name,
            "generation": content.slot.generation,
        },
        embedded=metadata.values.get(EMBEDDED_KEY),
        derived=tuple(_derived(metadata)),
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
    for key, entry in metadata.nested("cached").values.items():
        value = entry.get("value") if isinstance(entry, dict) else None
        # Results in other files are maps that refer to these.
        is_here = value is not None and not isinstance(value, dict)
        if is_here and _is_current(entry.get("signature"), metadata, view):
            yield f"cached_{key}", _cached(key, value)


def _causal_set(matrix: Matrix, attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """What makes a matrix a causal set for PyCauset, where the attributes say so."""
    is_set = attrs.get("object_type") == _CAUSAL_SET and attrs.get("n") == matrix.rows
    if not is_set or matrix.matrix_type != "CAUSAL":
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
            return attribute_of(complex(*value))
        if key == "eigenvalues":
            numbers = [complex(*pair) for pair in value]
            is_real = not any(number.imag for number in numbers)
            return [number.real if is_real else str(number) for number in numbers]
    except (TypeError, ValueError):
        pass
    return _plain(value)


def attribute_of(number: complex) -> float | str:
    """A number as an attribute: a string where it is complex, for which netCDF has no type."""
    number = complex(number)
    return str(number) if number.imag else number.real


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float | str):
        return value
    return json.dumps(value, default=repr)


def _is_current(signature: Any, metadata: Metadata, view: Metadata) -> bool:
    """Whether a result was computed of this payload under this view."""
    if not isinstance(signature, Mapping):
        return False
    scalar = view.scalar("scalar")
    expected = {
        "t": view.get("is_transposed", bool, False),
        "c": view.get("is_conjugated", bool, False),
        "sr": scalar.real,
        "si": scalar.imag,
    }
    try:
        pairs = (part.split("=") for part in str(signature.get("view_signature")).split(";"))
        found = {key: float(value) for key, value in pairs}
    except ValueError:
        return False
    return found == expected and signature.get("payload_uuid") == metadata.values["payload_uuid"]
