"""Calculations of cc4s: a directory of tensors as one Dataset."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from xarray import Dataset, Variable

from xr_tensorfmt.errors import TensorFormatWarning, find_stack_level
from xr_tensorfmt.formats.cc4s import ELEMENTS, YAML, header
from xr_tensorfmt.formats.cc4s.header import Dimension, complete_types
from xr_tensorfmt.formats.cc4s.read import find_parts
from xr_tensorfmt.formats.cc4s.write import (
    check_states,
    check_unit,
    choose_types,
    name_dimensions,
)
from xr_tensorfmt.formats.recognition import open_header
from xr_tensorfmt.sources import get_path, is_url, list_names
from xr_tensorfmt.writing.encoding import get_file_info, resolve_encoding

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
    chunks
        As for `xarray.open_dataset`.
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
        The path is not a directory, or has no tensor, or elements have no YAML file.
    ValueError
        Two files have the same object or do not fit each other, or the directory is a URL.

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
    tensors: dict[str, Dataset] = {}
    units: dict[str, float] = {}
    dimensions: dict[str, list[Dimension]] = {}
    for path in _find_tensors(_get_local_path(directory)):
        cc4s_object = header.get_variable_name(header.get_stem(path.name))
        try:
            ds = xr.open_dataset(path, engine="tensorfmt", chunks=chunks, **open_options)
        except FileNotFoundError as error:
            if cc4s_object in header.OBJECTS:
                raise
            message = f"{path} is left out, because its elements are missing ({error})"
            warnings.warn(message, TensorFormatWarning, stacklevel=find_stack_level())
            continue
        for name, tensor in ds.data_vars.items():
            file_info = get_file_info(tensor.variable, "cc4s")
            full_name = f"{cc4s_object}.{name}" if "component" in file_info else cc4s_object
            if full_name in tensors:
                raise ValueError(
                    f"{path}: {full_name} is also in another file, but the files must belong "
                    "to one calculation; move one of them to another directory"
                )
            tensors[full_name] = ds[[name]].rename({name: full_name})
            units[full_name] = file_info["unit"]
            dimensions[full_name] = complete_types(cc4s_object, tensor.shape, file_info["types"])
    if not tensors:
        raise FileNotFoundError(f"{directory}: no tensor of cc4s has a file of elements")
    if conflict := header.find_length_conflict(dimensions):
        raise ValueError(f"{directory}: {conflict}, so fetch both from one directory")
    if conflict := header.find_unit_conflict(units):
        message = f"{directory}: {conflict}"
        warnings.warn(message, TensorFormatWarning, stacklevel=find_stack_level())
    states, dims = _find_shared_dims(dimensions)
    merged = _merge(_rename_dims(ds, name, dims[name]) for name, ds in tensors.items())
    numbers = {dim.lower(): dim for dim in states if dim.lower() not in merged.variables}
    merged = merged.assign_coords(
        {
            name: Variable(dim, np.arange(merged.sizes[dim]), header.STATE_NUMBER)
            for name, dim in numbers.items()
        }
    )
    for tensor in merged.data_vars.values():
        # The writer finds the cc4s types of the dimensions, such as "State", by these names.
        tensor.encoding["tensorfmt"] = {**tensor.encoding["tensorfmt"], "dims": tensor.dims}
    return merged


def to_calculation(
    ds: Dataset, directory: str | os.PathLike[str], *, encoding: Mapping[Any, Any] | None = None
) -> None:
    """Write the tensors of a calculation to the files of a new directory.

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
    _check_units(ds, directory)
    _check_selection(ds, directory)
    dtypes = resolve_encoding(ds.variables, ds.coords, encoding or {})
    directory = _get_local_path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if list_names(directory):
        raise FileExistsError(f"{directory}: the directory is not empty; pass a new directory")
    files: dict[str, dict[str, str]] = {}
    for name, tensor in ds.data_vars.items():
        file, _, component = str(name).rpartition(".")
        file_info = get_file_info(tensor.variable, "cc4s")
        if not file or (file_info and "component" not in file_info):
            file = component = str(name)
        files.setdefault(file, {})[str(name)] = component
    for file, components in files.items():
        variables = {name: ds[name].variable for name in components}
        dims = name_dimensions(variables, choose_types(variables, file))
        tensors = _merge(_rename_dims(ds[[name]], name, dims[name]) for name in components)
        tensors.attrs = ds.attrs
        if file != header.ENERGIES:
            tensors = tensors.drop_vars(header.OCCUPIED, errors="ignore")
        chosen = {components[name]: dtypes[name] for name in components if name in dtypes}
        path = directory / f"{file}{YAML}"
        tensors.rename(components).tensorfmt.to_file(path, "cc4s", encoding=chosen)


def _get_local_path(directory: str | os.PathLike[str]) -> Path:
    if is_url(path := get_path(directory)):  # not in the message, because a URL may contain secrets
        raise ValueError(
            "directory= is a URL, but calculations can only be in local directories; copy the "
            "files, or open and write each file by its URL"
        )
    return Path(path)


