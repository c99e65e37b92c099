"""What a format is to the package: the contract for built-in formats and those of other packages.

A package offers a format by an entry point of the group ``xr_tensorfmt.formats`` that names a
subclass of `Format`. All that reading and checking need is imported from here; a writer takes
`FilePlan`, `Piece` and `Placed` from `xr_tensorfmt.writing.file_plan`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from xr_tensorfmt.core.container import Container, OpenOptions, Tensor, named_dims
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Element, Plain
from xr_tensorfmt.core.findings import End, Finding, Gap, check_gaps
from xr_tensorfmt.core.header import Cursor, HeaderReader
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import column_major, transposed

if TYPE_CHECKING:
    from xr_tensorfmt.writing.checked_input import CheckedInput
    from xr_tensorfmt.writing.file_plan import DeferredPlans, FilePlan

__all__ = [
    "Container",
    "Cursor",
    "Dense",
    "Element",
    "End",
    "Finding",
    "Format",
    "Gap",
    "HeaderReader",
    "Layout",
    "Match",
    "OpenOptions",
    "Plain",
    "Selection",
    "Source",
    "Tensor",
    "check_gaps",
    "column_major",
    "named_dims",
    "transposed",
]


CONTRACT_VERSION = 1
"""Version of `Format`. It changes if a format of another package must be changed."""


class Match(IntEnum):
    """How well a file matches a format."""

    NONE = 0
    """The file is of another format."""

    POSSIBLE = 1
    """The file may be of this format; it is opened if ``engine="tensorfmt"`` is passed."""

    CERTAIN = 2
    """The file can only be of this format; it is opened without ``engine=`` as well."""


class Format(ABC):
    """A file format: how its files are recognised, read, written and checked.

    A subclass states the attributes and overrides `read`; the rest is optional. It has no state,
    and its module should import what reads, writes or checks a file only when that is called.

    Attributes
    ----------
    contract_version : int
        The `CONTRACT_VERSION` that a format of another package was written for.
    name : str
        The word for ``format=``, in lower case.
    title : str
        What messages and documents call the format.
    suffixes : tuple of str
        Ends of file names, in lower case and with the dot. `to_file` chooses the format by them.
    magics : tuple of bytes
        What the files begin with, one of them; none where the first bytes do not tell.
    open_options : frozenset of str
        Names of the open options that apply to the format: ``name``, ``sparse``, ``fill_value``,
        ``text_errors``, ``verify``, ``apply_unit``. The others are refused before `read`.
    write_options : mapping of str to tuple
        Keywords of `plan` beside the input, with the values that each allows; an empty tuple
        where that is for `plan` to say.
    """

    contract_version: ClassVar[int]
    name: ClassVar[str]
    title: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    magics: ClassVar[tuple[bytes, ...]] = ()
    open_options: ClassVar[frozenset[str]] = frozenset()
    write_options: ClassVar[Mapping[str, tuple[Any, ...]]] = MappingProxyType({})

    def match(self, reader: HeaderReader) -> Match:
        """Compare a file with the format; the engine and the guess without ``engine=`` use this.

        Parameters
        ----------
        reader : HeaderReader
            The file. ``reader.head`` has its first 64 bytes, ``reader.source`` its size and its
            name; other programs may use the same magic number or suffix.

        Returns
        -------
        Match
            By default certain if the file begins with one of ``magics``, and possible if there are
            none and the file has one of ``suffixes``.
        """
        if self.magics:
            return Match.CERTAIN if reader.head.startswith(self.magics) else Match.NONE
        return Match.POSSIBLE if self.suffix_of(reader.source.name) else Match.NONE

    def suffix_of(self, path: str) -> str:
        """Return the longest of ``suffixes`` that a path ends with, or an empty string.

        Parameters
        ----------
        path : str
            Path or URL of a file.

        Returns
        -------
        str
        """
        name = os.path.basename(path.casefold())
        fitting = (suffix for suffix in self.suffixes if name.endswith(suffix) and name != suffix)
        return max(fitting, key=len, default="")

    @abstractmethod
    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Read the header of a file, and no values.

        Parameters
        ----------
        reader : HeaderReader
            The file.
        options : OpenOptions
            What the user asked for.

        Returns
        -------
        Container

        Raises
        ------
        TensorFormatError
            The file is damaged or of another format.
        ValueError
            An option does not fit the file.
        """

    def attrs_of_file(self, attrs: Mapping[Any, Any]) -> Collection[str]:
        """Which attributes of a variable describe the file that it was opened from.

        `read` has set them, not the user. So no format refuses them, whether it has a place for
        attributes or not, and they are left out where they may no longer be right.

        Parameters
        ----------
        attrs : mapping
            The attributes of a variable that is to be written, perhaps to another format.

        Returns
        -------
        collection of str
            Names of some of them; by default none.
        """
        return ()

    @property
    def can_write(self) -> bool:
        """Whether the format has a `plan`."""
        return type(self).plan is not Format.plan

    def plan(self, checked: CheckedInput, **options: Any) -> FilePlan | DeferredPlans:
        """Plan a file: its header and the place of every value.

        The values of variables should not be computed here, except for what the header needs, such
        as coordinates that it holds. If a plan depends on more, return `DeferredPlans`.

        Parameters
        ----------
        checked : CheckedInput
            The Dataset to write, with what the user asked for.
        **options
            Those of ``write_options`` that the user gave.

        Returns
        -------
        FilePlan or DeferredPlans
            The plan, or the plans to try if they depend on the values.

        Raises
        ------
        ValueError
            The format cannot hold the Dataset; the message says what would work.
        """
        raise NotImplementedError

    @property
    def check_options(self) -> OpenOptions:
        """How `read` opens a file that is checked: as much of it as can be read."""
        lenient: dict[str, Any] = {"verify": False, "text_errors": "surrogateescape"}
        return OpenOptions(**{k: v for k, v in lenient.items() if k in self.open_options})

    def check(self, reader: HeaderReader, container: Container, most: int) -> Iterator[Finding]:
        """Check what reading the header and all values does not: padding, claims, checksums.

        A file may have as many faults of a kind as it has elements, so that a check that looks at
        many elements ends when it has found `most`.

        Parameters
        ----------
        reader : HeaderReader
            The file.
        container : Container
            What `read` made of it with `check_options`.
        most : int
            How many findings of one kind are wanted: 1, unless the user asks for all.

        Yields
        ------
        Finding
        """
        return iter(())
