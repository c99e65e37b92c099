"""Long attributes of a file, such as a tokenizer of 5 MB, as lazy scalar coordinates.

xarray displays attributes as a whole, but no values that are not loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from xarray import Dataset

from xr_tensorfmt.core.container import Tensor

MAX_ATTRIBUTE_LENGTH = 1 << 16
"""Characters of an attribute. Longer ones become coordinates, and attributes again on writing."""

_MARK = "is_attribute"


def build_long_attributes(attrs: Mapping[str, Any], used: Collection[str]) -> dict[str, Tensor]:
    """Return coordinates for long attributes, unless their names are used."""
    tensors = {}
    for name, value in attrs.items():
        text = repr(value) if isinstance(value, list | dict) else value
        if isinstance(text, str) and len(text) > MAX_ATTRIBUTE_LENGTH and name not in used:
            from xr_tensorfmt.core.views import InMemory  # noqa: PLC0415  # not needed to open a file

            scalar = np.empty((), object)
            scalar[()] = value
            tensors[name] = Tensor(name, (), InMemory(scalar), {}, {"tensorfmt": {_MARK: True}})
    return tensors


def find_long_attributes(variables: Mapping[Any, Any]) -> list[Any]:
    """Return the names of coordinates that are attributes of the file."""
    return [
        name
        for name, variable in variables.items()
        if not variable.dims and variable.encoding.get("tensorfmt", {}).get(_MARK)
    ]


def restore_long_attributes(ds: Dataset) -> Dataset:
    """Return a Dataset whose coordinates of `build_long_attributes` are attributes again."""
    long = find_long_attributes(ds.coords.variables)
    attrs = {name: ds[name].variable[...].item() for name in long}
    return ds.drop_vars(list(attrs)).assign_attrs(attrs) if attrs else ds
