"""MAG, the files of magnetron: archives, snapshots and the older streams."""

from __future__ import annotations

from dataclasses import replace

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.embedded_metadata import KEY as EMBEDDED_KEY
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.mag import MAGIC, STREAM_MAGIC
from xr_tensorfmt.formats.mag.archive import read_archive
from xr_tensorfmt.formats.mag.document import VERSION as DOCUMENT_VERSION
from xr_tensorfmt.formats.mag.document import read_document_snapshot
from xr_tensorfmt.formats.mag.snapshot import POOL, read_snapshot
from xr_tensorfmt.formats.mag.spec import (
    Contents,
    Stored,
    check_keys,
    check_placement,
    dims_of,
    requested_names,
)
from xr_tensorfmt.formats.mag.stream import read_stream

_VERSIONS = (1, 100, 200, DOCUMENT_VERSION)
_POOL_AT = 32


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a MAG file."""
    path = reader.source.name
    options.check_unnamed(path)
    options.check_all_stored(path)
    contents = read_contents(reader, options)
    check_keys(path, contents.tensors)
    check_placement(path, contents, reader.source.size)
    keys = {each.key for each in contents.tensors}
    requested = requested_names(options.dims, contents.tensors)
    tensors = tuple(
        _tensor(contents, each, dims_of(each, requested, keys)) for each in contents.tensors
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


def recognises(head: bytes, size: int) -> bool:
    """Whether a file can only be MAG."""
    version = int.from_bytes(head[4:8], "little")
    if head.startswith(STREAM_MAGIC):
        return head[24:32] == b"KVDTTHDR"
    return head.startswith(MAGIC) and version in _VERSIONS and size >= 24


def _tensor(contents: Contents, stored: Stored, dims: tuple[str, ...]) -> Tensor:
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


def read_contents(reader: HeaderReader, options: OpenOptions) -> Contents:
    """Read the header of any container; the version alone does not tell them apart."""
    magic = reader.first_bytes(4)
    if magic == STREAM_MAGIC:
        return read_stream(reader)
    version = reader.unsigned(4, 4, "the version")
    if magic != MAGIC or version not in _VERSIONS:
        raise TensorFormatError(
            reader.source.name,
            "magic and version",
            f"{magic!r} and {version}",
            f"{MAGIC!r} and one of {', '.join(map(str, _VERSIONS))}",
            "the file is of another format, or newer than this version of xr_tensorfmt",
            offset=0,
        )
    if version == DOCUMENT_VERSION:
        return read_document_snapshot(reader)
    if version == 200:
        return read_snapshot(reader, options)
    if version == 100 and reader.first_bytes(_POOL_AT + 4)[_POOL_AT:] == POOL:
        return _snapshot_else_archive(reader, options)
    return read_archive(reader, options)


def _snapshot_else_archive(reader: HeaderReader, options: OpenOptions) -> Contents:
    """An archive with a certain number at a certain place looks like a snapshot at first."""
    try:
        return read_snapshot(reader, options)
    except TensorFormatError as error:
        try:
            # Only a right checksum says that it is none.
            return read_archive(reader, replace(options, verify=True))
        except TensorFormatError:
            raise error from None
