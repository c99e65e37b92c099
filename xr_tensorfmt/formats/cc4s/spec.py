"""Names, types and units of cc4s: rules of files, and of the objects in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.contract import Element, Integers, Plain

YAML, ELEMENTS = ".yaml", ".elements"

VERSION = 100
"""The only version that cc4s reads."""

TENSOR, TENSOR_SET = "Tensor", "TensorSet"

SCALAR_TYPES: Mapping[str, Element] = {
    "Real64": Plain(np.dtype("<f8")),
    "Complex64": Plain(np.dtype("<c16")),  # 64 bits per part
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
"""Objects of cc4s. Its user manual names files after them."""

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


def get_object_types(name: str, rank: int) -> tuple[str, ...] | None:
    """Return the dimension types of an object of cc4s, or None if they are not known."""
    types = (STATE,) * rank if name in _OF_STATES else _DIMENSIONS.get(name)
    return types if types is not None and len(types) == rank else None


ENERGY_TOLERANCE = 1e-6
"""Relative tolerance of energies in metadata, which are often rounded."""


def find_wrong_energies(energies: Sequence[float], values: NDArray[Any]) -> Integers:
    """Return the indices of energies that differ from the values."""
    expected = np.asarray(energies, dtype=float)
    is_same = np.isclose(values, expected, rtol=ENERGY_TOLERANCE, atol=0, equal_nan=True)
    return np.flatnonzero(~is_same)


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
