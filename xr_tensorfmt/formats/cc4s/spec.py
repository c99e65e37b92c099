"""What the YAML files say of a tensor and of the properties of its dimensions.

The keys are those of ``TensorIo.cxx`` of cc4s and of its user manual.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.contract import MAX_DIMENSIONS, Element, Integers, Plain, shorten
from xr_tensorfmt.formats.cc4s.yaml_text import Fields

YAML, ELEMENTS = ".yaml", ".elements"


VERSION = 100
"""The only version that cc4s reads."""

TENSOR, TENSOR_SET = "Tensor", "TensorSet"

SCALAR_TYPES: Mapping[str, Element] = {
    "Real64": Plain(np.dtype("<f8")),
    "Complex64": Plain(np.dtype("<c16")),  # 64 bits for each of the two parts
}

BINARY, TEXT = "IeeeBinaryFile", "TextFile"

EMBEDDED = "xr_tensorfmt"
"""Key of the embedded metadata in ``metaData``."""

OBJECTS = frozenset(
    {
        "Amplitudes",
        "CoulombIntegrals",
        "CoulombPotential",
        "CoulombVertex",
        "CoulombVertexSingularVectors",
        "DeltaIntegrals",
        "DeltaIntegralsHH",
        "DeltaIntegralsPPHH",
        "EigenEnergies",
        "GridVectors",
        "GroundStateDensity",
        "Mp2PairEnergies",
        "SlicedCoulombVertex",
        "SlicedEigenEnergies",
        "StructureFactors",
    }
)
"""Objects of the user manual of cc4s, by which files are named."""


STATE = "State"

_DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "CoulombPotential": ("Momentum",),
    "CoulombVertex": ("AuxiliaryField", STATE, STATE),
    "CoulombVertexSingularVectors": ("Momentum", "AuxiliaryField"),
    "EigenEnergies": (STATE,),
    "GridVectors": ("Vector", "Momentum"),
    "SlicedCoulombVertex": ("AuxiliaryField", STATE, STATE),
    "SlicedEigenEnergies": (STATE,),
}
_OF_STATES = frozenset(
    {"Amplitudes", "CoulombIntegrals", "DeltaIntegrals", "DeltaIntegralsHH", "DeltaIntegralsPPHH"}
)
TYPES = frozenset({"AuxiliaryField", "Momentum", STATE, "Vector"})
"""The dimension types of the objects of cc4s."""


def object_types(name: str, rank: int) -> tuple[str, ...] | None:
    """Return the dimension types of an object of cc4s, or None if they are not known."""
    types = (STATE,) * rank if name in _OF_STATES else _DIMENSIONS.get(name)
    return types if types is not None and len(types) == rank else None


def count_states(energies: Iterable[float], fermi_energy: float) -> tuple[int, int]:
    """Return the numbers of occupied and virtual states by the rule of cc4s."""
    occupied = [energy < fermi_energy for energy in energies]
    return sum(occupied), len(occupied) - sum(occupied)


ENERGY_TOLERANCE = 1e-6
"""Relative difference by which energies in metadata, often rounded, may differ from elements."""


def find_wrong_energies(energies: Sequence[float], values: NDArray[Any]) -> Integers:
    """Return the numbers of energies that differ from the values that they repeat."""
    expected = np.asarray(energies, dtype=float)
    is_same = np.isclose(values, expected, rtol=ENERGY_TOLERANCE, atol=0, equal_nan=True)
    return np.flatnonzero(~is_same)


def variable_name(stem: str) -> str:
    """The name of the tensor of a file: the object that its name ends with, or all of the name."""
    last = stem.rpartition("_")[2]
    return last if last in OBJECTS else stem


def elements_file(stem: str, component: str | None = None) -> str:
    """Name of the file of elements beside ``<stem>.yaml``."""
    within = "" if component is None else f".components.{component}"
    return f"{stem}{within}{ELEMENTS}"


def stem_of(file: str) -> str:
    """What the names of the files of a tensor begin with, from the name of one of them."""
    if file.casefold().endswith(ELEMENTS):
        return file[: -len(ELEMENTS)].partition(".components.")[0]
    return file[: -len(YAML)] if file.casefold().endswith(YAML) else file


@dataclass(frozen=True)
class Dimension:
    """A dimension; `type` says which file has its properties."""

    length: int
    type: str | None = None

    @classmethod
    def unpack(cls, fields: Fields) -> Self:
        """Check the fields."""
        length = fields.integer("length")
        if length < 0:
            raise fields.error("length", length, "0 or more", "correct the file")
        return cls(length, fields.string("type") if "type" in fields else None)

    def pack(self) -> dict[str, Any]:
        """The fields."""
        return {"length": self.length} | ({} if self.type is None else {"type": self.type})


@dataclass(frozen=True, eq=False)
class Condition:
    """Blocks that are not zero: for some dimensions the index of a property of each."""

    # Names of properties, and the dimensions of which they are.
    properties: tuple[tuple[str, int], ...]
    # A row for each block, with an index for each of the properties.
    non_zeros: Integers
    # Whether it has a name, which cc4s requires.
    is_named: bool = True

    @classmethod
    def unpack(cls, fields: Fields, rank: int) -> Self:
        """Check the fields."""
        properties = []
        for each in fields.mappings("properties"):
            dimension = each.integer("dimension")
            if not 0 <= dimension < rank:
                raise each.error("dimension", dimension, f"0 to {rank - 1}", "correct the file")
            properties.append((each.string("property"), dimension))
        rows = fields.sequence("nonZeros")
        count = len(properties)
        wrong = next((row for row in rows if not isinstance(row, list) or len(row) != count), None)
        if wrong is not None or None in rows:
            expected = f"lists of {count}, one for each of the properties"
            raise fields.error("nonZeros", shorten(repr(wrong)), expected, "correct the file")
        numbers = _integers(fields, "nonZeros", list(chain.from_iterable(rows)))
        is_named = "name" in fields
        return cls(tuple(properties), numbers.reshape(len(rows), count), is_named)


def _integers(fields: Fields, key: str, values: Sequence[Any]) -> Integers:
    """A list of integers as an array."""
    if set(map(type, values)) - {int}:
        found = shorten(repr(next(each for each in values if type(each) is not int)))
        raise fields.error(key, found, "integers of at most 64 bits", "correct the file")
    return np.array(values, dtype=np.int64)


@dataclass(frozen=True)
class TensorHeader:
    """What the YAML says of one tensor."""

    scalar_type: str
    # In the order of the indices, of which the first varies fastest in the file.
    dimensions: tuple[Dimension, ...]
    elements: str
    # Factor from the values in the file to atomic units.
    unit: float
    # What programs add, without rules.
    metadata: Mapping[str, Any] = field(default_factory=dict)
    # Which blocks the file has; empty where it has all elements.
    conditions: tuple[Condition, ...] = ()

    @classmethod
    def unpack(cls, fields: Fields) -> Self:
        """Check the fields."""
        check_version(fields)
        fields.choice("type", (TENSOR,))
        rank = len(fields.sequence("dimensions"))
        if rank > MAX_DIMENSIONS:
            expected = f"at most {MAX_DIMENSIONS} dimensions"
            raise fields.error("dimensions", rank, expected, "the file is damaged")
        dimensions = tuple(map(Dimension.unpack, fields.mappings("dimensions")))
        conditions: tuple[Condition, ...] = ()
        if "nonZeroCondition" in fields:
            every = fields.mapping("nonZeroCondition").mappings("all")
            conditions = tuple(Condition.unpack(each, len(dimensions)) for each in every)
        return cls(
            fields.choice("scalarType", SCALAR_TYPES),
            dimensions,
            fields.mapping("elements").choice("type", (BINARY, TEXT)),
            fields.number("unit"),
            metadata_of(fields),
            conditions,
        )

    def pack(self) -> dict[str, Any]:
        """The fields, of a tensor all of whose elements are stored."""
        fields = {
            "version": VERSION,
            "type": TENSOR,
            "scalarType": self.scalar_type,
            "dimensions": [each.pack() for each in self.dimensions],
            "elements": {"type": self.elements},
            "unit": self.unit,
        }
        return fields | ({"metaData": dict(self.metadata)} if self.metadata else {})

    @property
    def has_stale_energies(self) -> bool:
        """Whether ``metaData.energies`` has another length than the tensor that it repeats."""
        energies = self.metadata.get("energies")
        if not isinstance(energies, list) or len(self.dimensions) != 1:
            return False
        return len(energies) != self.total

    @property
    def element(self) -> Element:
        """What a stored number is."""
        return SCALAR_TYPES[self.scalar_type]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the dimensions."""
        return tuple(each.length for each in self.dimensions)

    @property
    def total(self) -> int:
        """Number of elements of the tensor."""
        return prod(self.lengths)


