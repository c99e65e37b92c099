"""Calculations of cc4s: a directory of tensors as one Dataset."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from xarray import DataArray, Dataset

from xr_tensorfmt.core.source import is_file_name
from xr_tensorfmt.datasets.building import get_info
from xr_tensorfmt.errors import TensorFormatWarning, warn
from xr_tensorfmt.formats.cc4s import ELEMENTS, YAML, header, write
from xr_tensorfmt.formats.cc4s.header import Dimension, complete_dimensions
from xr_tensorfmt.formats.cc4s.yaml_text import MAX_VALUES, format_yaml, is_portable, simplify
from xr_tensorfmt.formats.recognition import find_parts, open_header
from xr_tensorfmt.sources import find_source, get_path, is_url, list_names
from xr_tensorfmt.writing.checked_input import CheckedInput, check_input, get_file_info

__all__ = ["open_calculation", "to_calculation"]


def open_calculation(
    directory: str | os.PathLike[str], *, chunks: Any = None, **open_options: Any
) -> Dataset:
    """Open all cc4s tensors of a directory as one Dataset.

    Dimensions of all states are ``State``, ``State_2`` and so on. Slices have later numbers.

    Parameters
    ----------
    directory : str or PathLike
        A local directory.
    chunks : int, dict or "auto", optional
        Chunks of dask arrays, as for `xarray.open_dataset`.
    **open_options
        Other keywords of `xarray.open_dataset` for all files, except ``dims`` and ``name``.

    Returns
    -------
    Dataset
        A variable for each Tensor and each component of a TensorSet, such as
        ``CoulombIntegrals.hhpp``. The Boolean coordinate ``occupied`` along ``State`` is true below
        ``fermiEnergy``. The coordinates ``state``, ``state_2`` and so on number the states.
        Select or sort the same states of all dimensions.

    Raises
    ------
    OSError
        The path is not a directory, or has no tensor, or an object of cc4s is incomplete.
    ValueError
        Two files have the same object or other states, or the directory is a URL.

    Examples
    --------
    >>> from xr_tensorfmt import cc4s, tutorial
    >>> directory = tutorial.get_path("LiH").parent
    >>> ds = cc4s.open_calculation(directory)
    >>> dict(ds.sizes)
    {'AuxiliaryField': 40, 'State': 10, 'State_2': 10}
    >>> ds.occupied[:4].values
    array([ True,  True, False, False])
    """
    if refused := {"dims", "name"} & open_options.keys():
        raise TypeError(
            f"open_calculation has no keyword {', '.join(sorted(refused))}, because tensors have "
            "different dimensions and names; call ds.rename"
        )
    by_dim = chunks if isinstance(chunks, Mapping) else {}  # of the Dataset, not of its files
    path, chunks = _get_local_path(directory), {} if by_dim else chunks
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", category=TensorFormatWarning)
        tensors = _open_tensors(path, chunks, open_options)
    # Tensors of the same State.yaml have the same warning.
    for message in {str(item.message): item.message for item in caught}.values():
        warnings.warn(message, stacklevel=2)
    infos = {name: get_file_info(ds[name].variable, "cc4s") for name, ds in tensors.items()}
    conflicts = [header.find_fermi_conflict(name, ds[name].attrs) for name, ds in tensors.items()]
    conflicts.append(header.find_unit_conflict({name: infos[name]["unit"] for name in infos}))
    for conflict in filter(None, conflicts):
        warn(f"{directory}: {conflict}")
    dimensions = {n: complete_dimensions(n, x["shape"], x["types"]) for n, x in infos.items()}
    state, dims = _share_dims(str(directory), dimensions)
    try:
        merged = _merge(_rename_dims(ds, name, dims[name]) for name, ds in tensors.items())
    except xr.MergeError as error:
        reason = str(error).partition(" on objects")[0]
        raise ValueError(
            f"{directory}: {reason}, so its files have states in different orders, or are not of "
            "one calculation; write or fetch all of them again"
        ) from error
    parts = {"": np.arange(state.length)}
    if header.OCCUPIED in merged.coords:
        occupied = merged.coords[header.OCCUPIED].values
        parts |= {"h": np.flatnonzero(occupied), "p": np.flatnonzero(~occupied)}
    known = {Dimension(x.size, header.STATE, part): x for part, x in parts.items()}
    for dim, item in chain.from_iterable(zip(dims[x], dimensions[x], strict=True) for x in dims):
        if item in known and (label := dim.lower()) not in merged:
            merged = merged.assign_coords({label: (dim, known[item], header.STATE_NUMBER)})
    merged.encoding = {"tensorfmt": {"dims": dims}}  # of variables that replace others
    return merged.chunk(by_dim).assign_coords(merged.coords) if by_dim else merged


def to_calculation(
    ds: Dataset, directory: str | os.PathLike[str], *, encoding: Mapping[Any, Any] | None = None
) -> None:
    """Write the tensors of a calculation, and ``State.yaml``, to a new directory.

    Parameters
    ----------
    ds : Dataset
        A calculation as `open_calculation` returns it without ``apply_unit=True``, or a selection.
    directory : str or PathLike
        A local directory, new or empty. If writing fails, the files written so far remain.
    encoding : mapping, optional
        The dtypes of variables in the files, as for `to_file`.

    Raises
    ------
    FileExistsError
        The directory is not empty.
    ValueError
        Dimensions have different states, or states in another order, units do not fit each
        other, values have applied units, or as for `to_file`.

    Examples
    --------
    >>> from xr_tensorfmt import cc4s, tutorial
    >>> directory = tutorial.get_path("LiH").parent
    >>> ds = cc4s.open_calculation(directory)
    >>> frozen = ds.isel(State=slice(1, None), State_2=slice(1, None))
    >>> cc4s.to_calculation(frozen, "frozen")
    """
    if not isinstance(ds, Dataset):
        raise TypeError(f"ds= must be a Dataset, not a {type(ds).__name__}; call da.to_dataset()")
    added = [x for x in ds.variables if header.STATE_NUMBER.items() <= ds[x].attrs.items()]
    ds = ds.set_coords([*added, *ds.data_vars.keys() & {header.OCCUPIED}])  # also reset_coords()
    ds = ds.swap_dims({name: str(name).capitalize() for name in added if name in ds.dims})
    # The numbers of states follow dimensions that the user has renamed.
    dims = {ds[name].dims[0]: str(name).capitalize() for name in added if ds[name].ndim == 1}
    if not {*dims.values()} & ({*ds.variables, *ds.dims} - dims.keys()):
        ds = ds.rename(dims)
    checked = _check(ds, str(directory), encoding)
    directory = _get_local_path(directory)
    properties, contents = _pack_properties(ds, str(directory))
    files: dict[str, tuple[Dataset, dict[str, Any]]] = {}
    for file, components in _group_by_file(ds, directory).items():
        variables = {name: ds[name].variable for name in components}
        types, names = write.choose_types(variables, file)
        # Coordinates with other attributes, or along dimensions without types, are embedded.
        stored = [
            name
            for name, kind in properties.items()
            if types.get(str(ds[name].dims[0])) == kind and not set(ds[name].attrs) - {"values"}
        ]
        hidden = [] if file == header.ENERGIES else [header.OCCUPIED]
        parts = ds.drop_vars([*stored, *added, *hidden], errors="ignore")
        tensors = _merge(_rename_dims(parts[[name]], name, names[name]) for name in components)
        tensors.attrs = ds.attrs
        for name, variable in variables.items():
            write.check_types(str(directory), file, name, variable, types)
            checked.warn_of_order(name, checked.variables[name])
            info = tensors[name].encoding["tensorfmt"]
            info |= {"format": "cc4s", "types": tuple(types[str(dim)] for dim in variable.dims)}
            info["component"] = components[name] if components[name] != name else None
        chosen = {new: checked.encoding.get(name, {}) for name, new in components.items()}
        files[f"{file}{YAML}"] = tensors.rename(components), chosen
    directory.mkdir(parents=True, exist_ok=True)
    if not all(path.name.startswith(".") for path in directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty; remove it, or pass a new directory")
    for file, (tensors, chosen) in files.items():
        tensors.tensorfmt.to_file(directory / file, "cc4s", encoding=chosen)
    for file, content in contents.items():
        (directory / file).write_bytes(content)


def _group_by_file(ds: Dataset, directory: Path) -> dict[str, dict[str, str]]:
    """Return the files to write, with their variables and the components that these become."""
    files: dict[str, dict[str, str]] = {}
    for name in map(str, ds.data_vars):
        file, _, component = name.rpartition(".")
        if not is_file_name(file := file or name):  # such as ../a
            raise ValueError(f"{directory}: {file!r} cannot be the name of a file; rename it")
        if re.fullmatch("[hp]+", name):
            hint = f"rename it, such as to 'CoulombIntegrals.{name}', or write one file"
            raise ValueError(f"{directory}: {name!r} is a component of a TensorSet; {hint}")
        files.setdefault(file, {})[name] = component
    return files


def _pack_properties(ds: Dataset, directory: str) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return the types and files of coordinates such as State_Spin. Warn of unseen ones."""
    stored: dict[str, str] = {}
    contents: dict[str, bytes] = {}
    along = [(str(name), item.dims[0]) for name, item in ds.coords.items() if item.ndim == 1]
    named = {name: dim for name, dim in along if name.startswith(f"{dim}_")}
    for dim in map(str, ds.sizes):
        # Slices of states, such as amplitudes, have no properties.
        whole = ds.get(header.VERTEX, ds).dims if dim == header.STATE else ds.dims
        names = (f"{dim}_{number}" for number in range(2, 10))
        dims = [dim, *(x for x in names if x in whole and ds.sizes[x] == ds.sizes[dim])]
        fields: dict[str, Any] = {"version": header.VERSION, "dimensionType": dim}
        if re.search(r"_\d+$", dim) or not is_file_name(f"{dim}{YAML}"):  # it has no type
            continue
        for prop in (name.removeprefix(f"{dim}_") for name in named if named[name] == dim):
            # All dimensions of a type must have the same property.
            packed = [_pack_property(ds.coords.get(f"{x}_{prop}", DataArray(""))) for x in dims]
            if packed[0] is not None and all(other == packed[0] for other in packed):
                stored |= {f"{x}_{prop}": dim for x in dims}
                for key, values in zip(("properties", "propertyIndices"), packed[0], strict=True):
                    fields.setdefault(key, {})[prop] = values
        if "properties" in fields:
            contents[f"{dim}{YAML}"] = format_yaml(fields)
    if unseen := ", ".join(name for name in named if name not in stored):
        warn(
            f"{directory}: cc4s does not see the coordinates {unseen}, because a file "
            "such as State.yaml holds only integers from 0 that are equal along State, State_2 and "
            "so on; number the values, and add the coordinate to each of these dimensions"
        )
    return stored, contents


