"""Write cc4s tensors: the elements first, then the YAML file."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any, Literal

import numpy as np
from xarray import Variable

from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Element
from xr_tensorfmt.core.embedded_metadata import EmbeddedMetadata, EmbeddedVariable
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.core.source import is_file_name
from xr_tensorfmt.core.views import column_major
from xr_tensorfmt.errors import (
    Hint,
    TensorFormatError,
    TensorFormatWarning,
    find_stack_level,
    with_hint,
)
from xr_tensorfmt.formats.cc4s.header import MAX_COMPONENTS, Dimension, TensorHeader
from xr_tensorfmt.formats.cc4s.spec import (
    BINARY,
    EMBEDDED,
    ENERGIES,
    OCCUPIED,
    SCALAR_TYPES,
    TENSOR_SET,
    TEXT,
    YAML,
    get_elements_file,
    get_stem,
    get_variable_name,
    lists_energies,
)
from xr_tensorfmt.formats.cc4s.text import TextLine
from xr_tensorfmt.formats.cc4s.variables import ENTRY
from xr_tensorfmt.formats.cc4s.write_dimensions import DimensionNames, check_types, get_file_info
from xr_tensorfmt.formats.cc4s.write_properties import plan_file, plan_properties
from xr_tensorfmt.formats.cc4s.yaml_output import format_yaml, is_portable, simplify
from xr_tensorfmt.formats.cc4s.yaml_text import parse_fields
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.embedded_metadata import embed_coordinates, encode_attrs, encode_metadata
from xr_tensorfmt.writing.file_plan import FilePlan, PlannedVariable, SiblingFile
from xr_tensorfmt.writing.write_target import Piece

MAX_SHORT = 1 << 14
"""Limit on the elements of a real vector that is written as text by default."""

MAX_WRITTEN_DIMENSIONS = 10
"""Limit on dimensions. cc4s sorts their numbers as text."""

_ELEMENTS = {element.name: element for element in SCALAR_TYPES.values()}
_SCALAR_TYPE_BY_ELEMENT = {element.name: name for name, element in SCALAR_TYPES.items()}


@dataclass(frozen=True)
class Target:
    """The file to write."""

    cc4s_object: str
    is_set: bool
    elements: Literal["text", "binary"] | None

    @property
    def native_name(self) -> str | None:
        """The name of the variable without embedded metadata."""
        return None if self.is_set else self.cc4s_object

    def is_text(self, variable: Variable, element: Element) -> bool:
        """Return whether elements are text, which all programs read."""
        if self.elements is not None:
            return self.elements == "text"
        is_short = variable.size <= MAX_SHORT or self.cc4s_object == ENERGIES
        is_vector = variable.ndim == 1 and element.dtype.kind == "f"
        return (is_vector and is_short) or get_file_info(variable).get("elements") == TEXT


@dataclass(frozen=True, eq=False)
class TensorToWrite:
    """A variable as YAML, embedded metadata and the plan of its elements."""

    name: str
    header: TensorHeader
    embedded: EmbeddedVariable
    elements: FilePlan


def plan(checked: CheckedInput, elements: Literal["text", "binary"] | None = None) -> FilePlan:
    """Plan the YAML file and its sibling files."""
    stem = _get_stem(checked)
    checked = checked.encode(_ELEMENTS)
    is_set = _is_set(checked)
    target = Target(get_variable_name(stem), is_set, elements)
    names = DimensionNames.plan(checked.variables, target.cc4s_object)
    for name, variable in checked.variables.items():
        check_types(checked.path, target.cc4s_object, name, variable, names.types)
    tensors = [
        _build_tensor(checked, name, variable, names, target)
        for name, variable in checked.variables.items()
    ]
    if not is_set:
        checked = _remove_occupied(checked, tensors[0])
    properties, others = plan_properties(checked, names)
    native_name = target.native_name
    embedded = EmbeddedMetadata(
        tensors=_encode_embedded(tensors, native_name),
        coordinates=embed_coordinates(checked, others),
        attrs=encode_attrs(checked, checked.attrs, "the Dataset"),
    )
    metadata = "" if embedded.is_empty else encode_metadata(checked, embedded).decode()
    content = format_yaml(_pack(tensors, metadata, is_set=is_set))
    parse_fields(checked.path, content)  # raises an error if the reader would
    element_files = [
        SiblingFile(get_elements_file(stem, tensor.name if is_set else None), tensor.elements)
        for tensor in tensors
    ]
    properties_files = [plan_file(checked.path, item) for item in properties]
    written = [file.name for file in element_files]
    if any(file.name == checked.file_name for file in properties_files):
        raise ValueError(
            f"{checked.path}: this file would hold the coordinates of the dimension "
            f"{target.cc4s_object!r}; choose another name for the tensor"
        )
    return FilePlan(
        len(content),
        (Piece(0, content),),
        (),
        (*element_files, *properties_files),
        find_orphans=partial(_find_orphans, checked, stem, written),
    )


def _find_orphans(
    checked: CheckedInput, stem: str, written: Collection[str], replaced: bytes
) -> list[str]:
    """Return the files of elements that only the replaced YAML file describes.

    Raise ValueError if the unit of the replaced file is lost.
    """
    try:
        fields = parse_fields(checked.path, replaced)
        is_set = fields.values.get("type") == TENSOR_SET
        keys = map(str, fields.get_fields("components").values) if is_set else (None,)
    except TensorFormatError:  # another program wrote the file
        return []
    if not is_set and len(checked.variables) == 1:
        ((name, variable),) = checked.variables.items()
        unit = fields.values.get("unit")
        if "unit" not in variable.attrs and isinstance(unit, int | float) and unit != 1:
            raise ValueError(
                f"{checked.path}: {name!r} has no attribute 'unit', which means 1.0, but the file "
                f"that it would replace has the unit {unit}; set the attribute to the unit of the "
                "values"
            )
    described = [get_elements_file(stem, key) for key in keys if key is None or is_file_name(key)]
    # Some file systems do not distinguish upper and lower case.
    kept = {name.casefold() for name in written}
    return [name for name in described if name.casefold() not in kept]


def _get_stem(checked: CheckedInput) -> str:
    path, file = checked.path, checked.file_name
    stem = get_stem(file)
    if not file.casefold().endswith(YAML) or not stem:
        raise ValueError(
            f"{path}: the path of a cc4s tensor is that of its YAML file; end it with {YAML}"
        )
    return stem


def _is_set(checked: CheckedInput) -> bool:
    """Return whether to write a TensorSet: for several variables, or for a component."""
    names = list(checked.variables)
    if not names:
        raise ValueError(f"{checked.path}: there is no variable to write; add one")
    if len(names) > MAX_COMPONENTS:
        raise ValueError(
            f"{checked.path}: a TensorSet has at most {MAX_COMPONENTS} components, "
            f"not {len(names)}; write several files"
        )
    file_infos = [get_file_info(variable) for variable in checked.variables.values()]
    is_set = len(names) > 1 or "component" in file_infos[0]
    for name in names:
        if is_set and not is_file_name(name):
            raise ValueError(
                f"{checked.path}: {name!r} cannot be a part of the name of a file of elements; "
                "rename it"
            )
    folded = [name.casefold() for name in names]
    repeated = next((name for name in names if folded.count(name.casefold()) > 1), None)
    if repeated is not None:
        raise ValueError(
            f"{checked.path}: {repeated!r} differs from another variable only by case, "
            "and some file systems ignore case; rename it"
        )
    return is_set


def _build_tensor(
    checked: CheckedInput,
    name: str,
    variable: Variable,
    names: DimensionNames,
    target: Target,
) -> TensorToWrite:
    if get_file_info(variable).get("storage") == "blocks" and variable.dims == (ENTRY,):
        hint = Hint("open it with {sparse} to write all of it", sparse="dense")
        message = f"{checked.path}: {name!r} has only the stored elements of a tensor of blocks"
        raise with_hint(ValueError(f"{message}; {hint}"), hint)
    if variable.ndim > MAX_WRITTEN_DIMENSIONS:
        raise ValueError(
            f"{checked.path}: {name!r} has {variable.ndim} dimensions, but cc4s exchanges the "
            f"dimensions of tensors with more than {MAX_WRITTEN_DIMENSIONS}; stack some of them"
        )
    conversion = checked.choose_conversion(name, variable, _ELEMENTS)
    dims = tuple(map(str, variable.dims))
    types = tuple(names.types[dim] for dim in dims)
    unit = _get_unit(checked, name, variable)
    metadata, noted = _split_attrs(checked, name, variable, target.cc4s_object, types)
    is_text = target.is_text(variable, conversion.element)
    header = TensorHeader(
        _SCALAR_TYPE_BY_ELEMENT[conversion.element.name],
        tuple(map(Dimension, variable.shape, types)),
        TEXT if is_text else BINARY,
        unit,
        metadata,
    )
    element = TextLine(header.element) if is_text else header.element
    layout = column_major(Dense(variable.shape[::-1], element, 0))
    size = header.total * element.stored.itemsize
    elements = FilePlan(size, (), (PlannedVariable(variable, layout, conversion),))
    # Without embedded dims, a variable with the name of the file may not have such a dimension.
    has_default_dims = dims == names.defaults[name] and target.native_name not in dims
    embedded = EmbeddedVariable(dims=None if has_default_dims else dims, attrs=noted or None)
    return TensorToWrite(name, header, embedded, elements)


def _split_attrs(
    checked: CheckedInput,
    name: str,
    variable: Variable,
    cc4s_object: str,
    types: Sequence[str | None],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return ``metaData``, and the attributes that it cannot hold."""
    attrs, energies = dict(variable.attrs), None
    is_real = variable.dtype.kind in "fiu"
    if is_real and lists_energies(cc4s_object, variable.shape, types, attrs):
        energies = variable.values.astype(np.float64).tolist()
        if isinstance(attrs.get("energies", []), list | tuple | np.ndarray):
            attrs.pop("energies", None)
    encoded = encode_attrs(checked, attrs, repr(name))
    unit = encoded.pop("unit", None)
    plain = {key: simplify(value) for key, value in encoded.items()}
    metadata = {key: value for key, value in plain.items() if is_portable(value)}
    # `==` would take True for 1.
    noted = {
        key: value
        for key, value in encoded.items()
        if key not in metadata or _format_json(value) != _format_json(metadata[key])
    }
    if not isinstance(unit, int | float):  # absent, or of a type of numpy
        noted["unit"] = unit
    if energies is not None and "energies" not in attrs and is_portable(energies):
        metadata["energies"] = energies
    return metadata, noted