def check_version(fields: Fields) -> None:
    """Refuse what cc4s does."""
    version = fields.values.get("version")
    if version == "v1.0":
        hint = (
            "cc4s wrote this form in 2020 and 2021; read the numbers of its data file by "
            "numpy.fromfile, reshape them with order='F', and write them by to_cc4s"
        )
        raise fields.error("version", repr(version), str(VERSION), hint)
    if version != VERSION:
        hint = "the file is of another program, or of another version of cc4s"
        raise fields.error("version", repr(version), str(VERSION), hint)


def metadata_of(fields: Fields) -> dict[str, Any]:
    """What programs have added; nothing where the key has no value."""
    return fields.plain("metaData") if fields.values.get("metaData") is not None else {}


@dataclass(frozen=True, eq=False)
class Properties:
    """The properties of all dimensions of a type, from ``<type>.yaml``."""

    dimension_type: str
    # For each property an integer for each index of the dimension.
    indices: Mapping[str, Integers]
    # For each property what the integers stand for; missing where they stand for themselves.
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    # The file that they were read from.
    path: str = ""

    @classmethod
    def unpack(cls, fields: Fields) -> Self:
        """Check the fields."""
        check_version(fields)
        properties = fields.mapping("properties") if "properties" in fields else None
        per_index = fields.mapping("propertyIndices")
        indices, values = {}, {}
        for name in per_index.values:
            rows = per_index.sequence(name)
            indices[str(name)] = array = _integers(per_index, name, rows)
            known = properties.sequence(name) if properties and name in properties else None
            if known is None:
                continue
            if array.size and not 0 <= array.min() <= array.max() < len(known):
                found = f"integers from {array.min()} to {array.max()}"
                expected = f"0 to {len(known) - 1}, as the property has {len(known)} values"
                raise per_index.error(name, found, expected, "correct the file")
            if known != list(range(int(array.max(initial=-1)) + 1)):
                values[str(name)] = known
        return cls(fields.string("dimensionType"), indices, values, fields.path)

    def pack(self) -> dict[str, Any]:
        """The fields."""
        values = {
            name: list(self.values.get(name, range(int(array.max(initial=-1)) + 1)))
            for name, array in self.indices.items()
        }
        return {
            "version": VERSION,
            "dimensionType": self.dimension_type,
            "properties": values,
            "propertyIndices": {name: array.tolist() for name, array in self.indices.items()},
        }


