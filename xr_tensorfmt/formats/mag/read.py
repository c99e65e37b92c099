"""Read and check a MAG file."""

from __future__ import annotations

from dataclasses import replace

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.findings import End
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.formats._shared.keyed import build_container
from xr_tensorfmt.formats.mag import document


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a MAG file."""
    if reader.read_head(8) == document.MAGIC_AND_VERSION:
        file = document.read_document_snapshot(reader)
    else:
        from xr_tensorfmt.formats.mag import earlier  # noqa: PLC0415  # rare, and slow to import

        file = earlier.read_file(reader, options)
    tensor_info = {"format": "mag", "version": file.version}
    metadata, findings = file.metadata, file.findings
    container = build_container(options, file.tensors, tensor_info, metadata, findings)
    file_info = {**tensor_info, "container": file.container, **file.file_info}
    end = End(reader.source, file.end or file.data_stop, "the data")
    return replace(container, encoding={"tensorfmt": file_info}, ends=(end,), parsed=file)
