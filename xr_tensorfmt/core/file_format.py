"""File formats: their options, what reading a header returns, and what a format defines."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from fnmatch import fnmatchcase
from importlib import import_module
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import Finding, TensorFormatError, build_choice_error, shorten

if TYPE_CHECKING:
    from xr_tensorfmt.writing.checked_input import CheckedInput
    from xr_tensorfmt.writing.file_plan import FilePlan

CONTRACT_VERSION = 1
"""Version of the contract. It increases if formats of other packages must change."""

EMBEDDED_KEY = "xr_tensorfmt"
"""Key of the embedded metadata in formats with a dictionary of metadata."""

# Limit on the elements of a tensor that opens dense although the file stores few of them.
_MAX_FILLED_ELEMENTS = 1 << 40

Names = Mapping[str, Sequence[str]] | Sequence[str] | None
"""Dimension names: a mapping by variable or pattern, or a sequence for a file of one variable."""


def name_dims(requested: Names, variable: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dimension names: the user's if given, otherwise the file's."""
    if requested is None and variable not in default:
        return default
    if requested is None:
        raise ValueError(
            f"the variable {variable!r} has the name of one of its dimensions {default}; pass "
            "other names in dims=, or another name= or --name"
        )
    names = find_names(requested, variable, len(default))
    names = default if names is None else names
    is_sequence = isinstance(names, Sequence) and not isinstance(names, str | bytes)
    if not is_sequence or not all(isinstance(name, str) and name for name in names):
        raise TypeError(
            f"dims={requested!r} must be a sequence of non-empty str for {variable!r}, such as "
            f"{default}"
        )
    is_permuted = tuple(names) != default and set(names) == set(default)
    is_valid = len(names) == len(default) == len(set(names)) and variable not in names
    if is_permuted or not is_valid:
        raise ValueError(
            f"dims={requested!r} cannot name the dimensions {default} of {variable!r}: pass "
            f"{len(default)} different names, none of them {variable!r} (or another name= "
            "or --name); transpose to reorder dimensions"
        )
    return tuple(names)


def match_names(key: object, names: Collection[Any]) -> list[Any]:
    """Return the key itself if it is a name, or else all names that match it as a pattern."""
    return [key] if key in names else [n for n in names if fnmatchcase(str(n), str(key))]


def find_names(requested: Names, variable: str, rank: int) -> Sequence[str] | None:
    """Return the names for a variable, or for the first matching pattern with `rank` names."""
    if not isinstance(requested, Mapping):
        return requested
    if variable in requested:
        return requested[variable]
    fitting = (names for names in requested.items() if len(names[1]) == rank)
    return next((names for key, names in fitting if match_names(key, [variable])), None)


@dataclass(frozen=True)
class Option:
    """A keyword of a format, for `xarray.open_dataset` or `xr_tensorfmt.to_file`.

    Parameters
    ----------
    description : str
        A line for the help.
    choices : tuple of str
        Allowed values, unless any is allowed.
    default : object
        The value if the keyword is omitted. It is ignored for other formats.
    type : type
        Type of other values.
    """

    description: str
    choices: tuple[str, ...] = ()
    default: Any = None
    type: type = object

    def normalize(self, name: str, value: Any) -> Any:
        """Return a value, or the choice with the same text. ``1`` is ``"1"`` and ``"1.0"``."""
        for choice in self.choices:
            if str(value) in (choice, choice.removesuffix(".0")):
                return choice
        if self.choices and value is not self.default:
            raise build_choice_error(name, value, self.choices)
        if value is not self.default and not isinstance(value, self.type):
            raise TypeError(f"{name}={value!r} must be of type {self.type.__name__}")
        return value


SHARED_OPTIONS = {
    "name": Option("Name of the variable, for files with one unnamed tensor.", default="tensor"),
    "sparse": Option(
        "How to open a file that does not store all elements. ``dense`` returns the full tensor, "
        "with a fill value for missing elements. ``stored`` returns the stored values along one "
        "dimension, with a coordinate per dimension of the tensor, for formats with blocks or "
        "labels. ``auto`` is the default of the format, and raises an error for a full tensor of "
        "more than ``2**40`` elements if the file need not store most of them.",
        ("auto", "dense", "stored"),
        default="auto",
    ),
    "verify": Option(
        "If False, a wrong header checksum and trailing bytes cause a warning instead of an error. "
        "A truncated file always raises an error, and so does a file of the wrong size if the size "
        "determines the offsets of the values.",
        default=True,
        type=bool,
    ),
    "decode_floats": Option(
        "If False, bfloat16 and float8 are not converted to float32, and values have the dtypes of "
        "the package ml_dtypes.",
        default=True,
        type=bool,
    ),
}
"""Options of several formats."""


