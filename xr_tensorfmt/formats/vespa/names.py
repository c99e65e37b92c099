"""What the dimensions of a typed binary tensor are called in a Dataset."""

from __future__ import annotations

import re
from collections.abc import Iterator

from xr_tensorfmt.errors import shortened
from xr_tensorfmt.formats.base import OpenOptions
from xr_tensorfmt.formats.vespa.header import Header
from xr_tensorfmt.tensor import named_dims

BLOCK = "block"
"""The dimension that counts blocks, where they have no index of their own."""

USUAL_NAME = re.compile(r"[-@A-Za-z0-9_][@$A-Za-z0-9_]*")
"""What Vespa's own parsers of types take, TensorType.java and value_type_spec.cpp together."""


def dimension_names(header: Header, options: OpenOptions, *taken: str) -> tuple[str, ...]:
    """Names of the mapped dimensions, then of the indexed ones.

    Parameters
    ----------
    header : Header
        The header; a dimension with a name that is taken gets an underscore more.
    options : OpenOptions
        The name of the variable, which no dimension can have, and the names that the user wants.
    *taken : str
        Other names that no dimension can have.

    Returns
    -------
    tuple of str

    Raises
    ------
    ValueError, TypeError
        The names that the user wants do not fit.
    """
    own = header.mapped + header.indexed
    reserved = {options.name, *taken}
    used, free = reserved.union(own), []
    for name in own:
        unique = name
        if name in reserved:
            while unique in used:
                unique += "_"
            used.add(unique)
        free.append(unique)
    names = named_dims(options.dims, options.name, tuple(free))
    for name in taken:
        if name in names:
            raise ValueError(
                f"dims={options.dims!r} has {name!r}, which is the dimension that counts the "
                "blocks; choose another"
            )
    return names


def odd_names(path: str, header: Header) -> Iterator[str]:
    """Say which names Vespa's own parsers of types would refuse."""
    for name in header.mapped + header.indexed:
        if not USUAL_NAME.fullmatch(name):
            yield (
                f"{path}: the dimension {shortened(repr(name))} has a name that Vespa refuses in "
                "types"
            )
