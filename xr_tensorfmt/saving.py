"""Write files. `xr_tensorfmt.to_file` documents the parameters."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

from dask.delayed import Delayed
from xarray import DataArray, Dataset, DataTree

from xr_tensorfmt.core.file_format import Format
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.errors import TensorFormatWarning, did_you_mean, find_stack_level
from xr_tensorfmt.formats import registry
from xr_tensorfmt.formats.reading import read_container
from xr_tensorfmt.sources.store_errors import redact
from xr_tensorfmt.writing.checked_input import check_input
from xr_tensorfmt.writing.region import AUTO, write_region
from xr_tensorfmt.writing.save import get_name, locate_target, save
from xr_tensorfmt.writing.tree import flatten_encoding, flatten_tree


def write(
    data: Dataset | DataArray | DataTree,
    path: Any,
    format: str | None,
    format_options: Mapping[str, Any],
    *,
    mode: str,
    compute: bool,
    region: Any,
    encoding: Any,
    drop: Any,
    separator: str,
    storage_options: Mapping[str, Any] | None,
    fs: Any,
) -> Delayed | None:
    """Write a file. `xr_tensorfmt.to_file` documents the parameters."""
    name = get_name(path)
    if name.endswith("/") or (fs is None and os.path.isdir(name)):
        raise IsADirectoryError(
            f"{redact(name)} is a directory, expected a file; append a name such as model.mag, or "
            "model.safetensors.index.json for several files, or write a calculation with "
            "xr_tensorfmt.cc4s.to_calculation"
        )
    file_format = (
        registry.find_format(format) if format is not None else registry.find_format_for_path(name)
    )
    _check_suffix(name, file_format)
    if not file_format.can_write:
        raise ValueError(f"{file_format.title} files can only be read; choose another format")
    format_options = {
        name: _normalize_option(file_format, name, value)
        for name, value in format_options.items()
        if value is not None
    }
    _check_keywords(format_options, mode, region)
    location = locate_target(path, storage_options, fs)
    if isinstance(data, DataTree):
        encoding = flatten_encoding(data, separator, encoding or {})
        data = flatten_tree(location.name, data, separator, drop)
    elif separator != ".":
        raise ValueError(f"separator={separator!r} is only for a DataTree; omit it")
    checked = check_input(data, location.name, file_format.title, encoding, drop)
    checked = replace(checked, file_name=location.file_name)
    if region is not None:
        read = partial(read_container, file_format=file_format, options=OpenOptions())
        return write_region(checked, location, region, read, compute=compute)
    plan = file_format.plan(checked, **format_options)
    return save(plan, location, overwrite=mode == "w", compute=compute)


def _check_suffix(name: str, file_format: Format) -> None:
    """Warn if the suffix of a file is for another format."""
    named = registry.find_format_by_suffix(name) or file_format
    # A format of another package may have the same suffix, or none.
    if len(named.find_suffix(name)) > len(file_format.find_suffix(name)):
        suffixes = ", ".join(file_format.suffixes)
        warnings.warn(
            f"{redact(name)}: the suffix is for {named.title} files, but the file is "
            f"{file_format.title}; use {f'one of {suffixes}' if suffixes else 'another one'}",
            TensorFormatWarning,
            stacklevel=find_stack_level(),
        )


def _normalize_option(file_format: Format, name: str, value: Any) -> Any:
    """Return the value of a keyword of a format. Raise TypeError if the keyword is unknown."""
    options = file_format.write_options
    if name in options:
        return options[name].normalize(name, value)
    keywords = " and ".join(["the keywords of to_file", *sorted(options)])
    hint = did_you_mean(name, (*options, *signature(write).parameters))
    if name == "dtype":
        hint = f" (pass encoding={{'dtype': {value!r}}})"
    raise TypeError(
        f"{name!r}{hint} is not a keyword for {file_format.title} files; they accept {keywords}"
    )


def _check_keywords(format_options: Mapping[str, Any], mode: str, region: Any) -> None:
    if not isinstance(region, Mapping | None) and region != AUTO:
        raise TypeError(f"region= must be 'auto' or like {{'x': slice(0, 10)}}, not {region!r}")
    if mode not in ("w", "w-", "x"):
        raise ValueError(f"mode={mode!r} is neither 'w' (overwrite) nor 'w-' (create a new file)")
    if mode != "w" and region is not None:
        raise ValueError(
            f"mode={mode!r} creates a new file, but region= writes to an existing file; omit one"
        )
    if format_options and region is not None:
        names = ", ".join(f"{name}=" for name in format_options)
        raise ValueError(
            f"{names} is for new files, but region= writes to an existing file; omit one of them"
        )
