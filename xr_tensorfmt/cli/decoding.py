"""Attributes that xarray would take for a part of how values are encoded, when it opens a file."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import xarray as xr

from xr_tensorfmt.cli.kinds import NETCDF

Entry = tuple[Hashable | None, Hashable, Any]
"""Which variable, or None for the Dataset; the name of an attribute, and its value."""


def misread(ds: xr.Dataset, kind: str) -> Iterator[Entry]:
    """Find attributes that change what is read back, or are not among the attributes then."""
    entries = [*_entries(None, ds.attrs)]
    for name, variable in ds.variables.items():
        entries += _entries(name, variable.attrs)
    whole = _Skeleton(ds, kind)
    if not entries or whole.keeps(entries):
        return
    kept: list[Entry] = []
    # A look at one variable alone takes less time, and finds nearly all.
    for owner, own in groupby(entries, lambda entry: entry[0]):
        alone: list[Entry] = []
        yield from _Skeleton(ds, kind, () if owner is None else (owner,)).lost(alone, list(own))
        kept += alone
    yield from whole.lost([], kept)


def _entries(owner: Hashable | None, attrs: Any) -> Iterator[Entry]:
    for name, value in attrs.items():
        yield owner, name, value


class _Skeleton:
    """A Dataset of one element per variable."""

    def __init__(self, ds: xr.Dataset, kind: str, names: Sequence[Hashable] | None = None) -> None:
        self._kind = kind
        bones = {
            name: (each.dims, _element(each))
            for name, each in ds.variables.items()
            if names is None or name in names
        }
        coords = {name: bone for name, bone in bones.items() if name in ds.coords}
        plain = {name: bone for name, bone in bones.items() if name not in coords}
        self._bare = xr.Dataset(plain, coords)
        self._dtypes = _dtypes(_read_back(self._bare, kind))

    def keeps(self, entries: Sequence[Entry]) -> bool:
        """Whether attributes, and the dtypes beside them, are read as they are written."""
        wanted: dict[Hashable | None, dict[Hashable, Any]] = {}
        for owner, name, value in entries:
            wanted.setdefault(owner, {})[name] = value
        ds = self._bare.copy()
        ds.attrs = wanted.get(None, {})
        for name, variable in ds.variables.items():
            variable.attrs = wanted.get(name, {})
        try:
            back = _read_back(ds, self._kind)
        except Exception:  # noqa: BLE001  # whatever xarray raises, no one could open the file
            return False
        return (
            _dtypes(back) == self._dtypes
            and set(back.coords) == set(ds.coords)
            and _same(back.attrs, wanted.get(None, {}))
            and all(_same(each.attrs, wanted.get(k, {})) for k, each in back.variables.items())
        )

    def lost(self, base: list[Entry], entries: Sequence[Entry]) -> Iterator[Entry]:
        """Those that are not kept together with others; these are added to `base`."""
        if self.keeps([*base, *entries]):
            base += entries
        elif len(entries) == 1:
            yield entries[0]
        else:
            half = len(entries) // 2
            yield from self.lost(base, entries[:half])
            yield from self.lost(base, entries[half:])


def _element(variable: xr.Variable) -> Any:
    shape = (1,) * variable.ndim
    if not isinstance(variable.dtype, np.dtype) or variable.dtype.kind == "O":
        return np.full(shape, "", object)
    return np.zeros(shape, variable.dtype)


def _read_back(ds: xr.Dataset, kind: str) -> xr.Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        variables, attrs = xr.conventions.encode_dataset_coordinates(ds)
        if kind == NETCDF:
            variables, attrs = xr.conventions.cf_encoder(variables, attrs)
        else:
            encode = xr.conventions.encode_cf_variable
            variables = {name: encode(each, name=name) for name, each in variables.items()}
        return xr.decode_cf(xr.Dataset(variables, attrs=attrs))


def _dtypes(ds: xr.Dataset) -> dict[Hashable, Any]:
    return {name: each.dtype for name, each in ds.variables.items()}


def _same(found: Any, wanted: Any) -> bool:
    """Whether attributes are the very objects that they were."""
    return found.keys() == wanted.keys() and all(found[key] is wanted[key] for key in wanted)
