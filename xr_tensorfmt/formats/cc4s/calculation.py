"""The tensors of one calculation: a directory of cc4s files as one Dataset."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from xarray import DataArray, Dataset

from xr_tensorfmt.contract import resolve_encoding
from xr_tensorfmt.formats.cc4s.header import Dimension, make_dims_unique
from xr_tensorfmt.formats.cc4s.spec import (
    ELEMENTS,
    STATE,
    YAML,
    get_object_types,
    get_stem,
    get_variable_name,
)
from xr_tensorfmt.formats.cc4s.write_dimensions import DimensionNames, get_file_info

_ENERGIES, _VERTEX = "EigenEnergies", "CoulombVertex"
_COUNTS = ("No", "Nv")


def open_cc4s_calculation(
    directory: str | os.PathLike[str], *, chunks: Any = None, **open_options: Any
) -> Dataset:
    """Open all cc4s tensors of a directory as one Dataset.

    Dimensions of states are numbered. If there are 10 EigenEnergies, CoulombVertex with the shape
    (NF, 10, 10) has ``State`` and ``State_2``, and Amplitudes with the shape (6, 6, 4, 4) have
    ``State_3`` to ``State_6``.

    Parameters
    ----------
    directory : str or PathLike
        A local directory. YAML files without a tensor, such as ``State.yaml``, add coordinates or
        are left out.
    chunks
        As for `xarray.open_dataset`. The values are lazy in any case.
    **open_options
        Other keywords of `xarray.open_dataset` for all files, such as ``apply_unit=True``, except
        ``dims`` and ``name``.

    Returns
    -------
    Dataset
        A variable for each Tensor, called as its object, and for each component of a TensorSet,
        such as ``CoulombIntegrals.hhpp``. The attributes ``No`` and ``Nv`` are the numbers of
        occupied and virtual states by the rule of cc4s: states are occupied if their ``energies``
        are below ``fermiEnergy`` in the metadata of EigenEnergies. They are missing without these.
        `select_cc4s_states` updates them, but ``ds.isel`` keeps the old numbers.

    Raises
    ------
    FileNotFoundError
        The directory does not exist or has no tensor, or elements have no YAML file.
    NotADirectoryError
        The path is the path of a file.
    ValueError
        Two files have the same object, or the directory is a URL.

    See Also
    --------
    select_cc4s_states : Select states in all tensors.
    to_cc4s_calculation : Write a directory.

    Examples
    --------
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> levels = [-0.5, 0.2, 0.7]
    >>> energies = xr.DataArray(
    ...     levels,
    ...     dims="State",
    ...     name="EigenEnergies",
    ...     attrs={
    ...         "fermiEnergy": 0.0,
    ...         "energies": levels,
    ...     },
    ... )
    >>> xr_tensorfmt.to_cc4s(
    ...     energies, "EigenEnergies.yaml"
    ... )
    >>> dims = (
    ...     "AuxiliaryField",
    ...     "State",
    ...     "State_2",
    ... )
    >>> vertex = xr.DataArray(
    ...     [[[1.0] * 3] * 3],
    ...     dims=dims,
    ...     name="CoulombVertex",
    ... )
    >>> xr_tensorfmt.to_cc4s(
    ...     vertex, "CoulombVertex.yaml"
    ... )
    >>> ds = xr_tensorfmt.open_cc4s_calculation(".")
    >>> dict(ds.sizes), ds.No, ds.Nv
    ({'AuxiliaryField': 1, 'State': 3, 'State_2': 3}, 1, 2)
    """
    tensors: dict[str, Dataset] = {}
    dimensions: dict[str, list[Dimension]] = {}
    for path in _find_tensors(_get_local_path(directory)):
        ds = xr.open_dataset(path, engine="tensorfmt", chunks=chunks, **open_options)
        cc4s_object = get_variable_name(get_stem(path.name))
        for name, tensor in ds.data_vars.items():
            is_component = "component" in get_file_info(tensor.variable)
            full_name = f"{cc4s_object}.{name}" if is_component else cc4s_object
            if full_name in tensors:
                raise ValueError(
                    f"{path}: {full_name} is also in another file, but the files must belong "
                    "to one calculation; move one of them to another directory"
                )
            tensors[full_name] = ds[[name]].rename({name: full_name})
            dimensions[full_name] = _find_dimensions(cc4s_object, tensor)
    dims = _find_shared_dims(dimensions)
    merged = _merge(_rename_dims(ds, name, dims[name]) for name, ds in tensors.items())
    for tensor in merged.data_vars.values():
        # The writer finds the cc4s types of the dimensions, such as "State", by these names.
        tensor.encoding["tensorfmt"] = {**tensor.encoding["tensorfmt"], "dims": tensor.dims}
    return merged.assign_attrs(_count(merged))


def select_cc4s_states(
    ds: Dataset, states: slice | Sequence[int] | np.ndarray[Any, Any] | DataArray
) -> Dataset:
    """Select the same states in all tensors of a calculation, and in their metadata.

    Parameters
    ----------
    ds : Dataset
        A calculation as `open_cc4s_calculation` returns it.
    states : slice or sequence
        A slice, ascending positions, or a Boolean for each state. ``slice(2, None)`` freezes a
        core of two states; ``slice(None, -4)`` leaves out the last four virtual states.

    Returns
    -------
    Dataset
        The selection of all dimensions ``State``, ``State_2``, ..., still lazy. The list
        ``energies`` and the attributes ``No`` and ``Nv`` describe the selected states.

    Raises
    ------
    IndexError
        A state does not exist, or the number of Booleans is not the number of states.
    ValueError
        The states are not in ascending order, or a tensor has State dimensions of another length:
        cc4s computes amplitudes and other slices again from the states.

    See Also
    --------
    open_cc4s_calculation : Open a directory.

    Examples
    --------
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> levels = [-9.0, -0.5, 0.2, 0.7]
    >>> energies = xr.DataArray(
    ...     levels,
    ...     dims="State",
    ...     attrs={
    ...         "fermiEnergy": 0.0,
    ...         "energies": levels,
    ...     },
    ... )
    >>> ds = xr.Dataset({"EigenEnergies": energies})
    >>> frozen = xr_tensorfmt.select_cc4s_states(
    ...     ds, slice(1, None)
    ... )
    >>> frozen.EigenEnergies.attrs
    {'fermiEnergy': 0.0, 'energies': [-0.5, 0.2, 0.7]}
    >>> frozen.No, frozen.Nv
    (1, 2)
    """
    size = ds.sizes.get(STATE)
    if size is None:
        raise ValueError(
            f"the Dataset has the dims {tuple(ds.sizes)}, expected {STATE!r}; open it with "
            "open_cc4s_calculation"
        )
    if not isinstance(states, slice):
        # numpy would convert an empty list to floats.
        states = np.asarray(states) if np.size(states) else np.arange(0)
    try:
        selected = np.arange(size)[states]
    except IndexError as error:
        raise IndexError(
            f"states: {error}; expected a slice, positions below {size}, or {size} Booleans"
        ) from None
    if selected.ndim != 1 or (np.diff(selected) <= 0).any():
        raise ValueError(
            f"states: {states!r} selects {selected.tolist()}, expected states in ascending order, "
            "because cc4s treats the first ones as occupied; pass a sorted list without repetitions"
        )
    _check_lengths(ds, size)
    indexers = {dim: states for dim in ds.dims if _is_state(dim)}
    result = ds.isel(indexers)
    for name, tensor in ds.data_vars.items():
        energies = tensor.attrs.get("energies")
        is_list = energies is not None and np.shape(energies) == (size,)
        if is_list and set(tensor.dims) <= {*indexers}:
            result[name].attrs["energies"] = np.asarray(energies)[states].tolist()
    return result.assign_attrs(_count(result))


def to_cc4s_calculation(
    ds: Dataset,
    directory: str | os.PathLike[str],
    *,
    encoding: Mapping[Any, Any] | None = None,
) -> None:
    """Write the tensors of a calculation to the files of a new directory.

    Parameters
    ----------
    ds : Dataset
        A calculation as `open_cc4s_calculation` and `select_cc4s_states` return it. The variable
        ``CoulombVertex`` is written to ``CoulombVertex.yaml``, and variables such as
        ``CoulombIntegrals.hhpp`` are the components of a TensorSet. The attributes ``No`` and
        ``Nv`` follow from EigenEnergies and are not written.
    directory : str or PathLike
        A local directory. It is made if it does not exist, and must be empty. If writing fails,
        the files written so far remain.
    encoding : mapping, optional
        The dtypes of variables in the files, as for `to_file`.

    Raises
    ------
    FileExistsError
        The directory is not empty.
    ValueError
        CoulombVertex and EigenEnergies have different numbers of states, or as for `to_cc4s`.

    See Also
    --------
    to_cc4s : Write one tensor, with all keywords.

    Examples
    --------
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> levels = [-0.5, 0.2, 0.7]
    >>> energies = xr.DataArray(
    ...     levels, dims="State"
    ... )
    >>> energies.attrs = {
    ...     "fermiEnergy": 0.0,
    ...     "energies": levels,
    ...     "unit": 1.0,
    ... }
    >>> ds = xr.Dataset(
    ...     {"EigenEnergies": energies},
    ...     attrs={"No": 1, "Nv": 2},
    ... )
    >>> xr_tensorfmt.to_cc4s_calculation(ds, "LiH")
    >>> back = xr_tensorfmt.open_cc4s_calculation(
    ...     "LiH"
    ... )
    >>> back.identical(ds)
    True
    """
    if _ENERGIES in ds:
        whole = ds[[name for name in (_ENERGIES, _VERTEX) if name in ds]]
        _check_lengths(whole, ds[_ENERGIES].size)
    dtypes = resolve_encoding(ds.variables, ds.coords, encoding or {})
    directory = _get_local_path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise FileExistsError(
            f"{directory}: the directory is not empty, but its files must belong to one "
            "calculation; pass a new directory"
        )
    files: dict[str, dict[str, str]] = {}
    for name, tensor in ds.data_vars.items():
        file, component = _split_name(str(name), tensor)
        files.setdefault(file, {})[str(name)] = component
    own_attrs = {key: value for key, value in ds.attrs.items() if key not in _COUNTS}
    for file, components in files.items():
        defaults = DimensionNames.plan({name: ds[name].variable for name in components}).defaults
        tensors = _merge(_rename_dims(ds[[name]], name, defaults[name]) for name in components)
        tensors.attrs = own_attrs
        chosen = {components[name]: dtypes[name] for name in components if name in dtypes}
        path = directory / f"{file}{YAML}"
        tensors.rename(components).tensorfmt.to_file(path, "cc4s", encoding=chosen)


def _get_local_path(directory: str | os.PathLike[str]) -> Path:
    if "://" in str(directory):  # not in the message, because a URL may contain secrets
        raise ValueError(
            "directory= is a URL, but calculations can only be in local directories; copy the "
            "files, or open and write each file by its URL"
        )
    return Path(directory)


def _find_tensors(directory: Path) -> list[Path]:
    """Return the YAML files that the engine recognises or that have elements."""
    if not directory.is_dir():
        missing = not directory.exists()
        error_type = FileNotFoundError if missing else NotADirectoryError
        actual = "no such directory" if missing else "a file, expected a directory"
        raise error_type(f"{directory}: {actual}; pass the directory with CoulombVertex.yaml")
    with_elements = {get_stem(path.name) for path in directory.glob(f"*{ELEMENTS}")}
    candidates = sorted(directory.glob(f"*{YAML}"))
    orphans = with_elements - {get_stem(path.name) for path in candidates}
    if orphans:
        name = min(orphans)
        raise FileNotFoundError(
            f"{directory}: there are elements of {name}, but no {name}{YAML} with their shape; "
            "fetch it, or remove the elements"
        )
    engine = xr.backends.list_engines()["tensorfmt"]
    paths = [
        path
        for path in candidates
        if get_stem(path.name) in with_elements or engine.guess_can_open(path)
    ]
    if not paths:
        raise FileNotFoundError(
            f"{directory}: the directory contains no YAML file of a cc4s tensor; pass the "
            "directory with CoulombVertex.yaml"
        )
    return paths


def _split_name(name: str, tensor: DataArray) -> tuple[str, str]:
    """Return the names of the file and of its variable."""
    file_info = get_file_info(tensor.variable)
    file, _, component = name.rpartition(".")
    is_component = file and (not file_info or "component" in file_info)
    return (file, component) if is_component else (name, name)


def _find_dimensions(cc4s_object: str, tensor: DataArray) -> list[Dimension]:
    """Return the dimensions of a tensor, with the types of its object if the file has none."""
    types = get_file_info(tensor.variable)["types"]
    expected = get_object_types(cc4s_object, tensor.ndim) or types
    return [
        Dimension(length, of_file or of_object)
        for length, of_file, of_object in zip(tensor.shape, types, expected, strict=True)
    ]


def _find_shared_dims(tensors: Mapping[str, list[Dimension]]) -> dict[str, tuple[str, ...]]:
    """Return dimension names. Dimensions of all states have the first numbers, slices the next."""
    sources = {_ENERGIES: tensors[_ENERGIES]} if _ENERGIES in tensors else tensors
    lengths = [
        dimension.length
        for dimensions in sources.values()
        for dimension in dimensions
        if dimension.type == STATE
    ]
    state = Dimension(max(lengths, default=0), STATE)
    repeats = max(dimensions.count(state) for dimensions in tensors.values())
    _, *names = make_dims_unique([[state] * repeats, *tensors.values()])
    return dict(zip(tensors, names, strict=True))


def _rename_dims(ds: Dataset, name: str, dims: tuple[str, ...]) -> Dataset:
    """Rename the dimensions of the sole tensor of a Dataset, and coordinates called after them."""
    names: dict[Any, str] = dict(zip(ds[name].dims, dims, strict=True))
    for coordinate, variable in ds.coords.items():
        for old, new in zip(ds[name].dims, dims, strict=True):
            if variable.dims == (old,) and str(coordinate).startswith(f"{old}_"):
                names[coordinate] = f"{new}{str(coordinate).removeprefix(str(old))}"
    return ds.rename(names)


def _merge(tensors: Iterable[Dataset]) -> Dataset:
    return xr.merge(tensors, join="exact", compat="equals", combine_attrs="drop_conflicts")


def _is_state(dim: Hashable) -> bool:
    return re.fullmatch(rf"{STATE}(_\d+)?", str(dim)) is not None


def _check_lengths(ds: Dataset, size: int) -> None:
    """Raise ValueError if tensors have State dimensions of another length."""
    wrong = [
        name
        for name, tensor in ds.data_vars.items()
        if any(_is_state(dim) and length != size for dim, length in tensor.sizes.items())
    ]
    if wrong:
        sizes = {str(dim): length for dim, length in ds[wrong].sizes.items() if _is_state(dim)}
        raise ValueError(
            f"{wrong} have the dimensions {sizes}, expected {size} states in all of them; select "
            "states with select_cc4s_states, or call ds.drop_vars with these names"
        )


def _count(ds: Dataset) -> dict[str, int]:
    """Return the numbers of occupied and virtual states, or an empty dict if unknown."""
    energies = ds.get(_ENERGIES)
    if energies is None or "fermiEnergy" not in energies.attrs:
        return {}
    of_states: Any = energies.attrs.get("energies")
    if np.shape(of_states) != energies.shape:
        of_states = energies.values
    occupied = sum(energy < energies.attrs["fermiEnergy"] for energy in of_states)
    return dict(zip(_COUNTS, (occupied, energies.size - occupied), strict=True))
