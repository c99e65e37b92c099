"""Write cc4s tensors: the elements first, then the YAML file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any, Literal

import numpy as np
from xarray import Variable

from xr_tensorfmt.core.elements import Array, build_elements
from xr_tensorfmt.core.embedded_metadata import (
    EmbeddedMetadata,
    EmbeddedVariable,
    embed_coordinates,
    encode_attrs,
    encode_metadata,
)
from xr_tensorfmt.core.file_format import EMBEDDED_KEY, OpenOptions
from xr_tensorfmt.core.layout import Dense, column_major
from xr_tensorfmt.core.source import is_file_name
from xr_tensorfmt.datasets.cf import RELATED
from xr_tensorfmt.errors import TensorFormatError, warn
from xr_tensorfmt.formats.cc4s import ELEMENTS, YAML, header
from xr_tensorfmt.formats.cc4s.header import ENERGIES, STATE, VERTEX, Dimension
from xr_tensorfmt.formats.cc4s.layouts import TextLine
from xr_tensorfmt.formats.cc4s.yaml_text import format_yaml, is_portable, parse_fields, simplify
from xr_tensorfmt.writing.checked_input import CheckedInput, get_file_info
from xr_tensorfmt.writing.file_plan import FilePlan, Piece, PlannedVariable

MAX_WRITTEN_DIMENSIONS = 10
"""Limit on dimensions. cc4s sorts their numbers as text."""

Types = Mapping[str, str | None]
"""Types of dimensions by name."""

_SCALAR_TYPES = {element.name: name for name, element in header.SCALAR_TYPES.items()}
ELEMENTS_BY_DTYPE = build_elements(_SCALAR_TYPES)


def plan(checked: CheckedInput, elements: Literal["text", "binary"] | None = None) -> FilePlan:
    """Plan the YAML file and the files of elements."""
    stem = header.get_stem(checked.file_name)
    if not checked.file_name.endswith(YAML) or not stem:
        raise ValueError(
            f"{checked.path}: the path of a cc4s tensor names its YAML file; end it with {YAML}"
        )
    cc4s_object = header.get_variable_name(stem)
    checked = _remove_numbers(checked, cc4s_object).encode(ELEMENTS_BY_DTYPE)
    is_set = _is_set(checked, cc4s_object)
    types, default_dims = choose_types(checked.variables, cc4s_object)
    packed: dict[str, dict[str, Any]] = {}
    embedded: dict[str, EmbeddedVariable] = {}
    files = []
    for name, variable in checked.variables.items():
        packed[name], noted, file = _plan_tensor(checked, name, cc4s_object, types, elements)
        dims = tuple(map(str, variable.dims))
        # Without embedded dims, a variable with the name of the file may not have such a dimension.
        is_default = dims == default_dims[name] and (is_set or cc4s_object not in dims)
        embedded[name] = EmbeddedVariable(dims=None if is_default else dims, attrs=noted or None)
        files.append(replace(file, name=header.get_elements_file(stem, name if is_set else None)))
    unitless = None
    fields: dict[str, Any] = {"type": header.TENSOR_SET, "components": packed}
    if not is_set:
        ((name, fields),) = packed.items()
        checked = _remove_occupied(checked, name, fields.get("metaData", {}))
        unitless = None if "unit" in checked.variables[name].attrs else name
        # The only tensor of a file is embedded under the default name.
        noted_name = None if name == cc4s_object else name
        embedded = {OpenOptions.name: replace(embedded[name], name=noted_name)}
    note = EmbeddedMetadata(
        tensors={key: item for key, item in embedded.items() if item != EmbeddedVariable()},
        coordinates=embed_coordinates(checked, checked.coordinates),
        attrs=encode_attrs(checked, checked.attrs, "the Dataset"),
    )
    if note != EmbeddedMetadata():
        fields.setdefault("metaData", {})[EMBEDDED_KEY] = encode_metadata(checked, note).decode()
    content = format_yaml(fields)
    parse_fields(checked.path, content)  # raises an error if the reader would
    list_replaced = partial(_list_replaced, checked.path, stem, unitless)
    # A tensor whose name contains ".components." has a file of elements like that of a component.
    stems = {header.get_stem(file.name) for file in files}
    stems |= {file.name.removesuffix(ELEMENTS) for file in files}
    conflicts = tuple(sorted({f"{stem}{YAML}" for stem in stems} - {checked.file_name}))
    return FilePlan(len(content), (Piece(0, content),), (), tuple(files), list_replaced, conflicts)


def _plan_tensor(
    checked: CheckedInput, name: str, cc4s_object: str, types: Types, elements: str | None
) -> tuple[dict[str, Any], dict[str, Any], FilePlan]:
    """Return the keys of a tensor, the attributes that they cannot hold, and its elements."""
    variable = checked.variables[name]
    check_types(checked.path, cc4s_object, name, variable, types)
    is_only = len(checked.variables) == 1
    if not is_only and name in {cc4s_object, *header.OBJECTS}:
        hint = "pass one of them, or write a directory: cc4s.to_calculation or convert --to cc4s"
        raise ValueError(f"{checked.path}: {name!r} is one of several variables; {hint}")
    is_tensor = is_only and cc4s_object in header.DIMENSIONS
    key = cc4s_object if is_tensor else f"{cc4s_object}.{name}"
    if conflict := header.find_rank_conflict(key, variable.ndim):
        raise ValueError(f"{checked.path}: {name!r} has {conflict}")
    checked.warn_of_order(name, variable)
    conversion = checked.choose_conversion(name, variable, ELEMENTS_BY_DTYPE)
    element = conversion.element
    was_text = get_file_info(variable, "cc4s").get("elements") == header.TEXT
    # Some programs read energies only as text.
    is_text = elements == "text" if elements else was_text or cc4s_object == ENERGIES
    metadata, noted = _split_attrs(checked, name, variable, cc4s_object, types)
    fields = {
        "version": header.VERSION,
        "type": header.TENSOR,
        "scalarType": _SCALAR_TYPES[element.name],
        "dimensions": [
            {"length": length} | ({"type": types[str(dim)]} if types[str(dim)] else {})
            for dim, length in variable.sizes.items()
        ],
        "elements": {"type": header.TEXT if is_text else header.BINARY},
        "unit": check_unit(checked.path, name, variable),
    }
    if conflict := header.find_fermi_conflict(cc4s_object, metadata):
        warn(f"{checked.path}: {conflict}")
    units = variable.attrs.get("units", "hartree")
    if cc4s_object in header.ENERGY_POWERS and "unit" not in variable.attrs and units != "hartree":
        hint = "set 'unit' to the factor to atomic units, such as 0.0367493 for eV"
        warn(f"{checked.path}: {name!r} has units={units!r}, but no number as 'unit'; {hint}")
    if metadata:
        fields["metaData"] = metadata
    layout = Dense(variable.shape[::-1], TextLine(element.dtype) if is_text else element, 0)
    planned = PlannedVariable(variable, column_major(layout), conversion)
    return fields, noted, FilePlan(layout.stop, (), (planned,))


def check_unit(path: str, name: str, variable: Variable) -> float:
    """Return the unit. Raise ValueError if the values have another one in their file."""
    unit, applied = variable.attrs.get("unit", 1.0), variable.attrs.get(header.APPLIED_UNIT, 1.0)
    if isinstance(unit, bool) or not isinstance(unit, Real) or not np.isfinite(float(unit)):
        raise ValueError(
            f"{path}: the attribute 'unit' of {name!r} is {unit!r}, but cc4s stores the factor to "
            "atomic units there; make it a number, or rename it"
        )
    is_applied = isinstance(applied, Real) and applied != 1
    stored = applied if is_applied else get_file_info(variable, "cc4s").get("unit", unit)
    if is_applied or stored != unit:
        actual, hint = f"the unit {unit}", "open it without apply_unit=True and keep 'unit'"
        if "unit" not in variable.attrs and not is_applied:
            actual = f"no attribute 'unit', which means the unit {unit}"
            hint = f"set the attribute to {stored} if opened without apply_unit=True"
        raise ValueError(
            f"{path}: {name!r} has {actual}, but {stored} in the file that it was opened from; "
            f"{hint}, or, if all tensors have the new unit, delete the attribute 'applied_unit', "
            "if any, and call drop_encoding()"
        )
    return float(unit)


def _list_replaced(path: str, stem: str, unitless: str | None, replaced: bytes) -> list[str]:
    """Return the replaced files of elements. Raise ValueError if properties or a unit are lost."""
    try:
        fields = parse_fields(path, replaced)
        is_set = fields.values.get("type") == header.TENSOR_SET
        keys = map(str, fields.get_fields("components").values) if is_set else (None,)
    except TensorFormatError:  # another program wrote the file
        return []
    if "dimensionType" in fields.values:
        raise ValueError(
            f"{path}: the file has the properties of dimensions of all tensors in its directory; "
            "choose another name"
        )
    unit = fields.values.get("unit")
    if unitless is not None and isinstance(unit, int | float) and unit != 1:
        raise ValueError(
            f"{path}: {unitless!r} has no attribute 'unit', which means 1.0, but the file that it "
            f"would replace has the unit {unit}; set the attribute to the unit of the values"
        )
    return [header.get_elements_file(stem, key) for key in keys if key is None or is_file_name(key)]


def _is_set(checked: CheckedInput, cc4s_object: str) -> bool:
    """Return whether to write a TensorSet: for several variables, or a component such as ``ph``."""
    names = list(checked.variables)
    if not 0 < len(names) <= header.MAX_COMPONENTS:
        raise ValueError(
            f"{checked.path}: there are {len(names)} variables to write, expected 1 to "
            f"{header.MAX_COMPONENTS}, the components of a TensorSet; write other files"
        )
    if names[0].startswith(prefix := f"{cc4s_object}."):
        raise ValueError(
            f"{checked.path}: {names[0]!r} is the name in a calculation; rename it to "
            f"{names[0].removeprefix(prefix)!r}, or write the calculation with to_calculation"
        )
    file_info = get_file_info(checked.variables[names[0]], "cc4s")
    is_component = file_info.get("component") == names[0]
    if not file_info and cc4s_object in ("Amplitudes", "CoulombIntegrals", "DeltaIntegrals"):
        is_component = re.fullmatch("[hp]+", names[0]) is not None
    is_set = len(names) > 1 or is_component
    folded = Counter(map(str.casefold, names))
    for name in names if is_set else ():
        if not is_file_name(name) or folded[name.casefold()] > 1:
            raise ValueError(
                f"{checked.path}: {name!r} cannot be a part of the name of a file of elements, or "
                "differs from another variable only by case; rename it"
            )
    return is_set


def _split_attrs(
    checked: CheckedInput, name: str, variable: Variable, cc4s_object: str, types: Types
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return ``metaData``, and the attributes that it cannot hold."""
    attrs, energies = dict(variable.attrs), None
    own_types = [types[str(dim)] for dim in variable.dims]
    is_real = variable.dtype.kind in "fiu"
    if is_real and header.lists_energies(cc4s_object, variable.shape, own_types, attrs):
        energies = variable.values.astype(np.float64).tolist()
        if isinstance(attrs.get("energies", []), list | tuple | np.ndarray):
            attrs.pop("energies", None)
    encoded = encode_attrs(checked, attrs, repr(name))
    left_out = {"unit", "coordinates", *RELATED}  # of CF, which only xarray looks up
    plain = {key: simplify(attrs[key]) for key in encoded if key not in left_out}
    metadata = {key: value for key, value in plain.items() if is_portable(value)}
    noted = {"unit": None} | {
        key: value
        for key, value in encoded.items()
        if key not in metadata or repr(value) != repr(metadata[key])  # True == 1
    }
    if isinstance(noted["unit"], int | float):  # not absent or of a type of numpy
        del noted["unit"]
    if energies is not None and "energies" not in attrs and is_portable(energies):
        metadata["energies"] = energies
    elif energies is not None and not is_portable(energies):
        warn(
            f"{checked.path}: energies of {name!r} are not finite, so the list of energies, by "
            "which cc4s counts occupied states, is left out; select the other states"
        )
    return metadata, noted


