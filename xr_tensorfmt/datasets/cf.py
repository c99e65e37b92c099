"""CF conventions: decode variables on opening, and encode them on writing, as xarray does.

Attributes of these files can have any type of JSON. In both directions, `_normalize` decides which
attributes take part. Others are left as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xarray import Variable, conventions

from xr_tensorfmt.core.extents import DEFAULT_CHUNK_BYTES
from xr_tensorfmt.datasets.lazy_array import find_lazy_tensor, get_lazy_data
from xr_tensorfmt.datasets.options import Keywords
from xr_tensorfmt.errors import (
    TensorFormatError,
    TensorFormatWarning,
    find_stack_level,
    shorten,
)

_SCALES = ("scale_factor", "add_offset")
_FILL_VALUES = frozenset({"_FillValue", "missing_value"})

PACKING = (*_SCALES, *_FILL_VALUES, "_Unsigned")
"""Attributes by which xarray computes values from stored ones."""

VALUE_KEYS = frozenset({"dtype", "units", "calendar", *PACKING})
"""Keys of an encoding that change how values are stored."""

_USED = VALUE_KEYS - {"dtype"} | {"coordinates"}
"""Keys of an encoding that become attributes."""

RELATED = frozenset(conventions.CF_RELATED_DATA)
"""Keys of an encoding that name other variables, such as ``grid_mapping``."""

_ATTRIBUTES = VALUE_KEYS | RELATED | {"coordinates"}
"""Attributes that xarray decodes."""

_TIMES = "mMO"  # objects may be times of cftime
_NUMBERS = "iuf"
_INTEGERS = (int, np.integer)

Cast = Callable[[str, Variable, np.dtype[Any], bool], Variable]
"""Convert values to a dtype, exactly or rounded. Raise ValueError if a value does not fit."""


def _normalize(attribute: str, value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a CF attribute of values of a dtype as netCDF has it, or None if it has none.

    An array or a list of one number is a number.
    """
    is_number = dtype.kind in _NUMBERS
    if attribute == "units":
        return value if is_number and isinstance(value, str) else None
    if attribute == "dtype":  # "bool"
        return value if is_number and isinstance(value, str) else None
    if attribute not in (*_SCALES, *_FILL_VALUES):
        return value if isinstance(value, str) else None
    if isinstance(value, str | bytes):
        return value if attribute in _FILL_VALUES and dtype.kind in "SUOT" else None
    try:
        array = np.asarray(value)
    except ValueError:  # a list of lists
        return None
    if array.dtype.kind not in _NUMBERS or not is_number or not array.size:
        return None
    if not (_is_in_range(array, dtype) if attribute in _FILL_VALUES else np.isfinite(array).all()):
        return None
    if attribute == "scale_factor" and not array.all():
        return None
    if array.size > 1:
        return array.ravel() if attribute in _FILL_VALUES else None
    return array.ravel()[0] if np.ndim(value) or isinstance(value, np.ndarray) else value


