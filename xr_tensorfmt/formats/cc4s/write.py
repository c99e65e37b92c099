"""Write cc4s tensors: the elements first, then the YAML file."""

from __future__ import annotations

import json
import os
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
    OpenOptions,
    Piece,
    PlannedVariable,
    SiblingFile,
    Source,
    TensorFormatError,
    array_from_json,
    column_major,
    embed_coordinates,
    encode_attrs,
    encode_metadata,
    is_file_name,
    to_json,
)
from xr_tensorfmt.formats.cc4s.checksums import Checksums, format_checksums
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
    get_stem,
    variable_name,
)
from xr_tensorfmt.formats.cc4s.write_dimensions import DimensionNames, check_types, get_file_info
from xr_tensorfmt.formats.cc4s.yaml_output import format_yaml, is_portable
from xr_tensorfmt.formats.cc4s.yaml_text import MAX_BYTES, Fields, check_safe

_ELEMENTS = {element.name: element for element in SCALAR_TYPES.values()}
_SCALAR_TYPE_OF = {element.name: name for name, element in SCALAR_TYPES.items()}


@dataclass(frozen=True, eq=False)
class TensorToWrite:
    """A variable as YAML, embedded metadata and the plan of its elements."""

    name: str
    header: TensorHeader
    embedded: EmbeddedVariable
    elements: FilePlan


def plan(checked: CheckedInput) -> FilePlan:
    """Plan the YAML file and its sibling files."""
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
    metadata = "" if embedded.is_empty else encode_metadata(checked, embedded).decode()
    yaml = format_yaml(_packed(tensors, metadata, is_set=is_set))
    elements = {
        tensor.name if is_set else OpenOptions.name: SiblingFile(
            elements_file(stem, tensor.name if is_set else None), tensor.elements
        )
        for tensor in tensors
    }
    checksums = {name: Checksums(file.file_plan.size) for name, file in elements.items()}
    content = yaml + format_checksums(checksums) + b"\n"
    check_safe(checked.path, content)
    properties_files = [_properties_file(checked.path, item) for item in properties]
    files = {name: file.name for name, file in elements.items()}
    return FilePlan(
        len(content),
        (Piece(0, yaml),),
        (),
        (*elements.values(), *properties_files),
        describe_siblings=partial(_compute_checksums, len(yaml), files),
        find_orphans=partial(_find_orphans, checked.path, stem, tuple(files.values())),
    )


def _compute_checksums(
    offset: int, files: Mapping[str, str], siblings: Mapping[str, Source]
) -> tuple[Piece, ...]:
    checksums = {name: Checksums.compute(siblings[file]) for name, file in files.items()}
    return (Piece(offset, format_checksums(checksums) + b"\n"),)


def _find_orphans(path: str, stem: str, written: Collection[str], replaced: bytes) -> list[str]:
    """Return the files of elements that only the replaced YAML file describes."""
    try:
        fields = Fields.parse(path, replaced)
        is_set = fields.values.get("type") == TENSOR_SET
        keys = map(str, fields.mapping("components").values) if is_set else (None,)
    except TensorFormatError:  # the file is of another program
        return []
    described = [elements_file(stem, key) for key in keys if key is None or is_file_name(key)]
    # Some file systems do not distinguish upper and lower case.
    kept = {name.casefold() for name in written}
    return [name for name in described if name.casefold() not in kept]


def _stem(path: str) -> str:
    file = os.path.basename(path)
    stem = get_stem(file)
    if not file.casefold().endswith(YAML) or not stem:
        raise ValueError(
            f"{path}: cc4s tensors are named by their YAML file; give a name that ends with {YAML}"
        )
    return stem


