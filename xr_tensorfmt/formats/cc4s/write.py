"""Writing of cc4s tensors: the elements first, and then the YAML that speaks of them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
    to_json,
)
from xr_tensorfmt.formats.cc4s.read import ENTRY, MAX_COMPONENTS
from xr_tensorfmt.formats.cc4s.spec import (
    BINARY,
    EMBEDDED,
    SCALAR_TYPES,
    TENSOR_SET,
    YAML,
    Dimension,
    Properties,
    TensorHeader,
    elements_file,
    find_wrong_energies,
    stem_of,
    variable_name,
)
from xr_tensorfmt.formats.cc4s.write_dimensions import DimensionNames, check_types, get_file_info
from xr_tensorfmt.formats.cc4s.yaml_output import format_yaml, is_portable
from xr_tensorfmt.formats.cc4s.yaml_text import MAX_BYTES, Fields, check_safe

_ELEMENTS = {element.name: element for element in SCALAR_TYPES.values()}
_SCALAR_TYPE_OF = {element.name: name for name, element in SCALAR_TYPES.items()}


@dataclass(frozen=True, eq=False)
class TensorToWrite:
    """The entry of a variable in the YAML, what that does not say, and the file of elements."""

    name: str
    header: TensorHeader
    embedded: EmbeddedVariable
    elements: FilePlan


def plan(checked: CheckedInput) -> FilePlan:
    """Plan the YAML, and the files beside it."""
    stem = _stem(checked.path)
    is_set = _is_set(checked)
    names = DimensionNames.plan(checked.variables)
    for name, variable in checked.variables.items():
        check_types(checked.path, variable_name(stem), name, variable, names.types)
    properties, others = _properties(checked, names)
    tensors = [_tensor(checked, *item, names) for item in checked.variables.items()]
    embedded = EmbeddedMetadata(
        tensors=_embedded(tensors, None if is_set else variable_name(stem)),
        coordinates=embed_coordinates(checked, others),
        attrs=encode_attrs(checked, checked.attrs, "the Dataset"),
    )
    content = "" if embedded.is_empty else encode_metadata(checked, embedded).decode()
    yaml = format_yaml(_packed(tensors, content, is_set=is_set))
    check_safe(checked.path, yaml)
    elements = [
        SiblingFile(elements_file(stem, tensor.name if is_set else None), tensor.elements)
        for tensor in tensors
    ]
    beside = [_properties_file(checked.path, each) for each in properties]
    orphans = _find_orphans(checked.path, stem, {file.name for file in elements})
    return FilePlan(len(yaml), (Piece(0, yaml),), (), (*elements, *beside), orphans)


def _find_orphans(path: str, stem: str, written: set[str]) -> tuple[str, ...]:
    """Return the files of elements that only the YAML file at a local path describes."""
    try:
        with open(os.path.expanduser(path), "rb") as file:
            replaced = Fields.parse(path, file.read(MAX_BYTES + 1))
        is_set = replaced.values.get("type") == TENSOR_SET
        keys = map(str, replaced.mapping("components").values) if is_set else (None,)
    except (OSError, TensorFormatError):  # a URL, a new file, or one of another program
        return ()
    described = [elements_file(stem, key) for key in keys if key is None or is_file_name(key)]
    # Some file systems do not distinguish upper and lower case.
    kept = {name.casefold() for name in written}
    return tuple(name for name in described if name.casefold() not in kept)


def _stem(path: str) -> str:
    file = os.path.basename(path)
    stem = stem_of(file)
    if not file.casefold().endswith(YAML) or not stem:
        raise ValueError(
            f"{path}: cc4s tensors are named by their YAML file; give a name that ends with {YAML}"
        )
    return stem


def _is_set(checked: CheckedInput) -> bool:
    """Whether to write a TensorSet: several variables, or one that is a component of one."""
    names = list(checked.variables)
    if not names:
        raise ValueError(f"{checked.path}: there is no variable to write; add one")
    if len(names) > MAX_COMPONENTS:
        raise ValueError(
            f"{checked.path}: a set has at most {MAX_COMPONENTS} components, not {len(names)}; "
            "write several files"
        )
    facts = [get_file_info(variable) for variable in checked.variables.values()]
    is_set = len(names) > 1 or "component" in facts[0]
    for name in names:
        if is_set and not is_file_name(name):
            raise ValueError(
                f"{checked.path}: {name!r} cannot be a part of the name of a file of elements; "
                "rename it"
            )
    return is_set


def _tensor(
    checked: CheckedInput, name: str, variable: Variable, names: DimensionNames
) -> TensorToWrite:
    if get_file_info(variable).get("storage") == "blocks" and variable.dims == (ENTRY,):
        raise ValueError(
            f"{checked.path}: {name!r} has only the stored elements of a tensor of blocks; open it "
            "with sparse='dense' to write all of it"
        )
    checked.check_rank(name, variable)
    conversion = checked.conversion(name, variable, _ELEMENTS)
    sizes = zip(map(str, variable.dims), variable.shape, strict=True)
    current = _with_current_energies(checked, name, variable)
    attrs = encode_attrs(checked, current, repr(name))
    unit = _unit(checked, name, variable)
    plain = {key: _plain(value) for key, value in attrs.items() if key != "unit"}
    metadata = {key: value for key, value in plain.items() if is_portable(value)}
    header = TensorHeader(
        _SCALAR_TYPE_OF[conversion.element.name],
        tuple(Dimension(length, names.types[dim]) for dim, length in sizes),
        BINARY,
        unit,
        metadata,
    )
    # Not `==`, which takes True for 1.
    is_said = attrs.get("unit") == unit and _sorted_json(metadata) == _sorted_json(
        {key: value for key, value in attrs.items() if key != "unit"}
    )
    layout = column_major(Dense(variable.shape[::-1], header.element, 0))
    size = header.total * header.element.stored.itemsize
    elements = FilePlan(size, (), (PlannedVariable(variable, layout, conversion),))
    dims = tuple(map(str, variable.dims))
    embedded = EmbeddedVariable(
        dims=None if dims == names.defaults[name] else dims, attrs=None if is_said else attrs
    )
    return TensorToWrite(name, header, embedded, elements)


def _with_current_energies(checked: CheckedInput, name: str, variable: Variable) -> dict[Any, Any]:
    """Return attributes without stale energies, since cc4s counts occupied states by them."""
    attrs = checked.attrs_to_write(name, variable)
    energies: Any = attrs.get("energies")
    is_list = isinstance(energies, list | tuple | np.ndarray)
    if not is_list or variable.ndim != 1 or variable.dtype.kind not in "fiu":
        return attrs
    if len(energies) == variable.size:
        with suppress(TypeError, ValueError):  # not numbers
            if checked.unmodified(name, variable) is not None:
                return attrs
            if not find_wrong_energies(energies, variable.values).size:
                return attrs
    return attrs | {"energies": variable.values.tolist()}


def _sorted_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _unit(checked: CheckedInput, name: str, variable: Variable) -> float:
    unit = variable.attrs.get("unit", 1.0)
    if isinstance(unit, bool) or not isinstance(unit, Real) or not np.isfinite(float(unit)):
        raise ValueError(
            f"{checked.path}: the attribute 'unit' of {name!r} is {unit!r}, and cc4s has the "
            "factor to atomic units there; make it a number, or rename it"
        )
    return float(unit)


def _plain(value: Any) -> Any:
    """Convert arrays of real numbers to lists, and Booleans to 1 and 0, as cc4s knows no others."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, Mapping):
        return int(value) if isinstance(value, bool) else value
    if set(value) != {DTYPE_TAG}:
        return {key: _plain(item) for key, item in value.items()}
    array = array_from_json(value[DTYPE_TAG])
    return _plain(array.tolist()) if array.dtype.kind in "biuf" else None


