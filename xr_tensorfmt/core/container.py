"""The parsed header of a file: its tensors and attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import Finding, TensorFormatError, shorten

EMBEDDED_KEY = "xr_tensorfmt"
"""Key of the embedded metadata in formats with a dictionary of metadata."""


class Tensor(NamedTuple):
    """An array of a file.

    Parameters
    ----------
    name : str
        Name of the variable.
    dims : tuple of str
        Names of the axes, all different.
    layout : Layout
        Shape, dtype and encoding of the values.
    attrs : mapping
        Attributes of the variable.
    encoding : mapping
        Encoding of the variable: version, offsets, byte order.
    source : Source, optional
        The file with the values, if it is a sibling of the opened file.
    """

    name: str
    dims: tuple[str, ...]
    layout: Layout
    attrs: Mapping[str, Any] = MappingProxyType({})
    encoding: Mapping[str, Any] = MappingProxyType({})
    source: Source | None = None

    def validate(self, source: Source, limit: int) -> Iterator[Finding]:
        """Read the values. Yield up to `limit` findings for each of the `stored_parts`."""
        for finding in islice(self.layout.validate(self.source or source), limit):
            yield replace(finding, field=f"{finding.field} of {shorten(repr(self.name))}")


class End(NamedTuple):
    """The byte after the contents of a file. A trailing byte is a fault after `last_part`."""

    source: Source
    stop: int
    last_part: str

    def check(self) -> None:
        """Raise TensorFormatError if bytes follow."""
        if (extra := self.source.size - self.stop) > 0:
            field, actual = f"the end of {self.last_part}", f"{extra} more bytes"
            hint = (
                "the header is corrupt or bytes were appended: compare the size with the original "
                "(verify=False or --no-verify ignores trailing bytes)"
            )
            expected = "the end of the file"
            raise TensorFormatError(self.source.name, field, actual, expected, hint, self.stop)


@dataclass(frozen=True)
class Container:
    """The parsed header of a file.

    Parameters
    ----------
    tensors : tuple of Tensor
        The data variables, in file order.
    coordinates : tuple of Tensor
        The coordinates.
    attrs : mapping
        Attributes of the file.
    encoding : mapping
        Encoding of the file: version, checksum, time.
    findings : tuple of Finding
        Violations of the format that do not prevent reading. Opening warns of them.
    omitted : mapping of str to TensorFormatError
        Valid tensors that are not supported, with the reason. Opening warns of them once, and
        raises the error if the user requests such a tensor by name.
    ends : tuple of End
        Ends of the contents of the file and its sibling files. Trailing bytes are an error if
        ``verify`` is True, and a warning otherwise.
    embedded : mapping, str or bytes, optional
        Embedded metadata of the file, before they are applied: a mapping, or JSON.
    derived : tuple of str
        Names of parts that depend on the values, such as checksums. With such parts, ``region=``
        raises an error.
    parsed : object, optional
        The parsed header, for `Format.check`.
    """

    tensors: tuple[Tensor, ...]
    coordinates: tuple[Tensor, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    encoding: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    omitted: Mapping[str, TensorFormatError] = field(default_factory=dict)
    ends: tuple[End, ...] = ()
    embedded: Any = None
    derived: tuple[str, ...] = ()
    parsed: Any = field(default=None, repr=False)
