"""The contract for file formats, built-in or of other packages.

A package registers a format with an entry point in the group ``xr_tensorfmt.formats`` that names a
subclass of `Format`. The names in ``__all__`` are stable within a `CONTRACT_VERSION`. The names in
``PROVISIONAL`` can be imported, too, but a minor release may change them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from xr_tensorfmt.core.elements import Plain
from xr_tensorfmt.core.file_format import Container, End, Format, Option, Tensor
from xr_tensorfmt.core.header import Cursor, HeaderReader
from xr_tensorfmt.core.layout import Dense, Layout, column_major
from xr_tensorfmt.core.source import open_sibling
from xr_tensorfmt.errors import TensorFormatError

if TYPE_CHECKING:
    from xr_tensorfmt.writing.file_plan import FilePlan, Piece, PlannedVariable

__all__ = [
    "Container",
    "Cursor",
    "Dense",
    "End",
    "FilePlan",
    "Format",
    "HeaderReader",
    "Layout",
    "Option",
    "Piece",
    "Plain",
    "PlannedVariable",
    "Tensor",
    "TensorFormatError",
    "column_major",
    "open_sibling",
]

_MODULES = {
    "core.extents": "Extents contiguous_chunk",
    "core.elements": "Boolean Element build_elements",
    "core.embedded_metadata": "embed_tensor",
    "core.file_format": "CONTRACT_VERSION Match OpenOptions name_dims share_options",
    "core.header": "Fields check_size read_json",
    "core.gathered": "Gathered",
    "core.layout": "InMemory transpose_layout",
    "core.selection": "Selection",
    "core.source": "Source put_at",
    "errors": "Finding",
    "writing.checked_input": "CheckedInput",
    "writing.file_plan": "Conversion FilePlan Piece PlannedVariable",
}
# Modules of names that are imported at their first use. Writers need xarray and dask.
_LAZY = {name: module for module, names in _MODULES.items() for name in names.split()}
PROVISIONAL = tuple(sorted(_LAZY.keys() - {*__all__}))


def __getattr__(name: str) -> Any:
    """Import a name at its first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"xr_tensorfmt.{_LAZY[name]}"), name)
