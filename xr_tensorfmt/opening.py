"""Open files as Datasets, trees and groups. Only the header is read."""

from __future__ import annotations

import warnings
from typing import Any, TypeVar

from xarray import Dataset, DataTree

from xr_tensorfmt import formats
from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets import groups
from xr_tensorfmt.datasets.building import build_dataset
from xr_tensorfmt.datasets.lazy_array import GroupVariable
from xr_tensorfmt.datasets.options import Request
from xr_tensorfmt.errors import TensorFormatWarning, find_stack_level
from xr_tensorfmt.sources import find_source, is_remote, is_url, open_source
from xr_tensorfmt.sources.store_errors import redacted

Opened = TypeVar("Opened", Dataset, DataTree)


def open_file(file: Any, request: Request) -> Dataset:
    """Open a file, or one branch of it, as a Dataset."""
    source, branch = _branch(file, request)
    return _with_source(build_dataset(branch, source, request), file)


def open_groups(file: Any, request: Request) -> dict[str, Dataset]:
    """Open a file as one Dataset for each group, by path."""
    source, branch = _branch(file, request)
    nodes = groups.split_groups(branch, request.separator, is_tree=False)
    return {
        path: build_dataset(node, source, request, GroupVariable) for path, node in nodes.items()
    }


def open_tree(file: Any, request: Request) -> DataTree:
    """Open a file as a tree of groups."""
    source, branch = _branch(file, request)
    nodes = groups.split_groups(branch, request.separator, is_tree=True)
    datasets = {path: build_dataset(node, source, request) for path, node in nodes.items()}
    return _with_source(DataTree.from_dict(datasets), file)


def _with_source(opened: Opened, file: Any) -> Opened:
    """Name the source where xarray would name it by a URL with secrets in it."""
    url = getattr(file, "full_name", getattr(file, "path", file))
    if isinstance(url, str) and is_url(url) and redacted(url) != url:
        opened.encoding["source"] = redacted(url)
    return opened


def recognised(file: Any) -> bool:
    """Whether a file can only be of one of the formats, by its content."""
    if is_remote(file):
        return False
    position = file.tell() if hasattr(file, "tell") else None
    try:
        return formats.recognised(open_source(file, "read"))
    finally:
        if position is not None:
            file.seek(position)


def _branch(file: Any, request: Request) -> tuple[Source, Container]:
    """The source of a file, and what it holds of the group that is asked for."""
    source, head = find_source(
        file, request.io, request.storage_options, request.fs, request.timeout
    )
    container = parsed(source, head, request)
    return source, groups.select_group(container, request.group, request.separator)


def parsed(source: Source, head: bytes, request: Request) -> Container:
    """Read the header of a file, and warn of what is wrong with it."""
    reader = HeaderReader(source, head)
    container = formats.read(reader, formats.choose(reader, request.format), request.options)
    for finding in container.findings:
        warnings.warn(finding.sentence, TensorFormatWarning, stacklevel=find_stack_level())
    return container