def _is_set(checked: CheckedInput) -> bool:
    """Return whether to write a TensorSet: for several variables, or for a component."""
    names = list(checked.variables)
    if not names:
        raise ValueError(f"{checked.path}: there is no variable to write; add one")
    if len(names) > MAX_COMPONENTS:
        raise ValueError(
            f"{checked.path}: a set has at most {MAX_COMPONENTS} components, not {len(names)}; "
            "write several files"
        )
    file_infos = [get_file_info(variable) for variable in checked.variables.values()]
    is_set = len(names) > 1 or "component" in file_infos[0]
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
    # `==` would take True for 1.
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
    """Convert arrays of real numbers to lists, and Booleans to the 1 and 0 of cc4s."""
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
    """Return embedded metadata by variable. The only tensor of a file has the default name."""
    embedded = {tensor.name: tensor.embedded for tensor in tensors}
    if native_name is not None:
        ((name, variable),) = embedded.items()
        is_usual = name in (native_name, OpenOptions.name)
        embedded = {OpenOptions.name: replace(variable, name=None if is_usual else name)}
    return {name: tensor for name, tensor in embedded.items() if tensor != EmbeddedVariable()}


def _packed(tensors: Sequence[TensorToWrite], embedded: str, *, is_set: bool) -> dict[str, Any]:
    """Return the fields of a TensorSet, or of a Tensor."""
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
    """Return the coordinates that become properties of dimensions, and the other coordinates."""
    others, properties, types = dict(checked.coordinates), [], names.types
    sizes = {dim: n for variable in checked.variables.values() for dim, n in variable.sizes.items()}
    for dimension_type in dict.fromkeys(types.values()):
        if dimension_type is None or not is_file_name(dimension_type):
            continue
        prefixes = {
            dim: names.find_prefix(checked.variables, dim)
            for dim in types
            if types[dim] == dimension_type
        }
        if None in prefixes.values():
            continue
        by_dim = {
            dim: _get_properties(dimension_type, dim, f"{prefix}_", checked.coordinates)
            for dim, prefix in prefixes.items()
        }
        first = next((dim for dim in by_dim if by_dim[dim].indices), None)
        # The reader labels all dimensions of the type and length.
        if first is not None and all(
            item.pack() == by_dim[first].pack() if sizes[dim] == sizes[first] else not item.indices
            for dim, item in by_dim.items()
        ):
            properties.append(by_dim[first])
            of_file = {f"{prefixes[dim]}_{name}" for dim in by_dim for name in by_dim[dim].indices}
            others = {name: variable for name, variable in others.items() if name not in of_file}
    return properties, others


def _get_properties(
    dimension_type: str, dim: str, prefix: str, coordinates: Mapping[str, Variable]
) -> Properties:
    """Return the coordinates of a dimension that can become its properties."""
    coordinates_of_dim = {
        name.removeprefix(prefix): variable
        for name, variable in coordinates.items()
        if name.startswith(prefix) and variable.dims == (dim,) and _is_property(variable)
    }
    return Properties(
        dimension_type,
        {name: variable.values.astype(np.int64) for name, variable in coordinates_of_dim.items()},
        {
            name: variable.attrs["values"]
            for name, variable in coordinates_of_dim.items()
            if "values" in variable.attrs
        },
    )


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
    """Return whether YAML represents the values without loss."""
    try:
        return to_json(values, "values") == values and is_portable(values)
    except TypeError:
        return False


def _properties_file(path: str, properties: Properties) -> SiblingFile:
    """Plan the file of a dimension type. A file with equal content is kept."""
    content = format_yaml(properties.pack())
    name = f"{properties.dimension_type}{YAML}"

    def says_the_same(existing: bytes) -> bool:
        try:
            present = Properties.unpack(Fields.parse("", existing))
        except TensorFormatError:
            return False
        if present.pack() != properties.pack():
            names = ", ".join(properties.indices)
            raise ValueError(
                f"{path}: {name} beside it says something else of {names}, which other tensors in "
                "that directory need; write into another directory, remove that file, or drop the "
                "coordinates"
            )
        return True

    return SiblingFile(name, FilePlan(len(content), (Piece(0, content),), ()), says_the_same)
