"""Tensors of a YAML file, properties of dimensions, and the rules of names, types and units."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from math import isclose
from typing import Any, NamedTuple, Self

import numpy as np

from xr_tensorfmt.core.elements import Array, Element, Plain
from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.file_format import EMBEDDED_KEY, OpenOptions
from xr_tensorfmt.core.header import MAX_DIMENSIONS, Fields
from xr_tensorfmt.core.source import is_file_name
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.formats.cc4s import ELEMENTS, YAML, yaml_text

VERSION = 100
"""The only version that cc4s reads."""

TENSOR, TENSOR_SET = "Tensor", "TensorSet"

SCALAR_TYPES: Mapping[str, Element] = {
    "Real64": Plain(np.dtype("<f8")),
    "Complex64": Plain(np.dtype("<c16")),  # 64 bits per part
}

BINARY, TEXT = "IeeeBinaryFile", "TextFile"

APPLIED_UNIT = "applied_unit"
"""The attribute with the factor that ``apply_unit=True`` has multiplied the values by."""

STATE = "State"
OCCUPIED = "occupied"
"""The coordinate of states whose energies are below ``fermiEnergy``."""

STATE_NUMBER = {"long_name": "state", "comment": "number in the opened calculation"}
"""Attributes of the coordinates that `open_calculation` adds, and that are not written."""

ENERGIES, SLICED_ENERGIES, VERTEX = "EigenEnergies", "SlicedEigenEnergies", "CoulombVertex"

ENERGY_POWERS: Mapping[str, float] = {
    **dict.fromkeys((VERTEX, "SlicedCoulombVertex"), 1 / 2),
    **dict.fromkeys(("CoulombIntegrals", ENERGIES, "Mp2PairEnergies", SLICED_ENERGIES), 1),
}
"""Objects whose unit is a power of the unit of energies."""

DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "CoulombPotential": ("Momentum",),
    VERTEX: ("AuxiliaryField", STATE, STATE),
    "CoulombVertexSingularVectors": ("Momentum", "AuxiliaryField"),
    ENERGIES: (STATE,),
    "GridVectors": ("Vector", "Momentum"),
    "SlicedCoulombVertex": ("AuxiliaryField", STATE, STATE),
    SLICED_ENERGIES: (STATE,),
}
"""The dimension types of objects with a fixed number of dimensions."""
_PARTS = {"DeltaIntegralsHH": "hh", "DeltaIntegralsPPHH": "pphh", "Mp2PairEnergies": "hh"}
"""The holes and particles of objects whose names do not end with them."""
_OF_STATES = frozenset({"Amplitudes", "CoulombIntegrals", "DeltaIntegrals", *_PARTS})
TYPES = frozenset({"AuxiliaryField", "Momentum", STATE, "Vector"})
"""The dimension types of the objects of cc4s."""

OBJECTS = {*_OF_STATES, *DIMENSIONS, "GroundStateDensity", "StructureFactors"}
"""Objects of cc4s. Its user manual names files after them."""

MAX_COMPONENTS = 1 << 10
"""Limit on the components of a TensorSet. Every component is a file."""

UNIT_TOLERANCE = 1e-4
"""Relative tolerance of units of energy. Programs use constants of different years."""


def get_object_types(name: str, rank: int) -> tuple[str, ...] | None:
    """Return the dimension types of an object of cc4s, or None if they are not known."""
    types = (STATE,) * rank if name in _OF_STATES else DIMENSIONS.get(name)
    return types if types is not None and len(types) == rank else None


def find_rank_conflict(name: str, rank: int) -> str | None:
    """Return how a number of dimensions differs from that of an object or component, or None."""
    cc4s_object, _, component = name.partition(".")
    is_part = cc4s_object in _OF_STATES and {*component} <= {*"hp"}
    types = (STATE,) * len(component) if is_part else DIMENSIONS.get(name, ())
    if not types or len(types) == rank:
        return None
    expected = f"{len(types)} ({', '.join(types)})"
    hint = "select one of several calculations, such as isel(geometry=0), or "
    hint = hint if rank > len(types) else "select states by a list, such as isel(State=[0]), or "
    return f"{rank} dimensions, but {name} of cc4s has {expected}; {hint}rename the file"


def find_type_conflict(name: str, types: Sequence[str | None]) -> str | None:
    """Return how the types of dimensions differ from those of an object, or None."""
    expected = get_object_types(name, len(types)) or ()
    if all(kind in (None, own) for kind, own in zip(types, expected, strict=False)):
        return None
    return f"the types {(*types,)}, but cc4s expects the types {expected} for {name}"


def find_unit_conflict(units: Mapping[str, float]) -> str | None:
    """Return how the units of two tensors of a calculation differ, or None. cc4s converts none."""
    energies = {
        name: unit ** (1 / ENERGY_POWERS[name.partition(".")[0]])
        for name, unit in units.items()
        if unit > 0 and name.partition(".")[0] in ENERGY_POWERS
    }
    for name, energy in energies.items():
        other, other_energy = next(iter(energies.items()))
        if not isclose(energy, other_energy, rel_tol=UNIT_TOLERANCE):
            return (
                f"{name} has the unit {units[name]}, that is energies in {energy:.6g} hartree, but "
                f"{other} has the unit {units[other]}, that is energies in {other_energy:.6g} "
                "hartree; cc4s converts no units, so write both in the same units"
            )
    return None


def find_fermi_conflict(cc4s_object: str, metadata: Mapping[Any, Any]) -> str | None:
    """Return why cc4s cannot count the occupied states of an object, or None."""
    fermi = metadata.get("fermiEnergy")
    is_number = isinstance(fermi, int | float | np.number) and not isinstance(fermi, bool)
    if is_number or cc4s_object != ENERGIES:
        return None
    hint = f"and {OCCUPIED!r} need a number; set it to the energy below which states are occupied"
    return f"the attribute fermiEnergy of {ENERGIES} is {fermi!r}, but cc4s {hint}"


def lists_energies(
    cc4s_object: str, shape: Sequence[int], types: Sequence[str | None], attrs: Mapping[Any, Any]
) -> bool:
    """Return whether ``metaData.energies`` of a real tensor repeats its elements."""
    is_named = cc4s_object in (ENERGIES, SLICED_ENERGIES) or "fermiEnergy" in attrs
    return is_named and "energies" in get_unit_keys(shape, types)


def get_variable_name(stem: str) -> str:
    """Return the name of a tensor: the object at the end of the stem, else the stem."""
    last = stem.rpartition("_")[2]
    return last if last in OBJECTS else stem


def get_elements_file(stem: str, component: str | None = None) -> str:
    """Return the name of the elements of ``<stem>.yaml``."""
    within = "" if component is None else f".components.{component}"
    return f"{stem}{within}{ELEMENTS}"


def get_stem(file: str) -> str:
    """Return the stem that the names of a YAML file and its elements share."""
    if file.casefold().endswith(ELEMENTS):
        return file[: -len(ELEMENTS)].partition(".components.")[0]
    return file[: -len(YAML)] if file.casefold().endswith(YAML) else file


def get_unit_keys(shape: Sequence[int], types: Sequence[str | None]) -> tuple[str, ...]:
    """Return the keys of ``metaData`` in the unit of a tensor: of energies, or grid vectors."""
    if len(shape) == 1 and types[0] not in TYPES - {STATE}:
        return "fermiEnergy", "energies"
    if len(shape) == 2 and shape[0] == 3 and types[0] not in TYPES - {"Vector"}:
        return "Gi", "Gj", "Gk"
    return ()


class Dimension(NamedTuple):
    """A dimension. ``<type>.yaml`` has its properties."""

    length: int
    type: str | None = None
    # "h" for holes, which are the occupied states, "p" for particles, or "".
    part: str = ""

    @classmethod
    def unpack(cls, fields: Fields) -> Self:
        """Check the fields."""
        length = fields.get("length", int)
        fields.check(length >= 0, "length", length, "0 or more")
        return cls(length, yaml_text.get_string(fields, "type") if "type" in fields else None)


Condition = tuple[list[tuple[str, int]], Integers]
"""Names of properties and their dimensions, and a row of property indices per non-zero block."""


def _unpack_condition(fields: Fields, rank: int) -> Condition:
    properties = []
    for item in yaml_text.get_mappings(fields, "properties"):
        dimension = item.get("dimension", int)
        item.check(0 <= dimension < rank, "dimension", dimension, f"0 to {rank - 1}")
        properties.append((yaml_text.get_string(item, "property"), dimension))
    rows, width = yaml_text.get_list(fields, "nonZeros"), len(properties)
    wrong = [row for row in rows if not isinstance(row, list) or len(row) != width][:1]
    expected = f"lists of {width}, one for each property"
    fields.check(not wrong, "nonZeros", shorten(repr(wrong)[1:-1]), expected)
    numbers = _to_integers(fields, "nonZeros", list(chain.from_iterable(rows)))
    return properties, numbers.reshape(len(rows), width)


def _to_integers(fields: Fields, key: str, values: Sequence[Any]) -> Integers:
    wrong = [value for value in values if type(value) is not int][:1]
    fields.check(not wrong, key, shorten(repr(wrong)[1:-1]), "integers of at most 64 bits")
    return np.array(values, dtype=np.int64)


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of a YAML file."""

    name: str
    # The key in a TensorSet, or None.
    component: str | None
    fields: Fields
    # The object that the YAML file is named after, and the name of the file of elements.
    cc4s_object: str
    elements_file: str
    element: Element
    # The first dimension varies fastest in the file.
    dimensions: tuple[Dimension, ...]
    elements: str
    # Factor from the values in the file to atomic units.
    unit: float
    # Free-form additions of programs.
    metadata: Mapping[str, Any]
    # The stored blocks; empty if all elements are stored.
    conditions: tuple[Condition, ...]
    # Names of the dimensions by their types, unique in the file.
    dims: tuple[str, ...] = ()

    @classmethod
    def unpack(cls, fields: Fields, stem: str, name: str) -> Self:
        """Check the fields of a tensor or a component. The stem is that of the YAML file."""
        check_version(fields)
        yaml_text.get_choice(fields, "type", (TENSOR,) if fields.prefix else (TENSOR, TENSOR_SET))
        listed = yaml_text.get_mappings(fields, "dimensions")
        expected, fits = f"at most {MAX_DIMENSIONS} dimensions", len(listed) <= MAX_DIMENSIONS
        fields.check(fits, "dimensions", len(listed), expected)
        items = yaml_text.get_mappings(fields.get_fields("nonZeroCondition", {"all": []}), "all")
        component = name if fields.prefix else None
        return cls(
            name,
            component,
            fields,
            get_variable_name(stem),
            get_elements_file(stem, component),
            SCALAR_TYPES[yaml_text.get_choice(fields, "scalarType", SCALAR_TYPES)],
            tuple(map(Dimension.unpack, listed)),
            yaml_text.get_choice(fields.get_fields("elements"), "type", (BINARY, TEXT)),
            yaml_text.get_number(fields, "unit"),
            get_metadata(fields),
            tuple(_unpack_condition(item, len(listed)) for item in items),
        )

    @property
    def types(self) -> tuple[str | None, ...]:
        """Types of the dimensions."""
        return tuple(dimension.type for dimension in self.dimensions)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the dimensions."""
        return tuple(dimension.length for dimension in self.dimensions)

    @property
    def energies(self) -> Array | None:
        """The list ``metaData.energies`` if it repeats the elements."""
        repeats = lists_energies(self.cc4s_object, self.lengths, self.types, self.metadata)
        listed = self.metadata.get("energies") if self.element.dtype.kind == "f" else None
        with suppress(TypeError, ValueError):  # not numbers
            return np.array(listed, np.float64) if repeats and isinstance(listed, list) else None
        return None

    @property
    def attrs(self) -> dict[str, Any]:
        """Attributes. A selection of the values would make the list of energies stale."""
        left_out = {EMBEDDED_KEY} if self.energies is None else {EMBEDDED_KEY, "energies"}
        attrs = {key: value for key, value in self.metadata.items() if key not in left_out}
        return attrs | {"unit": self.unit}


def check_version(fields: Fields) -> None:
    """Raise TensorFormatError for a version that cc4s cannot read."""
    version, elements = fields.values.get("version"), fields.values.get("elements")
    kind = elements.get("type") if isinstance(elements, dict) else None
    is_binary = kind == BINARY or fields.values.get("binary") in (1, True)
    is_complex = "complex" in str(fields.values.get("scalarType")).casefold()
    function = "fromfile" if is_binary else "fromregex" if is_complex else "loadtxt"
    hint = "another program or another version of cc4s wrote the file; read the numbers with "
    hint += f"numpy.{function}, and write them with to_file"
    if fields.values.keys().isdisjoint(("version", "type", "elements", "data")):
        hint = "the file describes no tensor; open the YAML file of a tensor of cc4s"
    fields.check(version == VERSION, "version", repr(version), str(VERSION), hint)


def get_metadata(fields: Fields) -> dict[str, Any]:
    """Return ``metaData``, or an empty dict if the key has no value."""
    return {} if fields.values.get("metaData") is None else fields.get("metaData", dict)


def parse_entries(fields: Fields, options: OpenOptions, stem: str) -> list[TensorEntry]:
    """Return the tensors that a YAML file describes. Its stem names the files of elements."""
    is_default = options.name == OpenOptions.name
    if fields.values.get("type") != TENSOR_SET:
        name = get_variable_name(stem) if is_default else options.name
        return [TensorEntry.unpack(fields, stem, name)]
    if "version" in fields:  # cc4s gives a set none
        check_version(fields)
    if not is_default:
        raise ValueError(
            f"{fields.path} contains variable names, so name={options.name!r} does not apply; "
            "omit it, or call ds.rename"
        )
    components = fields.get_fields("components")
    actual, fits = f"{len(components.values)} components", len(components.values) <= MAX_COMPONENTS
    components.check(fits, "", actual, f"at most {MAX_COMPONENTS}", "split the set")
    for name in components.values:
        components.check(is_file_name(name), name, repr(name), "a part of a file name")
    return [TensorEntry.unpack(components.get_fields(n), stem, n) for n in components.values]


Properties = dict[tuple[str | None, str], tuple[Integers, Mapping[str, Any]]]
"""An integer per index of a dimension, and attributes, by type and property. None is no type."""


def unpack_properties(fields: Fields, dimension_type: str) -> Properties:
    """Return the properties of all dimensions of a type, from ``<type>.yaml``."""
    check_version(fields)
    properties = fields.get_fields("properties", {})
    per_index = fields.get_fields("propertyIndices")
    unpacked: Properties = {}
    for name in per_index.values:
        array = _to_integers(per_index, name, yaml_text.get_list(per_index, name))
        unpacked[dimension_type, name] = array, {}
        if name not in properties:
            continue
        listed = yaml_text.get_list(properties, name)
        if array.size and not 0 <= array.min() <= array.max() < len(listed):
            actual = f"integers from {array.min()} to {array.max()}"
            expected = f"0 to {len(listed) - 1}, the numbers of its {len(listed)} values"
            raise per_index.error(name, actual, expected)
        if listed != list(range(array.max(initial=-1) + 1)):
            unpacked[dimension_type, name] = array, {"values": listed}
    yaml_text.get_string(fields, "dimensionType")
    return unpacked


def complete_dimensions(
    name: str, lengths: Sequence[int], types: Sequence[str | None]
) -> list[Dimension]:
    """Return the dimensions of a tensor, with types and parts by its name, such as ``X.ph``."""
    cc4s_object, _, component = name.partition(".")
    rank = len(lengths)
    expected: Sequence[str | None] = get_object_types(cc4s_object, rank) or (STATE,) * rank
    if not component:
        is_amplitudes = re.fullmatch(r"Amplitudes\d*", cc4s_object)
        component = {2: "ph", 4: "pphh"}.get(rank, "") if is_amplitudes else _PARTS.get(name, "")
    if not {*component} <= {*"hp"} or len(component) != expected.count(STATE):
        component, expected = "", get_object_types(cc4s_object, rank) or types
    rows = zip(lengths, types, expected, component.rjust(rank), strict=True)
    return [Dimension(size, of_file or own, part.strip()) for size, of_file, own, part in rows]


def make_dims_unique(tensors: Iterable[Sequence[Dimension]]) -> list[tuple[str, ...]]:
    """Name dimensions by type (``State``, ``State_2``), or by position. Equal ones share a name."""
    lengths: dict[str, int] = {}
    # Names by type, length and part, and the numbers of a type that are not used yet.
    names_by_type: dict[tuple[str, int, str], dict[str, None]] = defaultdict(dict)
    numbers: dict[str, Iterator[int]] = defaultdict(count)
    names_of_tensors = []
    for dimensions in tensors:
        names: list[str] = []
        for position, dimension in enumerate(dimensions):
            plain, length = dimension.type or f"dim_{position}", dimension.length
            known = names_by_type[plain, length, dimension.part]
            new = (f"{plain}_{number + 1}" if number else plain for number in numbers[plain])
            name = next(
                candidate
                for candidate in chain(known, new)
                if candidate not in names and lengths.setdefault(candidate, length) == length
            )
            known[name] = None
            names.append(name)
        names_of_tensors.append(tuple(names))
    return names_of_tensors
