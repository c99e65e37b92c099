"""Reading of MAG files: which container a file is, and the variables that its tensors become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xr_tensorfmt.core.container import Container, Names, Tensor, named_dims
from xr_tensorfmt.core.embedded_metadata import KEY as EMBEDDED_KEY
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.mag import MAGIC, STREAM_MAGIC, archive, document, snapshot
from xr_tensorfmt.formats.mag.spec import (
    DAMAGED,
    Contents,
    StoredTensor,
    check_placement,
    default_dims,
)

VERSIONS = tuple(sorted({*archive.VERSIONS, *snapshot.INTERPRETATIONS, document.VERSION}))
"""Versions of the containers that begin with `MAGIC`."""


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a MAG file."""
    path = reader.source.name
    options.check_unnamed(path)
    options.check_all_stored(path)
    contents = read_contents(reader, options)
    keys = _checked_keys(path, contents.tensors)
    check_placement(reader, contents)
    if isinstance(options.dims, Sequence) and len(keys) != 1:
        raise ValueError(
            f"dims={options.dims!r} names the dimensions of one variable, but the file holds "
            f"{len(keys)}; give a mapping of keys to such names"
        )
    tensors = tuple(
        _tensor(contents, each, _dims(each, options.dims, keys)) for each in contents.tensors
    )
    facts = {
        "format": "mag",
        "container": contents.container,
        "version": contents.version,
        **contents.facts,
    }
    return Container(
        tensors,
        attrs={key: value for key, value in contents.metadata.items() if key != EMBEDDED_KEY},
        encoding={"tensorfmt": facts},
        findings=contents.findings,
        embedded=contents.metadata.get(EMBEDDED_KEY),
    )


def _tensor(contents: Contents, stored: StoredTensor, dims: tuple[str, ...]) -> Tensor:
    facts = {
        "format": "mag",
        "version": contents.version,
        "key": stored.key,
        "offset": stored.offset,
        "order": "C",
        "dtype": stored.element.name,
    }
    encoding = {"tensorfmt": facts, "dtype": stored.element.encoding}
    return Tensor(stored.key, dims, stored.layout, encoding=encoding)


def _dims(tensor: StoredTensor, requested: Names, keys: set[str]) -> tuple[str, ...]:
    """Names for the dimensions of a tensor, none of which is a key."""
    key = tensor.key
    default = default_dims(key, len(tensor.shape), keys)
    if requested is None or (isinstance(requested, Mapping) and key not in requested):
        return default
    names = named_dims(requested, key, default)
    for name in names:
        if name in keys:
            raise ValueError(
                f"dims={requested!r} gives a dimension of {key!r} the name of the variable "
                f"{name!r}; choose another"
            )
    return names


def _checked_keys(path: str, tensors: Sequence[StoredTensor]) -> set[str]:
    """Refuse keys that occur twice, and those that UTF-8 cannot encode."""
    keys: set[str] = set()
    for tensor in tensors:
        key = tensor.key
        if key in keys:
            expected = "a different key for each tensor"
            raise TensorFormatError(path, "the key", f"{key!r} twice", expected, DAMAGED)
        if not key.isascii() and key.encode(errors="replace").decode() != key:
            expected = "a string that UTF-8 can encode"
            raise TensorFormatError(path, "the key", ascii(key), expected, DAMAGED)
        keys.add(key)
    return keys


def read_contents(reader: HeaderReader, options: OpenOptions) -> Contents:
    """Read the header of any container."""
    magic = reader.first_bytes(len(MAGIC))
    if magic == STREAM_MAGIC:
        return archive.read_stream(reader)
    version = reader.unsigned(len(MAGIC), 4, "the version")
    if magic != MAGIC or version not in VERSIONS:
        raise TensorFormatError(
            reader.source.name,
            "magic and version",
            f"{magic!r} and {version}",
            f"{MAGIC!r} and one of {', '.join(map(str, VERSIONS))}",
            "the file is of another format, or newer than this version of xr_tensorfmt",
            offset=0,
        )
    if version == document.VERSION:
        return document.read_document_snapshot(reader)
    # Archives have had the version of a snapshot as well.
    has_pool = reader.head.startswith(snapshot.POOL, snapshot.HEADER.size)
    if version not in archive.VERSIONS or (version in snapshot.INTERPRETATIONS and has_pool):
        return snapshot.read_snapshot(reader, options)
    return archive.read_archive(reader, options)
