"""Write coordinates as properties of dimensions, to files such as ``State.yaml``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from xarray import Variable

from xr_tensorfmt.core.json_values import to_json
from xr_tensorfmt.core.source import is_file_name
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.cc4s.dimensions import Types
from xr_tensorfmt.formats.cc4s.header import Properties
from xr_tensorfmt.formats.cc4s.spec import YAML
from xr_tensorfmt.formats.cc4s.yaml_text import MAX_BYTES, format_yaml, is_portable, parse_fields
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.file_plan import FilePlan, Piece, SiblingFile


def plan_properties(
    checked: CheckedInput, types: Types, names: Mapping[str, Collection[str]]
) -> tuple[list[SiblingFile], dict[str, Variable]]:
    """Return the files of dimension types, and the coordinates that they cannot hold."""
    others = dict(checked.coordinates)
    files: list[SiblingFile] = []
    sizes: dict[Any, int] = {}
    defaults: dict[Any, set[str]] = {}
    for name, variable in checked.variables.items():
        sizes |= variable.sizes
        for dim, default in zip(variable.dims, names[name], strict=True):
            defaults.setdefault(dim, set()).add(default)
    # The reader omits properties that have the name of a dimension.
    candidates = {name: item for name, item in others.items() if name not in sizes}
    for dimension_type in dict.fromkeys(filter(None, types.values())):
        dims = [dim for dim in types if types[dim] == dimension_type]
        if not is_file_name(dimension_type) or any(len(defaults[dim]) > 1 for dim in dims):
            continue
        prefixes = {dim: f"{next(iter(defaults[dim]))}_" for dim in dims}
        by_dim = {
            dim: _get_properties(dimension_type, dim, prefixes[dim], candidates) for dim in dims
        }
        first = next((dim for dim in dims if by_dim[dim].indices), None)
        # The reader labels all dimensions of the type and length.
        if first is not None and all(
            item.pack() == by_dim[first].pack() if sizes[dim] == sizes[first] else not item.indices
            for dim, item in by_dim.items()
        ):
            files.append(_plan_file(checked.path, by_dim[first]))
            for dim, item in by_dim.items():
                for name in item.indices:
                    del others[f"{prefixes[dim]}{name}"]
    return files, others


def _get_properties(
    dimension_type: str, dim: str, prefix: str, coordinates: Mapping[str, Variable]
) -> Properties:
    """Return the coordinates of a dimension that can become its properties."""
    indices, values = {}, {}
    for name, variable in coordinates.items():
        if name.startswith(prefix) and variable.dims == (dim,) and _is_property(variable):
            indices[name.removeprefix(prefix)] = variable.values.astype(np.int64)
            if "values" in variable.attrs:
                values[name.removeprefix(prefix)] = variable.attrs["values"]
    return Properties(dimension_type, indices, values)


def _is_property(variable: Variable) -> bool:
    """Return whether a coordinate has integers that number values, or are values."""
    if variable.dtype.kind not in "iu" or set(variable.attrs) - {"values"}:
        return False
    largest, smallest = variable.values.max(initial=-1), variable.values.min(initial=0)
    values = variable.attrs.get("values", range(int(largest) + 1))
    if smallest < 0 or largest >= MAX_BYTES or not isinstance(values, list | range):
        return False
    return len(values) > largest and (isinstance(values, range) or _is_lossless(values))


def _is_lossless(values: list[Any]) -> bool:
    try:
        return to_json(values, "values") == values and is_portable(values)
    except TypeError:
        return False


def _plan_file(path: str, properties: Properties) -> SiblingFile:
    """Plan the file of a dimension type. A file with equal content is kept."""
    content = format_yaml(properties.pack())
    name = f"{properties.dimension_type}{YAML}"

    def has_equal_content(existing: bytes) -> bool:
        try:
            present = Properties.unpack(parse_fields("", existing))
        except TensorFormatError:
            return False
        if present.pack() != properties.pack():
            names = ", ".join(properties.indices)
            raise ValueError(
                f"{path}: {name} in the same directory has other values of {names}, but it applies "
                "to all tensors there; write into another directory, or remove that file if no "
                "other tensor needs it"
            )
        return True

    return SiblingFile(name, FilePlan(len(content), (Piece(0, content),), ()), has_equal_content)