def get_unit_keys(shape: Sequence[int], types: Sequence[str | None]) -> tuple[str, ...]:
    """Return the keys of ``metaData`` whose numbers are in the unit of a tensor.

    These are the energies of eigenenergies, which have one dimension of states, and the reciprocal
    lattice of grid vectors, which have three components. On other tensors these keys have a unit
    of their own.
    """
    if len(shape) == 1 and types[0] not in TYPES - {STATE}:
        return "fermiEnergy", "energies"
    if len(shape) == 2 and shape[0] == 3 and types[0] not in TYPES - {"Vector"}:
        return "Gi", "Gj", "Gk"
    return ()


def apply_unit(metadata: Mapping[str, Any], keys: Collection[str], unit: float) -> dict[str, Any]:
    """Convert the metadata of some keys to atomic units."""
    return {
        key: _multiply(value, unit) if key in keys else value for key, value in metadata.items()
    }


def _multiply(value: Any, factor: float) -> Any:
    if isinstance(value, list):
        return [_multiply(item, factor) for item in value]
    if isinstance(value, np.ndarray | np.number | int | float) and not isinstance(value, bool):
        return value * factor
    return value


def unique_dims(tensors: Iterable[Sequence[Dimension]]) -> list[tuple[str, ...]]:
    """Names for the dimensions of all tensors of a file: their types, or else their positions.

    A type that repeats gets a number (``State``, ``State_2``). Tensors share a name where they have
    the same length there.
    """
    lengths: dict[str, int] = {}
    # The names of each type and length, and the largest number of a type: there may be many.
    known: dict[tuple[str, int], list[str]] = {}
    numbers: dict[str, int] = {}
    every = []
    for dimensions in tensors:
        names: list[str] = []
        for position, dimension in enumerate(dimensions):
            plain, length = dimension.type or f"dim_{position}", dimension.length
            candidates = known.setdefault((plain, length), [])
            name = next((each for each in candidates if each not in names), "")
            while not name:
                number = numbers[plain] = numbers.get(plain, 0) + 1
                name = plain if number == 1 else f"{plain}_{number}"
                if name in names or lengths.get(name, length) != length:
                    name = ""
                    continue
                candidates.append(name)
            lengths[name] = length
            names.append(name)
        every.append(tuple(names))
    return every
