"""CF conventions: decode variables on opening, and encode them on writing, as xarray does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from xarray import Variable, conventions

from xr_tensorfmt.core.chunk_grid import DEFAULT_CHUNK_BYTES
from xr_tensorfmt.datasets.lazy_array import find_lazy_tensor
from xr_tensorfmt.datasets.options import EngineKeywords

_SCALES = ("scale_factor", "add_offset")
_FILL_VALUES = ("_FillValue", "missing_value")
_TYPES: dict[str, Any] = {
    **dict.fromkeys(conventions.CF_RELATED_DATA, str),
    **dict.fromkeys(("coordinates", "calendar", "dtype", "_Unsigned"), str),
    **dict.fromkeys(_SCALES, int | float | np.number),
    **dict.fromkeys(_FILL_VALUES, str | int | float | np.generic | np.ndarray),
}
"""Types of the attributes that xarray uses to decode variables."""

PACKING = (*_SCALES, *_FILL_VALUES, "_Unsigned")
"""Attributes by which xarray computes values from stored ones."""

VALUE_KEYS = frozenset({"dtype", "units", "calendar", *PACKING})
"""Keys of an encoding that change how values are stored."""

_TIMES = "mMO"  # objects may be times of cftime

_USED = VALUE_KEYS - {"dtype"} | {"coordinates"}
"""Keys of an encoding that become attributes."""

RELATED = frozenset(conventions.CF_RELATED_DATA)
"""Keys of an encoding that name other variables, such as ``grid_mapping``."""

Cast = Callable[[str, Variable, np.dtype[Any], bool], Variable]
"""Convert values to a dtype, exactly or rounded. Raise ValueError if a value does not fit."""


def decode(
    variables: Mapping[str, Variable], attrs: Mapping[str, Any], keywords: EngineKeywords
) -> tuple[dict[str, Variable], dict[str, Any], set[Any]]:
    """Decode variables as the user requests. Also return attributes and names of coordinates."""
    decodable = {
        name: variable for name, variable in variables.items() if _is_decodable(variable.attrs)
    }
    has_coordinates = names_coordinates(attrs, variables)
    decoded, remaining, coordinates = conventions.decode_cf_variables(
        decodable,
        dict(attrs) if has_coordinates else {},
        mask_and_scale=keywords.mask_and_scale,
        decode_times=keywords.decode_times,
        concat_characters=keywords.concat_characters,
        decode_coords=keywords.decode_coords,
        use_cftime=keywords.use_cftime,
        decode_timedelta=keywords.decode_timedelta,
    )
    return {**variables, **decoded}, dict(remaining if has_coordinates else attrs), coordinates


def names_coordinates(attrs: Mapping[str, Any], variables: Collection[str]) -> bool:
    """Return whether the attribute `coordinates` of a file names variables, as CF defines it."""
    text = attrs.get("coordinates")
    names = text.split() if isinstance(text, str) else []
    return bool(names) and set(names) <= set(variables)


def _is_decodable(attrs: Mapping[str, Any]) -> bool:
    """Return whether the CF attributes, which may be any JSON, have the types of netCDF."""
    return all(isinstance(attrs[name], _TYPES[name]) for name in _TYPES.keys() & attrs.keys())


def encode(
    variables: Mapping[str, Variable], dtypes: Collection[str], cast: Cast
) -> dict[str, Variable]:
    """Encode variables as `xarray.Dataset.to_netcdf`, but bools only if `dtypes` lacks them."""
    prepared = {
        name: _prepare(variable)
        for name, variable in variables.items()
        if _needs_encoding(variable, dtypes)
    }
    encoded: Any = conventions.cf_encoder(prepared, {})[0] if prepared else {}
    finished = {name: _finish(name, variables[name], encoded[name], cast) for name in encoded}
    return {**variables, **finished}


def _needs_encoding(variable: Variable, dtypes: Collection[str]) -> bool:
    encoding, dtype = variable.encoding, variable.dtype
    if not isinstance(dtype, np.dtype):
        return False
    if dtype.kind == "b":
        is_requested = _is_numeric(encoding.get("dtype"))
        return "bool" not in dtypes and "int8" in dtypes and not is_requested
    if dtype.kind in _TIMES:
        return True
    return bool(encoding) and any(k in _USED and encoding[k] is not None for k in encoding)


def _prepare(variable: Variable) -> Variable:
    """Return a copy for xarray, which converts only times to the dtype in the encoding."""
    encoding = {key: value for key, value in variable.encoding.items() if value is not None}
    dtype = encoding.pop("dtype", None)
    if variable.dtype.kind in _TIMES and _is_numeric(dtype):
        # xarray does not notice that a short integer overflows.
        encoding["dtype"] = np.dtype(np.int64 if np.dtype(dtype).kind in "iu" else dtype)
    if encoding.pop("_Unsigned", None) is not None:
        # The values are unsigned, and all formats store unsigned integers.
        for key in _FILL_VALUES & encoding.keys():
            encoding[key] = _view_like(encoding[key], variable.encoding.get("dtype"))
    if "_FillValue" not in variable.attrs:
        encoding.setdefault("_FillValue", None)  # xarray adds NaN otherwise
    copied = _load_small(variable).copy(deep=False)
    is_short = copied.dtype.kind in "iu" or copied.dtype == np.float16
    if is_short and any(key in encoding for key in _SCALES):
        copied = copied.astype(np.float64)  # xarray leaves the dtype if there is a _FillValue
    copied.encoding = encoding
    return copied


def _is_numeric(dtype: Any) -> bool:
    try:
        return dtype is not None and np.dtype(dtype).kind in "iuf"
    except TypeError:
        return False


def _view_like(value: Any, dtype: Any) -> Any:
    """Return a fill value of signed integers as the unsigned integer of the same bytes."""
    if not _is_numeric(dtype) or np.dtype(dtype).kind != "i" or value >= 0:
        return value
    signed = np.dtype(dtype)
    return np.array(value, signed).view(f"u{signed.itemsize}")[()]


def _load_small(variable: Variable) -> Variable:
    """Return a lazy variable of this engine in chunks, so that it is encoded chunk by chunk."""
    if variable.chunks is not None or find_lazy_tensor(variable) is None:
        return variable
    if variable.nbytes <= DEFAULT_CHUNK_BYTES:
        return variable[...].load()  # without a copy in the Dataset of the user
    preferred = variable.encoding.get("preferred_chunks", {})
    return variable.chunk({dim: preferred.get(dim, "auto") for dim in variable.dims})


def _finish(name: str, original: Variable, encoded: Variable, cast: Cast) -> Variable:
    """Convert packed values to the dtype in the encoding, and keep the other keys."""
    dtype = original.encoding.get("dtype")
    is_scaled = any(original.encoding.get(key) is not None for key in _SCALES)
    if original.encoding.get("_Unsigned") is not None and _is_numeric(dtype):
        dtype = np.dtype(f"u{np.dtype(dtype).itemsize}")
    is_integer = _is_numeric(dtype) and np.dtype(dtype).kind in "iu"
    is_computed = encoded.dtype.kind in ("fi" if original.dtype.kind in _TIMES else "f")
    is_packed = is_computed and _is_numeric(dtype) and (is_integer or is_scaled)
    if is_packed and np.dtype(dtype) != encoded.dtype:
        attrs = encoded.attrs
        encoded = cast(name, encoded, np.dtype(dtype), is_scaled)
        encoded.attrs = attrs
        if is_integer and not is_scaled:
            for key in _FILL_VALUES & attrs.keys():
                attrs[key] = encoded.dtype.type(attrs[key])
    encoded.encoding = {key: v for key, v in original.encoding.items() if key not in _USED}
    coordinates = original.encoding.get("coordinates")
    if coordinates is not None:
        encoded.attrs.setdefault("coordinates", coordinates)
    return encoded
