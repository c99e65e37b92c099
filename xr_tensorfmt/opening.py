"""Open files as Datasets and groups, and validate them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from glob import escape, has_magic
from typing import TYPE_CHECKING, Any

from xarray import Dataset

from xr_tensorfmt.core.file_format import Container, OpenOptions
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets import groups
from xr_tensorfmt.datasets.building import Keywords, build_dataset, check_keywords, find_dropped
from xr_tensorfmt.datasets.lazy_array import prepare_to_chunk
from xr_tensorfmt.errors import Finding, TensorFormatError, build_keyword_error, redact, warn
from xr_tensorfmt.formats import recognition
from xr_tensorfmt.sources import get_path, is_url

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

MAX_FINDINGS_PER_CHECK = 20
"""Limit on the findings of each kind if all findings are requested."""


def open_file(file: Any, keywords: Keywords) -> Dataset:
    """Open a file, or a group of it, as a Dataset."""
    reader, group = open_group(file, keywords)
    return _build_datasets(file, keywords, reader.source, {"/": group})["/"]


def open_groups(file: Any, keywords: Keywords) -> dict[str, Dataset]:
    """Open a file as a dict of group paths and Datasets."""
    reader, group = open_group(file, keywords, is_tree=True)
    nodes = groups.split_groups(group, keywords["separator"])
    return _build_datasets(file, keywords, reader.source, nodes)


def _build_datasets(
    file: Any, keywords: Keywords, source: Source, nodes: Mapping[str, Container]
) -> dict[str, Dataset]:
    datasets = {path: build_dataset(node, source, keywords) for path, node in nodes.items()}
    for ds in datasets.values():
        prepare_to_chunk(ds)
    # xarray stores URLs with secrets, and of a file object only the attribute `path`. The `path` of
    # an OpenFile lacks the protocol, but `full_name` has it.
    url = get_path(getattr(file, "full_name", getattr(file, "path", file)))
    url = url if keywords["fs"] is None else source.name
    if is_url(url):
        datasets["/"].encoding["source"] = redact(url)
    return datasets


def open_group(
    file: Any, keywords: Keywords, *, is_tree: bool = False
) -> tuple[HeaderReader, Container]:
    """Return a reader of the header of a file, and the tensors of the requested group."""
    check_keywords(keywords)
    if options := keywords["format_options"]:
        known = dict.fromkeys([*recognition.find_open_options(), *keywords])
        del known["format_options"]
        for name in options.keys() - known.keys():
            hint = "; pass options of a file system in storage_options= or --storage-option"
            raise build_keyword_error(name, "of the engine 'tensorfmt'", known, hint)
    names = ("io", "storage_options", "fs", "timeout", "verify_unchanged")
    reader = recognition.open_header(file, **{name: keywords[name] for name in names})
    return reader, parse_group(reader, keywords, is_tree=is_tree)


def parse_group(reader: HeaderReader, keywords: Keywords, *, is_tree: bool = False) -> Container:
    """Parse the header of a file, and warn about findings. Return the requested group."""
    file_format = recognition.choose_format(reader, keywords["format"])
    name, dims, separator = keywords["name"], keywords["dims"], keywords["separator"]
    prefixes = groups.list_prefixes(keywords["group"], separator)
    if isinstance(dims, Mapping) and prefixes:
        prefix, pattern = prefixes[0], escape(prefixes[0])
        dims = {f"{pattern if has_magic(x) else prefix}{x}": names for x, names in dims.items()}
    select = partial(groups.find_requested, prefixes, separator) if prefixes else None
    options = OpenOptions(name, dims, keywords["format_options"], select=select)
    container = recognition.read_container(reader, file_format, options)
    group = groups.select_group(container, keywords["group"], separator)
    dropped = find_dropped(keywords)
    omitted = {
        name: error
        for name, error in group.omitted.items()
        if (name.rpartition(separator)[2] if is_tree else name) not in dropped
    }
    if omitted and not group.tensors:
        raise next(iter(omitted.values()))
    for finding in (*container.findings, *recognition.describe_omitted(omitted)):
        warn(finding.sentence)
    return group


def validate(
    file: Any,
    *,
    all: bool = False,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> list[Finding]:
    """Check a whole file and return its faults.

    The file is read in pieces of a few MiB, or all pairs of an index and a value. Most formats have
    no checksum of values, so a value changed to another valid value is not found.

    Parameters
    ----------
    file : str, PathLike, file object, bytes, bytearray or memoryview
        The file: a path, a URL, or its content. For a directory, the model that it
        opens as is checked, otherwise all tensor files.
    all : bool
        Return up to 20 findings per check instead of the first.
    format, storage_options, fs
        As in `TensorFormatBackend.open_dataset`.

    Returns
    -------
    list of Finding
        Faults, or an empty list if the file is valid.

    Raises
    ------
    SourceChangedError
        The file changes during the check.
    OSError, ValueError, TypeError
        The file cannot be read, or an argument does not apply to it.

    Examples
    --------
    >>> from xr_tensorfmt import tutorial, validate
    >>> validate(tutorial.get_path("snapshot"))
    []
    """
    try:
        reader = recognition.open_header(file, "read", storage_options, fs)
    except IsADirectoryError:
        options: dict[str, Any] = {"storage_options": storage_options, "fs": fs}
        paths = recognition.list_files(get_path(file), **options)
        options |= {"all": all, "format": format}
        return [finding for path in paths for finding in validate(path, **options)]
    try:
        file_format = recognition.choose_format(reader, format)
        container = recognition.read_container(reader, file_format, file_format.validation_options)
    except TensorFormatError as error:
        name = reader.source.file_name
        is_part = format is None and recognition.find_parts([name], lambda _: reader).get(name)
        return [] if is_part else [error.to_finding()]
    limit = MAX_FINDINGS_PER_CHECK if all else 1
    checked: list[Finding] = []
    try:
        checked.extend(file_format.check(reader, container, limit))
    except TensorFormatError as error:
        checked.append(error.to_finding())
    # If the reader and the check report the same field, keep the finding of the check.
    fields = {(finding.path, finding.field, finding.offset) for finding in checked}
    described = *container.findings, *recognition.describe_omitted(container.omitted)
    findings = [x for x in described if (x.path, x.field, x.offset) not in fields]
    tensors = (*container.tensors, *container.coordinates)
    values = (finding for x in tensors for finding in x.validate(reader.source, limit))
    return [*findings, *checked, *values]
