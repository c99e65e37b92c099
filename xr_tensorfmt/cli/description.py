"""What a header says, as an object that JSON can represent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from math import isfinite, prod
from typing import Any

import numpy as np

from xr_tensorfmt import formats
from xr_tensorfmt.cli.stores import store_format
from xr_tensorfmt.core.chunk_grid import PAGE, TARGET
from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.elements import StoredDtype
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.views import InMemory
from xr_tensorfmt.sources import find_source


def describe(
    file: str, format: str | None, storage_options: Mapping[str, Any] | None, *, verify: bool
) -> dict[str, Any]:
    """Read a header."""
    if format is None and store_format(file):
        raise ValueError(f"{file}: only convert takes zarr and netCDF; use ncdump -h, or xarray")
    source, head = find_source(file, storage_options=storage_options)
    reader = HeaderReader(source, head)
    chosen = formats.choose(reader, format)
    # The options of the check also open tensors that nobody could load as a whole.
    options = replace(chosen.check_options, verify=verify, errors="strict")
    container = formats.read(reader, chosen, options)
    tensors = (*container.tensors, *container.coordinates)
    facts = _first_facts(container)
    return {
        "path": source.name,
        "size": source.size,
        "format": container.format,
        "version": _plain(facts.get("version")),
        "container": facts.get("container"),
        "dims": dict(
            chain.from_iterable(zip(t.dims, t.layout.shape, strict=True) for t in tensors)
        ),
        "variables": {each.name: _described(each, container) for each in container.tensors},
        "coordinates": {each.name: _described(each, container) for each in container.coordinates},
        "attrs": _plain(container.attrs),
        "facts": _plain(container.encoding.get("tensorfmt", {})),
        "embedded_metadata": container.embedded is not None,
        "files": [sibling.name for sibling in container.siblings],
        "warnings": [finding.sentence for finding in container.findings],
    }


def _first_facts(container: Container) -> Mapping[str, Any]:
    """Facts about the file, which stand at its only variable where there is one."""
    encodings = (container.encoding, *(tensor.encoding for tensor in container.tensors))
    return next((each["tensorfmt"] for each in encodings if "tensorfmt" in each), {})


def _described(tensor: Tensor, container: Container) -> dict[str, Any]:
    layout, facts = tensor.layout, tensor.encoding.get("tensorfmt", {})
    in_this_file = _is_stored(layout) and not container.siblings
    offset = facts.get("offset") if in_this_file else None
    chunk = layout.chunk_shape(TARGET)
    counts = (-(-n // max(1, step)) for n, step in zip(layout.shape, chunk, strict=True))
    return {
        "dims": list(tensor.dims),
        "shape": list(layout.shape),
        "dtype": _dtype_name(layout.dtype),
        "stored": _stored_name(tensor.encoding.get("dtype", layout.dtype)),
        "size": prod(layout.shape) * layout.dtype.itemsize,
        "offset": offset,
        "on_page": None if offset is None else offset % PAGE == 0,
        "chunk": list(chunk),
        "chunks": prod(counts),
        "attrs": _plain(tensor.attrs),
        "facts": _plain(facts),
    }


def _is_stored(layout: Layout) -> bool:
    return not (layout.stored is None or isinstance(layout.stored, InMemory))


def _dtype_name(dtype: np.dtype[Any]) -> str:
    return "str" if dtype.kind in "OUT" else dtype.name


def _stored_name(dtype: np.dtype[Any] | StoredDtype) -> str:
    """The dtype in the file, with the byte order where it is not little-endian."""
    if isinstance(dtype, StoredDtype):
        return dtype.name
    return f"{dtype.name}, big-endian" if dtype.str.startswith(">") else _dtype_name(dtype)


def _plain(value: Any) -> Any:
    """A value as JSON can represent it, for reading and not for getting it back."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)