def _embedded(
    tensors: Sequence[TensorToWrite], native_name: str | None
) -> dict[str, EmbeddedVariable]:
    """What to embed of variables, by their names, or for a sole one by the usual name."""
    embedded = {each.name: each.embedded for each in tensors}
    if native_name is not None:
        ((name, variable),) = embedded.items()
        is_usual = name in (native_name, OpenOptions.name)
        embedded = {OpenOptions.name: replace(variable, name=None if is_usual else name)}
    return {name: each for name, each in embedded.items() if each != EmbeddedVariable()}


def _packed(tensors: Sequence[TensorToWrite], embedded: str, *, is_set: bool) -> dict[str, Any]:
    """The YAML of a TensorSet, or of its sole tensor."""
    more = {EMBEDDED: embedded} if embedded else {}
    if not is_set:
        header = tensors[0].header
        return replace(header, metadata={**header.metadata, **more}).pack()
    components = {tensor.name: tensor.header.pack() for tensor in tensors}
    fields = {"type": TENSOR_SET, "components": components}
    return fields | ({"metaData": more} if more else {})


def _properties(
    checked: CheckedInput, names: DimensionNames
) -> tuple[list[Properties], dict[str, Variable]]:
    """Return the properties of dimensions that coordinates are, and the other coordinates."""
    others, properties, types = dict(checked.coordinates), [], names.types
    sizes = {dim: n for each in checked.variables.values() for dim, n in each.sizes.items()}
    for kind in {each: None for each in types.values() if each and is_file_name(each)}:
        prefixes = {
            dim: names.find_prefix(checked.variables, dim) for dim in types if types[dim] == kind
        }
        if None in prefixes.values():
            continue
        found = {
            dim: _properties_of(kind, dim, f"{prefix}_", checked.coordinates)
            for dim, prefix in prefixes.items()
        }
        first = next((dim for dim in found if found[dim].indices), None)
        # The file will give labels to all dimensions of the type and length.
        if first is not None and all(
            each.pack() == found[first].pack() if sizes[dim] == sizes[first] else not each.indices
            for dim, each in found.items()
        ):
            properties.append(found[first])
            of_file = {f"{prefixes[dim]}_{name}" for dim in found for name in found[dim].indices}
            others = {name: each for name, each in others.items() if name not in of_file}
    return properties, others