def _pack_property(coordinate: DataArray) -> tuple[list[Any], list[int]] | None:
    """Return the values of a property, and their numbers by index; None if it is no property."""
    if coordinate.dtype.kind not in "iu":
        return None
    numbers = coordinate.values
    count = int(numbers.max(initial=-1)) + 1
    values = simplify(coordinate.attrs.get("values", [*range(min(count, MAX_VALUES))]))
    values = values if isinstance(values, list) else [values]  # netCDF has no lists of one value
    is_complete = len(values) >= count and is_portable(values)
    return (values, numbers.tolist()) if is_complete and numbers.min(initial=0) >= 0 else None


def _get_local_path(directory: str | os.PathLike[str]) -> Path:
    if is_url(path := get_path(directory)):  # not in the message, because a URL may contain secrets
        raise ValueError(
            "directory= is a URL, but calculations can only be in local directories; copy the files"
        )
    return Path(path).expanduser()


def _open_tensors(
    directory: Path, chunks: Any, open_options: Mapping[str, Any]
) -> dict[str, Dataset]:
    """Open each tensor as a Dataset, by the name in the calculation."""
    with suppress(IsADirectoryError):
        find_source(directory, "read")
        raise NotADirectoryError(f"{directory}: Not a directory; pass its directory or extract it")
    tensors: dict[str, Dataset] = {}
    incomplete: list[tuple[Path, str, FileNotFoundError]] = []
    names = [x for x in list_names(directory) if x.casefold().endswith((YAML, ELEMENTS))]
    parts = find_parts(names, lambda name: open_header(directory / name, "read"))
    for path in (directory / name for name in names if name not in parts):
        cc4s_object = header.get_variable_name(header.get_stem(path.name))
        try:
            ds = xr.open_dataset(path, engine="tensorfmt", chunks=chunks, **open_options)
        except FileNotFoundError as error:
            incomplete.append((path, cc4s_object, error))
            continue
        for name, tensor in ds.data_vars.items():
            is_component = "component" in get_file_info(tensor.variable, "cc4s")
            full_name = f"{cc4s_object}.{name}" if is_component else cc4s_object
            if full_name in tensors:
                raise ValueError(
                    f"{path}: {full_name} is also in another file, but the files must belong "
                    "to one calculation; move one of them to another directory"
                )
            tensors[full_name] = ds[[name]].rename({name: full_name})
    missing = header.OBJECTS - {name.partition(".")[0] for name in tensors}
    for path, cc4s_object, reason in incomplete:
        if cc4s_object in missing:
            raise reason
        warn(f"{path} is left out, because it is incomplete ({reason})")
    if not tensors:
        raise FileNotFoundError(
            f"{directory}: no tensors of cc4s, expected files such as CoulombVertex.yaml and "
            "CoulombVertex.elements; pass the directory of a calculation"
        )
    return tensors