def _is_in_range(fill_values: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Return whether integers of a dtype, with or without a sign, can have fill values."""
    if dtype.kind not in "iu":
        return True
    bits = np.iinfo(dtype).bits
    return all(
        float(value).is_integer() and -(2 ** (bits - 1)) <= int(value) < 2**bits
        for value in fill_values.flat
    )


_DECODERS = (
    *("mask_and_scale", "decode_times", "concat_characters"),
    *("decode_coords", "use_cftime", "decode_timedelta"),
)


def decode(
    path: str,
    variables: Mapping[str, Variable],
    attrs: Mapping[str, Any],
    keywords: Keywords,
) -> tuple[dict[str, Variable], dict[str, Any], set[Any]]:
    """Decode variables as the user requests. Also return attributes and names of coordinates."""
    prepared = {name: _prepare_decoding(variable) for name, variable in variables.items()}
    _warn_of_unused(path, variables, prepared, keywords)
    has_coordinates = names_coordinates(attrs, variables)
    try:
        decoded, remaining, coordinates = conventions.decode_cf_variables(
            prepared,
            dict(attrs) if has_coordinates else {},
            **{name: keywords[name] for name in _DECODERS},
        )
    except TensorFormatError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        hint = "change the attributes, or open the file with decode_cf=False"
        raise ValueError(f"{path}: {error}; {hint}") from error
    for name, variable in decoded.items():
        if prepared[name] is not variables[name]:
            kept, used = variable.attrs, prepared[name].attrs
            original = variables[name].attrs.items()
            variable.attrs = {k: v for k, v in original if k in kept or k not in used}
            variable.attrs |= {k: v for k, v in kept.items() if k not in variables[name].attrs}
    return dict(decoded), dict(remaining if has_coordinates else attrs), coordinates


def names_coordinates(attrs: Mapping[str, Any], variables: Collection[str]) -> bool:
    """Return whether the attribute `coordinates` of a file names variables, as CF defines it."""
    text = attrs.get("coordinates")
    names = text.split() if isinstance(text, str) else []
    return bool(names) and set(names) <= set(variables)


def _prepare_decoding(variable: Variable) -> Variable:
    """Return a variable whose CF attributes are normalized. xarray must not see other ones."""
    if _ATTRIBUTES.isdisjoint(variable.attrs):
        return variable
    attrs = _normalize_all(variable.attrs, variable.dtype)
    return Variable(
        variable.dims, get_lazy_data(variable), attrs, dict(variable.encoding), fastpath=True
    )


def _normalize_all(attrs: Mapping[Any, Any], dtype: np.dtype[Any]) -> dict[Any, Any]:
    """Return attributes of which CF attributes are normalized or left out."""
    normalized = {
        name: _normalize(name, value, dtype) if name in _ATTRIBUTES else value
        for name, value in attrs.items()
    }
    if normalized.get("calendar", "") is None and " since " in (normalized.get("units") or ""):
        normalized["units"] = None  # times of an unknown calendar
    if dtype.kind not in "iu" or any(normalized.get(key) is not None for key in _FILL_VALUES):
        # xarray computes in the dtype of the scale. Integers would lose fractions and NaN.
        scales = {k: normalized[k] for k in _SCALES if isinstance(normalized.get(k), _INTEGERS)}
        normalized |= {key: float(value) for key, value in scales.items()}
    return {k: v for k, v in normalized.items() if v is not None or k not in _ATTRIBUTES}


def _warn_of_unused(
    path: str,
    variables: Mapping[str, Variable],
    prepared: Mapping[str, Variable],
    keywords: Keywords,
) -> None:
    """Warn once of CF attributes that would be decoded if they had another type."""
    unused = [
        f"{attribute}={shorten(repr(variable.attrs[attribute]))} of {name!r}"
        for name, variable in variables.items()
        if prepared[name] is not variable
        for attribute in _ATTRIBUTES & (variable.attrs.keys() - prepared[name].attrs.keys())
        if _is_requested(attribute, variable.attrs[attribute], name, keywords)
    ]
    if unused:
        more = f", and {len(unused) - 3} others" if len(unused) > 3 else ""
        warnings.warn(
            f"{path}: the attributes {', '.join(unused[:3])}{more} have a type or value that CF "
            "does not define, and are not decoded; change them, or pass decode_cf=False",
            TensorFormatWarning,
            stacklevel=find_stack_level(),
        )


def _is_requested(attribute: str, value: Any, name: str, keywords: Keywords) -> bool:
    """Return whether the user requests the decoding of an attribute of a variable."""
    if attribute == "units":
        return isinstance(value, str) and " since " in value and bool(keywords["decode_times"])
    if attribute in RELATED:
        return bool(keywords["decode_coords"] == "all")
    if attribute == "coordinates":
        return bool(keywords["decode_coords"])
    if attribute == "calendar":
        return bool(keywords["decode_times"])
    if attribute == "dtype":
        return False  # only "bool" has a meaning
    is_on = keywords["mask_and_scale"]
    return bool(is_on.get(name, True) if isinstance(is_on, Mapping) else is_on)


def encode(
    variables: Mapping[str, Variable], dtypes: Collection[str], cast: Cast
) -> dict[str, Variable]:
    """Encode variables as `xarray.Dataset.to_netcdf`, but bools only if `dtypes` lacks them."""
    prepared = {
        name: _prepare_encoding(name, variable)
        for name, variable in variables.items()
        if _needs_encoding(variable, dtypes)
    }
    encoded: Any = conventions.cf_encoder(prepared, {})[0] if prepared else {}
    for name in encoded:
        hidden = variables[name].attrs.keys() - prepared[name].attrs.keys()
        clash = hidden & encoded[name].attrs.keys()
        if clash:
            raise ValueError(
                f"{name!r} has the attribute {min(clash)!r}, which its encoding defines, too; "
                "remove one of them"
            )
    finished = {name: _finish(name, variables[name], encoded[name], cast) for name in encoded}
    return {**variables, **finished}


def encode_like(
    subject: str,
    variable: Variable,
    attrs: Mapping[str, Any],
    dtype: np.dtype[Any],
    encode: Callable[[Variable], Variable],
) -> Variable:
    """Encode a variable by the attributes of a file, unless it has such attributes itself."""
    keys = list_required(attrs, variable)
    is_encoded = not keys.isdisjoint(variable.attrs) or "_Unsigned" in keys
    if not keys or is_encoded or ("units" in keys and variable.dtype.kind not in _TIMES):
        return variable
    copied = variable.copy(deep=False)
    copied.encoding = {key: attrs[key] for key in keys} | {"dtype": dtype}
    if variable.dtype.kind in "MO":
        copied.encoding.setdefault("calendar", "standard")
    encoded, units = None, str(attrs.get("units"))
    with suppress(ValueError):
        encoded = encode(copied)
        # xarray may choose another unit, or write the same one in another way.
        if "units" in keys and encoded.attrs["units"].split(None, 1)[0] != units.split(None, 1)[0]:
            encoded = None
    if encoded is None:
        stored = ", ".join(f"{key}={attrs[key]!r}" for key in sorted(keys))
        raise ValueError(
            f"{subject} cannot be stored as {dtype} with {stored}, which region= keeps; change the "
            "values, or rewrite the whole file"
        )
    if "units" in keys:
        encoded.attrs["units"] = units
    return encoded


def list_required(attrs: Mapping[str, Any], variable: Variable) -> set[str]:
    """Return the attributes of a file that determine the values of a decoded variable."""
    units = attrs.get("units")
    is_time = isinstance(units, str) and (" since " in units or variable.dtype.kind == "m")
    keys = {*PACKING, *(("units", "calendar") if is_time else ())}
    # NaN as _FillValue changes no value.
    return {key for key in keys & attrs.keys() if np.array_equal(attrs[key], attrs[key])}


def _needs_encoding(variable: Variable, dtypes: Collection[str]) -> bool:
    encoding, dtype = variable.encoding, variable.dtype
    if not isinstance(dtype, np.dtype):
        return False
    if dtype.kind == "b":
        is_requested = find_dtype(encoding) is not None
        return "bool" not in dtypes and "int8" in dtypes and not is_requested
    if dtype.kind in _TIMES:
        return True
    return bool(encoding) and any(k in _USED and encoding[k] is not None for k in encoding)


def _prepare_encoding(name: str, variable: Variable) -> Variable:
    """Return a copy for xarray, which converts only times to the dtype in the encoding."""
    encoding = _normalize_encoding(name, variable)
    dtype = find_dtype(encoding)
    encoding.pop("dtype", None)
    if variable.dtype.kind in _TIMES and dtype is not None:
        # xarray does not notice that a short integer overflows.
        encoding["dtype"] = np.dtype(np.int64) if dtype.kind in "iu" else dtype
    encoding.pop("_Unsigned", None)
    if dtype is not None and _changes_sign(variable.encoding):
        for key in _FILL_VALUES & encoding.keys():
            encoding[key] = _view_as(encoding[key], dtype)
    if "missing_value" in encoding and "_FillValue" in encoding:  # NaN becomes one of them
        chosen = _choose_fill_value([encoding["_FillValue"], encoding["missing_value"]], dtype)
        encoding["missing_value"] = encoding["_FillValue"] = chosen
    attrs = _normalize_all(variable.attrs, _get_number_dtype(variable))
    if dtype is not None:  # in which xarray would fill with a `_FillValue` of the attributes
        unused = {k for k in _FILL_VALUES & attrs.keys() if _normalize(k, attrs[k], dtype) is None}
        attrs = {key: value for key, value in attrs.items() if key not in unused}
    if "_FillValue" not in attrs:
        encoding.setdefault("_FillValue", None)  # xarray adds NaN otherwise
    copied = _load_small(variable).copy(deep=False)
    is_short = copied.dtype.kind in "iu" or copied.dtype == np.float16
    if is_short and any(key in encoding for key in _SCALES):
        copied = copied.astype(np.float64)  # xarray leaves the dtype if there is a _FillValue
    copied.attrs = attrs
    copied.encoding = encoding
    return copied


def _get_number_dtype(variable: Variable) -> np.dtype[Any]:
    """Return the dtype of a variable, or of its numbers if it has times."""
    return np.dtype(np.float64) if variable.dtype.kind in _TIMES else variable.dtype


def _normalize_encoding(name: str, variable: Variable) -> dict[str, Any]:
    """Return the entries of an encoding that have values. Raise ValueError if one is invalid."""
    encoding = {key: value for key, value in variable.encoding.items() if value is not None}
    for key in (_USED - {"units"}) & encoding.keys():
        dtype = find_dtype(encoding) if key in _FILL_VALUES else None
        value = _normalize(key, encoding[key], dtype or _get_number_dtype(variable))
        if value is None and variable.dtype.kind in f"{_NUMBERS}mM":
            raise ValueError(
                f"the encoding of {name!r} has {key}={shorten(repr(encoding[key]))}, which CF does "
                f"not define for {variable.dtype}; change or remove it"
            )
        if value is None:
            del encoding[key]
        elif isinstance(value, np.ndarray):
            is_viewed = _changes_sign(encoding)
            encoding[key] = _choose_fill_value(list(value), None if is_viewed else dtype)
        else:
            encoding[key] = value
    return encoding


def find_dtype(encoding: Mapping[str, Any]) -> np.dtype[Any] | None:
    """Return the numeric dtype of values in a file, with the sign that `_Unsigned` defines."""
    try:
        dtype = np.dtype(encoding["dtype"]) if encoding.get("dtype") is not None else None
    except TypeError:
        return None
    if dtype is None or dtype.kind not in _NUMBERS:
        return None
    kinds = {("true", "i"): "u", ("false", "u"): "i"}
    kind = kinds.get((str(encoding.get("_Unsigned")), dtype.kind))
    return np.dtype(f"{kind}{dtype.itemsize}") if kind else dtype


def _changes_sign(encoding: Mapping[str, Any]) -> bool:
    """Return whether `_Unsigned` gives integers the other sign, so that fill values get it, too."""
    dtype = find_dtype(encoding)
    return dtype is not None and dtype.kind != np.dtype(encoding["dtype"]).kind


def _is_storable(value: Any, dtype: np.dtype[Any] | None) -> bool:
    """Return whether a dtype has a fill value. A file may have others, which fill nothing."""
    if dtype is None or dtype.kind not in "iu":
        return True
    limits = np.iinfo(dtype)
    array = np.asarray(value)  # or a list of one
    return bool(((limits.min <= array) & (array <= limits.max)).all())


def _choose_fill_value(values: Sequence[Any], dtype: np.dtype[Any] | None) -> Any:
    """Return the value that NaN is written as: the first one that can be stored, or the first."""
    return next((value for value in values if _is_storable(value, dtype)), values[0])


def _view_as(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a fill value as an integer of the same bytes with the other sign."""
    if dtype.kind not in "iu" or not float(value).is_integer():
        return value
    remainder = int(value) % (1 << np.iinfo(dtype).bits)
    return np.array(remainder, f"u{dtype.itemsize}").view(dtype)[()]


def _load_small(variable: Variable) -> Variable:
    """Return a lazy variable of this engine in chunks, so that it is encoded chunk by chunk."""
    if variable.chunks is not None or find_lazy_tensor(variable) is None:
        return variable
    if variable.nbytes <= DEFAULT_CHUNK_BYTES:
        return variable[...].load()  # without a copy in the Dataset of the user
    preferred = variable.encoding.get("preferred_chunks", {})
    whole = -1 if preferred else "auto"
    return variable.chunk({dim: preferred.get(dim, whole) for dim in variable.dims})


def _finish(name: str, original: Variable, encoded: Variable, cast: Cast) -> Variable:
    """Convert packed values to the dtype in the encoding, and keep the other keys."""
    dtype = find_dtype(original.encoding)
    is_scaled = any(original.encoding.get(key) is not None for key in _SCALES)
    attrs = dict(encoded.attrs)
    kept = {key: v for key, v in original.encoding.items() if key not in _USED}
    if original.dtype.kind == "b":
        kept.pop("dtype", None)
    is_computed = encoded.dtype.kind in ("fi" if original.dtype.kind in _TIMES else "f")
    if dtype is not None and is_computed and (dtype.kind in "iu" or is_scaled):
        if dtype != encoded.dtype:
            encoded = cast(name, encoded, dtype, is_scaled)
        if dtype.kind in "iu" and not is_scaled:
            attrs |= {
                key: dtype.type(attrs[key])
                for key in _FILL_VALUES & attrs.keys()
                if _is_storable(attrs[key], dtype)
            }
    has_sign = _changes_sign(original.encoding)
    if has_sign:
        kept["dtype"] = dtype
    for key in _FILL_VALUES & attrs.keys():
        value: Any = original.encoding.get(key)
        if value is None:
            continue
        is_kept = not has_sign and (key == "missing_value" or not _is_storable(value, dtype))
        if np.size(value) > 1 or is_kept:
            attrs[key] = value
    coordinates = original.encoding.get("coordinates")
    if isinstance(coordinates, str):
        attrs.setdefault("coordinates", coordinates)
    attrs = {k: original.attrs.get(k, v) for k, v in attrs.items()}
    encoded.attrs = original.attrs | {k: v for k, v in attrs.items() if k not in original.attrs}
    encoded.encoding = kept
    return encoded
