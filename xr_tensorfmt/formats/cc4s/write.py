"""Write cc4s tensors: the elements first, then the YAML file."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
from xarray import Variable

from xr_tensorfmt.contract import (
    DTYPE_TAG,
    CheckedInput,
    Dense,
    EmbeddedMetadata,
    EmbeddedVariable,
    FilePlan,
    Hint,
    OpenOptions,
    Piece,
    PlannedVariable,
    SiblingFile,
    TensorFormatError,
    array_from_json,
    column_major,
    embed_coordinates,
    encode_attrs,
    encode_metadata,
    is_file_name,
    with_hint,
)
from xr_tensorfmt.formats.cc4s.header import MAX_COMPONENTS, Dimension, TensorHeader
from xr_tensorfmt.formats.cc4s.spec import (
    BINARY,
    EMBEDDED,
    SCALAR_TYPES,
    TENSOR_SET,
    YAML,
    find_wrong_energies,
    get_elements_file,
    get_stem,
    get_variable_name,
)
from xr_tensorfmt.formats.cc4s.variables import ENTRY
from xr_tensorfmt.formats.cc4s.write_dimensions import DimensionNames, check_types, get_file_info
from xr_tensorfmt.formats.cc4s.write_properties import plan_file, plan_properties
from xr_tensorfmt.formats.cc4s.yaml_output import format_yaml, is_portable
from xr_tensorfmt.formats.cc4s.yaml_text import Fields

_ELEMENTS = {element.name: element for element in SCALAR_TYPES.values()}
_SCALAR_TYPE_BY_ELEMENT = {element.name: name for name, element in SCALAR_TYPES.items()}


@dataclass(frozen=True, eq=False)
class TensorToWrite:
    """A variable as YAML, embedded metadata and the plan of its elements."""

    name: str
    header: TensorHeader
    embedded: EmbeddedVariable
    elements: FilePlan


def plan(checked: CheckedInput) -> FilePlan:
    """Plan the YAML file and its sibling files."""
    stem = _get_stem(checked)
    checked = checked.encode(_ELEMENTS)
    is_set = _is_set(checked)
    names = DimensionNames.plan(checked.variables)
    for name, variable in checked.variables.items():
        check_types(checked.path, get_variable_name(stem), name, variable, names.types)
    properties, others = plan_properties(checked, names)
    native_name = None if is_set else get_variable_name(stem)
    tensors = [
        _build_tensor(checked, name, variable, names, native_name)
        for name, variable in checked.variables.items()
    ]
    embedded = EmbeddedMetadata(
        tensors=_encode_embedded(tensors, native_name),
        coordinates=embed_coordinates(checked, others),
        attrs=encode_attrs(checked, checked.attrs, "the Dataset"),
    )
    metadata = "" if embedded.is_empty else encode_metadata(checked, embedded).decode()
    content = format_yaml(_pack(tensors, metadata, is_set=is_set))
    Fields.parse(checked.path, content)  # raises an error if the reader would
    elements = [
        SiblingFile(get_elements_file(stem, tensor.name if is_set else None), tensor.elements)
        for tensor in tensors
    ]
    properties_files = [plan_file(checked.path, item) for item in properties]
    written = [file.name for file in elements]
    if any(file.name == checked.file_name for file in properties_files):
        raise ValueError(
            f"{checked.path}: this file would hold the coordinates of the dimension "
            f"{get_variable_name(stem)!r}; choose another name for the tensor"
        )
    return FilePlan(
        len(content),
        (Piece(0, content),),
        (),
        (*elements, *properties_files),
        find_orphans=partial(_find_orphans, checked.path, stem, written),
    )


def _find_orphans(path: str, stem: str, written: Collection[str], replaced: bytes) -> list[str]:
    """Return the files of elements that only the replaced YAML file describes."""
    try:
        fields = Fields.parse(path, replaced)
        is_set = fields.values.get("type") == TENSOR_SET
        keys = map(str, fields.mapping("components").values) if is_set else (None,)
    except TensorFormatError:  # another program wrote the file
        return []
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
    native_name: str | None,
) -> TensorToWrite:
    if get_file_info(variable).get("storage") == "blocks" and variable.dims == (ENTRY,):
        hint = Hint("open it with {sparse} to write all of it", sparse="dense")
        message = f"{checked.path}: {name!r} has only the stored elements of a tensor of blocks"
        raise with_hint(ValueError(f"{message}; {hint}"), hint)
    checked.check_rank(name, variable)
    conversion = checked.choose_conversion(name, variable, _ELEMENTS)
    dims = tuple(map(str, variable.dims))
    attrs = encode_attrs(checked, _update_energies(variable), repr(name))
    unit = _get_unit(checked, name, variable)
    others = {key: value for key, value in attrs.items() if key != "unit"}
    plain = {key: _simplify(value) for key, value in others.items()}
    metadata = {key: value for key, value in plain.items() if is_portable(value)}
    header = TensorHeader(
        _SCALAR_TYPE_BY_ELEMENT[conversion.element.name],
        tuple(map(Dimension, variable.shape, map(names.types.__getitem__, dims))),
        BINARY,
        unit,
        metadata,
    )
    # `==` would take True for 1.
    is_restored = attrs.get("unit") == unit and _format_json(metadata) == _format_json(others)
    layout = column_major(Dense(variable.shape[::-1], header.element, 0))
    size = header.total * header.element.stored.itemsize
    elements = FilePlan(size, (), (PlannedVariable(variable, layout, conversion),))
    # Without embedded dims, a variable with the name of the file may not have such a dimension.
    has_default_dims = dims == names.defaults[name] and native_name not in dims
    embedded = EmbeddedVariable(
        dims=None if has_default_dims else dims, attrs=None if is_restored else attrs
    )
    return TensorToWrite(name, header, embedded, elements)


def _update_energies(variable: Variable) -> Mapping[Any, Any]:
    """Return attributes without stale energies, because cc4s counts occupied states by them."""
    attrs = variable.attrs
    energies: Any = attrs.get("energies")
    is_list = isinstance(energies, list | tuple | np.ndarray)
    if not is_list or variable.ndim != 1 or variable.dtype.kind not in "fiu":
        return attrs
    if len(energies) == variable.size:
        with suppress(TypeError, ValueError):  # not numbers
            if not find_wrong_energies(energies, variable.values).size:
                return attrs
    return attrs | {"energies": variable.values.tolist()}


def _format_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _get_unit(checked: CheckedInput, name: str, variable: Variable) -> float:
    unit = variable.attrs.get("unit", 1.0)
    if isinstance(unit, bool) or not isinstance(unit, Real) or not np.isfinite(float(unit)):
        raise ValueError(
            f"{checked.path}: the attribute 'unit' of {name!r} is {unit!r}, but cc4s stores "
            "the factor to atomic units there; make it a number, or rename it"
        )
    return float(unit)


def _simplify(value: Any) -> Any:
    """Convert arrays of real numbers to lists, and bools to the 1 and 0 of cc4s."""
    if isinstance(value, list):
        return [_simplify(item) for item in value]
    if not isinstance(value, Mapping):
        return int(value) if isinstance(value, bool) else value
    if set(value) != {DTYPE_TAG}:
        return {key: _simplify(item) for key, item in value.items()}
    array = array_from_json(value[DTYPE_TAG])
    return _simplify(array.tolist()) if array.dtype.kind in "biuf" else None


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
