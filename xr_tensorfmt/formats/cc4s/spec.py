"""Names, types and units of cc4s: rules of files, and of the objects in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Element, Plain

YAML, ELEMENTS = ".yaml", ".elements"

VERSION = 100
"""The only version that cc4s reads."""

TENSOR, TENSOR_SET = "Tensor", "TensorSet"

SCALAR_TYPES: Mapping[str, Element] = {
    "Real64": Plain(np.dtype("<f8")),
    "Complex64": Plain(np.dtype("<c16")),  # 64 bits per part
}

BINARY, TEXT = "IeeeBinaryFile", "TextFile"

METADATA_KEYS = frozenset({"energies", "fermiEnergy", "halfGrid"})
"""The words of cc4s in ``metaData``."""

KEYS = METADATA_KEYS | {
    *("components", "dimensions", "elements", "length", "metaData"),
    *("nonZeroCondition", "scalarType", "type", "unit", "version"),
}
"""Words of cc4s. Some programs search all lines of a YAML file for them."""

EMBEDDED = "xr_tensorfmt"
"""Key of the embedded metadata in ``metaData``."""

APPLIED_UNIT = "applied_unit"
"""The attribute with the factor that ``apply_unit=True`` has multiplied the values by."""

STATE = "State"
OCCUPIED = "occupied"
"""The coordinate of states whose energies are below ``fermiEnergy``."""

STATE_NUMBER = {"long_name": "number of the state in the opened calculation"}
"""Attributes of the coordinates that `open_calculation` adds, and that are not written."""

ENERGIES, SLICED_ENERGIES, VERTEX = "EigenEnergies", "SlicedEigenEnergies", "CoulombVertex"

ENERGY_POWERS: Mapping[str, float] = {
    **dict.fromkeys((VERTEX, "SlicedCoulombVertex"), 1 / 2),
    **dict.fromkeys(("CoulombIntegrals", ENERGIES, "Mp2PairEnergies", SLICED_ENERGIES), 1),
}
"""Objects whose unit is a power of the unit of energies."""

COMPARED = (
    *(VERTEX, ENERGIES, "CoulombVertexSingularVectors"),
    *("CoulombPotential", "GridVectors"),
)
"""Objects that have all indices of their dimensions, in the same numbers."""

COMPARED_TYPES = {STATE: "states", "AuxiliaryField": "auxiliary fields", "Momentum": "momenta"}
"""The indices of a dimension type, in the plural."""

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
_OF_STATES = frozenset(
    {"Amplitudes", "CoulombIntegrals", "DeltaIntegrals", "DeltaIntegralsHH", "DeltaIntegralsPPHH"}
)
TYPES = frozenset({"AuxiliaryField", "Momentum", STATE, "Vector"})
"""The dimension types of the objects of cc4s."""

OBJECTS = _OF_STATES | {
    *DIMENSIONS,
    *("GroundStateDensity", "Mp2PairEnergies", "StructureFactors"),
}
"""Objects of cc4s. Its user manual names files after them."""


def get_object_types(name: str, rank: int) -> tuple[str, ...] | None:
    """Return the dimension types of an object of cc4s, or None if they are not known."""
    types = (STATE,) * rank if name in _OF_STATES else DIMENSIONS.get(name)
    return types if types is not None and len(types) == rank else None


UNIT_TOLERANCE = 1e-4
"""Relative tolerance of units of energy. Programs use constants of different years."""


def find_unit_conflict(units: Mapping[str, float]) -> str | None:
    """Return how the units of two tensors of a calculation differ, or None. cc4s converts none."""
    energies = [
        (name, unit, unit ** (1 / power))
        for name, unit in units.items()
        if (power := ENERGY_POWERS.get(name.partition(".")[0])) and unit > 0
    ]
    for name, unit, energy in energies[1:]:
        other, other_unit, other_energy = energies[0]
        if not isclose(energy, other_energy, rel_tol=UNIT_TOLERANCE):
            return (
                f"{name} has the unit {unit}, that is energies in {energy:.6g} hartree, but "
                f"{other} has the unit {other_unit}, that is energies in {other_energy:.6g} "
                "hartree; cc4s converts no units, so write both in the same units"
            )
    return None


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
