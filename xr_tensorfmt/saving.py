"""The function `to_file`."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

from xarray import DataArray, Dataset, DataTree

from xr_tensorfmt.core.file_format import Format, OpenOptions
from xr_tensorfmt.datasets.groups import flatten_encoding, flatten_tree
from xr_tensorfmt.errors import build_keyword_error
from xr_tensorfmt.formats import registry
from xr_tensorfmt.formats.recognition import read_container
from xr_tensorfmt.writing.checked_input import DroppablePart, check_input
from xr_tensorfmt.writing.region import Region, write_region
from xr_tensorfmt.writing.save import Mode, is_overwriting, locate_target, save

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from fsspec import AbstractFileSystem


def to_file(
    data: Dataset | DataArray | DataTree,
    /,
    path: Any,
    format: str | None = None,
    *,
    mode: Mode = "w",
    compute: bool = True,
    region: Region | None = None,
    encoding: Mapping[Any, Any] | None = None,
    drop: Collection[DroppablePart] = (),
    separator: str = ".",
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    **format_options: Any,
) -> Delayed | None:
    """Write a tensor file, chunk by chunk and in parallel.

    ``data.tensorfmt.to_file(path)`` is the method of Datasets, DataArrays and DataTrees.

    Writing creates a temporary file, which replaces `path` when it is complete.

    Parameters
    ----------
    data : Dataset, DataArray or DataTree
        The data, which may be opened from the file that is overwritten.
    path : str, PathLike or OpenFile
        The file, or a URL that fsspec supports.
    format : str, optional
        Name of the format. The default depends on the suffix of `path`.
    mode : {"w", "w-", "x"}
        ``"w"`` overwrites an existing file, ``"w-"`` or ``"x"`` raises an error if it exists.
    compute : bool
        If False, return a `dask.delayed.Delayed` that writes the file when it is computed.
    region : mapping of str to slice or list, or "auto", optional
        Write in place to a part of an existing local file with the same variables. Slices and lists
        are positions, and ``"auto"``, for one dimension or for all, finds the labels of the data.
    encoding : mapping, optional
        ``{name: {"dtype": ...}}``: the dtype of a variable in the file, to which floating-point
        values are rounded. ``{"dtype": ...}`` applies to all variables of the same kind. Formats
        with attributes support the keys of CF, as in `xarray.Dataset.to_netcdf`. A DataTree has
        ``{"/layers/0": {name: ...}}``.
    drop : list of {"name", "dims", "coords", "attrs"}
        Parts to omit if the format does not support them. Otherwise they raise an error.
    separator : str
        Separator between group and variable names of a DataTree.
    storage_options : mapping, optional
        Options of the fsspec file system of a URL.
    fs : AbstractFileSystem, optional
        The fsspec file system of `path`.
    **format_options
        Keywords of the format, which its page lists. None selects the default.

    Returns
    -------
    Delayed or None
        A `Delayed` if `compute` is False.

    Raises
    ------
    ValueError
        The format does not support the data. The message names an alternative.
    TypeError
        A keyword is unknown, or a value has the wrong type.
    OSError
        The file cannot be written: no space, no permission, no such directory.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> ds = xr.Dataset({"tensor": (("a", "b"), np.eye(3))})
    >>> xr_tensorfmt.to_file(ds, "identity.tens")
    >>> xr.open_dataset("identity.tens").identical(ds)
    True
    """
    location = locate_target(path, storage_options, fs)
    name = location.name
    if name.endswith("/") or (location.is_local and os.path.isdir(location.path)):
        raise IsADirectoryError(
            f"{name} is a directory, expected a file; append a name such as model.mag, or "
            "write a calculation with xr_tensorfmt.cc4s.to_calculation"
        )
    find = registry.find_format_for_path
    file_format = registry.find_format(format) if format else find(location.url)
    if not file_format.can_write:
        raise ValueError(f"{file_format.title} files can only be read; choose another format")
    format_options = _normalize_options(file_format, format_options)
    overwrite = is_overwriting(mode)
    _check_region(region, [*format_options, *(() if overwrite else ["mode"])])
    if isinstance(data, DataTree):
        encoding = flatten_encoding(data, separator, encoding or {})
        data = flatten_tree(name, data, separator, drop or ())
    elif separator != ".":
        raise ValueError(f"separator={separator!r} is only for a DataTree; omit it")
    title, file_name = file_format.title, location.file_name
    checked = check_input(data, name, title, encoding, drop, file_name)
    if region is None:
        plan = file_format.plan(checked, **format_options)
        return save(plan, location, overwrite=overwrite, compute=compute)
    options = OpenOptions(loads_labels=False)
    read = partial(read_container, file_format=file_format, options=options)
    return write_region(checked, location, region, read, compute=compute)


def _normalize_options(file_format: Format, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of a format that are not None. Raise TypeError if one is unknown."""
    options, given = file_format.write_options, {k: v for k, v in given.items() if v is not None}
    for name in given.keys() - options.keys():
        known = [*options, *signature(to_file).parameters]
        hint = "; pass encoding={'dtype': ...}, or --dtype" if name == "dtype" else ""
        raise build_keyword_error(name, f"for {file_format.title} files", known, hint)
    return {name: options[name].normalize(name, value) for name, value in given.items()}


def _check_region(region: Any, others: Collection[str]) -> None:
    """Raise an error if a region has another type, or is combined with keywords for new files."""
    if not isinstance(region, Mapping | None) and region != "auto":
        raise TypeError(f"region= must be 'auto' or like {{'x': slice(0, 10)}}, not {region!r}")
    if region is not None and others:
        raise ValueError(
            f"region= writes to an existing file, but {', '.join(f'{name}=' for name in others)} "
            "is for new files; omit one of them"
        )
