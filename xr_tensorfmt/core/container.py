"""The parsed content of a file: its tensors and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xr_tensorfmt.core.findings import End, Finding
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.open_options import Names, OpenOptions, name_dims
from xr_tensorfmt.core.source import Source

__all__ = ["Container", "Names", "OpenOptions", "Tensor", "name_dims"]


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
        Attributes of the variable.
    encoding : mapping
        Encoding of the variable: version, offsets, byte order.
    source : Source, optional
        The file that its values are in, where that is another one than was opened.
    """

    name: str
    dims: tuple[str, ...]
    layout: Layout
    attrs: Mapping[str, Any] = field(default_factory=dict)
    encoding: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = None


@dataclass(frozen=True)
class Container:
    """The parsed header of a file.

    Parameters
    ----------
    tensors : tuple of Tensor
        The variables, in the order of the file.
    coordinates : tuple of Tensor
        The variables that are coordinates.
    attrs : mapping
        Attributes of the file.
    encoding : mapping
        Encoding of the file: version, checksum, time.
    siblings : tuple of Source
        Other files from which values are read.
    findings : tuple of Finding
        Violations of the format that do not prevent reading; opening warns of them.
    ends : tuple of End
        Where the contents of the file and of its siblings end. Bytes after an end are an error if
        ``verify`` is True, and a warning otherwise.
    embedded : mapping, str or bytes, optional
        Embedded metadata as they are in the file, not yet applied: a mapping, or JSON.
    decoded : bool
        Whether the attributes describe the decoded values, so that xarray must not decode them.
    keep_attrs : bool
        Whether variables have the attributes of the format even if attributes are embedded.
    derived : tuple of str
        What in the file depends on its values, and would be wrong after some of them were changed
        in place.
    parsed : object, optional
        The parsed header, for `Format.check`.
    """

    tensors: tuple[Tensor, ...]
    coordinates: tuple[Tensor, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    encoding: Mapping[str, Any] = field(default_factory=dict)
    siblings: tuple[Source, ...] = ()
    findings: tuple[Finding, ...] = ()
    ends: tuple[End, ...] = ()
    embedded: Any = None
    decoded: bool = False
    keep_attrs: bool = False
    derived: tuple[str, ...] = ()
    parsed: Any = field(default=None, repr=False)