def _remove_numbers(checked: CheckedInput, cc4s_object: str) -> CheckedInput:
    """Remove the numbers of states that `open_calculation` has added, after a check."""
    is_single, coordinates = len(checked.variables) == 1, checked.coordinates
    tensors = {cc4s_object if is_single else n: v for n, v in checked.variables.items()}
    check_states(checked.path, tensors, coordinates)
    added = [n for n, v in coordinates.items() if header.STATE_NUMBER.items() <= v.attrs.items()]
    return replace(checked, coordinates={n: coordinates[n] for n in coordinates if n not in added})


def _remove_occupied(checked: CheckedInput, name: str, metadata: Mapping[str, Any]) -> CheckedInput:
    """Remove the coordinate that the reader derives, and warn if it would change."""
    energies, fermi = metadata.get("energies"), metadata.get("fermiEnergy")
    others = dict(checked.coordinates)
    coordinate = others.pop(header.OCCUPIED, None)
    if coordinate is None or energies is None or not isinstance(fermi, int | float):
        return checked
    # xarray may have encoded the mask.
    is_mask = coordinate.dtype.kind == "b" or coordinate.attrs.get("dtype") == "bool"
    if not is_mask or coordinate.dims != checked.variables[name].dims:
        return checked
    before = np.count_nonzero(coordinate.values)
    after = sum(energy < fermi for energy in energies)
    if before != after:
        warn(
            f"{checked.path}: {before} states are occupied by the coordinate {header.OCCUPIED!r}, "
            f"but {after} energies of {name!r} are below its attribute fermiEnergy={fermi}, "
            "which is what cc4s counts; shift fermiEnergy with the energies"
        )
    return replace(checked, coordinates=others)


