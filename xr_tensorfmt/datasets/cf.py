"""CF conventions: decode variables on opening, and encode them on writing, as xarray does.

Attributes of these files can have any type of JSON. In both directions, `_normalize` decides which
attributes and entries of an encoding take part. Other attributes are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from inspect import signature
from typing import Any

import numpy as np
from xarray import Variable, conventions

from xr_tensorfmt.core.elements import FLOAT8_NAMES, build_elements, get_stored_name
from xr_tensorfmt.core.extents import DEFAULT_CHUNK_BYTES
from xr_tensorfmt.datasets.lazy_array import find_lazy_tensor, get_lazy_data
from xr_tensorfmt.errors import TensorFormatError, shorten, warn

_SCALES = ("scale_factor", "add_offset")
_FILL_VALUES = ("_FillValue", "missing_value")

PACKING = (*_SCALES, *_FILL_VALUES, "_Unsigned")
"""Attributes by which xarray computes values from stored ones."""

VALUE_KEYS = frozenset({"dtype", "units", "calendar", *PACKING})
"""Keys of an encoding that change how values are stored."""

RELATED = frozenset(conventions.CF_RELATED_DATA)
"""Keys of an encoding that name other variables, such as ``grid_mapping``."""

KEYS = VALUE_KEYS | RELATED | {"coordinates"}
"""Attributes that xarray decodes, which are keys of an encoding."""

_USED = VALUE_KEYS - {"dtype"} | {"coordinates"}
"""Keys of an encoding that become attributes."""

_TIMES = "mMO"  # objects may be times of cftime
_NUMBERS = "iuf"
_UNITS = ("days", "hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds")

Cast = Callable[[str, Variable, np.dtype[Any], bool], Variable]
"""Convert values to a dtype, exactly or rounded. Raise ValueError if a value does not fit."""


def _normalize(attribute: str, value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a CF attribute of values of a dtype as netCDF has it, or None if it has none."""
    is_number, is_fill_value = dtype.kind in _NUMBERS, attribute in _FILL_VALUES
    if isinstance(value, str | bytes):
        if attribute in _SCALES or (is_fill_value and dtype.kind not in "SUOT"):
            return None
        return value if is_number or attribute not in ("units", "dtype") else None
    array = np.empty(0)
    if is_number and (is_fill_value or attribute in _SCALES):
        with suppress(ValueError):  # a list of lists
            array = np.asarray(value)
    if array.dtype.kind not in _NUMBERS or not array.size:
        return None
    if is_fill_value and dtype.kind == "f":
        name = get_stored_name(dtype) or dtype.name
        element = build_elements([name])[name]
        with np.errstate(over="ignore"):  # only a rounded fill value equals stored values
            value = element.decode(element.encode(np.asarray(array, element.dtype)))
    is_lost = is_fill_value and not np.array_equal(np.isfinite(value), np.isfinite(array))
    is_zero = attribute == "scale_factor" and not array.all()
    is_valid = _is_storable(array, dtype, any_sign=True) if is_fill_value else np.isfinite(array)
    if is_zero or is_lost or (array.size > 1 and not is_fill_value) or not is_valid:
        return None
    is_kept = array.size > 1 or isinstance(value, int | float | np.generic)
    return value if is_kept else np.ravel(value)[0]


def _is_storable(values: Any, dtype: np.dtype[Any] | None, *, any_sign: bool = False) -> bool:
    """Return whether a dtype, or the integers of its size with any sign, has all fill values."""
    if dtype is None or dtype.kind not in "iu":
        return True
    limits = np.iinfo(dtype)
    least, greatest = limits.min, limits.max
    if any_sign:
        least, greatest = -(1 << (limits.bits - 1)), (1 << limits.bits) - 1
    return all(float(v).is_integer() and least <= v <= greatest for v in np.ravel(values).tolist())


