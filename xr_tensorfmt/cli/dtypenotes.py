"""Which dtypes of a file another format has no word for, so that their values become float32."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import xarray as xr

from xr_tensorfmt.core.elements import StoredDtype
from xr_tensorfmt.errors import shortened
from xr_tensorfmt.writing.conversion import dtype_name

_BIT = "bit"


def lost_dtypes(
    ds: xr.Dataset, settled: Collection[str], source: str, target: str
) -> Iterator[str]:
    """Say which dtypes a new file does not know of, and how to get them back."""
    by_name: dict[tuple[str, str], list[str]] = {}
    for name, each in ds.variables.items():
        stored = each.encoding.get("dtype")
        if not isinstance(stored, StoredDtype) or stored.name == _BIT or name in settled:
            continue
        by_name.setdefault((stored.name, each.dtype.name), []).append(str(name))
    for (stored_name, dtype), variables in by_name.items():
        names = shortened(", ".join(variables), 80)
        yield (
            f"{names}: {stored_name} in {source}, {dtype} in {target}; on the way back --dtype "
            f"'{variables[0]}={stored_name}' makes it that again, where the format has it"
        )


def unchanged(ds: xr.Dataset, written: xr.Dataset) -> Iterator[str]:
    """Find the variables that have the same dtype in a new file."""
    found = dict(written.variables)
    if len(ds.data_vars) == len(written.data_vars) == 1:  # perhaps by another name
        found |= dict(zip(ds, (each.variable for each in written.values()), strict=True))
    for name, each in ds.variables.items():
        if name in found and _stored(found[name]) == _stored(each):
            yield str(name)


def _stored(variable: xr.Variable) -> str:
    return dtype_name(variable.encoding.get("dtype", variable.dtype))