def share_options(*names: str) -> dict[str, Option]:
    """Return some of the options that several formats have, for ``Format.open_options``."""
    return {name: SHARED_OPTIONS[name] for name in names}


@dataclass(frozen=True)
class OpenOptions:
    """What `Format.read` gets: ``options["sparse"]`` is an option that the format declares."""

    name: str = "tensor"
    dims: Names = None
    format_options: Mapping[str, Any] = field(default_factory=dict)
    loads_labels: bool = True
    """Whether the labels of an index are read at once. This is no keyword."""
    select: Callable[[Collection[str]], Collection[str]] | None = None
    """Returns the names of the tensors to build, of all names. By default, all are built."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"name={self.name!r} must be a non-empty str such as 'tensor'")

    def __getitem__(self, option: str) -> Any:
        """Return the value of an option of the format."""
        return self.format_options[option]

    def refuse_stored(self, path: str) -> None:
        """Raise an error if ``sparse="stored"``, for a file that opens with all elements."""
        if self["sparse"] == "stored":
            raise ValueError(
                f"{path}: sparse='stored' does not apply to this file; omit it to open all elements"
            )

    def check_filled(
        self, path: str, field: str, count: int, stored: object, offset: int | None
    ) -> None:
        """Raise TensorFormatError if too many elements of a tensor are not stored in its file."""
        if self["sparse"] == "auto" and count > _MAX_FILLED_ELEMENTS:
            hint = "open it with sparse='dense' (--open-option sparse=dense) to fill in the others"
            actual = f"{count} elements, of which {stored} are stored"
            expected = f"at most {_MAX_FILLED_ELEMENTS} elements"
            raise TensorFormatError(path, field, actual, expected, hint, offset=offset)


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
        """Read the values, and yield up to `limit` findings."""
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
                "(verify=False or --open-option verify=false of info, diff and convert ignores "
                "trailing bytes)"
            )
            expected = "the end of the file"
            raise TensorFormatError(self.source.name, field, actual, expected, hint, self.stop)


@dataclass(frozen=True)
class Container:
    """The parsed header of a file.

    Parameters
    ----------
    tensors, coordinates : tuple of Tensor
        The data variables, in file order, and the coordinates.
    attrs, encoding : mapping
        Attributes of the file, and its encoding: version, checksum, time.
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
    directory_hint : str
        How to open a directory that does not open as a file, for the error.
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
    directory_hint: ClassVar[str] = ""
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
        fitting = [x for x in self.suffixes if path.endswith(x) and os.path.basename(path) != x]
        return max(fitting, key=len, default="")

    def find_models(
        self, names: Collection[str], open_reader: Callable[[str], HeaderReader]
    ) -> list[str]:
        """Return the files that a directory can open as. One that does not exist is reported."""
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

    @property
    def can_write(self) -> bool:
        """Whether the format supports writing."""
        return type(self).plan is not Format.plan

    def plan(self, checked: CheckedInput, **options: Any) -> FilePlan:
        """Plan a file: its header and the layout of every variable.

        Compute only values of the header, such as coordinates. Raise ValueError for an unsupported
        Dataset.

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
    """A format with `read` and `check` in a module `read`, and `plan` in a module `write`."""

    def _import(self, name: str) -> Any:
        return import_module(f"{self.__module__}.{name}")

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Call the function of the module."""
        return self._import("read").read(reader, options)  # type: ignore[no-any-return]

    def check(self, reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
        """Call the function of the module, if there is one."""
        check = getattr(self._import("read"), "check", super().check)
        findings: Iterator[Finding] = check(reader, container, limit)
        return findings

    def plan(self, checked: CheckedInput, **options: Any) -> FilePlan:
        """Call the function of the module."""
        return self._import("write").plan(checked, **options)  # type: ignore[no-any-return]