_DECODERS = signature(conventions.decode_cf_variables).parameters.keys()
_KEYWORDS = dict.fromkeys(PACKING, "mask_and_scale") | {"calendar": "decode_times"}
_KEYWORDS |= dict.fromkeys({"coordinates", *RELATED}, "decode_coords")


def decode(
    path: str,
    variables: Mapping[str, Variable],
    attrs: Mapping[str, Any],
    keywords: Mapping[str, Any],
) -> tuple[dict[str, Variable], dict[str, Any], set[Any]]:
    """Decode variables and attributes of a file. Also return the names of coordinates."""
    prepared = {name: _prepare_decoding(variable) for name, variable in variables.items()}
    _warn_of_unused(path, variables, prepared, keywords)
    try:
        decoded, remaining, coordinates = conventions.decode_cf_variables(
            prepared, dict(attrs), **{name: keywords[name] for name in _DECODERS & keywords.keys()}
        )
    except TensorFormatError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        hint = "change the attributes, or pass decode_cf=False or --open-option decode_cf=false"
        raise ValueError(f"{path}: {error}; {hint}") from error
    for name, variable in decoded.items():
        used = prepared[name].attrs.keys() - variable.attrs.keys()
        variable.attrs |= {k: v for k, v in variables[name].attrs.items() if k not in used}
    return dict(decoded), dict(remaining), coordinates


def _prepare_decoding(variable: Variable) -> Variable:
    """Return a variable whose CF attributes are normalized. xarray must not see other ones."""
    if KEYS.isdisjoint(variable.attrs):
        return variable
    attrs, dtype = dict(variable.attrs), variable.dtype
    stored = variable.encoding.get("dtype", dtype) if dtype.kind == "f" else dtype
    for name in KEYS & attrs.keys():
        attrs[name] = _normalize(name, attrs[name], stored)
        if attrs[name] is None:
            del attrs[name]
    if "calendar" in variable.attrs.keys() - attrs.keys() and " since " in attrs.get("units", ""):
        del attrs["units"]  # times of an unknown calendar
    if dtype.kind == "f" or not attrs.keys().isdisjoint(_FILL_VALUES):
        # xarray computes in the dtype of the scale. Integers would lose fractions and NaN.
        scales = {key: attrs[key] for key in _SCALES if key in attrs}
        attrs |= {k: float(v) for k, v in scales.items() if isinstance(v, int | np.integer)}
    encoding = dict(variable.encoding)
    return Variable(variable.dims, get_lazy_data(variable), attrs, encoding, fastpath=True)


def _warn_of_unused(
    path: str,
    variables: Mapping[str, Variable],
    prepared: Mapping[str, Variable],
    keywords: Mapping[str, Any],
) -> None:
    """Warn once of CF attributes that would be decoded if they had another type."""
    requested = {a for a, k in _KEYWORDS.items() if keywords[k] not in (False, None)}
    if keywords["decode_coords"] != "all":
        requested -= RELATED
    unused = [
        f"{attribute}={shorten(repr(variable.attrs[attribute]))} of {name!r}"
        for name, variable in variables.items()
        for attribute in requested & (variable.attrs.keys() - prepared[name].attrs.keys())
    ]
    if unused:
        more = f", and {len(unused) - 3} more" if len(unused) > 3 else ""
        warn(
            f"{path}: the attributes {', '.join(unused[:3])}{more} have a type or value that CF "
            "does not define, and are not decoded; change them, or pass decode_cf=False "
            "or --open-option decode_cf=false"
        )


def encode(
    variables: Mapping[str, Variable], dtypes: Collection[str], cast: Cast
) -> dict[str, Variable]:
    """Encode variables as `xarray.Dataset.to_netcdf`, but bools only if `dtypes` lacks them."""
    settings = {
        name: _normalize_encoding(name, variable)
        for name, variable in variables.items()
        if _needs_encoding(variable, dtypes)
    }
    prepared = {name: _prepare_encoding(variables[name], settings[name]) for name in settings}
    try:
        encoded: Any = conventions.cf_encoder(prepared, {})[0] if prepared else {}
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        names, used = ", ".join(map(repr, prepared)), shorten(repr([*settings.values()]))
        raise ValueError(
            f"the encoding of {names} is invalid: {error!r} for {used}; change it"
        ) from error
    finished = {
        name: _finish(name, variables[name], encoded[name], settings[name], cast)
        for name in encoded
    }
    return {**variables, **finished}