def _properties_of(
    kind: str, dim: str, prefix: str, coordinates: Mapping[str, Variable]
) -> Properties:
    """The coordinates of a dimension that can be its properties, by the names of these."""
    found = {
        name.removeprefix(prefix): variable
        for name, variable in coordinates.items()
        if name.startswith(prefix) and variable.dims == (dim,) and _is_property(variable)
    }
    return Properties(
        kind,
        {name: variable.values.astype(np.int64) for name, variable in found.items()},
        {name: each.attrs["values"] for name, each in found.items() if "values" in each.attrs},
    )


def _is_property(variable: Variable) -> bool:
    """Whether a coordinate has integers that stand for themselves, or for a list of values."""
    if variable.dtype.kind not in "iu" or set(variable.attrs) - {"values"}:
        return False
    most, least = variable.values.max(initial=-1), variable.values.min(initial=0)
    values = variable.attrs.get("values", range(int(most) + 1))
    if least < 0 or most >= MAX_BYTES or not isinstance(values, list | range):
        return False
    return len(values) > most and (isinstance(values, range) or _is_lossless(values))


def _is_lossless(values: list[Any]) -> bool:
    """Whether YAML gives the values back as they are."""
    try:
        return to_json(values, "values") == values and is_portable(values)
    except TypeError:
        return False


def _properties_file(path: str, properties: Properties) -> SiblingFile:
    """The file of a type; one that says the same stays as it is."""
    content = format_yaml(properties.pack())
    name = f"{properties.dimension_type}{YAML}"

    def says_the_same(existing: bytes) -> bool:
        try:
            known = Properties.unpack(Fields.parse("", existing))
        except TensorFormatError:
            return False
        if known.pack() != properties.pack():
            names = ", ".join(properties.indices)
            raise ValueError(
                f"{path}: {name} beside it says something else of {names}, which other tensors in "
                "that directory need; write into another directory, remove that file, or drop the "
                "coordinates"
            )
        return True

    return SiblingFile(name, FilePlan(len(content), (Piece(0, content),), ()), says_the_same)