def _share_dims(
    directory: str, dimensions: Mapping[str, list[Dimension]]
) -> tuple[Dimension, dict[str, tuple[str, ...]]]:
    """Return the dimension of all states, and the names of dimensions, which begin with it."""
    whole = dimensions.get(header.ENERGIES) or dimensions.get(header.VERTEX, [])
    lengths = [item.length for item in whole if item.type == header.STATE]
    state = Dimension(max(lengths, default=-1), header.STATE)
    if lengths and state not in dimensions.get(header.VERTEX, [state]):
        raise ValueError(
            f"{directory}: {header.VERTEX} and {header.ENERGIES} have different numbers of states; "
            "fetch both from the directory of one calculation"
        )
    repeats = max(of_tensor.count(state) for of_tensor in dimensions.values())
    _, *names = header.make_dims_unique([[state] * repeats, *dimensions.values()])
    return state, dict(zip(dimensions, names, strict=True))


def _rename_dims(ds: Dataset, name: str, dims: tuple[str, ...]) -> Dataset:
    """Rename the dimensions of the sole tensor of a Dataset, and coordinates called after them."""
    names: dict[Any, str] = dict(zip(ds[name].dims, dims, strict=True))
    coordinates = {
        coordinate: f"{new}{str(coordinate).removeprefix(str(old))}"
        for coordinate, variable in ds.coords.items()
        for old, new in names.items()
        if variable.dims == (old,) and str(coordinate).startswith(f"{old}_")
    }
    renamed = ds.rename(names | coordinates)
    renamed[name].encoding["tensorfmt"] = {**get_info(renamed[name].encoding), "dims": dims}
    return renamed


