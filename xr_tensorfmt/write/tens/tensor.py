"""A Dataset's one variable as the tensor of a TENS file to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from string import ascii_letters
from typing import Any, Literal

import numpy as np
from xarray import Variable

from xr_tensorfmt.elements import Element, Plain
from xr_tensorfmt.formats.limits import MOST_DIMENSIONS
from xr_tensorfmt.formats.tens import COMPONENT
from xr_tensorfmt.formats.tens.header import (
    NUMBERS_PER_ELEMENT,
    VERSION_0_9,
    VERSION_1_0,
    Dimension,
    Header,
)
from xr_tensorfmt.formats.tens.numbers import DTYPES, number_fields
from xr_tensorfmt.write.conversion import Conversion
from xr_tensorfmt.write.subject import Subject

Version = Literal["1.0", "0.9"]

VERSIONS: dict[Version, int] = {"1.0": VERSION_1_0, "0.9": VERSION_0_9}

LONGEST = (1 << 32) - 1
"""What the field of a dimension's length can hold."""

_WRITTEN: dict[Version, Sequence[str]] = {"1.0": DTYPES, "0.9": ("float64", "complex128")}


@dataclass(frozen=True, eq=False)
class TensTensor:
    """What is written, and how the header describes it.

    Parameters
    ----------
    name : str
        The variable.
    variable : Variable
        Its values.
    conversion : Conversion
        What becomes of its dtype.
    header : Header
        Of the file.
    """

    name: str
    variable: Variable
    conversion: Conversion
    header: Header

    @property
    def components(self) -> int:
        """Length of the axis of components; 1 where there is none."""
        has = self.variable.ndim > len(self.header.dimensions)
        return self.header.numbers if has else 1

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions of the tensor, without that of its components."""
        return tuple(map(str, self.variable.dims[: len(self.header.dimensions)]))

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return prod(self.variable.shape) * self.conversion.element.stored.itemsize


def facts_of(variable: Variable) -> Mapping[str, Any]:
    """What is known of the TENS file that a variable was opened from; nothing if there is none."""
    facts = variable.encoding.get("tensorfmt")
    return facts if isinstance(facts, Mapping) and facts.get("format") == "tens" else {}


def elements(version: Version) -> dict[str, Element]:
    """What a version can hold, by the names of dtypes."""
    return {name: Plain(np.dtype(name).newbyteorder("<")) for name in _WRITTEN[version]}


def tensor_of(subject: Subject, version: Version, flags: int = 0) -> TensTensor:
    """The one variable of what is written, as a TENS file can hold it.

    Parameters
    ----------
    subject : Subject
        What is written.
    version : {"1.0", "0.9"}
        Of the format.
    flags : int
        Of the tensor.

    Returns
    -------
    TensTensor

    Raises
    ------
    ValueError
        There are several variables, or it has a dtype or a shape that the version cannot hold.
    """
    name, variable = subject.only
    conversion = subject.conversion(name, variable, elements(version))
    has_components = version == "1.0" and _has_components(variable, conversion.element)
    rank = variable.ndim - has_components
    _check_shape(subject.path, name, variable, rank)
    dims = [str(dim) for dim in variable.dims[:rank]]
    names = index_names(dims) if version == "1.0" else [ord("a") + axis for axis in range(rank)]
    components = variable.shape[-1] if has_components else 1
    header = Header(
        VERSIONS[version],
        *number_fields(conversion.element.dtype, components),
        flags,
        tuple(
            Dimension(length, index, 0)
            for length, index in zip(variable.shape[:rank], names, strict=True)
        ),
    )
    return TensTensor(name, variable, conversion, header)


def index_names(dims: Sequence[str]) -> list[int]:
    """A character for each dimension: its own name where that is one, else a letter.

    Parameters
    ----------
    dims : sequence of str
        The names.

    Returns
    -------
    list of int
        The bytes, all different.
    """
    own = {dim for dim in dims if len(dim) == 1 and "!" <= dim <= "~"}
    letters = (letter for letter in ascii_letters if letter not in own)
    return [ord(dim if dim in own else next(letters)) for dim in dims]


def component_counts(dtype: np.dtype[Any]) -> tuple[int, ...]:
    """How many numbers of a dtype an element can have, but for one; two floats are complex."""
    return {"c": (), "f": NUMBERS_PER_ELEMENT[2:]}.get(dtype.kind, NUMBERS_PER_ELEMENT[1:])


def _has_components(variable: Variable, element: Element) -> bool:
    """Whether the last axis is what the file, that it was opened from, had for components."""
    return (
        variable.dims[-1:] == (COMPONENT,)
        and len(facts_of(variable).get("shape", ())) == variable.ndim - 1
        and variable.shape[-1] in component_counts(element.dtype)
    )


def _check_shape(path: str, name: str, variable: Variable, rank: int) -> None:
    if rank > MOST_DIMENSIONS:
        raise ValueError(
            f"{path}: {name!r} has {rank} dimensions, and a TENS file is read with at most "
            f"{MOST_DIMENSIONS}; stack some of them"
        )
    for dim, length in zip(variable.dims, variable.shape, strict=True):
        if length > LONGEST:
            raise ValueError(
                f"{path}: {name!r} has {length} elements along {dim!r}, and TENS counts to "
                f"{LONGEST}; split that dimension in two"
            )
