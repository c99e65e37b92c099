"""The argument ``encoding=`` of writers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from xarray import Variable

from xr_tensorfmt.core.open_options import match_names
from xr_tensorfmt.datasets import cf
from xr_tensorfmt.errors import shorten, suggest_pattern
from xr_tensorfmt.writing.conversion import format_dtype

KEYS = cf.VALUE_KEYS | cf.RELATED | {"coordinates"}
"""Keys of the encoding of a variable."""

_READER_KEYS = frozenset({"original_shape", "preferred_chunks", "source", "tensorfmt"})
"""Keys that only readers set. Their other keys are not for this package, and are ignored."""

NICKNAMES = {"fp8": "float8_e4m3fn", "float8": "float8_e4m3fn", "bf16": "bfloat16"}
"""Names of dtypes that users of models write, and the names of the dtypes."""

_WILDCARDS = frozenset("*?[")
_CATEGORIES = {"f": "floating-point", "i": "integer", "u": "integer", "b": "bool", "c": "complex"}


def resolve_encoding(
    variables: Mapping[Any, Variable], coordinates: Collection[Any], encoding: Any
) -> dict[Any, Mapping[str, Any]]:
    """Return the encoding of every variable: by name, by the first pattern, or the dtype of all."""
    if not isinstance(encoding, Mapping):
        raise _build_form_error(encoding)
    items = list(encoding.items())
    if not isinstance(encoding.get("dtype", {}), Mapping):
        items.remove(("dtype", encoding["dtype"]))
        items.append(("*", {"dtype": encoding["dtype"]}))
    data = {name: variable for name, variable in variables.items() if name not in coordinates}
    by_name: dict[Any, Mapping[str, Any]] = {}
    by_pattern: dict[Any, Mapping[str, Any]] = {}
    for name, given in items:
        if not isinstance(given, Mapping):
            raise _build_form_error(encoding)
        requested = _drop_keys_of_readers(given, variables.get(name))
        if name in variables:
            by_name[name] = requested
        elif isinstance(name, str) and _WILDCARDS & set(name):
            for variable in _match_pattern(name, requested, data):
                by_pattern.setdefault(variable, requested)
        else:
            raise ValueError(
                f"encoding= names {name!r}{suggest_pattern(name, variables)}, which is not one of "
                f"the variables {shorten(', '.join(map(repr, variables)))}"
            )
        _check_keys(name, requested)
    return by_pattern | by_name


def _build_form_error(encoding: Any) -> TypeError:
    form = "{name: {'dtype': ...}}, or {'dtype': ...} for all"
    return TypeError(f"encoding= must have the form {form}, not {encoding!r}")


def _drop_keys_of_readers(
    requested: Mapping[str, Any], variable: Variable | None
) -> Mapping[str, Any]:
    """Return an encoding without the keys that only describe the file it was read from."""
    own = {} if variable is None else variable.encoding
    is_read = not _READER_KEYS.isdisjoint(requested)
    return {
        key: value
        for key, value in requested.items()
        if key in KEYS or key == "tensorfmt" or not (is_read or key in own)
    }


def _check_keys(name: Any, requested: Mapping[str, Any]) -> None:
    unsupported = sorted(map(str, set(requested) - KEYS - {"tensorfmt"}))
    if unsupported:
        raise ValueError(
            f"encoding={{{name!r}: {requested!r}}} has {', '.join(map(repr, unsupported))}, "
            f"expected some of {', '.join(map(repr, sorted(KEYS)))}"
        )


def _match_pattern(
    pattern: str, requested: Mapping[str, Any], data: Mapping[Any, Variable]
) -> list[Any]:
    """Return the variables that a pattern applies to. Raise ValueError if it matches none."""
    named = match_names(pattern, data)
    category = _get_dtype_category(requested.get("dtype"))
    same_category = [
        name for name in named if category in (None, _get_dtype_category(data[name].dtype))
    ]
    matching = same_category or (named if len(data) == 1 else [])
    if not matching:
        unmatched = f"{category} variable" if named else "variable"
        actual = ", ".join(f"{name!r} ({variable.dtype})" for name, variable in data.items())
        encoding = {pattern: dict(requested)}
        raise ValueError(
            f"{encoding=} matches no {unmatched}; the variables are {shorten(actual) or 'none'}"
        )
    return matching


def _get_dtype_category(dtype: Any) -> str | None:
    """Return the category of a dtype, or None if it is unknown."""
    name = format_dtype(dtype)
    if name.startswith(("float", "bfloat", "fp")) or name in NICKNAMES:
        return _CATEGORIES["f"]
    try:
        return _CATEGORIES.get(np.dtype(name).kind, name)
    except TypeError:
        return None


def get_file_info(variable: Variable, format: str) -> Mapping[str, Any]:
    """Return the properties of the file of a format that a variable was opened from, if any."""
    file_info = variable.encoding.get("tensorfmt")
    if isinstance(file_info, Mapping) and file_info.get("format") == format:
        return file_info
    return {}