def choose_types(
    variables: Mapping[str, Variable], cc4s_object: str
) -> tuple[Types, Mapping[str, tuple[str, ...]]]:
    """Choose types by dimension: of the file, name or object. Return also the names in a reader."""
    types: dict[str, str | None] = {}
    for variable in variables.values():
        file_info, dims = get_file_info(variable, "cc4s"), tuple(map(str, variable.dims))
        stored = dict(zip(file_info.get("dims", ()), file_info.get("types", ()), strict=False))
        # Renamed dimensions are identified by position if no other dimension has moved.
        is_in_order = len(stored) == len(dims) and all(
            name == dim or dim not in stored for name, dim in zip(stored, dims, strict=True)
        )
        for axis, dim in enumerate(dims):
            plain = re.sub(r"^dim_\d+(_\d+)?$|_([2-9]|[1-9]\d+)$", "", dim) or None  # as dim_0_2
            is_renamed = is_in_order and plain not in header.TYPES
            own = stored.get(dim, [*stored.values()][axis] if is_renamed else plain)
            types.setdefault(dim, own)
    if any(types.values()):  # if one had none, cc4s would exchange the others
        for variable in variables.values():
            dims = tuple(map(str, variable.dims))
            expected = header.get_object_types(cc4s_object, variable.ndim) or dims
            types |= {dim: types[dim] or own for dim, own in zip(dims, expected, strict=True)}
    names = header.make_dims_unique(
        [Dimension(length, types[str(dim)]) for dim, length in variable.sizes.items()]
        for variable in variables.values()
    )
    return types, dict(zip(variables, names, strict=True))


