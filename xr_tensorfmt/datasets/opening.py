"""The garbage collector, paused while many small objects are made that all stay."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import dask.config
from dask.utils import parse_bytes
from xarray import Coordinates, Dataset, DataTree, Variable, conventions

from xr_tensorfmt import formats
from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets import groups
from xr_tensorfmt.datasets.lazy_array import DistinctVariable, lazy_array, wrapped_data
from xr_tensorfmt.datasets.options import Request
from xr_tensorfmt.errors import SourceChangedError, TensorFormatWarning, frames_to_the_user
from xr_tensorfmt.sources import find_source, is_remote, open_source


@contextmanager
def paused_collector() -> Iterator[None]:
    """Let no collection begin."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    _paused.append(True)
    try:
        yield
    finally:
        _paused.pop()
        gc.enable()


_paused: list[bool] = []


def _resume_in_child() -> None:
    """A process that is forked in the meantime has no thread that would come back to this."""
    if _paused:
        _paused.clear()
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_resume_in_child)


def open_file(file: Any, request: Request) -> Dataset:
    """Open a file, or one branch of it; nothing but its header is read."""
    with paused_collector():
        source, container = _parse(file, request)
        part = groups.branch(container, request.group, request.separator)
        return _dataset(part, source, request)


def open_groups(file: Any, request: Request) -> dict[str, Dataset]:
    """Open a file as one Dataset a group; nothing but its header is read."""
    return _datasets(file, request)


def open_tree(file: Any, request: Request) -> DataTree:
    """Open a file as a tree of groups; nothing but its header is read."""
    return DataTree.from_dict(_datasets(file, request))


def recognised(file: Any) -> bool:
    """Whether a file can only be of one of the formats, by its content."""
    if is_remote(file):
        return False
    if isinstance(file, str | os.PathLike):
        return _recognised_at(file)
    if isinstance(file, bytes | bytearray | memoryview):
        return formats.recognised(open_source(file))
    position = file.tell()
    try:
        return formats.recognised(open_source(file))
    finally:
        file.seek(position)


def _recognised_at(path: str | os.PathLike[str]) -> bool:
    """Look again where a writer has just put another file in its place."""
    with suppress(SourceChangedError):
        return formats.recognised(open_source(path, "read"))
    return formats.recognised(open_source(path, "read"))


def _parse(file: Any, request: Request) -> tuple[Source, Container]:
    source, head = find_source(file, request.io, request.storage_options, request.fs)
    reader = HeaderReader(source, head)
    container = formats.read(reader, formats.choose(reader, request.format), request.options)
    for each in container.findings:
        warnings.warn(each.sentence, TensorFormatWarning, stacklevel=frames_to_the_user())
    return source, container


def _datasets(file: Any, request: Request) -> dict[str, Dataset]:
    with paused_collector():
        source, container = _parse(file, request)
        part = groups.branch(container, request.group, request.separator)
        nodes = groups.split(part, request.separator)
        return {path: _dataset(node, source, request) for path, node in nodes.items()}


def _dataset(container: Container, source: Source, request: Request) -> Dataset:
    variables = _variables(container, source, request)
    names: set[Hashable] = {each.name for each in container.coordinates}
    # Decoding acts by attributes alone, takes its time to find none, and looks at texts for dates.
    described = {name: each for name, each in variables.items() if each.attrs}
    if described and not container.decoded:
        decoded, _, more = conventions.decode_cf_variables(described, {}, **request.decoders)
        names |= more
        for name, each in decoded.items():
            variables[name] = DistinctVariable(
                each.dims, wrapped_data(each), each.attrs, each.encoding, fastpath=True
            )
    coords = {name: variable for name, variable in variables.items() if name in names}
    data = {name: variable for name, variable in variables.items() if name not in names}
    # Without indexes: what labels the pairs of a sparse tensor must stay lazy.
    dataset = Dataset(data, Coordinates(coords, indexes={}), dict(container.attrs))
    dataset.encoding = dict(container.encoding)
    dataset.set_close(_nothing_to_close)
    return dataset


def _nothing_to_close() -> None:
    """Reads leave nothing open; `xarray.open_mfdataset` wants something to call all the same."""


def _variables(container: Container, source: Source, request: Request) -> dict[Any, Variable]:
    target, dropped = _chunk_target(request.chunk_bytes), request.dropped
    return {
        each.name: _variable(each, source, target)
        for each in (*container.tensors, *container.coordinates)
        if each.name not in dropped
    }


def _variable(tensor: Tensor, source: Source, target: int) -> Variable:
    layout = tensor.layout
    chunk = dict(zip(tensor.dims, layout.chunk_shape(target), strict=True))
    encoding = {"dtype": layout.dtype, **tensor.encoding, "preferred_chunks": chunk}
    data = lazy_array(source, layout)
    return DistinctVariable(tensor.dims, data, tensor.attrs or None, encoding, fastpath=True)


def _chunk_target(chunk_bytes: int | str) -> int:
    """Bytes of a chunk: what the user wants, but no more than dask would leave uncut."""
    if isinstance(chunk_bytes, bool) or not isinstance(chunk_bytes, int | str):
        raise TypeError(f"chunk_bytes={chunk_bytes!r} is neither an int nor a text such as '32MiB'")
    try:
        wanted = parse_bytes(chunk_bytes)
    except (ValueError, OverflowError):
        wanted = 0
    if wanted < 1:
        raise ValueError(
            f"chunk_bytes={chunk_bytes!r} is not a positive number of bytes such as '32MiB'"
        )
    return min(wanted, int(parse_bytes(dask.config.get("array.chunk-size", "128MiB"))))
