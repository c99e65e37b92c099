"""Tensors of a YAML file, and properties of dimensions, as in ``TensorIo.cxx`` of cc4s."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from math import prod
from typing import Any, Self

import numpy as np

from xr_tensorfmt.core.elements import Element
from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.header import MAX_DIMENSIONS, Fields
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.core.source import is_file_name
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.formats.cc4s import spec, yaml_text

MAX_COMPONENTS = 1 << 10
"""Limit on the components of a TensorSet. Every component is a file."""


@dataclass(frozen=True)
class Dimension:
    """A dimension. ``<type>.yaml`` has its properties."""

    length: int
    type: str | None = None

    @classmethod
    def unpack(cls, fields: Fields) -> Self:
        """Check the fields."""
        length = fields.get("length", int)
        if length < 0:
            raise fields.error("length", length, "0 or more")
        return cls(length, yaml_text.get_string(fields, "type") if "type" in fields else None)


@dataclass(frozen=True, eq=False)
class Condition:
    """Blocks that are not zero, given by properties of dimensions."""

    # Names of properties, and numbers of their dimensions.
    properties: tuple[tuple[str, int], ...]
    # One row per block, one property index per column.
    non_zeros: Integers

    @classmethod
    def unpack(cls, fields: Fields, rank: int) -> Self:
        """Check the fields and create the object."""
        properties = []
        for item in yaml_text.get_mappings(fields, "properties"):
            dimension = item.get("dimension", int)
            if not 0 <= dimension < rank:
                raise item.error("dimension", dimension, f"0 to {rank - 1}")
            properties.append((yaml_text.get_string(item, "property"), dimension))
        rows = yaml_text.get_list(fields, "nonZeros")
        count = len(properties)
        wrong = [row for row in rows if not isinstance(row, list) or len(row) != count]
        if wrong:
            expected = f"lists of {count}, one for each property"
            raise fields.error("nonZeros", shorten(repr(wrong[0])), expected)
        numbers = _to_integers(fields, "nonZeros", list(chain.from_iterable(rows)))
        return cls(tuple(properties), numbers.reshape(len(rows), count))


def _to_integers(fields: Fields, key: str, values: Sequence[Any]) -> Integers:
    wrong = [value for value in values if type(value) is not int]
    if wrong:
        raise fields.error(key, shorten(repr(wrong[0])), "integers of at most 64 bits")
    return np.array(values, dtype=np.int64)


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of a YAML file."""

    name: str
    fields: Fields
    # The object that the YAML file is named after, and the name of the file of elements.
    cc4s_object: str
    elements_file: str
    scalar_type: str
    # The first dimension varies fastest in the file.
    dimensions: tuple[Dimension, ...]
    elements: str
    # Factor from the values in the file to atomic units.
    unit: float
    # Free-form additions of programs.
    metadata: Mapping[str, Any]
    # The stored blocks; empty if all elements are stored.
    conditions: tuple[Condition, ...]

    @classmethod
    def unpack(cls, fields: Fields, stem: str, name: str) -> Self:
        """Check the fields of a tensor or a component. The stem is that of the YAML file."""
        check_version(fields)
        yaml_text.get_choice(fields, "type", (spec.TENSOR,))
        listed = yaml_text.get_mappings(fields, "dimensions")
        if len(listed) > MAX_DIMENSIONS:
            expected = f"at most {MAX_DIMENSIONS} dimensions"
            raise fields.error("dimensions", len(listed), expected, "the file is corrupt")
        conditions: tuple[Condition, ...] = ()
        if "nonZeroCondition" in fields:
            items = yaml_text.get_mappings(fields.get_fields("nonZeroCondition"), "all")
            conditions = tuple(Condition.unpack(item, len(listed)) for item in items)
        return cls(
            name,
            fields,
            spec.get_variable_name(stem),
            spec.get_elements_file(stem, name if fields.prefix else None),
            yaml_text.get_choice(fields, "scalarType", spec.SCALAR_TYPES),
            tuple(map(Dimension.unpack, listed)),
            yaml_text.get_choice(fields.get_fields("elements"), "type", (spec.BINARY, spec.TEXT)),
            yaml_text.get_number(fields, "unit"),
            get_metadata(fields),
            conditions,
        )

    @property
    def types(self) -> tuple[str | None, ...]:
        """Types of the dimensions."""
        return tuple(dimension.type for dimension in self.dimensions)

    @property
    def element(self) -> Element:
        """Data type of the stored numbers."""
        return spec.SCALAR_TYPES[self.scalar_type]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the dimensions."""
        return tuple(dimension.length for dimension in self.dimensions)

    @property
    def total(self) -> int:
        """Number of elements of the tensor."""
        return prod(self.lengths)

    @property
    def energies(self) -> list[Any] | None:
        """The list ``metaData.energies`` if it repeats the elements."""
        energies = self.metadata.get("energies")
        repeats = spec.lists_energies(self.cc4s_object, self.lengths, self.types, self.metadata)
        is_real = self.element.dtype.kind == "f"
        return energies if repeats and is_real and isinstance(energies, list) else None


def check_version(fields: Fields) -> None:
    """Raise TensorFormatError for a version that cc4s cannot read."""
    version = fields.values.get("version")
    if version != spec.VERSION:
        elements: Any = fields.values.get("elements")
        kind = elements.get("type") if isinstance(elements, dict) else None
        is_binary = kind == spec.BINARY or fields.values.get("binary") in (1, True)
        hint = (
            "another program or another version of cc4s wrote the file; read the numbers with "
            f"numpy.{'fromfile' if is_binary else 'loadtxt'}, and write them with to_file"
        )
        raise fields.error("version", repr(version), str(spec.VERSION), hint)


def get_metadata(fields: Fields) -> dict[str, Any]:
    """Return ``metaData``, or an empty dict if the key has no value."""
    has_value = fields.values.get("metaData") is not None
    return fields.get("metaData", dict) if has_value else {}


def parse_entries(fields: Fields, options: OpenOptions, stem: str) -> list[TensorEntry]:
    """Return the tensors that a YAML file describes. Its stem names the files of elements."""
    is_set = fields.values.get("type") == spec.TENSOR_SET
    if not is_set or "version" in fields:  # cc4s gives a set none
        check_version(fields)
    yaml_text.get_choice(fields, "type", (spec.TENSOR, spec.TENSOR_SET))
    is_default = options.name == OpenOptions.name
    if not is_set:
        name = spec.get_variable_name(stem) if is_default else options.name
        return [TensorEntry.unpack(fields, stem, name)]
    if not is_default:
        raise ValueError(
            f"{fields.path} contains variable names, so name={options.name!r} does not apply; use "
            "ds.rename"
        )
    return list(_parse_components(fields.get_fields("components"), stem))


def _parse_components(components: Fields, stem: str) -> Iterator[TensorEntry]:
    count = len(components.values)
    if count > MAX_COMPONENTS:
        expected = f"at most {MAX_COMPONENTS}"
        raise components.error("", f"{count} components", expected, "split the set")
    for name in components.values:
        if not is_file_name(name):
            raise components.error(name, repr(name), "a part of a file name")
        yield TensorEntry.unpack(components.get_fields(name), stem, name)


@dataclass(frozen=True, eq=False)
class Properties:
    """The properties of all dimensions of a type, from ``<type>.yaml``."""

    dimension_type: str
    # An integer per index of the dimension, by property.
    indices: Mapping[str, Integers]
    # Values that the integers number; missing for properties whose values are these integers.
    values: Mapping[str, Sequence[Any]]

    @classmethod
    def unpack(cls, fields: Fields) -> Self:
        """Check the fields."""
        check_version(fields)
        properties = fields.get_fields("properties", {})
        per_index = fields.get_fields("propertyIndices")
        indices, values = {}, {}
        for name in per_index.values:
            array = _to_integers(per_index, name, yaml_text.get_list(per_index, name))
            indices[name] = array
            if name not in properties:
                continue
            listed = yaml_text.get_list(properties, name)
            if array.size and not 0 <= array.min() <= array.max() < len(listed):
                actual = f"integers from {array.min()} to {array.max()}"
                expected = f"0 to {len(listed) - 1}, the numbers of its {len(listed)} values"
                raise per_index.error(name, actual, expected)
            if listed != _count_to(array):
                values[name] = listed
        return cls(yaml_text.get_string(fields, "dimensionType"), indices, values)

    def pack(self) -> dict[str, Any]:
        """Return the fields."""
        items = self.indices.items()
        return {
            "version": spec.VERSION,
            "dimensionType": self.dimension_type,
            "properties": {name: self.values.get(name, _count_to(array)) for name, array in items},
            "propertyIndices": {name: array.tolist() for name, array in items},
        }


def _count_to(indices: Integers) -> list[int]:
    """Return the values that are equal to their numbers."""
    return list(range(int(indices.max(initial=-1)) + 1))


def complete_types(
    cc4s_object: str, lengths: Sequence[int], types: Sequence[str | None]
) -> list[Dimension]:
    """Return the dimensions of a tensor, with the types of its object if the file has none."""
    expected = spec.get_object_types(cc4s_object, len(lengths)) or types
    return [
        Dimension(length, of_file or of_object)
        for length, of_file, of_object in zip(lengths, types, expected, strict=True)
    ]


def find_length_conflict(tensors: Mapping[str, Iterable[Dimension]]) -> str | None:
    """Return how a length differs between two tensors of a calculation, or None."""
    found: dict[str, tuple[str, int]] = {}
    for name in spec.COMPARED:
        for dimension in tensors.get(name, ()):
            noun = spec.COMPARED_TYPES.get(dimension.type or "")
            if noun is None:
                continue
            other, length = found.setdefault(noun, (name, dimension.length))
            if length != dimension.length:
                actual = f"{other} has {length} {noun}, but {name} has {dimension.length}"
                return f"{actual}; the files belong to different calculations"
    return None


def make_dims_unique(tensors: Iterable[Sequence[Dimension]]) -> list[tuple[str, ...]]:
    """Name dimensions by type (``State``, ``State_2``), or by position. Equal ones share a name."""
    lengths: dict[str, int] = {}
    # Names by type and length, and the numbers of a type that are not used yet.
    names_by_type: dict[tuple[str, int], dict[str, None]] = defaultdict(dict)
    numbers: dict[str, Iterator[int]] = defaultdict(count)
    names_of_tensors = []
    for dimensions in tensors:
        names: list[str] = []
        for position, dimension in enumerate(dimensions):
            plain, length = dimension.type or f"dim_{position}", dimension.length
            known = names_by_type[plain, length]
            new = (f"{plain}_{number + 1}" if number else plain for number in numbers[plain])
            name = next(
                candidate
                for candidate in chain(known, new)
                if candidate not in names and lengths.get(candidate, length) == length
            )
            known[name] = None
            lengths[name] = length
            names.append(name)
        names_of_tensors.append(tuple(names))
    return names_of_tensors
