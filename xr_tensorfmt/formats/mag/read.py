"""Reading of MAG files: which container a file is, and the variables that its tensors become."""

from __future__ import annotations

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.embedded_metadata import KEY as EMBEDDED_KEY
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.keyed import KeyedDims, check_keys
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.mag import MAGIC, STREAM_MAGIC, archive, document, snapshot
from xr_tensorfmt.formats.mag.spec import Contents, check_placement

VERSIONS = tuple(sorted({*archive.VERSIONS, *snapshot.INTERPRETATIONS, document.VERSION}))
"""Versions of the containers that begin with `MAGIC`."""


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a MAG file."""
    path = reader.source.name
    options.check_unnamed(path)
    options.check_all_stored(path)
    contents = read_contents(reader, options)
    check_keys(path, contents.tensors)
    check_placement(reader, contents)
    dims = KeyedDims(options.dims, (each.key for each in contents.tensors))
    common = {"format": "mag", "version": contents.version}
    tensors = tuple(
        each.tensor(dims.of(each.key, len(each.shape)), common) for each in contents.tensors
    )
    return Container(
        tensors,
        attrs={key: value for key, value in contents.metadata.items() if key != EMBEDDED_KEY},
        encoding={"tensorfmt": {**common, "container": contents.container, **contents.facts}},
        findings=contents.findings,
        embedded=contents.metadata.get(EMBEDDED_KEY),
    )


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