def check_types(path: str, cc4s_object: str, name: str, variable: Variable, types: Types) -> None:
    """Raise ValueError if an object of cc4s has a wrong type. cc4s does not check the types."""
    if variable.ndim > MAX_WRITTEN_DIMENSIONS:
        raise ValueError(
            f"{path}: {name!r} has {variable.ndim} dimensions, but cc4s exchanges the dimensions "
            f"of tensors with more than {MAX_WRITTEN_DIMENSIONS}; stack some of them"
        )
    if cc4s_object in header.TYPES & {*types.values()}:
        raise ValueError(
            f"{path}: cc4s looks up the properties of the dimension type {cc4s_object} in a file "
            "of this name; choose the name of the tensor"
        )
    actual = [types[str(dim)] for dim in variable.dims]
    conflict = header.find_type_conflict(cc4s_object, actual)
    if conflict is None or actual == list(get_file_info(variable, "cc4s").get("types", ())):
        return
    expected = header.get_object_types(cc4s_object, variable.ndim) or ()
    # Only the vertex and the energies have all states.
    whole = [] if cc4s_object in header.DIMENSIONS else [Dimension(-1, STATE)] * 2
    dims = header.make_dims_unique([whole, [*map(Dimension, variable.shape, expected)]])[1]
    raise ValueError(
        f"{path}: {name!r} has the dims {variable.dims} of {conflict}; transpose or rename "
        f"them, for instance to {dims} (--dims) or other numbers"
    )


