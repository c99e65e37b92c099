"""The contract for file formats, built-in or of other packages.

A package registers a format with an entry point in the group ``xr_tensorfmt.formats`` that names a
subclass of `Format`. Of this package, built-in formats import only this module,
``xr_tensorfmt.formats._shared`` and their own folder. The names in ``__all__`` are public, and
stable within a `CONTRACT_VERSION`. Other names are for built-in formats and can change in any
release.
"""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from xr_tensorfmt.core.chunk_grid import DEFAULT_CHUNK_BYTES, PAGE, ceil_div, contiguous_chunk
from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Array, Boolean, Element, ElementError, Plain, StoredDtype
from xr_tensorfmt.core.embedded_metadata import (
    EMBEDDED_KEY,
    MAX_EMBEDDED_BYTES,
    EmbeddedMetadata,
    EmbeddedVariable,
)
from xr_tensorfmt.core.extents import Bytes, Extents, Integers, gather_uniform, scatter_uniform
from xr_tensorfmt.core.findings import End, Finding, Gap, Severity, check_gaps, finding_from_error
from xr_tensorfmt.core.header import (
    MAX_DIMENSIONS,
    MAX_FILLED_ELEMENTS,
    MAX_ITEM_BYTES,
    MAX_TENSOR_BYTES,
    Cursor,
    HeaderReader,
    check_rank,
    check_size,
    is_addressable,
)
from xr_tensorfmt.core.json_text import MAX_NESTED, Document, parse_json, reject_repeated
from xr_tensorfmt.core.json_values import DTYPE_TAG, array_from_json, strip_dtypes, to_json
from xr_tensorfmt.core.layout import (
    BATCH_BYTES,
    WHOLE,
    EncodedBatch,
    Layout,
    SearchedLayout,
    UnrepresentableValueError,
    WritableLayout,
    view_as_bytes,
)
from xr_tensorfmt.core.locks import CachedValue
from xr_tensorfmt.core.narrow_floats import BFloat16, build_elements
from xr_tensorfmt.core.open_options import Names, OpenOptions, name_dims
from xr_tensorfmt.core.reading import read
from xr_tensorfmt.core.selection import (
    KEEP,
    MAX_RUNS,
    Indices,
    Points,
    PostIndexer,
    Runs,
    Selection,
    array_to_indices,
    compute_row_major_strides,
    indices_to_array,
    take_rows,
)
from xr_tensorfmt.core.source import (
    MAX_WINDOW,
    Source,
    is_file_name,
    open_sibling,
)
from xr_tensorfmt.core.value_checks import (
    CHECKED_BYTES,
    BoolArray,
    check_readable,
    check_values,
    iterate_chunks,
    report_errors,
)
from xr_tensorfmt.core.views import (
    Composite,
    InMemory,
    Part,
    Transposed,
    View,
    column_major,
    get_stored_layout,
    transpose_layout,
)
from xr_tensorfmt.errors import (
    TensorFormatError,
    TensorFormatWarning,
    did_you_mean,
    find_stack_level,
    shorten,
)

if TYPE_CHECKING:
    from xr_tensorfmt.datasets.lazy_array import LazyRead, get_lazy_read
    from xr_tensorfmt.sources.memory import Memory
    from xr_tensorfmt.writing.checked_input import CheckedInput
    from xr_tensorfmt.writing.conversion import Conversion
    from xr_tensorfmt.writing.embedded_metadata import (
        check_header_size,
        embed_coordinates,
        embed_one_tensor,
        embed_variable,
        encode_attrs,
        encode_metadata,
    )
    from xr_tensorfmt.writing.encoding import resolve_encoding
    from xr_tensorfmt.writing.file_plan import DeferredPlans, FilePlan, PlannedVariable, SiblingFile
    from xr_tensorfmt.writing.write_target import Piece

__all__ = [
    "CONTRACT_VERSION",
    "Boolean",
    "CheckedInput",
    "Composite",
    "Container",
    "Conversion",
    "Cursor",
    "DeferredPlans",
    "Dense",
    "Element",
    "ElementError",
    "End",
    "Extents",
    "FilePlan",
    "Finding",
    "Format",
    "Gap",
    "HeaderReader",
    "InMemory",
    "Layout",
    "Match",
    "OpenOptions",
    "Part",
    "Piece",
    "Plain",
    "PlannedVariable",
    "Points",
    "Selection",
    "SiblingFile",
    "Source",
    "Tensor",
    "TensorFormatError",
    "UnrepresentableValueError",
    "View",
    "WritableLayout",
    "check_gaps",
    "check_size",
    "column_major",
    "contiguous_chunk",
    "name_dims",
    "open_sibling",
    "transpose_layout",
]