def list_required(attrs: Mapping[str, Any], variable: Variable) -> set[str]:
    """Return the attributes that determine the values of a decoded variable."""
    units = attrs.get("units")
    is_duration = variable.dtype.kind == "m" or str(attrs.get("dtype")).startswith("timedelta64")
    is_time = isinstance(units, str) and (" since " in units or (is_duration and units in _UNITS))
    keys = {*PACKING, *(("units", "calendar") if is_time else ())}
    # NaN as _FillValue changes no value.
    return {key for key in keys & attrs.keys() if np.array_equal(attrs[key], attrs[key])}


def _needs_encoding(variable: Variable, dtypes: Collection[str]) -> bool:
    encoding, dtype = variable.encoding, variable.dtype
    if not isinstance(dtype, np.dtype):
        return False
    if dtype.kind == "b":
        requested = find_dtype(encoding.get("dtype"))
        is_requested = requested is not None and requested.kind in _NUMBERS
        return "bool" not in dtypes and "int8" in dtypes and not is_requested
    return dtype.kind in _TIMES or any(encoding[key] is not None for key in _USED & encoding.keys())


def _normalize_encoding(name: str, variable: Variable) -> dict[str, Any]:
    """Return the used entries of an encoding: the dtype and fill values with the stored sign."""
    dtype = find_dtype(variable.encoding.get("dtype"))
    dtype = dtype if dtype is not None and dtype.kind in _NUMBERS else None
    settings: dict[str, Any] = {}
    for key, given in variable.encoding.items():
        if key not in _USED or given is None:
            continue
        is_time = variable.dtype.kind in _TIMES and not isinstance(given, str)
        of_values = np.dtype(np.float64) if is_time or key == "units" else variable.dtype
        value = _normalize(key, given, (key in _FILL_VALUES and dtype) or of_values)
        if value is not None:
            settings[key] = value
        elif variable.dtype.kind in f"{_NUMBERS}mM":
            raise ValueError(
                f"the encoding of {name!r} has {key}={shorten(repr(given))}, which CF does not "
                f"define for {variable.dtype}; change or remove it"
            )
    if dtype is None:
        return settings
    kinds = {("true", "i"): "u", ("false", "u"): "i"}
    kind = kinds.get((str(settings.pop("_Unsigned", None)), dtype.kind))
    if kind is not None:  # fill values are integers of the same bytes with the other sign
        dtype = np.dtype(f"{kind}{dtype.itemsize}")
        for key in settings.keys() & {*_FILL_VALUES}:
            wrapped = np.ravel(settings[key]).astype(np.int64).astype(dtype)
            settings[key] = wrapped[0] if wrapped.size == 1 else wrapped
    return {**settings, "dtype": dtype}


def _choose_fill_value(settings: Mapping[str, Any]) -> Any:
    """Return the value to store for NaN: the first fill value that fits the dtype, if any."""
    values = [v for key in _FILL_VALUES for v in np.ravel(settings.get(key, [])).tolist()]
    exact = [v for v in values if not isinstance(v, int) or v == float(v)]
    return next((v for v in exact if _is_storable(v, settings.get("dtype"))), None)


