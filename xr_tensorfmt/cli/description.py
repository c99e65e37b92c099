"""What a header says, as an object that JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from math import isfinite, prod
from typing import Any

import numpy as np

from xr_tensorfmt import formats
from xr_tensorfmt.cli.kinds import foreign_kind
from xr_tensorfmt.core.chunk_grid import PAGE, TARGET
from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.elements import StoredDtype
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import InMemory
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.pycauset.matrices import BlockMatrix, Ones, UnitVector
from xr_tensorfmt.sources import find_source

_WITHOUT_BYTES = (InMemory, BlockMatrix, Ones, UnitVector)


def describe(
    file: str, format: str | None, storage_options: Mapping[str, Any] | None, *, verify: bool
) -> dict[str, Any]:
    """Read a header."""
    if foreign_kind(file):
        raise ValueError(f"{file}: only convert takes zarr and netCDF; use ncdump -h, or xarray")
    source, head = find_source(file, storage_options=storage_options)
    container = _parsed(source, head, format, verify=verify)
    tensors = (*container.tensors, *container.coordinates)
    facts = _facts(container)
    return {
        "path": source.name,
        "size": source.size,
        "format": facts["format"],
        "version": plain(facts.get("version")),
        "container": facts.get("container"),
        "dims": dict(
            chain.from_iterable(zip(t.dims, t.layout.shape, strict=True) for t in tensors)
        ),
        "variables": {each.name: _described(each) for each in container.tensors},
        "coordinates": {each.name: _described(each) for each in container.coordinates},
        "attrs": plain(dict(container.attrs)),
        "facts": plain(dict(container.encoding.get("tensorfmt", {}))),
        "note": container.embedded is not None,
        "files": [each.name for each in container.siblings],
        "warnings": [each.sentence for each in container.findings],
    }


def _parsed(source: Any, head: bytes, format: str | None, *, verify: bool) -> Container:
    try:
        return _read(source, OpenOptions(verify=verify), format, head)
    except TensorFormatError:
        raise
    except ValueError:
        # More elements than anybody wants to fill in; their number is no matter here.
        options = OpenOptions(verify=verify, sparse="dense")
        return _read(source, options, format, head)


def _facts(container: Container) -> Mapping[str, Any]:
    encodings = [container.encoding, *(each.encoding for each in container.tensors)]
    found: Mapping[str, Any] = next(each["tensorfmt"] for each in encodings if "tensorfmt" in each)
    return found


def _described(tensor: Tensor) -> dict[str, Any]:
    layout, facts = tensor.layout, tensor.encoding.get("tensorfmt", {})
    offset = facts.get("offset") if has_bytes(layout) else None
    chunk = layout.chunk_shape(TARGET)
    counts = (-(-n // max(1, k)) for n, k in zip(layout.shape, chunk, strict=True))
    return {
        "dims": list(tensor.dims),
        "shape": list(layout.shape),
        "dtype": _dtype(layout.dtype),
        "stored": stored_name(tensor.encoding.get("dtype", layout.dtype)),
        "size": prod(layout.shape) * layout.dtype.itemsize,
        "offset": offset,
        "on_page": None if offset is None else offset % PAGE == 0,
        "chunk": list(chunk),
        "chunks": prod(counts),
        "attrs": plain(dict(tensor.attrs)),
        "facts": plain(dict(facts)),
    }


def has_bytes(layout: Layout) -> bool:
    """Whether values are stored in this file, or follow from where they are."""
    inner = getattr(layout, "inner", None) or getattr(layout, "values", None)
    if isinstance(layout, _WITHOUT_BYTES):
        return False
    return has_bytes(inner) if isinstance(inner, Layout) else True


def _dtype(dtype: np.dtype[Any]) -> str:
    return "str" if dtype.kind in "OUT" else dtype.name


def stored_name(dtype: np.dtype[Any] | StoredDtype) -> str:
    """What a file holds, in words; the byte order where it is not the usual one."""
    if isinstance(dtype, StoredDtype):
        return dtype.name
    return f"{dtype.name}, big-endian" if dtype.str.startswith(">") else _dtype(dtype)


def plain(value: Any) -> Any:
    """A value as JSON can hold it; this is for reading, not for getting it back."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _read(source: Source, options: OpenOptions, format: str | None, head: bytes) -> Container:
    reader = HeaderReader(source, head)
    return formats.read(reader, formats.choose(reader, format), options)