def _format_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _remove_occupied(checked: CheckedInput, tensor: TensorToWrite) -> CheckedInput:
    """Remove the coordinate that the reader derives, and warn if it would change."""
    variable = checked.variables[tensor.name]
    energies, fermi = (tensor.header.metadata.get(key) for key in ("energies", "fermiEnergy"))
    coordinate = checked.coordinates.get(OCCUPIED)
    is_number = isinstance(fermi, int | float)
    if coordinate is None or energies is None or not is_number or not _is_mask(coordinate):
        return checked
    if coordinate.dims != variable.dims:
        return checked
    before = np.count_nonzero(coordinate.values)
    after = sum(energy < fermi for energy in energies)
    if before != after:
        message = (
            f"{checked.path}: {before} states are occupied by the coordinate {OCCUPIED!r}, but "
            f"{after} energies of {tensor.name!r} are below its attribute fermiEnergy={fermi}, "
            "which is what cc4s counts; shift fermiEnergy with the energies"
        )
        warnings.warn(message, TensorFormatWarning, stacklevel=find_stack_level())
    coordinates = {key: item for key, item in checked.coordinates.items() if key != OCCUPIED}
    return replace(checked, coordinates=coordinates)


def _is_mask(coordinate: Variable) -> bool:
    """Return whether a coordinate is Boolean, possibly encoded by xarray."""
    return coordinate.dtype.kind == "b" or coordinate.attrs.get("dtype") == "bool"