def _prepare_encoding(variable: Variable, settings: Mapping[str, Any]) -> Variable:
    """Return a copy for xarray, which converts only times to the dtype in the encoding."""
    dtype, kind = settings.get("dtype"), variable.dtype.kind
    encoding = {key: settings[key] for key in ("units", "calendar") if key in settings}
    # xarray computes in the dtype of the scale. Integers would lose fractions.
    encoding |= {key: float(settings[key]) for key in _SCALES if key in settings}
    is_scaled, fill_value = not encoding.keys().isdisjoint(_SCALES), _choose_fill_value(settings)
    if kind in _TIMES and dtype is not None:
        # xarray does not notice that a short integer overflows.
        encoding["dtype"] = np.dtype(np.int64) if dtype.kind in "iu" else dtype
    copied = _load_small(variable).copy(deep=False)
    if kind in "iu" and (is_scaled or not _is_storable(fill_value or 0, copied.dtype)):
        fill_value = None  # only integers that are times have missing values
    if fill_value is not None:
        encoding["_FillValue"] = fill_value
    if fill_value is not None and kind == "f":  # xarray packs and fills in the dtype of the values
        wide = np.float64 if is_scaled else dtype or copied.dtype
        copied = copied.astype(np.result_type(copied.dtype, wide), copy=False)
    names = ("bounds", "units") if kind in "iu" else ("bounds",)  # integers may be times
    copied.attrs = {k: v for k in names if isinstance(v := variable.attrs.get(k), str)}
    copied.encoding = encoding
    return copied


def find_dtype(dtype: Any) -> np.dtype[Any] | None:
    """Return the dtype of the values of a stored dtype, or None if it is unknown."""
    name = get_stored_name(dtype) or str(dtype)
    if name in ("bfloat16", *FLOAT8_NAMES):
        return build_elements([name])[name].encoding
    with suppress(TypeError):
        return None if dtype is None else np.dtype(dtype)
    return None


def _load_small(variable: Variable) -> Variable:
    """Return a lazy variable of this engine in chunks, so that it is encoded chunk by chunk."""
    if variable.chunks is not None or find_lazy_tensor(variable) is None:
        return variable
    if variable.nbytes <= DEFAULT_CHUNK_BYTES:
        return variable[...].load()  # without a copy in the Dataset of the user
    preferred = variable.encoding.get("preferred_chunks", {})
    whole = -1 if preferred else "auto"
    return variable.chunk({dim: preferred.get(dim, whole) for dim in variable.dims})


def _finish(
    name: str, original: Variable, encoded: Variable, settings: Mapping[str, Any], cast: Cast
) -> Variable:
    """Convert packed values to the dtype in the encoding, and merge the attributes."""
    kind = original.dtype.kind
    is_scaled, has_fill = (not settings.keys().isdisjoint(k) for k in (_SCALES, _FILL_VALUES))
    default = original.dtype if kind == "f" and is_scaled and has_fill else None
    dtype = settings.get("dtype", default)
    # As in `to_netcdf`. A dtype that a reader has set only applies to values that it fits.
    is_rounded = is_scaled or (has_fill and not get_stored_name(original.encoding.get("dtype")))
    is_computed = encoded.dtype.kind in ("fi" if kind in _TIMES else "f")
    if dtype is not None and is_computed and (dtype.kind in "iu" or is_scaled):
        encoded = cast(name, encoded, dtype, is_rounded)
    attrs = {key: value for key, value in encoded.attrs.items() if key != "_FillValue"}
    attrs |= {key: settings[key] for key in (*_SCALES, *_FILL_VALUES) if key in settings}
    clash = {key for key in attrs if attrs[key] is not original.attrs.get(key, attrs[key])}
    if clash:
        raise ValueError(
            f"{name!r} has the attribute {min(clash)!r}, which its encoding defines, too; "
            "remove one of them"
        )
    named = {key: settings[key] for key in ("coordinates",) if key in settings}
    encoded.attrs = original.attrs | attrs | {**named, **original.attrs}
    encoded.encoding = {k: v for k, v in original.encoding.items() if k not in _USED}
    if original.dtype.kind == "b":
        encoded.encoding.pop("dtype", None)
    elif dtype is not None and original.encoding.get("_Unsigned") is not None:
        encoded.encoding["dtype"] = dtype
    return encoded