def _merge(tensors: Iterable[Dataset]) -> Dataset:
    return xr.merge(tensors, join="exact", compat="equals", combine_attrs="drop_conflicts")


def _check(ds: Dataset, directory: str, encoding: Any) -> CheckedInput:
    """Raise ValueError if units, states or dtypes do not fit, before a file is written."""
    tensors = {str(name): tensor.variable for name, tensor in ds.data_vars.items()}
    if not tensors:
        raise ValueError(f"{directory}: there are no tensors to write; pass a Dataset with some")
    units = {}
    for name, tensor in tensors.items():
        units[name] = write.check_unit(directory, name, tensor)
        if conflict := header.find_rank_conflict(name, tensor.ndim):
            raise ValueError(f"{directory}: {name!r} has {conflict}")
    if conflict := header.find_unit_conflict(units):
        raise ValueError(
            f"{directory}: {conflict}: open all tensors without apply_unit=True, and set the "
            "attribute unit of computed ones"
        )
    coordinates = {str(name): coordinate.variable for name, coordinate in ds.coords.items()}
    size = tensors[header.ENERGIES].size if header.ENERGIES in tensors else 0
    occupied = ds.get(header.OCCUPIED, DataArray(np.ones(size, bool)))
    fermi = simplify(ds[header.ENERGIES].attrs.get("fermiEnergy")) if size else None
    if isinstance(fermi, int | float):  # cc4s counts the states below it
        occupied = DataArray(ds[header.ENERGIES].values < fermi)
        coordinates.setdefault(header.OCCUPIED, occupied.variable)
    numbers = write.check_states(directory, tensors, coordinates)
    number = int(np.count_nonzero(occupied))
    if header.VERTEX in tensors and get_file_info(tensors[header.VERTEX], "cc4s") and not numbers:
        warn(
            f"{directory}: the Dataset has no numbers of states, so different states along the "
            "dimensions, or another order, are not found; open the directory with open_calculation"
        )
    if header.OCCUPIED in ds.coords and header.ENERGIES not in tensors:
        warn(
            f"{directory}: the coordinate {header.OCCUPIED!r} is not written, because cc4s counts "
            f"occupied states by {header.ENERGIES}; write that tensor too"
        )
    elif not occupied[:number].all():
        dims = (d for d in ds.sizes if str(d).startswith(header.STATE) and ds.sizes[d] == size)
        warn(
            f"the {number} occupied states are not the first of the {size} states, as cc4s expects"
            f"; sort slices alike, and sort all dimensions of states: order = ds.{header.ENERGIES}."
            f"values.argsort(); ds = ds.isel({', '.join(f'{dim}=order' for dim in dims)})"
        )
    checked = check_input(ds, directory, "cc4s", encoding)
    encoded = checked.encode(write.ELEMENTS_BY_DTYPE)
    for name, variable in encoded.variables.items():
        encoded.choose_conversion(name, variable, write.ELEMENTS_BY_DTYPE)
    return checked