def _find_numbers(path: str, coordinates: Mapping[str, Variable]) -> dict[Hashable, Array]:
    """Return the numbers of states by dimension, and warn of repeated states."""
    numbers = {
        item.dims[0]: item.values
        for name, item in coordinates.items()
        if re.fullmatch(r"state(_\d+)?", name) and item.ndim == 1 and item.dtype.kind in "iu"
    }
    if any(np.unique(states).size < states.size for states in numbers.values()):
        warn(f"{path}: states are repeated, and cc4s counts each of them; select each state once")
    return numbers


def check_states(
    path: str, tensors: Mapping[str, Variable], coordinates: Mapping[str, Variable]
) -> Mapping[Hashable, Array]:
    """Return the numbers of states by dimension. Raise ValueError if two axes have different ones.

    The numbers are the coordinates ``state``, ... of `open_calculation`. Slices have some of them.
    """
    numbers, whole = _find_numbers(path, coordinates), (ENERGIES, VERTEX)
    axes = [
        (name, axis, dim)
        for name in sorted(tensors, key=lambda name: name not in whole)
        for axis, dim in enumerate(tensors[name].dims)
        if dim in numbers or (ENERGIES in tensors and str(dim).partition("_")[0] == STATE)
        if not re.fullmatch(r"Sliced\w*", name)
    ]
    for name, axis, dim in axes:
        (first, _, first_dim), sizes = axes[0], tensors[name].shape
        half = header.complete_dimensions(name, sizes, [None] * len(sizes))[axis].part
        states = numbers.get(first_dim, np.arange(tensors[first].sizes[first_dim]))
        is_slice = first in whole and name not in whole
        parts, occupied = [states], coordinates.get(header.OCCUPIED)
        if is_slice and occupied is not None and occupied.shape == states.shape:
            halves = {"h": states[occupied.values], "p": states[~occupied.values]}
            parts = [halves[half]] if half else [states, *halves.values()]
        elif name not in whole and dim in numbers:
            common = states[np.isin(states, numbers[dim])]
            parts.append(common if common.size else numbers[dim])
        shape = get_file_info(tensors[name], "cc4s").get("shape")
        if dim in numbers:
            fits = any(np.array_equal(numbers[dim], part) for part in parts)
        elif shape is None or first_dim not in numbers:
            fits = sizes[axis] in {part.size for part in parts}
        else:  # which states a file has is not known
            opened = get_file_info(tensors[first], "cc4s").get("shape", states.shape)
            fits = shape == sizes and np.array_equal(states, np.arange(opened[-1]))
        if not fits:
            dims = dict.fromkeys(dim for other, _, dim in axes if other in (first, name))
            hint = f"all dimensions at once: ds.isel({', '.join(f'{dim}=states' for dim in dims)})"
            if is_slice:
                hint = f"{dim!r} alike, transpose {name!r}, or call ds.drop_vars({name!r})"
                if occupied is None:
                    hint += f"; to find the occupied ones, set ds.{whole[0]}.attrs['fermiEnergy']"
            raise ValueError(
                f"{path}: {name!r} {'has' if dim in numbers else 'may have'} other states along "
                f"{dim!r} than {first!r} along {first_dim!r}, or in another order; select or sort "
                f"the states of {hint}"
            )
    return numbers
