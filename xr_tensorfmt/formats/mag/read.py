"""Read and check a MAG file."""

from __future__ import annotations

from dataclasses import replace

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.findings import End
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats._shared.keyed import build_container
from xr_tensorfmt.formats.mag import document, earlier
from xr_tensorfmt.formats.mag.spec import MAGIC, STREAM_MAGIC, MagFile

# Versions of containers with the magic number `MAGIC`.
VERSIONS = tuple(sorted({*earlier.ARCHIVE_VERSIONS, *earlier.SNAPSHOTS, document.VERSION}))


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a MAG file."""
    path = reader.source.name
    file = read_file(reader, options)
    tensor_info = {"format": "mag", "version": file.version}
    metadata, findings = file.metadata, file.findings
    container = build_container(path, options, file.tensors, tensor_info, metadata, findings)
    file_info = {**tensor_info, "container": file.container, **file.file_info}
    end = End(reader.source, file.end or file.data_stop, "the data")
    return replace(container, encoding={"tensorfmt": file_info}, ends=(end,), parsed=file)


def read_file(reader: HeaderReader, options: OpenOptions) -> MagFile:
    """Read the header of any container."""
    magic = reader.read_head(len(MAGIC))
    if magic == STREAM_MAGIC:
        return earlier.read_stream(reader)
    version = reader.read_unsigned(len(MAGIC), 4, "the version")
    if magic != MAGIC or version not in VERSIONS:
        raise TensorFormatError(
            reader.source.name,
            field="magic and version",
            actual=f"{magic!r} and {version}",
            expected=f"{MAGIC!r} and one of {', '.join(map(str, VERSIONS))}",
            hint="the file has another format, or is newer than this version of xr_tensorfmt",
            offset=0,
        )
    if version == document.VERSION:
        return document.read_document_snapshot(reader)
    # Version 100 is an archive or a snapshot.
    has_pool = reader.head.startswith(earlier.POOL, earlier.SNAPSHOT_HEADER.size)
    if version not in earlier.ARCHIVE_VERSIONS or (version in earlier.SNAPSHOTS and has_pool):
        return earlier.read_snapshot(reader, options)
    return earlier.read_archive(reader, options)
