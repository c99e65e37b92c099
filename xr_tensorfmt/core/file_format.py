"""File formats: recognition, reading, writing and validation."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.open_options import OpenOptions, Option
from xr_tensorfmt.errors import Finding

if TYPE_CHECKING:
    from xr_tensorfmt.writing.checked_input import CheckedInput
    from xr_tensorfmt.writing.file_plan import FilePlan

CONTRACT_VERSION = 1
"""Version of the contract. It increases if formats of other packages must change."""


class Match(IntEnum):
    """How well a file matches a format."""

    NONE = 0
    """The file has another format."""

    POSSIBLE = 1
    """The file may have this format. It opens with ``engine="tensorfmt"``."""

    CERTAIN = 2
    """The file has this format. It also opens without ``engine=``."""


class Format(ABC):
    """A file format: recognition, reading, writing and validation.

    A subclass defines the attributes and overrides `read`. Other methods are optional. Instances
    have no state, and modules should import readers, writers and checks lazily.

    Attributes
    ----------
    contract_version : int
        The `CONTRACT_VERSION` that the format supports.
    name : str
        The value for ``format=``, in lower case.
    title : str
        Name of the format in messages.
    suffixes : tuple of str
        File suffixes, in lower case and with the dot. `to_file` uses them to select the format.
    directory_patterns : tuple of str
        Patterns of lower-case file names. A directory opens as the only file that matches the first
        of these patterns that matches any file. Other files are ignored.
    directory_hint : tuple of str
        A file suffix, and what to do with a directory of such files.
    magics : tuple of bytes
        Magic numbers. Files begin with one of them, unless the tuple is empty.
    open_options, write_options : mapping of str to Option
        Keywords of `xarray.open_dataset` and `xr_tensorfmt.to_file`, and of the commands. `read`
        gets the first as ``options["sparse"]``, `plan` the second as keywords. `share_options`
        returns options that several formats have.
    """

    contract_version: ClassVar[int]
    name: ClassVar[str]
    title: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    directory_patterns: ClassVar[tuple[str, ...]] = ()
    directory_hint: ClassVar[tuple[str, str]] = ("", "")
    magics: ClassVar[tuple[bytes, ...]] = ()
    open_options: ClassVar[Mapping[str, Option]] = MappingProxyType({})
    write_options: ClassVar[Mapping[str, Option]] = MappingProxyType({})

    def match(self, reader: HeaderReader) -> Match:
        """Return how well a file matches: by ``magics``, or by ``suffixes`` if there are none."""
        if self.magics:
            return Match.CERTAIN if reader.head.startswith(self.magics) else Match.NONE
        return Match.POSSIBLE if self.find_suffix(reader.source.file_name) else Match.NONE

    def find_suffix(self, path: str) -> str:
        """Return the longest of ``suffixes`` that a path or URL ends with, or an empty string."""
        path = path.casefold()
        if not path.endswith(self.suffixes):
            return ""
        fitting = [x for x in self.suffixes if path.endswith(x) and os.path.basename(path) != x]
        return max(fitting, key=len, default="")

    def find_models(
        self,
        names: Collection[str],
        open_reader: Callable[[str], HeaderReader],
    ) -> list[str]:
        """Return the files that a directory can open as, by ``directory_patterns``."""
        for pattern in self.directory_patterns:
            if models := [name for name in names if fnmatchcase(name.casefold(), pattern)]:
                return models
        return []

    def find_parts(
        self, names: Collection[str], open_reader: Callable[[str], HeaderReader]
    ) -> Mapping[str, str]:
        """Return which files of a directory have no tensors of their own, and what they are."""
        return {}

    def describe_unsupported(self, reader: HeaderReader) -> tuple[str, str] | None:
        """Return what a related file in another format is, and what to do with it."""
        return None

    @abstractmethod
    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Read the header of a file, and no values, or raise TensorFormatError if it is corrupt."""

    def finish(self, container: Container, options: OpenOptions) -> Container:
        """Return the container of `read`, adjusted after the embedded metadata has been applied."""
        return container

    @property
    def can_write(self) -> bool:
        """Whether the format supports writing."""
        return type(self).plan is not Format.plan

    def plan(self, checked: CheckedInput, **options: Any) -> FilePlan | Sequence[FilePlan]:
        """Plan a file: its header and the layout of every variable.

        Compute only values of the header, such as coordinates. The next of several plans is tried
        if a layout raises `UnrepresentableValueError`. Raise ValueError for an unsupported Dataset.

        Parameters
        ----------
        checked : CheckedInput
            The Dataset to write, and the options of the user.
        **options
            The ``write_options`` that the user passed.
        """
        raise NotImplementedError

    @property
    def validation_options(self) -> OpenOptions:
        """Options of `read` for validation: lenient, to read as much as possible."""
        return OpenOptions(
            format_options={"verify": False} if "verify" in self.open_options else {}
        )

    def check(self, reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
        """Yield findings about what `read` does not check, up to `limit` of each kind."""
        return iter(())


class LazyFormat(Format):
    """A format whose modules `read`, `check` and `write` are imported when they are needed.

    The function `check` may be in the module `read`, too.
    """

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Call `read` of the module `read`."""
        container: Container = import_module(f"{self.__module__}.read").read(reader, options)
        return container

    def check(self, reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
        """Call `check` of the module `check`, if there is one."""
        own = f"{self.__module__}.check"
        module = import_module(own if find_spec(own) else f"{self.__module__}.read")
        findings: Iterator[Finding] = (
            module.check(reader, container, limit) if hasattr(module, "check") else iter(())
        )
        return findings

    def plan(self, checked: CheckedInput, **options: Any) -> FilePlan | Sequence[FilePlan]:
        """Call `plan` of the module `write`."""
        plan: FilePlan | Sequence[FilePlan] = import_module(f"{self.__module__}.write").plan(
            checked, **options
        )
        return plan
