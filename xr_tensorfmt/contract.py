"""The contract for file formats, built-in or of other packages.

A package registers a format with an entry point in the group ``xr_tensorfmt.formats`` that names a
subclass of `Format`. The names in ``__all__`` are stable within a `CONTRACT_VERSION`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from xr_tensorfmt.core.chunk_grid import contiguous_chunk
from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.elements import Boolean, Element, ElementError, Plain, build_elements
from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.core.file_format import CONTRACT_VERSION, Format, Match, Option
from xr_tensorfmt.core.findings import End, Finding
from xr_tensorfmt.core.header import Cursor, Fields, HeaderReader, check_size, read_json
from xr_tensorfmt.core.layout import (
    Dense,
    Gathered,
    InMemory,
    Layout,
    Part,
    UnrepresentableValueError,
    WritableLayout,
    column_major,
    put_at,
    transpose_layout,
)
from xr_tensorfmt.core.open_options import OpenOptions, name_dims
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source, open_sibling
from xr_tensorfmt.errors import TensorFormatError

if TYPE_CHECKING:
    from xr_tensorfmt.core.embedded_metadata import embed_tensor
    from xr_tensorfmt.writing.checked_input import CheckedInput
    from xr_tensorfmt.writing.encoding import Conversion
    from xr_tensorfmt.writing.file_plan import (
        FilePlan,
        Piece,
        PlannedVariable,
        SiblingFile,
    )

__all__ = [
    "CONTRACT_VERSION",
    "Boolean",
    "CheckedInput",
    "Container",
    "Conversion",
    "Cursor",
    "Dense",
    "Element",
    "ElementError",
    "End",
    "Extents",
    "Fields",
    "FilePlan",
    "Finding",
    "Format",
    "Gathered",
    "HeaderReader",
    "InMemory",
    "Layout",
    "Match",
    "OpenOptions",
    "Option",
    "Part",
    "Piece",
    "Plain",
    "PlannedVariable",
    "Selection",
    "SiblingFile",
    "Source",
    "Tensor",
    "TensorFormatError",
    "UnrepresentableValueError",
    "WritableLayout",
    "build_elements",
    "check_size",
    "column_major",
    "contiguous_chunk",
    "embed_tensor",
    "name_dims",
    "open_sibling",
    "put_at",
    "read_json",
    "transpose_layout",
]

# Names for writers, imported at first use because they need xarray and dask.
_LAZY = {
    **dict.fromkeys(("FilePlan", "Piece", "PlannedVariable", "SiblingFile"), "writing.file_plan"),
    "CheckedInput": "writing.checked_input",
    "Conversion": "writing.encoding",
    "embed_tensor": "core.embedded_metadata",
}


def __getattr__(name: str) -> Any:
    """Import a name at its first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"xr_tensorfmt.{_LAZY[name]}"), name)
