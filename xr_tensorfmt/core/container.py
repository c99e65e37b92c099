"""What a file holds, once it is parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.source import Source


@dataclass(frozen=True)
class Tensor:
    """One array of a file.

    Parameters
    ----------
    name : str
        Its name.
    dims : tuple of str
        A name for each axis of the layout, all different.
    layout : Layout
        Its shape, its dtype and how to read it.
    attrs : mapping
        Facts that matter to a user.
    encoding : mapping
        Facts of the container: version, offsets, byte order.
    """

    name: str
    dims: tuple[str, ...]
    layout: Layout
    attrs: Mapping[str, Any] = field(default_factory=dict)
    encoding: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Container:
    """What a format module makes of a file.

    Parameters
    ----------
    tensors : tuple of Tensor
        The variables, in the order of the file.
    coordinates : tuple of Tensor
        The variables that label others.
    attrs : mapping
        Facts about the whole file.
    encoding : mapping
        Facts of the container as a whole: version, checksum, time.
    siblings : tuple of Source
        Other files that values are read from.
    findings : tuple of Finding
        What is wrong with the file and does not keep it from being read; opening warns of it.
    note : mapping, optional
        What our writers have noted of the Dataset, as it is in the file and not yet applied: the
        mapping, or JSON.
    decoded : bool
        Whether attributes describe the values as they are, so that xarray has nothing to decode.
    derived : tuple of str
        What the file keeps that depends on its values, and that a change of some of them in place
        would leave wrong.
    format : str
        Name of the format; the registry sets it.
    """

    tensors: tuple[Tensor, ...]
    coordinates: tuple[Tensor, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    encoding: Mapping[str, Any] = field(default_factory=dict)
    siblings: tuple[Source, ...] = ()
    findings: tuple[Finding, ...] = ()
    embedded: Any = None
    decoded: bool = False
    derived: tuple[str, ...] = ()
    format: str = ""


Names = Mapping[str, Sequence[str]] | Sequence[str] | None
"""Names for dimensions: by variable, or the names alone where a file has one variable."""


def named_dims(requested: Names, variable: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """Names for the axes of a variable: those that the user asked for, else those of the file."""
    names = requested.get(variable) if isinstance(requested, Mapping) else requested
    if names is None:
        names = default
    if isinstance(names, str | bytes) or not isinstance(names, Sequence):
        raise TypeError(
            f"dims={requested!r} is not a sequence of names for {variable!r}; "
            f"give one such as {default}"
        )
    if not all(isinstance(name, str) and name for name in names):
        raise TypeError(f"dims={requested!r} has names that are not texts, or empty")
    if len(names) != len(default):
        raise ValueError(
            f"dims={requested!r} cannot name the {len(default)} dimensions {default} "
            f"of {variable!r}; give {len(default)} names"
        )
    if len(set(names)) != len(names):
        raise ValueError(f"dims={requested!r} names two dimensions of {variable!r} alike")
    if variable in names:
        raise ValueError(
            f"{variable!r} would be both the variable and one of its dimensions {tuple(names)}, "
            "which makes it an index; choose another with name= or dims="
        )
    return tuple(names)
