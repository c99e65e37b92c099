"""What no format can hold, or cannot be meant."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from xarray import Variable

from xr_tensorfmt.errors import shortened
from xr_tensorfmt.formats.limits import WIDEST, is_addressable


def check_name(path: str, name: Hashable) -> None:
    """Refuse names that no file can hold.

    Parameters
    ----------
    path : str
        The file.
    name : hashable
        A name of a variable or a dimension.

    Raises
    ------
    TypeError, ValueError
        It is no text, or none that UTF-8 has bytes for.
    """
    if not isinstance(name, str):
        raise TypeError(f"{path}: the name {name!r} is no text; rename it to {str(name)!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{path}: UTF-8 cannot hold the name {name!a}; rename it") from None


def check_variable(path: str, name: str, variable: Variable, *, labels: bool) -> None:
    """Refuse a variable that no file could give back as it is.

    Parameters
    ----------
    path : str
        The file.
    name : str
        The variable.
    variable : Variable
        The same.
    labels : bool
        Whether it is a coordinate.

    Raises
    ------
    ValueError
        Its lengths are not known, two of its dimensions have one name, or it would open as a
        coordinate.
    """
    if len(set(variable.dims)) != len(variable.dims):
        raise ValueError(
            f"{path}: two dimensions of {name!r} have one name in {variable.dims}; rename one"
        )
    if any(length != length for length in variable.shape):  # NaN
        raise ValueError(
            f"{path}: dask does not know how long {name!r} is; "
            "call compute_chunk_sizes() on its array first"
        )
    if not is_addressable(variable.shape, WIDEST):
        raise ValueError(
            f"{path}: {name!r} of shape {variable.shape} fits no computer; write a part"
        )
    if name in variable.dims and not labels:
        raise ValueError(
            f"{path}: {name!r} labels a dimension and is no coordinate, but would open as one; "
            "rename it, or make it one by set_coords"
        )


def check_encoding(variables: Mapping[Any, Variable], encoding: Any) -> None:
    """Refuse what means nothing as ``encoding=``.

    Parameters
    ----------
    variables : mapping of hashable to Variable
        All variables.
    encoding : object
        As the user gave it.

    Raises
    ------
    TypeError, ValueError
        It is no mapping of mappings, names no variable, or asks for more than a dtype.
    """
    known = isinstance(encoding, Mapping)
    if not known or not all(isinstance(each, Mapping) for each in encoding.values()):
        raise TypeError(f"encoding={encoding!r} is not as {{name: {{'dtype': ...}}}}")
    for name, wanted in encoding.items():
        if name not in variables:
            raise ValueError(
                f"encoding= names {name!r}, which is none of the variables "
                f"{shortened(', '.join(map(repr, variables)))}"
            )
        unknown = set(wanted) - {"dtype"}
        if unknown:
            raise ValueError(
                f"encoding={{{name!r}: {wanted!r}}} has {', '.join(map(repr, sorted(unknown)))}; "
                "only 'dtype' means something here"
            )