def _find_tensors(directory: Path) -> list[Path]:
    """Return the YAML files that the engine recognises or that have elements."""
    if directory.is_file():
        raise NotADirectoryError(
            f"{directory}: Not a directory but a file; pass its directory {directory.parent},"
            " or open the file with xarray.open_dataset"
        )
    names = {name for name in list_names(directory) if not (directory / name).is_dir()}
    parts = find_parts(names, lambda name: open_header(directory / name, "read"))
    # Files of other programs have the suffix, too.
    suffixes = (YAML, ELEMENTS)
    files = sorted(name for name in names - parts.keys() if name.casefold().endswith(suffixes))
    if orphans := [file for file in files if file.endswith(ELEMENTS)]:
        name = header.get_stem(orphans[0])
        raise FileNotFoundError(
            f"{directory}: there are elements of {name}, but no {name}{YAML} with their "
            "shape; fetch it, or remove the elements"
        )
    paths = [directory / file for file in files if file.endswith(YAML)]
    if not paths:
        raise FileNotFoundError(
            f"{directory}: no YAML file of cc4s tensors; pass the directory with CoulombVertex.yaml"
        )
    return paths


def _find_shared_dims(
    tensors: Mapping[str, list[Dimension]],
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return the dimensions of all states, and those of each tensor. Slices have later numbers."""
    sources = [tensors[header.ENERGIES]] if header.ENERGIES in tensors else tensors.values()
    lengths = [item.length for item in chain.from_iterable(sources) if item.type == header.STATE]
    state = Dimension(max(lengths, default=0), header.STATE)
    repeats = max(dimensions.count(state) for dimensions in tensors.values())
    states, *names = header.make_dims_unique([[state] * repeats, *tensors.values()])
    return states, dict(zip(tensors, names, strict=True))


def _rename_dims(ds: Dataset, name: str, dims: tuple[str, ...]) -> Dataset:
    """Rename the dimensions of the sole tensor of a Dataset, and coordinates called after them."""
    names: dict[Any, str] = dict(zip(ds[name].dims, dims, strict=True))
    coordinates = {
        coordinate: f"{new}{str(coordinate).removeprefix(str(old))}"
        for coordinate, variable in ds.coords.items()
        for old, new in names.items()
        if variable.dims == (old,) and str(coordinate).startswith(f"{old}_")
    }
    return ds.rename(names | coordinates)


def _merge(tensors: Iterable[Dataset]) -> Dataset:
    """Merge tensors. Load coordinates, which are in the YAML and which xarray divides in chunks."""
    ds = xr.merge(tensors, join="exact", compat="equals", combine_attrs="drop_conflicts")
    for coordinate in ds.coords.values():
        coordinate.load()
    return ds


def _check_units(ds: Dataset, directory: str | os.PathLike[str]) -> None:
    """Raise ValueError if values are not in the units of their files, or units do not fit."""
    units = {}
    for name, tensor in ds.data_vars.items():
        check_unit(str(directory), str(name), tensor.variable)
        unit = tensor.attrs.get("unit", 1.0)
        if isinstance(unit, int | float):
            units[str(name)] = unit
    if conflict := header.find_unit_conflict(units):
        raise ValueError(
            f"{directory}: {conflict}: open all tensors without apply_unit=True, and set the "
            "attribute unit of computed ones"
        )


def _check_selection(ds: Dataset, directory: str | os.PathLike[str]) -> None:
    """Raise ValueError if states are not selected in all tensors. Warn of their order."""
    tensors = {str(name): tensor.variable for name, tensor in ds.data_vars.items()}
    coordinates = {str(name): coordinate.variable for name, coordinate in ds.coords.items()}
    for name, tensor in tensors.items():
        rank = len(header.DIMENSIONS.get(name, tensor.dims))
        if tensor.ndim != rank:
            raise ValueError(
                f"{directory}: {name!r} has {tensor.ndim} dimensions, expected {rank}; select "
                "states by a list, which keeps their dimensions: ds.isel(State=[0], State_2=[0])"
            )
    size = ds[header.ENERGIES].size if header.ENERGIES in ds else 0
    occupied = np.ones(size, bool)
    if header.OCCUPIED in ds.coords and ds[header.OCCUPIED].size == size:
        occupied = ds[header.OCCUPIED].values
    number = int(np.count_nonzero(occupied))
    for name, tensor in tensors.items() if header.ENERGIES in ds else ():
        expected = {size} if name == header.VERTEX else {size, number, size - number}
        sizes = {d: n for d, n in tensor.sizes.items() if str(d).partition("_")[0] == header.STATE}
        if not name.startswith("Sliced") and not expected.issuperset(sizes.values()):
            raise ValueError(
                f"{name!r} has {sizes}, expected {' or '.join(map(str, sorted(expected)))} states; "
                "select the same states along all dimensions with isel(), or call "
                f"ds.drop_vars({name!r}) to let cc4s compute it again"
            )
    check_states(str(directory), tensors, coordinates)
    is_whole = {header.VERTEX, header.ENERGIES} <= tensors.keys()
    is_opened = is_whole and get_file_info(tensors[header.VERTEX], "cc4s")
    if is_opened and "state" not in coordinates:
        message = (
            f"{directory}: the Dataset has no numbers of states, so different states along the "
            "dimensions, or another order, are not found; open the directory with open_calculation"
        )
        warnings.warn(message, TensorFormatWarning, stacklevel=find_stack_level())
    if not occupied[:number].all():
        dims = dict.fromkeys(d for v in tensors.values() for d in v.dims if v.sizes[d] == size)
        line = ", ".join(f"{dim}=order" for dim in dims if str(dim).startswith(header.STATE))
        message = (
            f"the {number} occupied states are not the first of the {size} states, as cc4s "
            f"expects; sort all dimensions of states: order = ds.{header.ENERGIES}.argsort()"
            f".values; ds = ds.isel({line})"
        )
        warnings.warn(message, TensorFormatWarning, stacklevel=find_stack_level())
