"""Reading of MAG files: which container a file is, and the variables that its tensors become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from xr_tensorfmt.core.container import Container, Names, Tensor, named_dims
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.embedded_metadata import KEY as EMBEDDED_KEY
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.mag import MAGIC, STREAM_MAGIC, archive, document, snapshot, stream
from xr_tensorfmt.formats.mag.placement import check_keys, check_placement
from xr_tensorfmt.formats.mag.spec import Contents, StoredTensor, default_dims

VERSIONS = tuple(sorted({*archive.VERSIONS, *snapshot.INTERPRETATIONS, document.VERSION}))
"""Versions of the containers that begin with `MAGIC`."""


@dataclass(frozen=True)
class MagContainer(Container):
    """A container, and what its header says."""

    contents: Contents = field(kw_only=True)


def recognises(head: bytes, size: int) -> bool:
    """Whether a file can only be MAG."""
    if head.startswith(STREAM_MAGIC):
        markers = stream.SECTION + stream.RECORDS
        return head[archive.Header.struct.size :].startswith(markers)
    version = int.from_bytes(head[4:8], "little")
    return head.startswith(MAGIC) and version in VERSIONS and size >= archive.Header.struct.size


def read(reader: HeaderReader, options: OpenOptions) -> MagContainer:
    """Read the header of a MAG file."""
    path = reader.source.name
    options.check_unnamed(path)
    options.check_all_stored(path)
    contents = read_contents(reader, options)
    check_keys(path, contents.tensors)
    check_placement(path, contents, reader.source.size)
    keys = {each.key for each in contents.tensors}
    requested = _requested_names(options.dims, contents.tensors)
    tensors = tuple(
        _tensor(contents, each, _dims(each, requested, keys)) for each in contents.tensors
    )
    facts = {
        "format": "mag",
        "container": contents.container,
        "version": contents.version,
        **contents.facts,
    }
    return MagContainer(
        tensors,
        attrs={key: value for key, value in contents.metadata.items() if key != EMBEDDED_KEY},
        encoding={"tensorfmt": facts},
        findings=contents.findings,
        embedded=contents.metadata.get(EMBEDDED_KEY),
        contents=contents,
    )


def _tensor(contents: Contents, stored: StoredTensor, dims: tuple[str, ...]) -> Tensor:
    layout = Dense(stored.shape, stored.element, stored.offset)
    facts = {
        "format": "mag",
        "version": contents.version,
        "key": stored.key,
        "offset": stored.offset,
        "order": "C",
        "dtype": stored.element.name,
    }
    return Tensor(
        stored.key, dims, layout, encoding={"tensorfmt": facts, "dtype": stored.element.encoding}
    )


def _requested_names(
    requested: Names, tensors: Sequence[StoredTensor]
) -> Mapping[str, Sequence[str]]:
    """Names for dimensions by key."""
    if requested is None or isinstance(requested, Mapping):
        return requested or {}
    if len(tensors) != 1:
        raise ValueError(
            f"dims={requested!r} names the dimensions of one variable, but the file holds "
            f"{len(tensors)}; give a mapping of keys to such names"
        )
    return {tensors[0].key: requested}


def _dims(
    tensor: StoredTensor, requested: Mapping[str, Sequence[str]], keys: set[str]
) -> tuple[str, ...]:
    """Names for the dimensions of a tensor, none of which is a key."""
    key = tensor.key
    default = default_dims(key, len(tensor.shape), keys)
    if key not in requested:
        return default
    names = named_dims(requested, key, default)
    for name in names:
        if name in keys:
            raise ValueError(
                f"dims={requested!r} gives a dimension of {key!r} the name of the variable "
                f"{name!r}; choose another"
            )
    return names


def read_contents(reader: HeaderReader, options: OpenOptions) -> Contents:
    """Read the header of any container."""
    magic = reader.first_bytes(len(MAGIC))
    if magic == STREAM_MAGIC:
        return stream.read_stream(reader)
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
    if version not in archive.VERSIONS:
        return snapshot.read_snapshot(reader, options)
    if version in snapshot.INTERPRETATIONS and _has_pool(reader):
        return _snapshot_else_archive(reader, options)
    return archive.read_archive(reader, options)


def _has_pool(reader: HeaderReader) -> bool:
    """Whether a file looks like a snapshot, whose version archives had too."""
    start = snapshot.HEADER.size
    return reader.first_bytes(start + len(snapshot.POOL)).startswith(snapshot.POOL, start)


def _snapshot_else_archive(reader: HeaderReader, options: OpenOptions) -> Contents:
    """An archive with a certain number at a certain place looks like a snapshot at first."""
    try:
        return snapshot.read_snapshot(reader, options)
    except TensorFormatError as error:
        try:
            # Only a right checksum proves that it is an archive.
            return archive.read_archive(reader, replace(options, verify=True))
        except TensorFormatError:
            raise error from None