# Names for writers, imported at first use because they need xarray and dask.
_LAZY = {
    "datasets.lazy_array": "LazyRead get_lazy_read",
    "sources.memory": "Memory",
    "writing.checked_input": "CheckedInput",
    "writing.conversion": "Conversion",
    "writing.encoding": "resolve_encoding",
    "writing.embedded_metadata": "check_header_size embed_coordinates embed_one_tensor "
    "embed_variable encode_attrs encode_metadata",
    "writing.file_plan": "DeferredPlans FilePlan PlannedVariable SiblingFile",
    "writing.write_target": "Piece",
}
_MODULES = {name: module for module, names in _LAZY.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a name at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"xr_tensorfmt.{_MODULES[name]}"), name)


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
    index_suffix : str
        Suffix of files that list the other files of a directory. A directory with one such file
        opens as this file.
    magics : tuple of bytes
        Magic numbers. Files begin with one of them, unless the tuple is empty.
    reader_attrs : frozenset of str
        Names of variable attributes that `read` adds itself. If a Dataset is written to a format
        without attributes, they are omitted without an error.
    open_options : frozenset of str
        Supported open options: ``name``, ``sparse``, ``fill_value``, ``text_errors``, ``verify``,
        ``apply_unit``. Other options raise an error before `read` is called.
    write_options : mapping of str to tuple
        Keywords of `plan` and their allowed values. If the tuple is empty, `plan` checks the value.
    """

    contract_version: ClassVar[int]
    name: ClassVar[str]
    title: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    index_suffix: ClassVar[str] = ""
    magics: ClassVar[tuple[bytes, ...]] = ()
    reader_attrs: ClassVar[frozenset[str]] = frozenset()
    open_options: ClassVar[frozenset[str]] = frozenset()
    write_options: ClassVar[Mapping[str, tuple[Any, ...]]] = MappingProxyType({})

    def match(self, reader: HeaderReader) -> Match:
        """Return how well a file matches the format.

        Parameters
        ----------
        reader : HeaderReader
            The file. ``reader.head`` holds the first 64 bytes. ``reader.source`` has the size and
            the name of the file. Other programs may use the same magic number or suffix.

        Returns
        -------
        Match
            By default, ``CERTAIN`` if the file begins with one of ``magics``. If the format has no
            magic number, ``POSSIBLE`` if the file has one of ``suffixes``. Otherwise ``NONE``.
        """
        if self.magics:
            return Match.CERTAIN if reader.head.startswith(self.magics) else Match.NONE
        return Match.POSSIBLE if self.find_suffix(reader.source.name) else Match.NONE

    def find_suffix(self, path: str) -> str:
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
            The options of the user.

        Returns
        -------
        Container

        Raises
        ------
        TensorFormatError
            The file is corrupt or has another format.
        ValueError
            An option does not apply to the file.
        """

    def finish(self, container: Container, options: OpenOptions) -> Container:
        """Adjust the result of `read` after the embedded metadata has been applied.

        Parameters
        ----------
        container : Container
            The content of the file.
        options : OpenOptions
            The open options.

        Returns
        -------
        Container
            By default the same container.

        Raises
        ------
        ValueError
            An option does not apply to the file.
        """
        return container

    @property
    def can_write(self) -> bool:
        """Whether the format supports writing."""
        return type(self).plan is not Format.plan

    def plan(self, checked: CheckedInput, **options: Any) -> FilePlan | DeferredPlans:
        """Plan a file: its header and the layout of every variable.

        Compute only values that the header contains, such as coordinates. If the plan depends on
        other values, return `DeferredPlans`.

        Parameters
        ----------
        checked : CheckedInput
            The Dataset to write, and the options of the user.
        **options
            The ``write_options`` that the user passed.

        Returns
        -------
        FilePlan or DeferredPlans
            The plan, or a sequence of plans to try if the plan depends on values.

        Raises
        ------
        ValueError
            The format does not support the Dataset. The message should name an alternative.
        """
        raise NotImplementedError

    @property
    def validation_options(self) -> OpenOptions:
        """Options of `read` for validation: lenient, to read as much as possible."""
        lenient: dict[str, Any] = {"verify": False, "text_errors": "surrogateescape"}
        return OpenOptions(**{k: v for k, v in lenient.items() if k in self.open_options})

    def check(self, reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
        """Check rules of the format that `read` does not: padding, properties, checksums.

        Parameters
        ----------
        reader : HeaderReader
            The file.
        container : Container
            The result of `read` with `validation_options`.
        limit : int
            Maximum number of findings of each kind: 1, unless the user asked for all of them.

        Yields
        ------
        Finding
        """
        return iter(())