def _get_unit(checked: CheckedInput, name: str, variable: Variable) -> float:
    unit = variable.attrs.get("unit", 1.0)
    if isinstance(unit, bool) or not isinstance(unit, Real) or not np.isfinite(float(unit)):
        raise ValueError(
            f"{checked.path}: the attribute 'unit' of {name!r} is {unit!r}, but cc4s stores "
            "the factor to atomic units there; make it a number, or rename it"
        )
    return float(unit)


def _encode_embedded(
    tensors: Sequence[TensorToWrite], native_name: str | None
) -> dict[str, EmbeddedVariable]:
    """Return embedded metadata by variable. The only tensor of a file has the default name."""
    embedded = {tensor.name: tensor.embedded for tensor in tensors}
    if native_name is not None:
        ((name, variable),) = embedded.items()
        clashes = native_name in (variable.dims or ())
        is_default = name in (native_name, OpenOptions.name) and not clashes
        embedded = {OpenOptions.name: replace(variable, name=None if is_default else name)}
    return {name: tensor for name, tensor in embedded.items() if tensor != EmbeddedVariable()}


def _pack(tensors: Sequence[TensorToWrite], embedded: str, *, is_set: bool) -> dict[str, Any]:
    """Return the fields of a TensorSet, or of a Tensor."""
    metadata = {EMBEDDED: embedded} if embedded else {}
    if not is_set:
        header = tensors[0].header
        return replace(header, metadata={**header.metadata, **metadata}).pack()
    components = {tensor.name: tensor.header.pack() for tensor in tensors}
    fields = {"type": TENSOR_SET, "components": components}
    return fields | ({"metaData": metadata} if metadata else {})
