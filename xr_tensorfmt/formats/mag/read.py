"""Reading of MAG files: which container a file is, and the variables that its tensors become."""

from __future__ import annotations

from dataclasses import replace

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.keyed import keyed_container
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.mag import MAGIC, STREAM_MAGIC, archive, document, snapshot
from xr_tensorfmt.formats.mag.spec import Contents, check_placement

VERSIONS = tuple(sorted({*archive.VERSIONS, *snapshot.VERSIONS, document.VERSION}))
"""Versions of the containers that begin with `MAGIC`."""


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a MAG file."""
    path = reader.source.name
    contents = read_contents(reader, options)
    check_placement(reader, contents)
    facts = {"format": "mag", "version": contents.version}
    metadata, findings = contents.metadata, contents.findings
    container = keyed_container(path, options, contents.tensors, facts, metadata, findings)
    facts_of_file = {**facts, "container": contents.container, **contents.facts}
    return replace(container, encoding={"tensorfmt": facts_of_file})


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
    if version not in archive.VERSIONS or (version in snapshot.VERSIONS and has_pool):
        return snapshot.read_snapshot(reader, options)
    return archive.read_archive(reader, options)
